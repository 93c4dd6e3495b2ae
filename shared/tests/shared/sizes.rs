//! How large items are, as DynamoDB bills them: a write costs one unit for each 1,024 bytes begun.

use crate::model::{Item, START, bucket, limit_name};
use weirgate_shared::{
    Bases, BucketKey, Counter, EpochMillis, EpochSeconds, Lease, Limit, LimitsVersion, MilliTokens,
    MilliTotal, Scaling, Shard, ShardIndex, WriteId,
};

/// A bucket in use for years, with numbers as long as they become.
fn used(entity: &str, limits: &[&str], leases: u64) -> Shard {
    let key = BucketKey::parse(&format!("prod/BUCKET#{entity}#gpt-4#0")).unwrap();
    let now = EpochMillis(1_795_197_612_345);
    let limits: Vec<_> = limits.iter().map(|name| Limit::per_minute(name, 600).unwrap()).collect();
    let lease = |at: u64| {
        let tokens = [(limit_name("rpm"), MilliTokens::from_tokens(1))].into();
        let owner = "i-0abcdef123".to_owned();
        (
            WriteId::from_bits(u64::MAX - at),
            Lease { expires_at: now, tokens, owner, ..Lease::default() },
        )
    };
    let mut bucket = Shard::full(key, &limits, now);
    bucket.write_seq += 1_234_567;
    bucket.acquires =
        Counter { total: 1_234_567, bases: Bases { hour: 1_234_321, day: 1_212_121 } };
    for state in bucket.limits.values_mut() {
        (state.available, state.consumed) = (MilliTokens(123_456_789), MilliTotal(123_456_789_012));
        state.bases = Bases { hour: 123_451_234_567, day: 123_321_123_456 };
    }
    bucket.leases = Some((0..leases).map(lease).collect());
    bucket.due_at = (leases > 0).then_some(now);
    bucket.ttl = Some(EpochSeconds(1_795_348_800));
    (bucket.config_version, bucket.last_write_id) =
        (Some(LimitsVersion::new(7)), Some(WriteId::from_bits(u64::MAX)));
    Item::of_bucket(&bucket).bucket()
}

const NAMES: [&str; 9] = ["rpm", "tpm", "rpd", "tpd", "rps", "img", "aud", "vid", "doc"];

#[test]
fn a_bucket_of_two_limits_with_short_names_is_small() {
    let size = used("openai", &NAMES[..2], 0).size_bytes;
    // The same number as in docs/architecture.md.
    assert_eq!(size, 435);
}

/// The numbers of the page on write costs.
#[test]
fn so_many_limits_and_leases_are_in_the_first_unit() {
    let fits = |bucket: &Shard| bucket.write_units() == 1;
    let limits = |entity| {
        (1..=NAMES.len()).take_while(|count| fits(&used(entity, &NAMES[..*count], 0))).last()
    };
    let leases =
        |entity| (0..100).take_while(|count| fits(&used(entity, &NAMES[..2], *count))).last();
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    assert_eq!([limits("openai"), limits(uuid)], [Some(8), Some(7)]);
    // With two limits; each lease holds tokens of one, for an owner whose name has twelve letters.
    assert_eq!([leases("openai"), leases(uuid)], [Some(10), Some(8)]);
}

#[test]
fn a_shard_is_hot_by_leases_that_came_since_its_split() {
    let mut shard = bucket(ShardIndex::UNSPLIT, &[], START);
    for (size, leases, split, is_crowded, units) in [
        (0, 0, 0, false, 1),
        (1024, 1024, 0, false, 1),
        (1025, 256, 0, true, 2),
        (1025, 255, 0, false, 2),
        (2049, 600, 344, true, 3),
        (2049, 600, 345, false, 3),
    ] {
        (shard.size_bytes, shard.lease_bytes, shard.scaling) =
            (size, leases, Scaling { lease_bytes_at_split: split, ..shard.scaling });
        assert_eq!(
            (shard.has_heavy_leases(), shard.write_units()),
            (is_crowded, units),
            "{size} {leases} {split}"
        );
    }
}
