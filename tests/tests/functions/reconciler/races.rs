//! The reconciler beside callers of the same bucket, and answers that are lost: every lease ends
//! once (I4).

use std::time::Duration;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::sharded::{by_another, hold, run};
use serde_json::{Value, json};
use weirgate_reconciler::Summary;
use weirgate_shared::write::Update;
use weirgate_shared::{EpochMillis, MilliTotal};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::leased::{
    NOW, assert_sound, end, full, holding, id, key, limit, limits, load, store, tokens,
};
use weirgate_testkit::{Dynamo, Fault};

const PAST: EpochMillis = EpochMillis(NOW.0 - 1_000);
const LATER: EpochMillis = EpochMillis(NOW.0 + 60_000);
const STEP: Duration = Duration::from_millis(10);

/// Half an hour's tokens and two slots, expired; with a live slot beside it.
async fn expired(table: &Table) {
    let bucket = holding(full("e-1", &limits()), "a", PAST, &[("quota", 10), ("slots", 2)]);
    store(table, &holding(bucket, "b", LATER, &[("slots", 1)])).await;
}

/// The run queries, reads and writes, one [`STEP`] each; `meanwhile` arrives between its read and
/// its write.
async fn run_with(dynamo: &Dynamo, meanwhile: Vec<Update>) -> Summary {
    let table = dynamo.clone().with_latency(STEP).table().await;
    let others = async {
        tokio::time::sleep(STEP * 3 / 2).await;
        for update in meanwhile {
            let done = table.update(&update, ReturnValues::None).await.unwrap();
            assert_eq!(done, WriteOutcome::Applied(None));
        }
    };
    let (summary, ()) = tokio::join!(run(&table, NOW), others);
    summary
}

#[tokio::test(start_paused = true)]
async fn i4_a_release_that_comes_first_is_the_only_one() {
    let (dynamo, table) = fresh().await;
    expired(&table).await;
    let release = end(&full("e-1", &limits()), &id("a"), None, 2);
    let summary = run_with(&dynamo, vec![release.clone()]).await;
    assert_has!(summary, leases_restored: 0, lost_races: 0; "the release gave it back");
    assert!(summary.tokens_restored.is_empty());
    let after = load(&table, &key("e-1")).await.unwrap();
    assert_sound(&after);
    assert_eq!(after.limits["slots"].available, tokens(5));
    assert_eq!(after.limits["quota"].consumed, MilliTotal::from(tokens(10)));
    assert_has!(after, due_at: Some(LATER); "planned again from the old image, in the same run");
    // And one that comes after the expiry can give nothing back.
    let again = table.update(&end(&after, &id("a"), None, 2), ReturnValues::None).await.unwrap();
    assert!(matches!(again, WriteOutcome::ConditionFailed(_)), "{again:?}");
    assert_eq!(load(&table, &key("e-1")).await.unwrap(), after);
}

#[tokio::test]
async fn a_bucket_that_is_written_all_the_time_is_tried_four_times_and_left_due() {
    let (dynamo, table) = fresh().await;
    expired(&table).await;
    hold(&table, "e-2", PAST).await;
    let (busy, db) = (key("e-1"), dynamo.clone());
    dynamo.fail_when(move |write| {
        if write["Key"]["PK"]["S"] == busy.item_key().pk {
            by_another(&db, &busy, |_| ());
        }
        None
    });
    let _ = dynamo.take_operations();
    let summary = run(&table, NOW).await;
    assert_eq!(dynamo.take_operations()["UpdateItem"], 4 + 1);
    assert_has!(summary, lost_races: 1, left_over: 0, leases_restored: 1);
    let left = load(&table, &key("e-1")).await.unwrap();
    assert_eq!((left.due_at, left.leases.unwrap().len()), (Some(PAST), 2));
}

/// The item says whether a write happened, also behind a later write of a caller: one that takes
/// another lease, or that found its tokens short and took the expired lease back itself.
#[tokio::test]
async fn a_lost_answer_is_counted_once_and_written_once() {
    let takes = |item: &mut Value| item["op"] = json!({"S": "caller"});
    let reclaims = |item: &mut Value| {
        item["h"]["M"].as_object_mut().unwrap().remove("a");
    };
    type Caller = fn(&mut Value);
    let callers: [Caller; 2] = [takes, reclaims];
    for (fault, caller, restored, writes) in [
        (Fault::LoseAnswer, None, 1, 1),
        (Fault::ServerErrorApplied, None, 1, 1),
        (Fault::LoseRequest, None, 1, 2),
        (Fault::ServerError, None, 1, 2),
        (Fault::LoseAnswer, Some(callers[0]), 1, 1),
        (Fault::LoseRequest, Some(callers[1]), 0, 2),
    ] {
        let (dynamo, table) = fresh().await;
        expired(&table).await;
        let (db, mut reads) = (dynamo.clone(), 0);
        dynamo.fail_next([Some(fault)]);
        dynamo.fail_reads(move |operation, _| {
            reads += u32::from(operation == "BatchGetItem");
            if let (Some(caller), "BatchGetItem", 2) = (caller, operation, reads) {
                by_another(&db, &key("e-1"), caller);
            }
            None
        });
        let _ = dynamo.take_operations();
        let summary = run(&table, NOW).await;
        assert_eq!(dynamo.take_operations()["UpdateItem"], writes, "{fault:?}");
        assert_has!(summary, leases_restored: restored, left_over: 0, lost_races: 0; "{fault:?}");
        let quota = summary.tokens_restored.get(&limit("quota"));
        assert_eq!(quota, (restored > 0).then_some(&tokens(10)), "{fault:?}");
        let after = load(&table, &key("e-1")).await.unwrap();
        assert_has!(after, due_at: Some(LATER); "{fault:?}");
        if caller.is_none() {
            assert_sound(&after);
        }
    }
}

#[tokio::test]
async fn a_write_that_no_try_got_an_answer_for_is_left_over_and_named() {
    let (dynamo, table) = fresh().await;
    expired(&table).await;
    dynamo.fail_when(|_| Some(Fault::LoseRequest));
    let summary = run(&table, NOW).await;
    assert_has!(summary, left_over: 1, leases_restored: 0);
    let [error] = &summary.errors[..] else { panic!("{:?}", summary.errors) };
    assert!(error.contains("e-1") && error.contains("no answer"), "{error}");
    // The last of them arrived after all: the item says so.
    dynamo.fail_when(|_| None);
    let faults = [Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseAnswer];
    dynamo.fail_next(faults.map(Some));
    let summary = run(&table, NOW).await;
    assert_has!(summary, left_over: 0, leases_restored: 1);
}
