//! Cold shards become one again: when, how far, and never at the cost of a token, a lease or an
//! operator's wish.

use crate::fixtures::sharded::{
    DUE, both, change, counts, is_complete, later, limits, run, shards, split_one, split_to, total,
    with_shards,
};
use weirgate_shared::write::{REST_INTERVAL, REVIEW_INTERVAL};
use weirgate_shared::{BucketKey, EpochMillis, Shard};
use weirgate_store::Table;
use weirgate_testkit::leased::{NOW, full, holding, key, load, store, tokens};
use weirgate_tests::{assert_has, fresh};

async fn only(table: &Table, key: &BucketKey) -> Shard {
    let mut shards = shards(table, key).await;
    assert_eq!(shards.len(), 1, "{shards:?}");
    shards.remove(0)
}

#[tokio::test]
async fn i6_a_cold_bucket_goes_to_one_shard_in_one_run_with_all_its_tokens() {
    for count in [2, 16, 64] {
        let (dynamo, table, key) = with_shards(count).await;
        let taken = tokens(7);
        change(&table, &key, count - 1, |shard| {
            let quota = shard.limits.get_mut("quota").unwrap();
            (quota.available, quota.consumed) = (quota.available - taken, taken.into());
        })
        .await;
        assert_eq!(run(&table, later(DUE, -1)).await.buckets_seen, 0, "not yet");
        let before = both(&table, &key, DUE).await;

        let _ = dynamo.take_operations();
        let summary = run(&table, DUE).await;
        assert_eq!(summary.shards_merged, u64::from(count - 1));
        assert_has!(summary, lost_races: 0, left_over: 0);
        let operations = dynamo.take_operations();
        assert_eq!(operations["TransactWriteItems"], 1, "all shards at once");
        assert!(!operations.contains_key("UpdateItem"), "{operations:?}");

        let whole = only(&table, &key).await;
        assert_has!(whole, shard_count: 1, due_at: None);
        assert_eq!(whole.scaling.sample.unwrap().at, DUE);
        assert_eq!(both(&table, &key, DUE).await, before);
        assert_eq!(whole.limits["quota"].available, limits()[0].rule().capacity - taken);
        let _ = dynamo.take_operations();
        let items = dynamo.items();
        let again = run(&table, later(DUE, 60_000)).await;
        assert_has!(again, buckets_seen: 0; "a whole bucket is due no more");
        assert_eq!(dynamo.items(), items);
    }
}

#[tokio::test]
async fn shards_are_merged_below_a_quarter_of_what_one_partition_takes() {
    // 250 units a second for 60 seconds are 15,000.
    for (lower, upper, kb, merged) in [
        (7_500, 7_499, 0, 1),
        (7_500, 7_500, 0, 0),
        (0, 15_000, 0, 0),
        (0, 14_999, 0, 1),
        (3_750, 3_750, 1, 0),
    ] {
        let (dynamo, table, key) = with_shards(2).await;
        for (shard, writes) in [(0, lower), (1, upper)] {
            change(&table, &key, shard, |shard| {
                shard.write_seq = shard.scaling.sample.unwrap().write_seq + writes
            })
            .await;
            let mut item = dynamo.item(&key.with_shard(shard).item_key().pk, "#STATE");
            item["note"] = serde_json::json!({"S": "x".repeat(kb * 1024)});
            dynamo.put(&item);
        }
        let summary = run(&table, DUE).await;
        assert_has!(summary, shards_merged: merged; "{lower} + {upper} writes of {kb} KB more");
        if merged == 0 {
            let looked = shards(&table, &key).await;
            for shard in &looked {
                let look = shard.scaling.sample.unwrap();
                // One that rests waits for the other.
                let rests = [lower, upper][usize::try_from(shard.key.shard).unwrap()] == 0;
                let wait = if rests { REST_INTERVAL } else { REVIEW_INTERVAL };
                assert_has!(look, at: DUE, write_seq: shard.write_seq);
                assert_eq!(shard.due_at, Some(DUE.plus(wait)));
            }
            let again = run(&table, DUE).await;
            assert_has!(again, buckets_seen: 0; "no merge is in the way of others");
            // Nothing was written since.
            let later = run(&table, DUE.plus(REVIEW_INTERVAL)).await;
            assert_has!(later, shards_merged: 1);
        }
    }
}

#[tokio::test]
async fn a_bucket_keeps_the_shards_that_an_operator_asked_for() {
    for (asked, left) in [(2, 2), (4, 4), (8, 8), (3, 4)] {
        let (_, table, key) = with_shards(8).await;
        change(&table, &key, 5, |shard| shard.scaling.min_shards = asked).await;
        run(&table, DUE).await;
        // Only the half that knows of it keeps it.
        let counts = counts(&table, &key).await;
        let of_five = counts.iter().find(|(index, count)| 5 % count == *index);
        let of_five = of_five.unwrap();
        assert_eq!(of_five.1, left, "{counts:?}");
        assert!(is_complete(&table, &key).await);
    }
}

const LIVE: EpochMillis = EpochMillis(DUE.0 + 1_000);

#[tokio::test]
async fn leases_keep_the_shard_that_would_go_and_not_the_one_that_stays() {
    for (shard, merged) in [(0, 1), (1, 0)] {
        let (_, table, key) = with_shards(2).await;
        let held = load(&table, &key.with_shard(shard)).await.unwrap();
        let held = holding(held, "a", LIVE, &[("slots", 3), ("quota", 5)]);
        store(&table, &held).await;
        let summary = run(&table, DUE).await;
        assert_has!(summary, shards_merged: merged, leases_restored: 0);
        assert_eq!(total(&table, &key, "slots", DUE).await, tokens(64));
        let keeper = load(&table, &key.with_shard(shard)).await.unwrap();
        assert_has!(keeper, leases: held.leases, due_at: Some(LIVE); "due for its lease");
        // When it has expired, by the next review at the latest.
        for at in [later(DUE, 60_000), later(DUE, 120_000)] {
            run(&table, at).await;
        }
        let whole = only(&table, &key).await;
        assert_eq!(whole.limits["slots"].available, tokens(64));
        assert_eq!(whole.limits["quota"].available, tokens(1_600));
    }
}

#[tokio::test]
async fn a_shard_marked_for_a_split_is_not_merged_until_the_mark_ends() {
    let (_, table, key) = with_shards(4).await;
    change(&table, &key, 3, |shard| shard.scaling.hot_at = Some(DUE)).await;
    assert_has!(run(&table, DUE).await, shards_merged: 1; "the other two");
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 4), (3, 4)]);
    let left = shards(&table, &key).await;
    assert!(left.iter().all(|shard| shard.scaling.hot_at.is_none()));
    assert_has!(run(&table, DUE.plus(REVIEW_INTERVAL)).await, shards_merged: 2);
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
    // One that nothing removed ends after a minute.
    for (ago, merged) in [(60_000, 1), (60_001, 3)] {
        let (_, table, key) = with_shards(4).await;
        let marked = Some(later(DUE, -ago));
        change(&table, &key, 3, |shard| shard.scaling.hot_at = marked).await;
        assert_has!(run(&table, DUE).await, shards_merged: merged; "{ago}");
    }
}

#[tokio::test]
async fn shards_that_were_looked_at_less_than_a_review_ago_stay() {
    let (_, table, key) = with_shards(2).await;
    // One half was split a second ago; the other one is due.
    let upper = load(&table, &key.with_shard(1)).await.unwrap();
    split_one(&table, &upper, later(DUE, -1_000)).await;
    assert_has!(run(&table, DUE).await, shards_merged: 0);
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 4), (3, 4)]);
    // The others come into step, so that they are cold together.
    assert_has!(run(&table, later(DUE, 59_000)).await, shards_merged: 1);
    assert_eq!(counts(&table, &key).await, [(0, 2), (1, 2)]);
    let before = counts(&table, &key).await;
    run(&table, later(DUE, 60_000)).await;
    assert_eq!(counts(&table, &key).await, before, "looked at a second ago");
    run(&table, later(DUE, 120_000)).await;
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
}

#[tokio::test]
async fn shards_that_would_be_too_large_together_are_not_merged() {
    let (_, table) = fresh().await;
    let mut bucket = full("e-1", &limits());
    for id in 0..25 {
        let (lease, end) = (format!("lease{id:08}"), later(DUE, 3_600_000));
        bucket = holding(bucket, &lease, end, &[("slots", 1)]);
    }
    store(&table, &bucket).await;
    let key = key("e-1");
    split_to(&table, &key, 2, NOW).await;
    assert_has!(run(&table, DUE).await, shards_merged: 0; "it would be split again at once");
    change(&table, &key, 0, |shard| shard.leases = Some(Default::default())).await;
    assert_has!(run(&table, DUE.plus(REVIEW_INTERVAL)).await, shards_merged: 1);
}

#[tokio::test]
async fn a_bucket_is_reviewed_once_however_many_of_its_shards_are_due() {
    let (dynamo, table, key) = with_shards(16).await;
    for shard in 0..16 {
        change(&table, &key, shard, |shard| shard.write_seq += 1_000_000).await;
    }
    let _ = dynamo.take_operations();
    let summary = run(&table, DUE).await;
    assert_has!(summary, lost_races: 0, left_over: 0);
    let operations = dynamo.take_operations();
    assert_eq!(operations["UpdateItem"], 16, "one look each");
    assert!(
        operations["BatchGetItem"] <= 1 + 16 && !operations.contains_key("TransactWriteItems"),
        "{operations:?}"
    );
}
