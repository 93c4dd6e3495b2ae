//! I3 for copies of several lives of a shard: items that are deleted manually and made again.

use std::collections::BTreeMap;

use crate::model::{Item, bucket_key, copy_usage, limit_name};
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{
    Counter, DELIVERY, EpochMillis, Hour, Meter, MilliTotal, Millis, ShardUsageCopy, Usage, Window,
    usage,
};

/// The counters of a life of shard 0 in the first hour of 1970.
fn meter(birth: i64, v: i64, used: &[(&str, i64)]) -> Meter {
    let counter = |total| Counter {
        total,
        ..Counter::default()
    };
    let limits = used
        .iter()
        .map(|(name, total)| (limit_name(name), counter((*total).into())))
        .collect();
    Meter {
        key: bucket_key(0),
        write_seq: v,
        birth_seq: birth,
        hour: Hour(0),
        acquires: counter(1),
        limits,
    }
}

fn copy(birth: i64, v: i64, used: &[(&str, i64)], is_final: bool) -> UsageCopy {
    UsageCopy::of(&meter(birth, v, used), Window::Hourly, is_final, 1)
}

/// The items of a bucket that was deleted manually may be made again with other limits.
#[test]
fn i3_what_an_earlier_life_used_of_any_limit_is_carried_once() {
    let mut snapshot = Item::default();
    let second = copy(20, 21, &[("rpm", 1_000)], true);
    for copy in [
        copy(10, 12, &[("rpm", 5_000), ("slots", 1_000)], false),
        second.clone(),
        // The end of the first life, whose beginning was set aside.
        copy(10, 14, &[("rpm", 6_000), ("slots", 1_000)], true),
        second,
    ] {
        copy_usage(&mut snapshot, &copy);
    }
    let snapshot = snapshot.snapshot();
    let usage = |used: &[(&str, i64)]| Usage {
        tokens: used
            .iter()
            .map(|(name, milli)| (limit_name(name), MilliTotal((*milli).into())))
            .collect(),
        acquires: 1,
    };
    let copied = ShardUsageCopy {
        write_seq: 21,
        usage: usage(&[("rpm", 1_000)]),
        is_final: true,
    };
    assert_eq!(snapshot.shards, [(0, copied)].into());
    assert_eq!(snapshot.unfinished, BTreeMap::new());
    assert_eq!(snapshot.carry, usage(&[("rpm", 6_000), ("slots", 1_000)]));
}

#[test]
fn i3_a_window_is_not_final_while_the_end_of_an_earlier_life_is_missing() {
    let (mut snapshot, window) = (Item::default(), Window::Hourly);
    for is_final in [false, true] {
        copy_usage(&mut snapshot, &copy(10, 12, &[("rpm", 5_000)], is_final));
        let at = Window::Daily
            .end(EpochMillis(0))
            .plus(DELIVERY)
            .plus(DELIVERY);
        let snapshots = [((window, EpochMillis(0)), snapshot.snapshot())].into();
        let live = [meter(20, 21, &[("rpm", 1_000)])];
        let read = usage(
            window,
            EpochMillis(0),
            &snapshots,
            &live,
            (at, Millis(i64::MAX)),
        );
        assert_eq!(read.usage.tokens["rpm"], MilliTotal(6_000));
        assert_eq!((read.usage.acquires, read.is_final()), (2, is_final));
    }
}
