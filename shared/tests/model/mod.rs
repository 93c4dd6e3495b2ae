//! What planned writes do to a table, in memory and without I/O, and the books kept beside it.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod fleet;
pub mod given;
pub mod item;
pub mod mirror;
pub mod ops;
pub mod page;
pub mod table;
pub mod world;

use proptest::test_runner::{Config, FileFailurePersistence};
use weirgate_shared::{Bucket, BucketKey, EntityId, EpochMillis, LimitName, MilliTokens, Namespace, Resource, Rule};

pub use item::{Held, Item};

/// `cases` cases, or as many as `PROPTEST_CASES` says if that is fewer; the seeds of failures are kept beside the test's
/// source, to be checked in.
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

/// What `name` holds in the leases of `bucket`, together.
pub fn held(bucket: &Bucket, name: &LimitName) -> MilliTokens {
    bucket.leases.iter().flatten().filter_map(|(_, lease)| lease.tokens.get(name)).copied().sum()
}

/// The first expiry among the leases of `bucket`.
pub fn first_expiry(bucket: &Bucket) -> Option<EpochMillis> {
    bucket.leases.iter().flatten().map(|(_, lease)| lease.expires).min()
}

/// A hidden limit for items made by tests: what the first take would write.
pub fn wcu() -> weirgate_shared::LimitState {
    let thousand = MilliTokens::from_tokens(1000);
    weirgate_shared::LimitState {
        tk: thousand,
        tc: MilliTokens::ZERO,
        rule: Rule { capacity: thousand, refill_amount: thousand, refill_period_ms: 1000 },
    }
}

/// `due` is at or before the first expiry, in the partition of its key, and there whenever a lease is.
pub fn assert_due_is_a_lower_bound(item: &Item, bucket: &Bucket) {
    if let Some(first) = first_expiry(bucket) {
        let due = bucket.due.unwrap_or_else(|| panic!("nobody would look for the lease that expires {first:?}"));
        assert!(due <= first, "due {due:?} is after the first expiry {first:?}");
    }
    let partition = bucket.due.map(|_| Held::Text(bucket.key.due_shard()));
    assert_eq!(item.0.get("due_shard"), partition.as_ref());
}
