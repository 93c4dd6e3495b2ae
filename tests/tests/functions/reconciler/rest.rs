//! A bucket that came to rest is merged, repaired and expires as any other, whatever happened to it
//! and in which order; and rest costs little.

use weirgate_tests::assert_has;

use crate::fixtures::sharded::{later, limits, new_id, run, shards, split_one};
use fastrand::Rng;
use weirgate_shared::write::{REST_INTERVAL, REVIEW_INTERVAL, Take, update_min_shards};
use weirgate_shared::{Asks, BucketKey, Effect, EpochMillis, Limit, LimitName, MilliTokens};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::Dynamo;
use weirgate_testkit::leased::{NOW, full, key, load, store};

/// The usual limits with a number of slots of their own.
fn with_slots(slots: i64) -> Vec<Limit> {
    let mut limits = limits();
    limits[0] = Limit::per_hour("quota", 1_600).unwrap();
    limits[1] = Limit::concurrent("slots", slots).unwrap();
    limits
}

/// An acquire that brings these limits, as a process without a view of other shards makes it.
async fn acquire(table: &Table, key: &BucketKey, limits: &[Limit], now: EpochMillis) {
    let take = Take {
        asks: Asks::of(Effect::Enforce, [(LimitName::new("quota").unwrap(), MilliTokens(1))]),
        acquires: 1,
        ..Take::nothing(key, limits, new_id(), now)
    };
    let update = match load(table, key).await {
        Some(view) => take.plan(&view, now),
        None if key.shard == 0 => take.create(now),
        None => return,
    };
    let done = table.update(&update, ReturnValues::None).await.unwrap();
    assert_eq!(done, WriteOutcome::Applied(None));
}

/// Runs the reconciler whenever a shard is due, so often at most. Returns the time of the last run.
async fn rest(table: &Table, key: &BucketKey, from: EpochMillis, runs: usize) -> EpochMillis {
    let mut at = from;
    for _ in 0..runs {
        let dues = shards(table, key).await.into_iter();
        let Some(due) = dues.filter_map(|shard| shard.due_at).min() else {
            break;
        };
        at = at.max(due);
        run(table, at).await;
    }
    at
}

async fn set_min(table: &Table, key: &BucketKey, min_shards: u32, now: EpochMillis) {
    for shard in shards(table, key).await {
        let update = update_min_shards(&shard, min_shards, now);
        table.update(&update, ReturnValues::None).await.unwrap();
    }
}

#[tokio::test]
async fn a_bucket_at_rest_is_merged_repaired_and_expires_whatever_happened() {
    for seed in 0..40 {
        let (dynamo, mut random) = (Dynamo::new().await, Rng::with_seed(seed));
        let (table, key, mut at) = (dynamo.table().await, key("e-1"), NOW);
        acquire(&table, &key, &with_slots(64), at).await;
        for _ in 0..random.usize(1..16) {
            let seen = shards(&table, &key).await;
            if seen.is_empty() {
                break;
            }
            let shard = &seen[random.usize(..seen.len())];
            match random.u8(..8) {
                0..3 if shard.shard_count < 16 => split_one(&table, shard, at).await,
                0..4 => {
                    let slots = with_slots([64, 32][random.usize(..2)]);
                    acquire(&table, &shard.key, &slots, at).await;
                }
                4 if seen.len() > 1 => {
                    let gone = shard.key.item_key();
                    dynamo.delete(&gone.pk, &gone.sk);
                }
                5 => set_min(&table, &key, [0, 2, 8][random.usize(..3)], at).await,
                6 => at = rest(&table, &key, at, random.usize(1..5)).await,
                _ => {
                    at = at.plus(REVIEW_INTERVAL);
                    run(&table, at).await;
                }
            }
            at = later(at, random.i64(1..40_000));
        }
        // All callers bring the same limits, the operator asks for nothing, and then it is quiet.
        at = later(at, 60_000);
        set_min(&table, &key, 0, at).await;
        for shard in shards(&table, &key).await {
            acquire(&table, &shard.key, &with_slots(48), at).await;
        }
        let end = rest(&table, &key, at, 40).await;
        let left = shards(&table, &key).await;
        let [whole] = &*left else { panic!("seed {seed}: one shard of {left:#?}") };
        assert_has!(whole, shard_count: 1, due_at: None; "seed {seed}");
        assert!(end <= at.plus(REST_INTERVAL).plus(REVIEW_INTERVAL), "seed {seed}");
        let ttl = whole.ttl.unwrap_or_else(|| panic!("seed {seed}: it expires"));
        let full = whole.balance(&whole.limits["quota"], EpochMillis(ttl.0 * 1_000));
        assert_eq!(full, whole.limits["quota"].rule.capacity, "seed {seed}");
    }
}

/// A configured bucket has no `ttl`: the acquire after a merge removes it.
#[tokio::test]
async fn a_bucket_that_an_operator_keeps_split_costs_each_shard_a_write_a_day() {
    let dynamo = Dynamo::new().await;
    let (table, key) = (dynamo.table().await, key("e-1"));
    store(&table, &full("e-1", &with_slots(64))).await;
    crate::fixtures::sharded::split_to(&table, &key, 4, NOW).await;
    set_min(&table, &key, 4, NOW).await;
    let _ = dynamo.take_operations();
    let days = 10;
    let end = NOW.plus(weirgate_shared::Millis(days * REST_INTERVAL.0));
    let mut at = NOW;
    while at < end {
        let due = shards(&table, &key).await.iter().filter_map(|shard| shard.due_at).min();
        at = due.expect("it is reviewed again");
        run(&table, at).await;
    }
    let writes = dynamo.take_operations()["UpdateItem"];
    assert!(writes <= 4 * (u64::try_from(days).unwrap() + 3), "{writes}");
}
