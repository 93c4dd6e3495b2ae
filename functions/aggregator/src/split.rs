//! Selects the hot shards of a batch, and plans their splits. Pure.

use std::collections::BTreeMap;

use weirgate_shared::write::{Update, may_split, split};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Millis, Shard, WriteId};

/// Remainder of a second. A stream gives only the second of a write, which may have been at its
/// end.
const REST_OF_SECOND: Millis = Millis(999);

/// A hot shard, by its batch.
#[derive(Debug)]
pub struct Split<'a> {
    /// Shard by its newest image.
    pub image: &'a Shard,
    /// Largest request of each limit, which must still fit a half.
    largest: BTreeMap<LimitName, MilliTokens>,
    max_shards: u32,
    now: EpochMillis,
}

impl<'a> Split<'a> {
    /// Returns the split of `image`, from a write in the second `at`, if it is hot and may be
    /// split, or has an unfinished split.
    #[must_use]
    pub fn of(
        image: &'a Shard,
        at: EpochMillis,
        largest: impl FnOnce() -> BTreeMap<LimitName, MilliTokens>,
        max_shards: u32,
        now: EpochMillis,
    ) -> Option<Self> {
        if image.escrow.is_some() {
            return Some(Self {
                image,
                largest: BTreeMap::new(),
                max_shards,
                now,
            });
        }
        // Counts refill until the latest possible instant, so that a rounded time makes no shard
        // hot.
        if !is_hot(image, at.plus(REST_OF_SECOND).min(now)) {
            return None;
        }
        let largest = largest();
        may_split(image, max_shards, &largest).then_some(Self {
            image,
            largest,
            max_shards,
            now,
        })
    }

    /// Returns the write that begins to split the shard in the state `image`; `None` if that state
    /// cannot be split.
    #[must_use]
    pub fn first(&self, image: &Shard, op: WriteId) -> Option<Update> {
        let min_shards = image.scaling.min_shards;
        may_split(image, self.max_shards, &self.largest)
            .then(|| split(image, min_shards, op, self.now))
    }

    /// Returns whether the shard, which is `image` by now, still needs the split: it was neither
    /// split nor cooled down since.
    #[must_use]
    pub fn is_wanted(&self, image: &Shard) -> bool {
        image.shard() == self.image.shard() && is_hot(image, self.now)
    }
}

/// Returns whether the shard exceeds one partition: a client was throttled, its write units run
/// out, or its leases make every write cost more than one unit.
fn is_hot(shard: &Shard, at: EpochMillis) -> bool {
    shard.scaling.is_hot || shard.is_near_write_limit(at) || shard.has_heavy_leases()
}

#[cfg(test)]
mod tests {
    use weirgate_shared::{BucketKey, Limit, Scaling};

    use super::*;

    /// The first split cools the shard down; a split of a still hot one would split a half at once.
    #[test]
    fn a_split_is_wanted_while_it_is_the_same_shard_and_hot() {
        let (key, now) = (
            BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap(),
            EpochMillis(1_000_000),
        );
        let cool = Shard::full(
            key,
            [Limit::per_minute("rpm", 100).unwrap()].as_slice(),
            now,
        );
        let hot = Shard {
            scaling: Scaling {
                is_hot: true,
                ..Scaling::default()
            },
            ..cool.clone()
        };
        let split = Split::of(&hot, now, BTreeMap::new, 2, now).unwrap();
        assert!(split.is_wanted(&hot));
        assert!(!split.is_wanted(&cool), "it is cool by now");
        assert!(
            !split.is_wanted(&Shard {
                shard_count: 2,
                ..hot.clone()
            }),
            "another process has split it"
        );
        assert!(!split.is_wanted(&Shard {
            shard_count: 2,
            ..cool
        }));
    }
}
