//! A usage snapshot as a value, and the usage of a window from its snapshot and the live items.

use std::collections::{BTreeMap, BTreeSet};

use crate::{EpochMillis, Meter, Millis, Usage, Window};

/// What a snapshot's item says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The copies, by shard.
    pub shards: BTreeMap<u32, ShardUsageCopy>,
    /// Usage of earlier lives: of items that were deleted and made again within the window.
    pub carry: Usage,
    /// By shard, the `v` at which each earlier life was added to `carry`.
    pub carried: BTreeMap<u32, BTreeSet<i64>>,
    /// Shards of which an earlier life ended without a final copy: its last writes are missing from
    /// `carry`.
    pub unfinished: BTreeSet<u32>,
}

/// What was copied of one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardUsageCopy {
    /// `v` of the image it was copied from.
    pub write_seq: i64,
    /// What the shard had used by then.
    pub usage: Usage,
    /// Whether the window was over for the shard by then.
    pub is_final: bool,
}

/// A shard's item as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveShard {
    /// Its counters.
    pub meter: Meter,
    /// Whether it holds leases, which may still return tokens to the current window.
    pub holds_leases: bool,
}

/// What was used in a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WindowUsage {
    /// How much.
    pub usage: Usage,
    /// Whether it will not change any more: the window is over, and so are the copies of all shards
    /// known to have been written to in it. A window in progress is exact and not final.
    pub is_final: bool,
}

/// How long after its end a window may still get takes: those of processes that have not rolled
/// yet, and clocks differ.
const LATE_TAKES: Millis = Millis(10_000);
/// How long a final copy may be on its way before a shard without any copy of its life counts as
/// unused: as long as a stream keeps its records.
const DELIVERY: Millis = Millis(86_400_000);

/// The usage of the window that starts at `start`: the snapshot's numbers, replaced by those of the
/// `live` items where these are newer.
///
/// `live` must have been read before the snapshot: an item that rolled over in between then has its
/// final copy in the snapshot, or on its way there.
#[must_use]
pub fn usage(
    window: Window,
    start: EpochMillis,
    snapshot: &Snapshot,
    live: &[LiveShard],
    now: EpochMillis,
) -> WindowUsage {
    let end = window.end(start);
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
                // The item was deleted and made again, and nothing of the new life was copied yet.
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
            is_final &= now >= end.plus(DELIVERY);
        }
    }
    for copied in shards.values() {
        usage.add(&copied.usage);
        is_final &= copied.is_final;
    }
    WindowUsage { usage, is_final }
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
                &Snapshot::default(),
                &live,
                end.plus(now),
            )
            .is_final
        };
        assert!(!is_final(Millis(500), LATE_TAKES) && is_final(Millis(500), DELIVERY));
        assert!(
            is_final(LATE_TAKES, LATE_TAKES),
            "no process counts for the window by then"
        );
    }
}
