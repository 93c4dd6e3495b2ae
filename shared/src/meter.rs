//! Usage of a shard in its current hour and day, as its item counts it.

use std::collections::BTreeMap;

use crate::{BucketKey, EpochMillis, Hour, LimitName, MilliTotal, SnapshotKey, Window, by_limit};

/// Largest count of a window: a number of DynamoDB has 38 digits. The difference of two such numbers may
/// have one more.
const MAX_COUNT: i128 = 10_i128.pow(38) - 1;

/// A counter's values at the start of the item's current hour, and of the day that hour is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bases {
    /// Value at the start of the hour.
    pub hour: i128,
    /// Value at the start of the day.
    pub day: i128,
}

/// A counter of this shard since its creation, with its values at the start of the current windows.
/// It is never reset, so it has 128 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counter {
    /// Current value.
    pub total: i128,
    /// Values at the start of the current hour and day.
    pub bases: Bases,
}

impl Counter {
    /// Returns the count in the current window of this kind. Negative if more was returned than
    /// taken: tokens taken in one hour may return in the next. Has at most 38 digits.
    #[must_use]
    pub fn used(&self, window: Window) -> i128 {
        let base = match window {
            Window::Hourly => self.bases.hour,
            Window::Daily => self.bases.day,
        };
        let used = self.total.saturating_sub(base);
        used.clamp(-MAX_COUNT, MAX_COUNT)
    }
}

/// The usage counters of a bucket shard, live or merged away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    /// The shard.
    pub key: BucketKey,
    /// Write sequence; two images of one life with the same one are equal.
    pub write_seq: i64,
    /// `write_seq` at creation.
    pub birth_seq: i64,
    /// Current hour.
    pub hour: Hour,
    /// Number of granted acquires.
    pub acquires: Counter,
    /// Net consumption of each limit, in millitokens.
    pub limits: BTreeMap<LimitName, Counter>,
}

impl Meter {
    /// Returns whether the item is the tombstone of an erased shard. Any other shard has limits.
    #[must_use]
    pub fn is_erased(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the first instant of the current window of this kind.
    #[must_use]
    pub const fn start(&self, window: Window) -> EpochMillis {
        window.start(self.hour.start())
    }

    /// Returns the key of the snapshot for the current window of this kind.
    #[must_use]
    pub fn snapshot(&self, window: Window) -> SnapshotKey {
        let BucketKey { namespace, entity, resource, .. } = self.key.clone();
        SnapshotKey { namespace, entity, resource, window, start: self.start(window) }
    }

    /// Returns the usage in the current window of this kind.
    #[must_use]
    pub fn usage(&self, window: Window) -> Usage {
        let used = |(name, counter): (&LimitName, &Counter)| {
            (name.clone(), MilliTotal(counter.used(window)))
        };
        Usage {
            tokens: self.limits.iter().map(used).collect(),
            acquires: self.acquires.used(window),
        }
    }
}

/// An amount of usage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Net consumption of each limit. Negative if more was returned in the window than taken.
    pub tokens: BTreeMap<LimitName, MilliTotal>,
    /// Number of granted acquires.
    pub acquires: i128,
}

impl Usage {
    /// Returns the usage of whole limits: what the pools of a limit's classes were used for is that of
    /// the limit.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { tokens: by_limit(self.tokens), ..self }
    }

    /// Adds another amount.
    pub fn add(&mut self, other: &Self) {
        self.acquires = self.acquires.saturating_add(other.acquires);
        for (name, amount) in &other.tokens {
            *self.tokens.entry(name.clone()).or_default() += *amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_the_counter_less_its_value_when_the_window_began() {
        let counter = Counter { total: 12, bases: Bases { hour: 15, day: 4 } };
        assert_eq!(Window::ALL.map(|window| counter.used(window)), [-3, 8]);
    }
}
