//! Beginning a new hour: the counters' values become the bases of the new hour's usage.

use super::{AttributeUpdate, Condition, Path, Update, Value, require_refilled_at};
use crate::attr::{self, Field};
use crate::{Bases, Hour, Shard};

/// The hour that a write counts usage in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roll {
    /// The hour. A write to a shard that already counts this hour or a later one does not roll.
    pub hour: Hour,
    /// Whether to assume that another process has rolled the shard since the view. If it has not,
    /// the write fails.
    pub by_others: bool,
}

impl Roll {
    /// Returns a roll to `hour`, unless the view is in it already.
    #[must_use]
    pub const fn to(hour: Hour) -> Self {
        Self { hour, by_others: false }
    }

    /// Returns whether a write that counts usage must roll `shard`. A stored hour that no clock can
    /// have reached is damaged, so it is rolled too.
    fn is_due(self, shard: &Shard) -> bool {
        shard.hour < self.hour || shard.hour.0 > self.hour.0.saturating_add(1)
    }

    /// Adds to `update` nothing, the condition that the shard was rolled, or the roll.
    ///
    /// A roll sets the bases of all limits, so it requires the limits of the view: a write that
    /// adds one moves `rf`.
    pub(super) fn write(self, update: &mut Update, view: Option<&Shard>) {
        let hour = Path::of(attr::HOUR);
        let Some(shard) = view.filter(|shard| !(self.by_others && self.is_due(shard))) else {
            update.conditions.push(Condition::AtLeast(hour, Value::Int(self.hour.0)));
            return;
        };
        if !self.is_due(shard) {
            return;
        }
        update.conditions.push(Condition::Equals(hour.clone(), Value::Int(shard.hour.0)));
        for condition in require_refilled_at(shard) {
            if !update.conditions.contains(&condition) {
                update.conditions.push(condition);
            }
        }
        update.changes.push(AttributeUpdate::Set(hour, Value::Int(self.hour.0)));
        let mut base = |to: Path, from: Path| update.changes.push(AttributeUpdate::Copy(to, from));
        let is_new_day = !shard.hour.is_same_day(self.hour);
        let takes = Path::of(attr::TAKES);
        base(Path::of(attr::TAKES_HOUR_BASE), takes.clone());
        if is_new_day {
            base(Path::of(attr::TAKES_DAY_BASE), takes);
        }
        for limit in shard.limits.keys().chain(shard.departed.keys()) {
            let consumed = Path::limit(limit, Field::Consumed);
            base(Path::limit(limit, Field::HourBase), consumed.clone());
            if is_new_day {
                base(Path::limit(limit, Field::DayBase), consumed);
            }
        }
    }
}

/// Begins `hour` in `shard`, for a write that replaces all of it.
pub(super) fn roll(shard: &mut Shard, hour: Hour) {
    let is_new_day = !shard.hour.is_same_day(hour);
    let begin = |bases: &mut Bases, total| {
        bases.hour = total;
        if is_new_day {
            bases.day = total;
        }
    };
    begin(&mut shard.acquires.bases, shard.acquires.total);
    for state in shard.limits.values_mut() {
        begin(&mut state.bases, state.consumed.0);
    }
    for counter in shard.departed.values_mut() {
        begin(&mut counter.bases, counter.total);
    }
    shard.hour = hour;
}
