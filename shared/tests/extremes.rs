//! Numbers that no bucket of ours has, but that an item or a record can contain. Nothing overflows
//! on them, and written values are read back.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{
    Bases, Bucket, BucketKey, Counter, EpochMillis, Hour, Limit, LimitName, MilliTokens, Shard,
    ShardIndex, SnapshotKey, Usage, Window,
};

fn bucket(at: EpochMillis) -> Shard {
    let limit = Limit::per_day("rpm", 1).unwrap();
    Shard::full(
        BucketKey::parse("d/BUCKET#e#r#0").unwrap(),
        std::slice::from_ref(&limit),
        at,
    )
}

/// A tenant that writes its own items can let counters jump as far as they go.
#[test]
fn usage_past_all_numbers_is_a_sum_that_stops_there() {
    for (most, least) in [(i64::MAX, i64::MIN), (i64::MIN, i64::MAX)] {
        let counter = Counter {
            total: most,
            bases: Bases {
                hour: least,
                day: least,
            },
        };
        assert_eq!(Window::ALL.map(|window| counter.used(window)), [most; 2]);
        let tokens = [(LimitName::new("rpm").unwrap(), MilliTokens(most))].into();
        let one = Usage {
            tokens,
            acquires: most,
        };
        let mut both = one.clone();
        both.add(&one);
        assert_eq!(both, one);
    }
}

/// Its snapshots are of the last day that keys can be written of.
#[test]
fn the_last_hour_that_an_item_may_count_has_snapshots() {
    let bucket = Shard {
        hour: Hour(70_380_767),
        ..bucket(EpochMillis(0))
    };
    for (window, start) in Window::ALL
        .into_iter()
        .zip(["9998-12-31T23:00:00Z", "9998-12-31T00:00:00Z"])
    {
        let key = UsageCopy::of(&bucket.meter(), window, true, i64::MAX).key;
        assert!(key.item_key().sk.ends_with(start), "{:?}", key.item_key());
        assert_eq!(SnapshotKey::parse(&key.item_key()), Some(key));
    }
}

/// A shard's index is in its key, so any key may contain any index.
#[test]
fn a_shard_of_any_number_has_a_count_above_it() {
    for (index, count) in [
        (0, 1),
        (1, 2),
        (2, 4),
        (63, 64),
        (1 << 31, u32::MAX),
        (u32::MAX - 1, u32::MAX),
    ] {
        assert_eq!(ShardIndex::at_creation(index), ShardIndex { index, count });
    }
}

/// The search for the instant must end, also where it begins so early that no step reaches the end
/// of time.
#[test]
fn what_never_comes_is_not_waited_for_from_the_beginning_of_time() {
    let (limit, start) = (LimitName::new("rpm").unwrap(), EpochMillis(i64::MIN));
    assert_eq!(
        Bucket::new(vec![bucket(start)]).ready_at(&limit, MilliTokens(i64::MAX), start),
        None
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Up to the last instant that a date can be written of, and the first that begins a day after
    /// it.
    #[test]
    fn a_window_ends_after_it_starts_also_when_dates_end(
        at in prop_oneof![253_399_000_000_000..=253_402_300_799_999_i64, -62_167_219_200_000..=253_402_300_799_999_i64],
        window in prop::sample::select(Window::ALL.as_slice()),
    ) {
        let start = window.start(EpochMillis(at));
        prop_assert!(start.0 <= at && at < window.end(start).0, "{window} {at}");
    }
}
