//! Local buckets, used while DynamoDB is unavailable.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{
    BucketKey, Effect, EpochMillis, LimitMode, LimitName, LimitState, LimitsVersion, MilliTokens,
    Millis, RefillRule, Shard,
};

use crate::bucket::BucketTarget;
use crate::queue::{Windows, windows_in};
use crate::values::{
    Amounts, BucketRequest, CALENDAR, Denied, LimitStatus, Limits, Locked, debited, denial_of,
    status, with_floors,
};

/// Local buckets that are kept, 10,000: memory is bounded, and a full one is as good as none.
const MAX_BUCKETS: usize = 10_000;
/// Shortest time between two searches for full ones, 1 s: each looks at all buckets.
const DROP_INTERVAL: Duration = Duration::from_secs(1);

/// The local buckets of a limiter. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalBuckets(Arc<Locked<Buckets>>);

#[derive(Debug, Default)]
struct Buckets {
    by_key: HashMap<BucketKey, LocalBucket>,
    /// When the full ones were last dropped.
    dropped_at: EpochMillis,
}

/// A local bucket, and the limits and percentage it was created with.
#[derive(Debug)]
struct LocalBucket {
    shard: Shard,
    limits: Limits,
    percent: u8,
}

/// Tokens taken from a local bucket.
#[derive(Debug)]
pub(crate) struct LocalHold {
    buckets: LocalBuckets,
    key: BucketKey,
    /// Amounts taken. A release returns only the slots.
    taken: Amounts,
    /// Windows that the amounts of quotas are from.
    windows: Windows,
}

impl LocalBuckets {
    /// Takes the amounts of all `targets` from their local buckets, which have `percent` of every
    /// limit. Returns the holds in the order of the targets, or a denial. Targets in shadow mode take
    /// last, so they leave nothing short. What shadow mode waives is not taken, as in the table.
    /// `now` is by the clock for ages.
    ///
    /// A bucket for which there is no room denies: another one is dropped only if it is full, or its
    /// next request would find a full bucket again.
    pub(crate) fn take(
        &self,
        targets: &[BucketTarget],
        percent: u8,
        now: EpochMillis,
    ) -> Result<Vec<LocalHold>, Denied> {
        let mut buckets = self.0.lock();
        let (mut taken, mut short, mut has_room) = (vec![], vec![], true);
        let mut ordered: Vec<_> = targets.iter().enumerate().collect();
        ordered.sort_by_key(|(_, target)| target.is_shadow);
        for (at, target) in ordered {
            let key = &target.bucket.key;
            let hold = |taken, windows| LocalHold {
                buckets: self.clone(),
                key: key.clone(),
                taken,
                windows,
            };
            if !buckets.has_room_for(key, now) {
                has_room &= !needs_balance(target);
                taken.push((at, hold(Amounts::new(), Windows::new())));
                continue;
            }
            // With the same version, the scaled limits of the local bucket take precedence.
            let limits = target.request.limits.with_version(LimitsVersion::new(0));
            let new = || LocalBucket {
                shard: scaled_shard(key, &limits, percent, now),
                limits: limits.clone(),
                percent,
            };
            let local = buckets.by_key.entry(key.clone()).or_insert_with(new);
            if local.limits != limits || local.percent != percent {
                *local = new();
            }
            local.shard = local.shard.projected(&limits, now);
            let amounts = match local.amounts(target, now) {
                Ok(amounts) => amounts,
                Err(denied) => {
                    short.extend(denied.limits);
                    continue;
                }
            };
            begin_sessions(&mut local.shard, &amounts, now);
            let windows = windows_in(&local.shard);
            // Subtract now, so that another target of the same bucket sees the rest.
            for (limit, need) in &amounts {
                buckets.change(key, limit, -*need);
            }
            taken.push((at, hold(amounts, windows)));
        }
        if short.is_empty() && has_room {
            taken.sort_by_key(|(at, _)| *at);
            return Ok(taken.into_iter().map(|(_, hold)| hold).collect());
        }
        for (_, hold) in &mut taken {
            hold.give_back_to(&mut buckets, |_| true);
        }
        drop(buckets);
        let mut denied = denial_of(short);
        if !has_room {
            denied.retry_after = denied.retry_after.map(|after| after.max(DROP_INTERVAL));
        }
        Err(denied)
    }
}

impl Buckets {
    /// Returns whether there is a local bucket of the key, or room for one. Drops full ones if there is
    /// none.
    fn has_room_for(&mut self, key: &BucketKey, now: EpochMillis) -> bool {
        if self.by_key.len() < MAX_BUCKETS || self.by_key.contains_key(key) {
            return true;
        }
        if now.since(self.dropped_at) >= Millis::from(DROP_INTERVAL) {
            self.dropped_at = now;
            self.by_key.retain(|_, local| !local.is_full(now));
        }
        self.by_key.len() < MAX_BUCKETS
    }

    fn state(&self, key: &BucketKey, limit: &LimitName) -> Option<&LimitState> {
        self.by_key.get(key)?.shard.limits.get(limit)
    }

    fn change(&mut self, key: &BucketKey, limit: &LimitName, by: MilliTokens) {
        let local = self.by_key.get_mut(key);
        if let Some(state) = local.and_then(|local| local.shard.limits.get_mut(limit)) {
            state.available = (state.available + by).min(state.rule.capacity);
        }
    }
}

/// Returns whether a target needs a balance, so that it is denied without a bucket.
fn needs_balance(target: &BucketTarget) -> bool {
    let request = &target.request;
    let is_reported = |name: &LimitName| {
        let mut limits = request.limits.iter();
        limits.any(|limit| limit.name() == name && limit.mode() == LimitMode::Shadow)
    };
    let mut enforced = request.asks.with(Effect::Enforce);
    let is_needed = |(name, amount)| amount > MilliTokens::ZERO && !is_reported(name);
    !target.is_shadow && enforced.any(is_needed)
}

impl LocalBucket {
    /// Returns whether every balance is at its capacity, as in a new one.
    fn is_full(&self, now: EpochMillis) -> bool {
        let mut states = self.shard.limits.values();
        states.all(|state| self.shard.balance(state, now) >= state.rule.capacity)
    }

    /// Returns what a request takes, without what shadow mode waives: by the first choice of pools that
    /// has enough.
    ///
    /// # Errors
    /// The denial by the choice that has enough first.
    fn amounts(&self, target: &BucketTarget, now: EpochMillis) -> Result<Amounts, Denied> {
        let request = &target.request;
        let by = |asks| self.amounts_of(request.choosing(asks), target.is_shadow, now);
        let others = request.others.iter();
        others.fold(by(&request.asks), |known, asks| {
            known.or_else(|denied| by(asks).map_err(|next| denied.or_sooner(next)))
        })
    }

    fn amounts_of(
        &self,
        mut choice: BucketRequest,
        is_shadow: bool,
        now: EpochMillis,
    ) -> Result<Amounts, Denied> {
        choice
            .asks
            .set_floors(|ask| ask.floor.percent(self.percent));
        let mut amounts = debited(&choice.asks);
        // What is taken even into debt is short of nothing.
        let need = |name: &LimitName| choice.asks.enforced(name.as_str());
        let above = choice.above_floors(self.shard.clone());
        let status = with_floors(&choice, status(&above, &self.limits, need, now));
        let is_waived = |short: &LimitStatus| is_shadow || short.mode == LimitMode::Shadow;
        let missing = || status.iter().filter(|status| status.is_short());
        if !missing().all(is_waived) {
            return Err(denial_of(status));
        }
        for waived in missing() {
            amounts.remove(waived.limit.as_str());
        }
        Ok(amounts)
    }
}

impl LocalHold {
    /// Returns the amount taken of a limit, as adjusted.
    pub(crate) fn amount(&self, limit: &str) -> MilliTokens {
        let same = self.taken.iter().filter(|(name, _)| name.base() == limit);
        same.map(|(_, amount)| *amount).sum()
    }

    /// Iterates over the limits that were taken.
    pub(crate) fn limits_taken(&self) -> impl Iterator<Item = &LimitName> {
        self.taken.keys()
    }

    /// Adjusts `limit` to the `actual` amount used.
    pub(crate) fn adjust(&mut self, limit: &str, actual: MilliTokens) {
        let mut taken = self.taken.iter();
        if let Some((limit, taken)) = taken
            .find(|(name, _)| name.base() == limit)
            .map(|(limit, taken)| (limit.clone(), *taken))
        {
            let mut buckets = self.buckets.0.lock();
            if taken < actual || self.is_of_present_window(&buckets, &limit) {
                buckets.change(&self.key, &limit, taken - actual);
            }
            drop(buckets);
            self.taken.insert(limit, actual);
        }
    }

    /// Returns all tokens.
    pub(crate) fn roll_back(mut self) {
        self.give_back(|_| true);
    }

    fn give_back(&mut self, goes_back: fn(&RefillRule) -> bool) {
        let buckets = self.buckets.clone();
        self.give_back_to(&mut buckets.0.lock(), goes_back);
    }

    /// Returns whether what was taken of a limit is of the bucket's present window.
    fn is_of_present_window(&self, buckets: &Buckets, limit: &LimitName) -> bool {
        let window = self.windows.get(limit).copied().unwrap_or_default();
        let state = buckets.state(&self.key, limit);
        state.is_some_and(|state| state.window_end == window)
    }

    fn give_back_to(&mut self, buckets: &mut Buckets, goes_back: fn(&RefillRule) -> bool) {
        for (limit, need) in std::mem::take(&mut self.taken) {
            let state = buckets.state(&self.key, &limit);
            let goes_back = state.is_some_and(|state| goes_back(&state.rule));
            if goes_back && self.is_of_present_window(buckets, &limit) {
                buckets.change(&self.key, &limit, need);
            }
        }
    }
}

/// Begins the sessions of which something is taken. Other windows begin by themselves.
fn begin_sessions(shard: &mut Shard, amounts: &Amounts, now: EpochMillis) {
    let some = amounts
        .iter()
        .filter(|(_, amount)| **amount > MilliTokens::ZERO);
    for (limit, _) in some {
        let state = shard.limits.get_mut(limit);
        if let Some(state) = state.filter(|state| state.has_ended(now))
            && let Some(code) = state.rule.window_code()
        {
            state.available = state.rule.capacity;
            state.window_end = CALENDAR.end_after(code, now).unwrap_or_default();
        }
    }
}

/// Returns the slots, however the hold ends.
impl Drop for LocalHold {
    fn drop(&mut self) {
        self.give_back(|rule| rule.kind().is_held());
    }
}

/// Returns a full shard with `percent` of every limit: of its capacity, at least one token, and of
/// its refill.
fn scaled_shard(key: &BucketKey, limits: &Limits, percent: u8, now: EpochMillis) -> Shard {
    let mut shard = Shard::full(key.clone(), limits, now);
    for state in shard.limits.values_mut() {
        let RefillRule {
            capacity,
            refill_amount,
            ..
        } = state.rule;
        state.rule.capacity = capacity.percent(percent).max(MilliTokens(1_000));
        if state.rule.kind().refills() {
            state.rule.refill_amount = refill_amount.percent(percent).max(MilliTokens(1));
        }
        state.available = state.rule.capacity;
    }
    shard
}
