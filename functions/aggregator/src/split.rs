//! Selects the hot shards of a batch, and plans their splits. Pure.

use std::collections::BTreeMap;

use weirgate_shared::write::{Condition, Path, Update, Value, may_split, split};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Millis, Shard, WriteId, attr};

use crate::config::Config;

/// Age up to which an image counts as the present, 3 s: a batch collects records for a second, and
/// a stream dates them in whole seconds.
const RECENT: Millis = Millis(3_000);

/// Writes to a shard, by the records of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Heat {
    /// Number of writes.
    pub writes: i64,
    /// Time of the first one.
    pub from: EpochMillis,
    /// Time of the last one.
    pub to: EpochMillis,
}

/// A hot shard, by its batch.
#[derive(Debug)]
pub struct Split<'a> {
    /// Shard by its newest image.
    pub image: &'a Shard,
    /// Time of the newest image.
    at: EpochMillis,
    /// Largest request of each limit, which must still fit a half.
    largest: BTreeMap<LimitName, MilliTokens>,
    max_shards: u32,
    hot_units: i64,
}

impl<'a> Split<'a> {
    /// Returns the split of `image` if it is hot and may be split, or has an unfinished split.
    #[must_use]
    pub fn of(
        image: &'a Shard,
        heat: Heat,
        largest: impl FnOnce() -> BTreeMap<LimitName, MilliTokens>,
        config: &Config,
    ) -> Option<Self> {
        let is_unfinished = image.escrow.is_some();
        let is_hot = image.has_heavy_leases()
            || image.scaling.is_hot(heat.to) && heat.units(image) >= i128::from(config.hot_units);
        if !is_unfinished && !is_hot {
            return None;
        }
        let split = Self {
            image,
            at: heat.to,
            largest: if is_unfinished { BTreeMap::new() } else { largest() },
            max_shards: config.max_shards,
            hot_units: config.hot_units,
        };
        (is_unfinished || may_split(image, split.max_shards, &split.largest)).then_some(split)
    }

    /// Returns the write that begins to split the shard in the state `seen`; `None` if that state
    /// cannot be split. If `seen` is the image of a late record of a busy shard, the write requires that
    /// the shard was as busy since.
    #[must_use]
    pub fn first(&self, seen: &Shard, op: WriteId, now: EpochMillis) -> Option<Update> {
        if !may_split(seen, self.max_shards, &self.largest) {
            return None;
        }
        let mut update = split(seen, seen.scaling.min_shards, op, now);
        let least = self.least_v(now);
        // Heavy leases stay without writes.
        if least > seen.write_seq && !seen.has_heavy_leases() {
            update
                .conditions
                .push(Condition::AtLeast(Path::of(attr::WRITE_SEQ), Value::Int(least)));
        }
        Some(update)
    }

    /// Returns whether the shard, which is `present` at `now`, still needs the split: it was
    /// neither split nor cooled down since.
    #[must_use]
    pub fn is_wanted(&self, present: &Shard, now: EpochMillis) -> bool {
        let is_busy = present.scaling.hot_at.is_some() && present.write_seq >= self.least_v(now);
        present.shard() == self.image.shard() && (present.has_heavy_leases() || is_busy)
    }

    /// Returns the lowest `v` that the shard has at `now` if it was hot since the image.
    fn least_v(&self, now: EpochMillis) -> i64 {
        let late = now.since(self.at).0.saturating_sub(RECENT.0).max(0);
        let writes = late.saturating_mul(self.hot_units) / 1000 / self.image.write_units();
        self.image.write_seq.saturating_add(writes)
    }
}

impl Heat {
    /// Returns the write units a second.
    fn units(self, shard: &Shard) -> i128 {
        // The stream gives only the second of a write.
        let span = i128::from(self.to.since(self.from).0.max(0)) + 1_000;
        i128::from(self.writes) * i128::from(shard.write_units()) * 1_000 / span
    }
}

#[cfg(test)]
mod tests {
    use weirgate_shared::{BucketKey, Limit, Scaling};

    use super::*;

    fn config() -> Config {
        Config::read(|name| (name == Config::TABLE_NAME).then(|| "t".to_owned())).unwrap()
    }

    fn heat(writes: i64, at: EpochMillis) -> Heat {
        Heat { writes, from: at, to: at }
    }

    fn shard(is_hot: bool, at: EpochMillis) -> Shard {
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
        let limits = [Limit::per_minute("rpm", 100).unwrap()];
        Shard {
            scaling: Scaling { hot_at: is_hot.then_some(at), ..Scaling::default() },
            ..Shard::full(key, limits.as_slice(), at)
        }
    }

    #[test]
    fn a_throttled_shard_is_split_if_its_own_writes_are_many() {
        let now = EpochMillis(1_000_000);
        let (cool, hot) = (shard(false, now), shard(true, now));
        let is_split =
            |image, writes| Split::of(image, heat(writes, now), BTreeMap::new, &config()).is_some();
        assert!(is_split(&hot, 100) && !is_split(&hot, 99) && !is_split(&cool, 1_000));
        let large = Shard { size_bytes: 1_025, ..hot.clone() };
        assert!(is_split(&large, 50) && !is_split(&large, 49));
    }

    /// The first split cools the shard down; a split of a still hot one would split a half at once.
    #[test]
    fn a_split_is_wanted_while_it_is_the_same_shard_and_hot() {
        let now = EpochMillis(1_000_000);
        let (cool, hot) = (shard(false, now), shard(true, now));
        let split = Split::of(&hot, heat(100, now), BTreeMap::new, &config()).unwrap();
        assert!(split.is_wanted(&hot, now.plus(RECENT)));
        assert!(!split.is_wanted(&cool, now), "it is cool by now");
        let half = Shard { shard_count: 2, ..hot.clone() };
        assert!(!split.is_wanted(&half, now), "another process has split it");
        // Ten seconds late: as many writes as a hot shard has.
        let late = now.plus(RECENT).plus(Millis(10_000));
        for (writes, is_wanted) in [(0, false), (999, false), (1_000, true)] {
            let since = Shard { write_seq: hot.write_seq + writes, ..hot.clone() };
            assert_eq!(split.is_wanted(&since, late), is_wanted, "{writes}");
        }
    }
}
