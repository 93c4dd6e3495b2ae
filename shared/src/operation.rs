//! An operator's change, as its idempotency key remembers it, and its id in the shards that it
//! changes.

use crate::{EpochMillis, Millis};

/// Time for which shards with different ids are not merged, because a change may be under way.
const UNDER_WAY: Millis = Millis(86_400_000);
/// Bits of an id below its time.
const RANDOM_BITS: u32 = 20;

/// A change that was made under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Time of the change.
    pub at: EpochMillis,
    /// What was changed. The same text under the same key is the same change.
    pub what: String,
}

/// Id of a change: its time in epoch ms, and random bits. Later changes of a bucket have larger ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EditId(pub i64);

impl EditId {
    /// Returns an id at `now`, above that of the change `before`.
    #[must_use]
    pub fn new(now: EpochMillis, random: u64, before: Option<Self>) -> Self {
        let random = i64::try_from(random >> (64 - RANDOM_BITS)).unwrap_or_default();
        let id = now.0.saturating_mul(1 << RANDOM_BITS).saturating_add(random);
        Self(before.map_or(id, |before| id.max(before.0.saturating_add(1))))
    }

    /// Returns whether the change may be under way at `now`.
    #[must_use]
    pub const fn may_be_under_way(self, now: EpochMillis) -> bool {
        now.0 < (self.0 >> RANDOM_BITS).saturating_add(UNDER_WAY.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_bucket_rise_whatever_the_clock_shows() {
        let first = EditId::new(EpochMillis(5_000), u64::MAX, None);
        let second = EditId::new(EpochMillis(4_000), 0, Some(first));
        assert!(second > first);
        assert!(first.may_be_under_way(EpochMillis(5_000)));
        assert!(!first.may_be_under_way(EpochMillis(5_000 + UNDER_WAY.0)));
    }
}
