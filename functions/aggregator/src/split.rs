//! Which shard of a batch is hot, and how it is split. Pure.

use std::collections::BTreeMap;

use weirgate_shared::write::{Update, may_split, split};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Millis, Shard, WriteId};

/// A stream gives the second in which a write happened; it can have happened until its end.
const REST_OF_SECOND: Millis = Millis(999);

/// A hot shard, as its batch shows it.
#[derive(Debug)]
pub struct Split<'a> {
    /// The shard as it was last seen.
    pub image: &'a Shard,
    /// The largest request of each limit, which must still fit a half.
    largest: BTreeMap<LimitName, MilliTokens>,
    max_shards: u32,
    now: EpochMillis,
}

impl<'a> Split<'a> {
    /// Splits `image`, which a write in the second `at` left behind, if it is hot and may be split,
    /// or its last split is to be finished.
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
        // What flowed in by the latest instant is the most there can have been: no shard is hot for
        // a rounded time.
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

    /// The write that begins to split the shard as it is in `image`; `None` if it cannot be split
    /// like that.
    #[must_use]
    pub fn first(&self, image: &Shard, op: WriteId) -> Option<Update> {
        let asked = image.scaling.min_shards;
        may_split(image, self.max_shards, &self.largest).then(|| split(image, asked, op, self.now))
    }

    /// Whether the shard, which is `image` by now, is still to be split: nobody has done it or has
    /// made it cool.
    #[must_use]
    pub fn is_wanted(&self, image: &Shard) -> bool {
        image.shard() == self.image.shard() && is_hot(image, self.now)
    }
}

/// Whether one partition no longer bears the shard: a client was throttled, its write units run
/// out, or its leases make every write cost more than one.
fn is_hot(shard: &Shard, at: EpochMillis) -> bool {
    shard.scaling.is_hot || shard.is_near_write_limit(at) || shard.has_heavy_leases()
}

#[cfg(test)]
mod tests {
    use weirgate_shared::{BucketKey, Limit, Scaling};

    use super::*;

    /// Whoever split it first has cooled it; splitting again what is hot still would make two of a
    /// half at once.
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
            "somebody has split it"
        );
        assert!(!split.is_wanted(&Shard {
            shard_count: 2,
            ..cool
        }));
    }
}
