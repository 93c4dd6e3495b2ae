//! What the tests of split buckets share: buckets of several shards, the reconciler, and what all
//! shards hold together.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weirgate_reconciler::{Config, Deadline, Summary, reconcile};
use weirgate_shared::write::{Action, Contention, REVIEW_INTERVAL, Roll, Take};
use weirgate_shared::{
    Bucket, BucketKey, EpochMillis, Hour, Lease, Limit, LimitName, MAX_PERIOD_MS, MilliTokens,
    Millis, Shard, WriteId,
};
use weirgate_store::{ReturnValues, Table, TransactOutcome, WriteOutcome};
use weirgate_tests::leased::{NOW, full, id, key, limit, split_at, store, tokens};

/// When a bucket that was split at [`NOW`] is reviewed.
pub const DUE: EpochMillis = NOW.plus(REVIEW_INTERVAL);

/// An id that no other write of the test has.
pub fn new_id() -> WriteId {
    static LAST: AtomicU64 = AtomicU64::new(1 << 40);
    WriteId::from_bits(LAST.fetch_add(1, Ordering::Relaxed))
}

/// A rate that refills a millitoken in minutes, and slots.
pub fn limits() -> Vec<Limit> {
    vec![
        Limit::custom("quota", 1_600, 1, MAX_PERIOD_MS).unwrap(),
        Limit::concurrent("slots", 64).unwrap(),
    ]
}

pub async fn run(table: &Table, now: EpochMillis) -> Summary {
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    reconcile(
        table,
        &config,
        now,
        Deadline::after(Duration::from_secs(50)),
    )
    .await
    .expect("DynamoDB works")
}

/// All shards of a bucket, by number.
pub async fn shards(table: &Table, key: &BucketKey) -> Vec<Shard> {
    let keys: Vec<_> = (0..64)
        .map(|shard| key.with_shard(shard).item_key())
        .collect();
    let mut shards: Vec<_> = table
        .read(&keys)
        .await
        .unwrap()
        .iter()
        .map(|item| item.bucket().unwrap())
        .collect();
    shards.sort_by_key(|shard| shard.key.shard);
    shards
}

/// Number and count of each shard.
pub async fn counts(table: &Table, key: &BucketKey) -> Vec<(u32, u32)> {
    shards(table, key)
        .await
        .iter()
        .map(|shard| (shard.key.shard, shard.shard_count))
        .collect()
}

pub async fn transact(table: &Table, actions: &[Action]) -> TransactOutcome {
    table.transact(actions, &new_id()).await.unwrap()
}

pub async fn split_one(table: &Table, shard: &Shard, at: EpochMillis) {
    split_at(table, shard, new_id(), at).await;
}

/// Splits every shard of the bucket until there are `count`.
pub async fn split_to(table: &Table, key: &BucketKey, count: u32, at: EpochMillis) {
    loop {
        let shards = shards(table, key).await;
        let small: Vec<_> = shards
            .iter()
            .filter(|shard| shard.shard_count < count)
            .collect();
        if small.is_empty() {
            return;
        }
        for shard in small {
            split_one(table, shard, at).await;
        }
    }
}

/// The full bucket `e-1`, split at [`NOW`].
pub async fn sharded(table: &Table, count: u32) -> BucketKey {
    let bucket = full("e-1", &limits());
    store(table, &bucket).await;
    split_to(table, &bucket.key, count, NOW).await;
    key("e-1")
}

/// Changes one shard as nobody would, and stores it.
pub async fn change(table: &Table, key: &BucketKey, shard: u32, change: impl FnOnce(&mut Shard)) {
    let mut bucket = weirgate_tests::leased::load(table, &key.with_shard(shard))
        .await
        .unwrap();
    change(&mut bucket);
    store(table, &bucket).await;
}

/// What all shards hold of a limit, free or held by leases.
pub async fn total(table: &Table, key: &BucketKey, limit: &str, at: EpochMillis) -> MilliTokens {
    let name = LimitName::new(limit).unwrap();
    let whole = Bucket::new(shards(table, key).await);
    let leases = whole
        .shards()
        .iter()
        .flat_map(|shard| shard.leases.iter().flatten());
    let held: MilliTokens = leases
        .filter(|(_, lease)| lease.expires_at > at)
        .filter_map(|(_, l)| l.tokens.get(limit))
        .copied()
        .sum();
    whole.balance_at(&name, at) + held
}

pub async fn is_complete(table: &Table, key: &BucketKey) -> bool {
    Bucket::new(shards(table, key).await).is_complete()
}

pub fn later(at: EpochMillis, ms: i64) -> EpochMillis {
    at.plus(Millis(ms))
}

/// Takes 5 of the quota and a slot from one shard, with a lease until `expires`, as a caller does
/// who has seen it.
pub async fn lease(
    table: &Table,
    key: &BucketKey,
    shard: u32,
    lease: &str,
    expires: EpochMillis,
    now: EpochMillis,
) {
    let key = &key.with_shard(shard);
    let view = weirgate_tests::leased::load(table, key).await.unwrap();
    let needs = BTreeMap::from([(limit("quota"), tokens(5)), (limit("slots"), tokens(1))]);
    let held = Lease {
        expires_at: expires,
        tokens: needs.clone(),
        owner: "test".to_owned(),
    };
    let (limits, leases) = (&limits(), vec![(id(lease), held)]);
    let take = Take {
        key,
        limits: limits.into(),
        amounts: needs,
        soft_amounts: [].into(),
        acquires: 1,
        leases,
        roll: Roll::to(Hour::of(now)),
        write_id: new_id(),
        request_split: false,
        contention: Contention::Alone,
        unconfirmed: &[],
    };
    let done = table
        .update(&take.plan(Some(&view), now), ReturnValues::None)
        .await
        .unwrap();
    assert_eq!(done, WriteOutcome::Applied(None));
}
