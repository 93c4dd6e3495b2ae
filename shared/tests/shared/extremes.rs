//! Numbers that no bucket of ours has, but that an item or a record can contain. Nothing overflows
//! on them, and written values are read back.

use std::collections::BTreeMap;

use crate::model::{START, bucket_key, hours, rpm, take};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use weirgate_shared::evaluator::Item;
use weirgate_shared::write::{LimitDelta, Roll, Settle, UsageCopy};
use weirgate_shared::{
    Bases, Bucket, BucketKey, Counter, EpochMillis, Hour, Limit, LimitName, MilliTokens,
    MilliTotal, Millis, Shard, ShardIndex, SnapshotKey, Usage, UsageHorizon, Window, WriteId,
    interval_usage,
};

fn bucket(at: EpochMillis) -> Shard {
    let limit = Limit::per_day("rpm", 1).unwrap();
    Shard::full(BucketKey::parse("d/BUCKET#e#r#0").unwrap(), std::slice::from_ref(&limit), at)
}

/// A tenant that writes its own items can let counters jump as far as they go.
#[test]
fn usage_past_all_numbers_is_a_sum_that_stops_there() {
    for (most, least) in [(i128::MAX, i128::MIN), (i128::MIN, i128::MAX)] {
        let counter = Counter { total: most, bases: Bases { hour: least, day: least } };
        // As many digits as a number of DynamoDB has.
        let used = (10_i128.pow(38) - 1) * most.signum();
        assert_eq!(Window::ALL.map(|window| counter.used(window)), [used; 2]);
        let tokens = [(LimitName::new("rpm").unwrap(), MilliTotal(most))].into();
        let one = Usage { tokens, acquires: most };
        let mut both = one.clone();
        both.add(&one);
        assert_eq!(both, one);
    }
}

/// Its snapshots are of the last day that keys can be written of.
#[test]
fn the_last_hour_that_an_item_may_count_has_snapshots() {
    let bucket = Shard { hour: Hour(70_380_767), ..bucket(EpochMillis(0)) };
    for (window, start) in
        Window::ALL.into_iter().zip(["9998-12-31T23:00:00Z", "9998-12-31T00:00:00Z"])
    {
        let key = UsageCopy::of(&bucket.meter(), window, true, i64::MAX).key;
        assert!(key.item_key().sk.ends_with(start), "{:?}", key.item_key());
        assert_eq!(SnapshotKey::parse(&key.item_key()), Some(key));
    }
}

/// Of a damaged item: no clock can have reached the hour, and no later one would ever begin.
#[test]
fn an_hour_of_the_far_future_ends_with_the_next_take() {
    let limit = Limit::per_day("rpm", 100).unwrap();
    let (key, limits) = (bucket_key(0), std::slice::from_ref(&limit));
    for (ahead, expected) in [(1, 2), (2, 1), (70_000_000, 1)] {
        let hour = Hour(Hour::of(hours(1)).0 + ahead);
        let damaged = Shard {
            hour,
            acquires: Counter { total: 1, ..Counter::default() },
            ..crate::model::bucket(ShardIndex::UNSPLIT, limits, START)
        };
        let update =
            take(&key, limits, rpm(1), WriteId::from_bits(1), hours(1)).plan(&damaged, hours(1));
        let mut item = Item::of_bucket(&damaged);
        assert!(item.apply(&update));
        let healed = item.bucket();
        assert_eq!(healed.meter().usage(Window::Hourly).acquires, expected, "{ahead} hours ahead");
        assert_eq!(healed.hour, if ahead == 1 { hour } else { Hour::of(hours(1)) });
        assert!(!item.apply(&update) || ahead == 1, "once");
    }
}

/// A shard's index is in its key, so any key may contain any index.
#[test]
fn a_shard_of_any_number_has_a_count_above_it() {
    for (index, count) in
        [(0, 1), (1, 2), (2, 4), (63, 64), (1 << 31, u32::MAX), (u32::MAX - 1, u32::MAX)]
    {
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

    /// Ten years at 10^12 tokens a second, the largest rate, are 3 * 10^23 millitokens: more than
    /// 64 bits hold. Takes, a new hour, copies, an earlier life and sums keep each of them.
    #[test]
    fn counters_of_ten_years_at_the_largest_rate_are_exact(
        total in 0..=400_000_000_000_000_000_000_000_i128,
        hour in 0..=400_000_000_000_000_000_000_000_i128,
        amounts in prop::collection::vec(-1_000_000_000_000_000..=1_000_000_000_000_000_i64, 1..5),
        acquires in 0..=400_000_000_000_000_000_000_000_i128,
    ) {
        let (name, start) = (LimitName::new("rpm").unwrap(), EpochMillis(1_795_132_800_000));
        let mut shard = bucket(start);
        shard.acquires.total = acquires;
        let state = shard.limits.get_mut("rpm").unwrap();
        (state.consumed, state.bases) = (MilliTotal(total), Bases { hour, day: 0 });
        let mut item = Item::of_bucket(&shard);
        let mut expected = MilliTotal(total);
        for (bits, amount) in (1..).zip(amounts) {
            let delta = LimitDelta {
                available: MilliTokens(0),
                consumed: MilliTokens(amount),
                ..LimitDelta::default()
            };
            let settle = Settle {
                key: &shard.key,
                write_id: WriteId::from_bits(bits),
                lease: None,
                amounts: [(name.clone(), delta)].into(),
                acquires: 1,
                roll: Roll::to(Hour::of(start)),
            };
            prop_assert!(item.apply(&settle.full(Some(&item.bucket()))));
            expected += MilliTokens(amount);
            shard = item.bucket();
            prop_assert_eq!(shard.limits["rpm"].consumed, expected);
        }
        let meter = shard.meter();
        let day = meter.usage(Window::Daily);
        prop_assert_eq!(meter.usage(Window::Hourly).tokens["rpm"], expected - MilliTotal(hour));
        prop_assert_eq!((day.tokens["rpm"], day.acquires), (expected, shard.acquires.total));
        // An earlier life with the same usage, then this one.
        let mut snapshot = Item::default();
        let copy = |born: i64| UsageCopy {
            birth: born,
            v: born,
            ..UsageCopy::of(&meter, Window::Daily, true, 1)
        };
        prop_assert!(snapshot.apply(&copy(1).first()));
        let next = copy(2).after(&snapshot.snapshot());
        prop_assert!(snapshot.apply(&next.unwrap()));
        let snapshots = BTreeMap::from([((Window::Daily, start), snapshot.snapshot())]);
        let end = Window::Daily.end(start);
        let sum = interval_usage(Window::Daily, (start, end), &snapshots, &[], &UsageHorizon::of_stream(EpochMillis(i64::MAX / 2), Millis(i64::MAX)));
        prop_assert_eq!(sum.usage.tokens["rpm"], expected + expected);
        prop_assert_eq!(sum.usage.acquires, day.acquires * 2);
    }
}
