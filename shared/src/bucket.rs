//! All shards of a bucket together: their balance, when it suffices, and how much each shard
//! contributes.

use std::collections::BTreeMap;

use crate::{EpochMillis, LimitName, MilliTokens, Shard};

/// The shards of one bucket, as far as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bucket {
    shards: Vec<Shard>,
}

impl Bucket {
    /// Returns the bucket that consists of `shards`.
    #[must_use]
    pub fn new(shards: Vec<Shard>) -> Self {
        Self { shards }
    }

    /// Returns the shards.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns whether these are all shards of the bucket, read in one state: their shares add up
    /// to one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let parts = |count: u32| u64::from(u32::MAX.div_ceil(2) / count.max(1));
        let sum: u64 = self.shards.iter().map(|shard| parts(shard.shard().count)).sum();
        sum == parts(1)
    }

    /// Returns the last end of the pauses that are in force at `now`. A pause of one shard counts for all:
    /// it is on its way to them.
    #[must_use]
    pub fn paused_until(&self, now: EpochMillis) -> Option<EpochMillis> {
        let ends = self.shards.iter().filter_map(|shard| shard.paused_until(now));
        ends.max()
    }

    /// Returns the balance of `limit` over all shards at `at`. A shard in debt counts as zero, so
    /// it does not reduce the sum.
    #[must_use]
    pub fn balance_at(&self, limit: &LimitName, at: EpochMillis) -> MilliTokens {
        self.shards.iter().map(|shard| shard.balance_at(limit, at).max(MilliTokens::ZERO)).sum()
    }

    /// Returns the first instant from `now` on at which the shards together have `need`, if no
    /// other write takes or returns tokens. Returns `None` if time alone never suffices. Exact: one
    /// millisecond earlier, the balance is too low.
    #[must_use]
    pub fn ready_at(
        &self,
        limit: &LimitName,
        need: MilliTokens,
        now: EpochMillis,
    ) -> Option<EpochMillis> {
        let is_there = |at: i64| self.balance_at(limit, EpochMillis(at)) >= need;
        if is_there(now.0) {
            return Some(now);
        }
        // The balance only rises, so the search doubles the step until it suffices, then bisects.
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

    /// Returns how much of `amounts` each shard contributes at `at`, by shard index; `None` if all
    /// shards together have too little.
    ///
    /// Takes from the fullest shards, and from as few as leave a quarter of their balance. Each
    /// contributes in proportion to its balance, so that its part is likely still available after
    /// concurrent takes. If a quarter cannot be left, all shards contribute.
    #[must_use]
    pub fn spread(
        &self,
        amounts: &BTreeMap<LimitName, MilliTokens>,
        at: EpochMillis,
    ) -> Option<Vec<(u32, BTreeMap<LimitName, MilliTokens>)>> {
        let held =
            |shard: &Shard, limit: &LimitName| shard.balance_at(limit, at).max(MilliTokens::ZERO);
        // Ranks a shard by its scarcest limit, in millionths of the amount requested.
        let room = |shard: &Shard| {
            let part = |(limit, need): (&LimitName, &MilliTokens)| {
                i128::from(held(shard, limit).0) * 1_000_000 / i128::from(need.0.max(1))
            };
            amounts.iter().map(part).min()
        };
        let mut shards: Vec<_> = self.shards.iter().map(|shard| (room(shard), shard)).collect();
        shards.sort_by(|(a, _), (b, _)| b.cmp(a));
        let mut available: BTreeMap<_, _> =
            amounts.keys().map(|limit| (limit.clone(), MilliTokens::ZERO)).collect();
        let mut givers = vec![];
        for (_, shard) in shards {
            if amounts.iter().all(|(limit, need)| available[limit].0 / 4 * 3 >= need.0) {
                break;
            }
            available.iter_mut().for_each(|(limit, available)| *available += held(shard, limit));
            givers.push(shard);
        }
        if amounts.iter().any(|(limit, need)| available[limit] < *need) {
            return None;
        }
        let mut left = amounts.clone();
        let mut parts = vec![];
        for shard in givers {
            let mut part = BTreeMap::new();
            for (limit, left) in &mut left {
                let Some(rest) = available.get_mut(limit) else {
                    continue;
                };
                let held = held(shard, limit);
                // Rounds up. The result never exceeds the shard's balance, because the amount left
                // never exceeds the balance left.
                let give = ceil_of(*left, held, *rest);
                if give > MilliTokens::ZERO {
                    *left -= give;
                    part.insert(limit.clone(), give);
                }
                *rest -= held;
            }
            if !part.is_empty() {
                parts.push((shard.key.shard, part));
            }
        }
        Some(parts)
    }
}

/// Returns `⌈left · held ÷ rest⌉`, which is at most `held` if `left` is at most `rest`.
fn ceil_of(left: MilliTokens, held: MilliTokens, rest: MilliTokens) -> MilliTokens {
    let [left, held, rest] = [left, held, rest].map(|tokens| i128::from(tokens.0.max(0)));
    if rest == 0 {
        return MilliTokens::ZERO;
    }
    MilliTokens(i64::try_from((left * held + rest - 1) / rest).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketKey, Limit};

    fn shard(index: u32, count: u32, limits: &[(&str, i64)]) -> Shard {
        let key = BucketKey::parse(&format!("default/BUCKET#e-1#gpt-4#{index}")).unwrap();
        let all: Vec<_> =
            limits.iter().map(|(name, _)| Limit::custom(name, 10_000, 1, 1000).unwrap()).collect();
        let mut shard = Shard { shard_count: count, ..Shard::full(key, &all, EpochMillis(0)) };
        for (name, tk) in limits {
            shard.limits.get_mut(*name).unwrap().available = MilliTokens(*tk);
        }
        shard
    }

    fn needs(needs: &[(&str, i64)]) -> BTreeMap<LimitName, MilliTokens> {
        needs
            .iter()
            .map(|(name, need)| (LimitName::new(*name).unwrap(), MilliTokens(*need)))
            .collect()
    }

    fn by_shard(parts: &[(u32, BTreeMap<LimitName, MilliTokens>)]) -> Vec<u32> {
        parts.iter().map(|(shard, _)| *shard).collect()
    }

    #[test]
    fn those_with_most_of_what_is_shortest_give_in_proportion() {
        // Of `a` a lot is asked, of `b` little: the shard that is rich in `b` is poor where it
        // matters.
        let bucket = Bucket::new(vec![
            shard(0, 4, &[("a", 1000), ("b", 9000)]),
            shard(1, 4, &[("a", 6000), ("b", 700)]),
            shard(2, 4, &[("a", 4000), ("b", 600)]),
            shard(3, 4, &[("a", -50), ("b", 0)]),
        ]);
        let parts = bucket.spread(&needs(&[("a", 7500), ("b", 900)]), EpochMillis(0)).unwrap();
        assert_eq!(
            parts,
            [(1, needs(&[("a", 4500), ("b", 485)])), (2, needs(&[("a", 3000), ("b", 415)]))]
        );
        let more = bucket.spread(&needs(&[("a", 7501)]), EpochMillis(0)).unwrap();
        assert_eq!(by_shard(&more), [1, 2, 0], "two would have less than a quarter left");
        let all = bucket.spread(&needs(&[("a", 11_000)]), EpochMillis(0)).unwrap();
        assert_eq!(
            all,
            [(1, needs(&[("a", 6000)])), (2, needs(&[("a", 4000)])), (0, needs(&[("a", 1000)]))]
        );
        assert_eq!(bucket.spread(&needs(&[("a", 11_001)]), EpochMillis(0)), None);
        // By parts of what is asked, not by amounts.
        let bucket = Bucket::new(vec![
            shard(0, 2, &[("a", 100_000), ("b", 90_000)]),
            shard(1, 2, &[("a", 600_000), ("b", 50_000)]),
        ]);
        let parts =
            bucket.spread(&needs(&[("a", 700_000), ("b", 100_000)]), EpochMillis(0)).unwrap();
        assert_eq!(parts[0].0, 1);
    }

    proptest::proptest! {
        #[test]
        fn parts_add_up_to_what_is_asked_and_none_is_more_than_its_shard_has(
            held in proptest::collection::vec([-1_000..i64::MAX / 100, -1_000..10_000_i64], 1..64),
            asked in [1..i64::MAX / 100, 1..10_000_i64],
        ) {
            let limits = ["a", "b"];
            let count = u32::try_from(held.len()).unwrap();
            let shards = (0..count).zip(&held).map(|(index, [a, b])| shard(index, count, &[("a", *a), ("b", *b)]));
            let (bucket, amounts) = (Bucket::new(shards.collect()), needs(&[("a", asked[0]), ("b", asked[1])]));
            let is_there = amounts.iter().all(|(limit, need)| bucket.balance_at(limit, EpochMillis(0)) >= *need);
            let parts = bucket.spread(&amounts, EpochMillis(0));
            proptest::prop_assert_eq!(parts.is_some(), is_there);
            let parts = parts.unwrap_or_default();
            for (shard, part) in &parts {
                let shard = bucket.shards().iter().find(|known| known.key.shard == *shard).unwrap();
                proptest::prop_assert!(part.iter().all(|(limit, give)| *give <= shard.balance_at(limit, EpochMillis(0))));
            }
            for limit in limits.iter().filter(|_| is_there) {
                let sum: MilliTokens = parts.iter().filter_map(|(_, part)| part.get(*limit)).copied().sum();
                proptest::prop_assert_eq!(sum, amounts[*limit]);
            }
        }
    }
}
