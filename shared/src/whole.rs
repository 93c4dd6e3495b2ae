//! All shards of a bucket together: what the whole has, when it has enough, and who gives how much (design, section 6).

use std::collections::BTreeMap;

use crate::{Bucket, EpochMillis, LimitName, MilliTokens};

/// The shards of one bucket, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whole {
    shards: Vec<Bucket>,
}

impl Whole {
    /// The bucket of which these are the shards.
    #[must_use]
    pub fn new(shards: Vec<Bucket>) -> Self {
        Self { shards }
    }

    /// The shards.
    #[must_use]
    pub fn shards(&self) -> &[Bucket] {
        &self.shards
    }

    /// Whether these are all shards and none of another time: their shares add up to one whole.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let parts = |count: u32| u64::from(u32::MAX.div_ceil(2) / count.max(1));
        let sum: u64 = self.shards.iter().map(|shard| parts(shard.shard().count)).sum();
        sum == parts(1)
    }

    /// What all shards together have of `limit` at `at`. A shard in debt has nothing, and takes nothing from the others.
    #[must_use]
    pub fn holds(&self, limit: &LimitName, at: EpochMillis) -> MilliTokens {
        self.shards.iter().map(|shard| shard.holds(limit, at).max(MilliTokens::ZERO)).sum()
    }

    /// The first instant from `now` on at which the shards together hold `need`, if nobody else takes or gives back;
    /// `None` if time alone never brings it. Exact: one millisecond earlier is too early.
    #[must_use]
    pub fn ready_at(&self, limit: &LimitName, need: MilliTokens, now: EpochMillis) -> Option<EpochMillis> {
        let is_there = |at: i64| self.holds(limit, EpochMillis(at)) >= need;
        if is_there(now.0) {
            return Some(now);
        }
        // What there is only rises, so the instant can be searched for: first how far, then where.
        let mut early = now.0;
        let mut step = 1_i64;
        let mut late = loop {
            let at = now.0.checked_add(step).filter(|at| *at < i64::MAX / 4)?;
            if is_there(at) {
                break at;
            }
            early = at;
            step = step.checked_mul(2)?;
        };
        while late - early > 1 {
            let middle = early + (late - early) / 2;
            if is_there(middle) { late = middle } else { early = middle }
        }
        Some(EpochMillis(late))
    }

    /// Who gives how much of `needs` at `at`, by the number of the shard: as few shards as will do, those that have most
    /// first. `None` if all together have not enough.
    #[must_use]
    pub fn spread(
        &self,
        needs: &BTreeMap<LimitName, MilliTokens>,
        at: EpochMillis,
    ) -> Option<Vec<(u32, BTreeMap<LimitName, MilliTokens>)>> {
        // By the limit that is shortest in each, in millionths of what is asked of it.
        let room = |shard: &Bucket| {
            let part = |(limit, need): (&LimitName, &MilliTokens)| {
                i128::from(shard.holds(limit, at).0) * 1_000_000 / i128::from(need.0.max(1))
            };
            needs.iter().map(part).min()
        };
        let mut shards: Vec<_> = self.shards.iter().map(|shard| (room(shard), shard)).collect();
        shards.sort_by(|(a, _), (b, _)| b.cmp(a));
        let mut left = needs.clone();
        let mut parts = vec![];
        for (_, shard) in shards {
            let mut part = BTreeMap::new();
            for (limit, left) in &mut left {
                let give = shard.holds(limit, at).min(*left).max(MilliTokens::ZERO);
                if give > MilliTokens::ZERO {
                    *left -= give;
                    part.insert(limit.clone(), give);
                }
            }
            if !part.is_empty() {
                parts.push((shard.key.shard, part));
            }
        }
        left.values().all(|left| *left <= MilliTokens::ZERO).then_some(parts)
    }
}
