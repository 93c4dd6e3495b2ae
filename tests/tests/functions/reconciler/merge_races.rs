//! Merges and looks beside callers, splits and faults: made whole or not at all, and what is not
//! made is still due.

use crate::fixtures::sharded::with_shards;
use std::time::Duration;
use weirgate_tests::assert_has;

use crate::fixtures::sharded::{
    DUE, both, by_another, change, counts, later, lease, run, shards, take_one, total,
};
use serde_json::Value;
use weirgate_reconciler::Summary;
use weirgate_shared::BucketKey;
use weirgate_shared::attr::counts_usage;
use weirgate_shared::write::REVIEW_INTERVAL;
use weirgate_testkit::leased::{load, tokens};
use weirgate_testkit::{Dynamo, Fault};

const STEP: Duration = Duration::from_millis(10);

/// The run queries, reads what is due, reads the whole bucket and writes, one [`STEP`] each;
/// `meanwhile` happens between its last read and its first write.
async fn run_with(dynamo: &Dynamo, meanwhile: impl Future<Output = ()>) -> Summary {
    let slow = dynamo.clone().with_latency(STEP).table().await;
    let others = async {
        tokio::time::sleep(STEP * 7 / 2).await;
        meanwhile.await;
    };
    let (summary, ()) = tokio::join!(run(&slow, DUE), others);
    summary
}

#[tokio::test(start_paused = true)]
async fn i6_a_merge_that_meets_a_take_is_planned_again_in_pairs() {
    let (dynamo, table, key) = with_shards(4).await;
    let soon = later(DUE, 9_000);
    let summary = run_with(&dynamo, lease(&table, &key, 0, "new", soon, DUE)).await;
    assert_has!(
        summary, shards_merged: 2, lost_races: 0;
        "in pairs, as they are less often disturbed"
    );
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 2)]);
    assert_eq!(both(&table, &key, DUE).await, (1_600, 64), "5 of them held");
    assert_eq!(load(&table, &key).await.unwrap().due_at, Some(soon));
}

#[tokio::test(start_paused = true)]
async fn a_merge_that_loses_each_time_is_left_due() {
    let (dynamo, table, key) = with_shards(2).await;
    let (other, busy) = (dynamo.clone(), key.with_shard(1));
    dynamo.fail_transactions(move |_| {
        by_another(&other, &busy, |_| ());
        None
    });
    let _ = dynamo.take_operations();
    let summary = run(&table, DUE).await;
    assert_has!(summary, shards_merged: 0, lost_races: 1, left_over: 0);
    assert_eq!(dynamo.take_operations()["TransactWriteItems"], 3);
    dynamo.fail_transactions(|_| None);
    assert_eq!(run(&table, DUE).await.shards_merged, 1, "still due");
}

#[tokio::test(start_paused = true)]
async fn i7_a_merge_whose_answer_is_lost_happens_once_and_a_refused_one_is_due() {
    for fault in [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::Repeat,
        Fault::LoseRequest,
        Fault::Conflict,
    ] {
        let (dynamo, table, key) = with_shards(16).await;
        let mut first = Some(fault);
        dynamo.fail_transactions(move |_| first.take());
        let summary = run(&table, DUE).await;
        assert_has!(summary, shards_merged: 15, lost_races: 0, left_over: 0; "{fault:?}");
        assert_eq!(both(&table, &key, DUE).await, (1_600, 64), "{fault:?}");
    }
    for fault in [Fault::Conflict, Fault::Throttle { key_range: false }, Fault::LoseRequest] {
        let (dynamo, table, key) = with_shards(4).await;
        dynamo.fail_transactions(move |_| Some(fault));
        let summary = run(&table, DUE).await;
        assert_has!(summary, shards_merged: 0, lost_races: 0, left_over: 1; "{fault:?}");
        assert_eq!(summary.errors.len(), 1);
        dynamo.fail_transactions(|_| None);
        assert_eq!(run(&table, DUE).await.shards_merged, 3, "{fault:?}");
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(64), "{fault:?}");
    }
}

/// Every write of the shard is preceded by one of another process.
fn busy(dynamo: &Dynamo, key: &BucketKey, shard: u32) {
    let (other, busy) = (dynamo.clone(), key.with_shard(shard));
    dynamo.fail_when(move |request| {
        if request["Key"]["PK"]["S"] == busy.item_key().pk {
            by_another(&other, &busy, take_one);
        }
        None
    });
}

#[tokio::test]
async fn a_busy_shard_is_sampled() {
    let (dynamo, table, key) = with_shards(2).await;
    change(&table, &key, 1, |shard| shard.write_seq += 1_000_000).await;
    let before = load(&table, &key.with_shard(1)).await.unwrap();
    busy(&dynamo, &key, 1);
    let summary = run(&table, DUE).await;
    assert_has!(summary, lost_races: 0, left_over: 0);
    let after = load(&table, &key.with_shard(1)).await.unwrap();
    assert_has!(after, due_at: Some(DUE.plus(REVIEW_INTERVAL)); "out of the way");
    let look = after.scaling.sample.unwrap();
    assert_has!(look, at: DUE, write_seq: before.write_seq + 1);
    assert_eq!(after.write_seq, before.write_seq + 2);
    assert_eq!(
        after.limits["quota"].available,
        before.limits["quota"].available - tokens(1),
        "what was taken stays taken"
    );
    assert_eq!(after.limits["quota"].consumed, before.limits["quota"].consumed + tokens(1));
}

#[tokio::test]
async fn a_look_makes_no_shard_of_one_that_is_gone_or_merged() {
    for is_merged in [false, true] {
        let (dynamo, table, key) = with_shards(2).await;
        let keep = load(&table, &key).await.unwrap();
        change(&table, &key, 1, |shard| shard.write_seq += 1_000_000).await;
        let (other, gone) = (dynamo.clone(), key.with_shard(1).item_key());
        let mut left = dynamo.item(&gone.pk, &gone.sk);
        left.as_object_mut()
            .unwrap()
            .retain(|name, _| ["PK", "SK", "v"].contains(&&**name) || counts_usage(name));
        let expected = if is_merged { left.clone() } else { Value::Null };
        let at = gone.clone();
        dynamo.fail_when(move |_| {
            match is_merged {
                true => other.put(&left),
                false => other.delete(&gone.pk, &gone.sk),
            }
            None
        });
        run(&table, DUE).await;
        let shards = shards(&table, &key).await;
        assert_eq!((shards.len(), shards[0].limits.clone()), (1, keep.limits));
        assert_eq!(dynamo.item(&at.pk, &at.sk), expected);
    }
}
