//! Applies planned writes to items and a table in memory, without I/O.

pub mod planned;
pub mod table;

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use weirgate_shared::write::{Contention, LeaseChange, LimitDelta, Roll, Settle, Take};
use weirgate_shared::{
    Asks, BucketKey, Effect, EntityId, EpochMillis, EpochSeconds, Hour, Limit, LimitName,
    MilliTokens, Millis, Namespace, Resource, Shard, ShardIndex, WriteId,
};

pub use weirgate_shared::evaluator::{Held, Item};

/// Some seconds before a day begins.
pub const START: EpochMillis = EpochMillis(1_700_006_400_000 - 5_000);

/// Hours after the one that ends the day of [`START`].
pub fn hours(after: i64) -> EpochMillis {
    Hour(Hour::of(START).0 + after).start().plus(Millis(1))
}

/// Returns a configuration with `cases` cases, or `PROPTEST_CASES` if that is fewer. Seeds of
/// failures are kept beside the test's source, to be checked in.
pub fn config(cases: u32) -> Config {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    Config {
        cases: asked.map_or(cases, |asked: u32| asked.min(cases)),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}

pub fn bucket_key(shard: u32) -> BucketKey {
    BucketKey {
        namespace: Namespace::new("default").unwrap(),
        entity: EntityId::new("user-1").unwrap(),
        resource: Resource::new("api/search").unwrap(),
        shard,
    }
}

pub fn limit_name(name: &str) -> LimitName {
    LimitName::new(name).unwrap()
}

/// Returns what a process may believe of the others, right or wrong.
pub fn contention() -> impl Strategy<Value = Contention> {
    prop_oneof![
        Just(Contention::Alone),
        Just(Contention::Shared),
        prop_oneof![0..9_000u32, 0..900_000u32, any::<u32>()]
            .prop_map(|others_per_day| Contention::SharedStale { others_per_day })
    ]
}

/// Returns an uncontended take of one acquire without a lease, planned at `now`.
pub fn take<'a>(
    key: &'a BucketKey,
    limits: &'a [Limit],
    needs: BTreeMap<LimitName, MilliTokens>,
    op: WriteId,
    now: EpochMillis,
) -> Take<'a> {
    Take {
        asks: Asks::of(Effect::Enforce, needs),
        acquires: 1,
        ..Take::nothing(key, limits, op, now)
    }
}

/// Returns a settlement planned at `now`.
pub fn settle<'a>(
    key: &'a BucketKey,
    op: WriteId,
    lease: Option<(&'a WriteId, LeaseChange)>,
    amounts: BTreeMap<LimitName, LimitDelta>,
    now: EpochMillis,
) -> Settle<'a> {
    Settle { key, write_id: op, lease, amounts, acquires: 0, roll: Roll::to(Hour::of(now)) }
}

/// Returns an amount of the limit `rpm`.
pub fn rpm(tokens: i64) -> BTreeMap<LimitName, MilliTokens> {
    [(limit_name("rpm"), MilliTokens::from_tokens(tokens))].into()
}

/// Returns the sum of `name` in the leases of `bucket`.
pub fn held(bucket: &Shard, name: &LimitName) -> MilliTokens {
    bucket.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get(name)).copied().sum()
}

/// A shard of a bucket with these limits, full, that was made at `at`.
pub fn bucket(shard: ShardIndex, limits: &[Limit], at: EpochMillis) -> Shard {
    let mut bucket =
        Shard { shard_count: shard.count, ..Shard::full(bucket_key(shard.index), limits, at) };
    for state in bucket.limits.values_mut() {
        state.available = shard.share(state.rule.capacity);
    }
    // Of several shards none has an end.
    bucket.ttl =
        (shard.count == 1).then(|| EpochSeconds::not_before(at.plus(Millis(10 * 86_400_000))));
    bucket
}
