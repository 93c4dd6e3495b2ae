//! A usage snapshot as a value, and the usage of a window from its snapshot and the live items.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use crate::{EpochMillis, Meter, Millis, Usage, Window};

/// The contents of a snapshot's item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Copies, by shard.
    pub shards: BTreeMap<u32, ShardUsageCopy>,
    /// Usage of earlier lives: of items that were deleted and created again within the window.
    pub carry: Usage,
    /// By shard, the write sequences of the final copies that were added to `carry`.
    pub carried: BTreeMap<u32, BTreeSet<i64>>,
    /// Newest copies of earlier lives that have no final copy yet, by shard and write sequence.
    pub unfinished: BTreeMap<(u32, i64), Usage>,
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

/// Snapshots of a bucket.
pub type Snapshots = BTreeMap<(Window, EpochMillis), Snapshot>;

/// Whether the usage of a window can change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum UsageState {
    /// It may change: the window is in progress, or a copy of it may be on its way.
    #[default]
    Interim,
    /// It never changes.
    Final,
    /// The snapshots of the window may be deleted: its usage is not known.
    Unknown,
}

impl fmt::Display for UsageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interim => "interim",
            Self::Final => "final",
            Self::Unknown => "unknown",
        })
    }
}

/// Usage of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowUsage {
    /// Amount of usage; empty if it is unknown.
    pub usage: Usage,
    /// Whether it can change. A window in progress is exact and not final.
    pub state: UsageState,
}

impl WindowUsage {
    /// Returns whether the usage never changes.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.state == UsageState::Final
    }
}

/// Time in which a write arrives, an hour: one that was sent in time takes minutes.
pub const ARRIVAL: Millis = Millis(3_600_000);
/// Time after the end of its day in which its copies may be on their way, 25 hours: [`ARRIVAL`], and the
/// 24 hours for which DynamoDB's stream has a record.
pub const DELIVERY: Millis = Millis(ARRIVAL.0 + 86_400_000);

/// The instant of a read of usage, and what is known then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageHorizon {
    /// The instant.
    pub now: EpochMillis,
    /// Time for which snapshots are kept after their window.
    pub retention: Millis,
    /// When windows were used of which no record is on its way any more. Read before the snapshots.
    pub delivered: Range<EpochMillis>,
}

impl UsageHorizon {
    /// Returns the horizon of a table whose records DynamoDB's stream delivers, or loses, in time.
    #[must_use]
    pub const fn of_stream(now: EpochMillis, retention: Millis) -> Self {
        Self { now, retention, delivered: EpochMillis(i64::MIN)..now.plus(Millis(-DELIVERY.0)) }
    }

    /// Returns whether all records of the days from that of `start` to that before `end` are delivered.
    #[must_use]
    pub fn is_delivered(&self, start: EpochMillis, end: EpochMillis) -> bool {
        let first = Window::Daily.start(start);
        let last = Window::Daily.start(EpochMillis(end.0.saturating_sub(1)));
        self.delivered.start <= first && Window::Daily.end(last) <= self.delivered.end
    }
}

/// Time before its `ttl` from which a snapshot gets no copies: one that is on its way when DynamoDB
/// deletes the item would make it again without the other shards. Readers do not know its window from
/// then on, because a missing copy would change the number.
const EXPIRY_MARGIN: Millis = Millis(3_600_000);

/// Returns whether a snapshot whose `ttl` is `until` gets copies at `now`, and its usage is known.
#[must_use]
pub const fn is_kept(until: EpochMillis, now: EpochMillis) -> bool {
    now.plus(EXPIRY_MARGIN).0 < until.0
}

/// Returns the usage of the window that starts at `start`: its snapshot's numbers, replaced by
/// those of newer `live` items.
///
/// `snapshots` have that of the window, and that of its day. A day knows each shard that was used
/// in it from its first write on, so it is final if all that are known are, once its records are
/// delivered. An hour is final with its day.
///
/// Read `live` before the snapshots: the final copy of an item that rolls in between is then in its
/// snapshot, or on its way there.
#[must_use]
pub fn usage(
    window: Window,
    start: EpochMillis,
    snapshots: &Snapshots,
    live: &[Meter],
    horizon: &UsageHorizon,
) -> WindowUsage {
    if !is_kept(window.end(start).plus(horizon.retention), horizon.now) {
        return WindowUsage { usage: Usage::default(), state: UsageState::Unknown };
    }
    let (usage, is_complete) = counted(window, start, snapshots, live);
    let day = Window::Daily.start(start);
    let is_final = horizon.is_delivered(start, window.end(start))
        && is_complete
        && (window == Window::Daily || counted(Window::Daily, day, snapshots, live).1);
    let state = match is_final {
        true => UsageState::Final,
        false => UsageState::Interim,
    };
    let usage = usage.whole();
    WindowUsage { usage, state }
}

/// Returns the usage that is known of a window, and whether each shard that is known to be used in
/// it has its final copy, or has rested since.
fn counted(
    window: Window,
    start: EpochMillis,
    snapshots: &Snapshots,
    live: &[Meter],
) -> (Usage, bool) {
    let none = Snapshot::default();
    let snapshot = snapshots.get(&(window, start)).unwrap_or(&none);
    let mut usage = snapshot.carry.clone();
    let mut is_complete = snapshot.unfinished.is_empty();
    let mut shards = snapshot.shards.clone();
    for meter in live.iter().filter(|meter| meter.start(window) == start) {
        let copied = shards.get(&meter.key.shard);
        if copied.is_some_and(|copied| copied.write_seq > meter.write_seq) {
            continue;
        }
        if let Some(earlier) = copied.filter(|copied| copied.write_seq < meter.birth_seq) {
            // The item was deleted and created again, and the new life has no copy yet.
            usage.add(&earlier.usage);
            is_complete &= earlier.is_final;
        }
        let rested = ShardUsageCopy {
            write_seq: meter.write_seq,
            usage: meter.usage(window),
            is_final: true,
        };
        shards.insert(meter.key.shard, rested);
    }
    for unfinished in snapshot.unfinished.values() {
        usage.add(unfinished);
    }
    for copied in shards.values() {
        usage.add(&copied.usage);
        is_complete &= copied.is_final;
    }
    (usage, is_complete)
}

/// Usage of an interval: one window, or several in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalUsage {
    /// Amount of usage, without that of windows that are unknown.
    pub usage: Usage,
    /// Unknown if a window is, final if all windows are.
    pub state: UsageState,
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
    snapshots: &Snapshots,
    live: &[Meter],
    horizon: &UsageHorizon,
) -> IntervalUsage {
    let now = horizon.now;
    let (mut total, mut complete_until, mut at) = (Usage::default(), None, start);
    let mut is_unknown = false;
    while at < end && at <= now {
        let WindowUsage { usage, state } = usage(window, at, snapshots, live, horizon);
        total.add(&usage);
        let next = window.end(at);
        is_unknown |= state == UsageState::Unknown;
        if state != UsageState::Final {
            let complete = if now < next { now } else { at };
            complete_until.get_or_insert(complete);
        }
        at = next;
    }
    let state = match complete_until {
        _ if is_unknown => UsageState::Unknown,
        None if at >= end => UsageState::Final,
        _ => UsageState::Interim,
    };
    IntervalUsage {
        usage: total,
        state,
        complete_until: complete_until.unwrap_or_else(|| at.min(end).min(now)),
    }
}
