//! Evaluates a request by all shards of its bucket, without I/O.

use std::borrow::Cow;

use weirgate_shared::{Bucket, Effect, EpochMillis, LimitName, MilliTokens, Shard};

use crate::values::{
    Amounts, BucketRequest, Denied, LimitStatus, bucket_status, denial_of, shortage, status_for,
    with_floors,
};

/// How the shards can serve a request.
pub(super) enum Allocation {
    /// This shard has enough.
    Single(u32),
    /// These shards together have enough, each with its amounts.
    Spread(Vec<(u32, Amounts)>),
}

/// Evaluates a request by all shards of `bucket`. One that queues gets the shard in which it starts
/// first, if that is early enough. Of several choices of pools, the first one that serves it counts.
///
/// # Errors
/// The denial, if all shards together are short.
pub(super) fn evaluate(
    bucket: &Bucket,
    request: &BucketRequest,
    now: EpochMillis,
) -> Result<Allocation, Denied> {
    request.choose(|choice| evaluate_choice(bucket, choice, now))
}

fn evaluate_choice(
    bucket: &Bucket,
    request: &BucketRequest,
    now: EpochMillis,
) -> Result<Allocation, Denied> {
    let BucketRequest { asks, limits, .. } = request;
    let is_paused = asks.has(Effect::Enforce) && bucket.paused_until(now).is_some();
    if !is_paused && let Some(first) = first_start(bucket, request, now) {
        return Ok(Allocation::Single(first));
    }
    let all = bucket;
    let bucket = &above_floors(bucket, request);
    let enforced = asks.with(Effect::Enforce);
    let denied = || {
        let need = |name: &LimitName| asks.enforced(name.as_str());
        let denied = || denial_of(with_floors(request, bucket_status(bucket, limits, need, now)));
        Err(queue_denial(all, request, now).unwrap_or_else(denied))
    };
    if is_paused || enforced.clone().any(|(limit, need)| bucket.balance_at(limit, now) < need) {
        return denied();
    }
    let room = |shard: &Shard| {
        let needs = enforced.clone();
        needs.map(|(limit, need)| shard.balance_at(limit, now) - need).min()
    };
    let fits = |shard: &&Shard| room(shard).is_none_or(|room| room >= MilliTokens::ZERO);
    let fitting: Vec<_> = bucket.shards().iter().filter(fits).collect();
    // A random one, because other processes that read at the same time would all take the best one.
    if let Some(one) = fastrand::choice(&fitting) {
        return Ok(Allocation::Single(one.key.shard));
    }
    // Together they have enough, so the parts fit. An amount of 0 is no part of the sum.
    let (nothing, some): (Amounts, Amounts) = enforced
        .map(|(limit, need)| (limit.clone(), need))
        .partition(|(_, need)| *need == MilliTokens::ZERO);
    let mut parts = bucket.spread(&some, now).unwrap_or_default();
    for (limit, need) in nothing {
        let Some(index) = without_debt(bucket, &limit, &parts, now) else {
            return denied();
        };
        match parts.iter_mut().find(|(known, _)| *known == index) {
            Some((_, part)) => drop(part.insert(limit, need)),
            None => parts.push((index, [(limit, need)].into())),
        }
    }
    Ok(Allocation::Spread(parts))
}

/// Returns the shards without what a request must leave there.
pub(crate) fn above_floors<'a>(bucket: &'a Bucket, request: &BucketRequest) -> Cow<'a, Bucket> {
    if !request.asks.has_floor() {
        return Cow::Borrowed(bucket);
    }
    let shards = bucket.shards().iter().cloned();
    let shards = shards.map(|shard| request.above_floors(shard));
    Cow::Owned(Bucket::new(shards.collect()))
}

/// Returns the shard in which a request that queues starts first, one of several at random; `None` if
/// it does not queue, or starts too late in all of them.
fn first_start(bucket: &Bucket, request: &BucketRequest, now: EpochMillis) -> Option<u32> {
    let start_by = request.start_by(now)?;
    let start = |shard: &Shard| {
        let (limits, starts_in) = status_for(shard, request, Some(start_by), now);
        let fits = !limits.iter().any(LimitStatus::is_short);
        let starts_in = starts_in.filter(|_| fits)?;
        Some((starts_in, fastrand::u32(..), shard.key.shard))
    };
    let first = bucket.shards().iter().filter_map(start).min()?;
    Some(first.2)
}

/// Returns the denial by the shard whose line is the first to be short enough for a request that queues;
/// `None` if it does not queue, or exceeds the share of every shard.
fn queue_denial(bucket: &Bucket, request: &BucketRequest, now: EpochMillis) -> Option<Denied> {
    let start_by = request.start_by(now)?;
    let shards = bucket.shards().iter();
    let denials = shards.filter_map(|shard| shortage(shard, request, Some(start_by), now));
    let retryable = denials.filter(|denied| denied.retry_after.is_some());
    retryable.min_by_key(|denied| denied.retry_after)
}

/// Returns a shard in which `limit` is not in debt, one of `parts` if possible.
fn without_debt(
    bucket: &Bucket,
    limit: &LimitName,
    parts: &[(u32, Amounts)],
    now: EpochMillis,
) -> Option<u32> {
    let is_free = |shard: &&Shard| shard.balance_at(limit, now) >= MilliTokens::ZERO;
    let is_part = |shard: &Shard| parts.iter().any(|(index, _)| *index == shard.key.shard);
    let free = bucket.shards().iter().filter(is_free);
    free.min_by_key(|shard| !is_part(shard)).map(|shard| shard.key.shard)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use weirgate_shared::{Asks, BucketKey, Limit};

    use super::*;
    use crate::bucket::BucketState;
    use crate::queue::ShardView;
    use crate::session::AgeClock;
    use crate::values::Limits;

    const NOW: EpochMillis = EpochMillis(1_000_000);

    fn limits() -> Limits {
        let limits =
            [Limit::per_minute("rpm", 60).unwrap(), Limit::concurrent("slots", 60).unwrap()];
        Limits::new(limits.into(), None)
    }

    /// Amounts of a rate and of slots.
    fn needs([rate, slots]: [i64; 2]) -> Amounts {
        let all = [("rpm", rate), ("slots", slots)]
            .map(|(name, need)| (name, MilliTokens::from_tokens(need)));
        all.into_iter()
            .filter(|(_, need)| *need > MilliTokens::ZERO)
            .map(|(name, need)| (LimitName::new(name).unwrap(), need))
            .collect()
    }

    fn request(amounts: Amounts) -> BucketRequest {
        BucketRequest { asks: Asks::of(Effect::Enforce, amounts), ..BucketRequest::of(limits()) }
    }

    fn shard(shard: u32, shard_count: u32, left: [i64; 2]) -> Shard {
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap().with_shard(shard);
        let mut shard = Shard { shard_count, ..Shard::full(key, &limits(), NOW) };
        for (state, left) in shard.limits.values_mut().zip(left) {
            state.available = MilliTokens::from_tokens(left);
        }
        shard
    }

    fn whole() -> impl Strategy<Value = Bucket> {
        (vec([-2..6_i64, -2..6_i64], 4), 0..3_u32).prop_map(|(left, halvings)| {
            let count = 1 << halvings;
            Bucket::new(
                (0..count).zip(left).map(|(index, left)| shard(index, count, left)).collect(),
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// I1, and no denial while there is enough: all amounts are available, and one shard gives
        /// them if one can.
        #[test]
        fn i1_one_gives_what_one_has_and_several_what_they_have_together(
            bucket in whole(), asked in [0..6_i64, 0..6_i64],
        ) {
            let amounts = needs(asked);
            let of = |shard: &Shard, name: &LimitName| shard.balance_at(name, NOW);
            let has_all = |shard: &Shard| amounts.iter().all(|(name, need)| of(shard, name) >= *need);
            let lacks = |(name, need): &(&LimitName, &MilliTokens)| {
                bucket.shards().iter().map(|shard| of(shard, name).max(MilliTokens::ZERO)).sum::<MilliTokens>() < **need
            };
            let lacking: Vec<_> = amounts.iter().filter(lacks).map(|(name, _)| name.to_string()).collect();
            match evaluate(&bucket, &request(amounts.clone()), NOW) {
                Err(denied) => {
                    let short: Vec<_> = denied.short().map(|status| status.limit.clone()).collect();
                    prop_assert!(!lacking.is_empty());
                    prop_assert_eq!(short, lacking);
                }
                Ok(Allocation::Single(index)) => {
                    prop_assert!(lacking.is_empty());
                    prop_assert!(bucket.shards().iter().any(|shard| shard.key.shard == index && has_all(shard)));
                }
                Ok(Allocation::Spread(parts)) => {
                    prop_assert!(lacking.is_empty() && !bucket.shards().iter().any(has_all));
                    let mut sum = Amounts::new();
                    for (index, part) in parts {
                        let shard = bucket.shards().iter().find(|shard| shard.key.shard == index).unwrap();
                        for (name, give) in part {
                            prop_assert!(give <= of(shard, &name));
                            *sum.entry(name).or_default() += give;
                        }
                    }
                    prop_assert_eq!(sum, amounts);
                }
            }
        }
    }

    fn indices(bucket: &Bucket) -> Vec<u32> {
        bucket.shards().iter().map(|shard| shard.key.shard).collect()
    }

    /// An old view, or a view of a missing shard, would cause a false denial.
    #[test]
    fn a_denial_uses_fresh_views_and_a_plan_uses_all_views() {
        let bucket = Arc::new(BucketState::new(shard(0, 4, [0, 0]).key, None, AgeClock::default()));
        for index in 0..4 {
            bucket.shard(index).record_view(shard(index, 4, [1, 1]));
        }
        bucket.shard(2).mark_missing();
        let is_fresh = |view: &ShardView| view.shard.key.shard != 3;
        assert_eq!(indices(&bucket.cached_bucket(&limits(), NOW)), [0, 1, 3]);
        assert_eq!(indices(&bucket.seen_bucket(&limits(), NOW, is_fresh)), [0, 1]);
    }

    /// A limit that a shard does not have yet counts as full, with the request's capacity.
    #[test]
    fn shards_are_seen_with_the_limits_that_callers_bring() {
        let bucket = Arc::new(BucketState::new(shard(0, 1, [0, 0]).key, None, AgeClock::default()));
        bucket.shard(0).record_view(shard(0, 1, [1, 1]));
        let more = Limits::new([Limit::per_day("rpd", 9).unwrap()].into(), None);
        let rpd = LimitName::new("rpd").unwrap();
        let bucket = bucket.cached_bucket(&more, NOW);
        assert_eq!(bucket.balance_at(&rpd, NOW), MilliTokens::from_tokens(9));
    }
}
