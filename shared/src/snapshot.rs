//! A usage snapshot as a value, and the usage of a window from its snapshot and the live items.

use std::collections::{BTreeMap, BTreeSet};

use crate::{EpochMillis, Meter, Millis, Usage, Window};

/// The contents of a snapshot's item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Copies, by shard.
    pub shards: BTreeMap<u32, ShardUsageCopy>,
    /// Usage of earlier lives: of items that were deleted and created again within the window.
    pub carry: Usage,
    /// By shard, the write sequences at which earlier lives were added to `carry`.
    pub carried: BTreeMap<u32, BTreeSet<i64>>,
    /// Shards of which an earlier life ended without a final copy: `carry` lacks its last writes.
    pub unfinished: BTreeSet<u32>,
}

/// The copy of one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardUsageCopy {
    /// Write sequence of the copied image.
    pub write_seq: i64,
    /// Usage of the shard in the image.
    pub usage: Usage,
    /// Whether the window had ended for the shard by then.
    pub is_final: bool,
}

/// A shard's current item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveShard {
    /// Usage counters.
    pub meter: Meter,
    /// Whether it holds leases, which may still return tokens to the current window.
    pub holds_leases: bool,
}

/// Usage of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowUsage {
    /// Amount of usage.
    pub usage: Usage,
    /// Whether it is final: the window has ended, and the copies of all shards known to have been
    /// written in it are final. A window in progress is exact and not final.
    pub is_final: bool,
}

/// Time after the end of a window in which takes may still count in it: other processes may not
/// have rolled yet, and clocks differ.
const LATE_TAKES: Millis = Millis(10_000);
/// Time that a final copy may need before a shard without a copy of its life counts as unused: the
/// retention of a stream.
const DELIVERY: Millis = Millis(86_400_000);

/// Returns the usage of the window that starts at `start`: its snapshot's numbers, replaced by
/// those of newer `live` items.
///
/// `snapshots` are by their start. Those of later windows tell when a shard without a copy of this
/// window began another one; without them the result may be final later.
///
/// Read `live` before the snapshots: the final copy of an item that rolls in between is then in its
/// snapshot, or on its way there.
#[must_use]
pub fn usage(
    window: Window,
    start: EpochMillis,
    snapshots: &BTreeMap<EpochMillis, Snapshot>,
    live: &[LiveShard],
    now: EpochMillis,
) -> WindowUsage {
    let (none, end) = (Snapshot::default(), window.end(start));
    let snapshot = snapshots.get(&start).unwrap_or(&none);
    let mut usage = snapshot.carry.clone();
    let mut is_final = now >= end.plus(LATE_TAKES) && snapshot.unfinished.is_empty();
    let mut shards = snapshot.shards.clone();
    for LiveShard {
        meter,
        holds_leases,
    } in live
    {
        let copied = shards.get(&meter.key.shard);
        if meter.start(window) == start
            && copied.is_none_or(|copied| copied.write_seq <= meter.write_seq)
        {
            if let Some(earlier) = copied.filter(|copied| copied.write_seq < meter.birth_seq) {
                // The item was deleted and created again, and the new life has no copy yet.
                usage.add(&earlier.usage);
                is_final &= earlier.is_final;
            }
            let is_final = !holds_leases;
            shards.insert(
                meter.key.shard,
                ShardUsageCopy {
                    write_seq: meter.write_seq,
                    usage: meter.usage(window),
                    is_final,
                },
            );
        } else if meter.start(window) > start
            && copied.is_none_or(|copied| copied.write_seq < meter.birth_seq)
            && EpochMillis(meter.birth_seq.div_euclid(1000)) < end.plus(LATE_TAKES)
        {
            let later = snapshots.range(end..);
            let rolled_by = rolled_by(window, meter, later.map(|(start, later)| (*start, later)));
            is_final &= now >= rolled_by.plus(DELIVERY);
        }
    }
    for copied in shards.values() {
        usage.add(&copied.usage);
        is_final &= copied.is_final;
    }
    WindowUsage { usage, is_final }
}

/// Returns the instant by which a shard had rolled out of a window: the end of the hour that it
/// counts, or of the first of the `later` windows that has a copy of its life.
fn rolled_by<'a>(
    window: Window,
    meter: &Meter,
    mut later: impl Iterator<Item = (EpochMillis, &'a Snapshot)>,
) -> EpochMillis {
    let is_used = |snapshot: &Snapshot| {
        let copied = snapshot.shards.get(&meter.key.shard);
        copied.is_some_and(|copied| copied.write_seq >= meter.birth_seq)
    };
    let used = later.find(|(_, snapshot)| is_used(snapshot));
    let hour = Window::Hourly.end(meter.hour.start());
    used.map_or(hour, |(start, _)| hour.min(window.end(start)))
}

/// Usage of an interval: one window, or several in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalUsage {
    /// Amount of usage.
    pub usage: Usage,
    /// Instant before which all usage is included: the end of the interval if all its windows are
    /// final, `now` in a window in progress, otherwise the start of the first window that is not
    /// final.
    pub complete_until: EpochMillis,
}

/// Returns the usage of the windows from `start` up to `end`. Windows that begin after `now` have
/// none.
///
/// Read `live` before the snapshots: see [`usage`].
#[must_use]
pub fn interval_usage(
    window: Window,
    (start, end): (EpochMillis, EpochMillis),
    snapshots: &BTreeMap<EpochMillis, Snapshot>,
    live: &[LiveShard],
    now: EpochMillis,
) -> IntervalUsage {
    let (mut total, mut complete_until, mut at) = (Usage::default(), None, start);
    while at < end && at <= now {
        let WindowUsage { usage, is_final } = usage(window, at, snapshots, live, now);
        total.add(&usage);
        let next = window.end(at);
        if !is_final {
            let complete = if now < next { now } else { at };
            complete_until.get_or_insert(complete);
        }
        at = next;
    }
    IntervalUsage {
        usage: total,
        complete_until: complete_until.unwrap_or_else(|| at.min(end).min(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketKey, Counter, Hour};

    /// The process that made it may still have counted for the hour before, whose copy is on its
    /// way then.
    #[test]
    fn a_window_is_not_final_while_a_shard_made_right_after_it_may_be_copied_to_it() {
        let start = Hour(498_648).start();
        let end = Window::Hourly.end(start);
        let is_final = |born: Millis, now: Millis| {
            let birth = end.plus(born).0 * 1000;
            let meter = Meter {
                key: BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap(),
                write_seq: birth + 9,
                birth_seq: birth,
                hour: Hour::of(end),
                acquires: Counter::default(),
                limits: BTreeMap::new(),
            };
            let live = [LiveShard {
                meter,
                holds_leases: false,
            }];
            usage(
                Window::Hourly,
                start,
                &BTreeMap::new(),
                &live,
                end.plus(now),
            )
            .is_final
        };
        let delivered = Millis(3_600_000 + DELIVERY.0);
        assert!(!is_final(Millis(500), LATE_TAKES) && is_final(Millis(500), delivered));
        assert!(
            is_final(LATE_TAKES, LATE_TAKES),
            "no process counts for the window by then"
        );
    }

    /// The copy of a shard that rested for days is on its way when it is written again.
    #[test]
    fn a_window_is_not_final_while_a_shard_that_rested_may_be_copied_to_it() {
        let hour = Hour(498_648);
        let (start, rolled) = (hour.start(), Hour(498_648 + 72));
        let meter = |hour| Meter {
            key: BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap(),
            write_seq: start.0 * 1000 + 9,
            birth_seq: start.0 * 1000,
            hour,
            acquires: Counter::default(),
            limits: BTreeMap::new(),
        };
        let is_final = |hour, later: &[Hour], now: EpochMillis| {
            let copy = ShardUsageCopy {
                write_seq: start.0 * 1000 + 5,
                ..ShardUsageCopy::default()
            };
            let snapshot = Snapshot {
                shards: [(0, copy)].into(),
                ..Snapshot::default()
            };
            let snapshots = later.iter().map(|at| (at.start(), snapshot.clone()));
            let live = [LiveShard {
                meter: meter(hour),
                holds_leases: false,
            }];
            usage(Window::Hourly, start, &snapshots.collect(), &live, now).is_final
        };
        let late = rolled.start().plus(LATE_TAKES);
        assert!(is_final(hour, &[], late), "the item has the window");
        assert!(!is_final(rolled, &[], late), "its copy is on its way");
        let delivered = Hour(rolled.0 + 1).start().plus(DELIVERY);
        assert!(is_final(rolled, &[], delivered));
        // Used in an hour in between, so it was idle in this one.
        let between = Hour(hour.0 + 3);
        assert!(is_final(rolled, &[between], late));
        assert!(!is_final(rolled, &[Hour(rolled.0 - 1)], late));
    }
}
