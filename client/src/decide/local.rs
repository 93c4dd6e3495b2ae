//! Local buckets, used while DynamoDB is unavailable.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{
    BucketKey, EpochMillis, Limit, LimitKind, LimitMode, LimitName, LimitState, LimitsVersion,
    MilliTokens, RefillRule, Shard, VersionedLimits,
};

use crate::bucket::BucketTarget;
use crate::values::{
    Amounts, BucketRequest, CALENDAR, Denied, LimitStatus, Limits, Locked, debited, denial_of,
    status, with_floors,
};

/// Local buckets that are kept, 10,000: memory is bounded, and a full one is as good as none.
const MAX_BUCKETS: usize = 10_000;
/// Shortest time between two searches for full ones, 1 s: each looks at all buckets.
const DROP_INTERVAL: Duration = Duration::from_secs(1);
/// Version of the limits of a local bucket: a release's, because those of one release never overrule each other.
const IN_FORCE: LimitsVersion = LimitsVersion::of_release(0);
/// Version of the limits of a request, which overrule.
const NEWER: LimitsVersion = LimitsVersion::of_release(1);

/// The local buckets of a limiter. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalBuckets(Arc<Locked<Buckets>>);

#[derive(Debug, Default)]
struct Buckets {
    by_key: HashMap<BucketKey, Arc<Locked<Shard>>>,
    /// When the full ones were last dropped.
    dropped_at: EpochMillis,
}

/// Tokens taken from a local bucket, which it pins: it can still go into debt.
#[derive(Debug)]
pub(crate) struct LocalHold {
    bucket: Arc<Locked<Shard>>,
    /// Amounts taken. A release returns only the slots.
    taken: Amounts,
    /// What the amounts are from.
    origins: BTreeMap<LimitName, Origin>,
}

/// What an amount is from: it returns to nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    kind: LimitKind,
    /// End of a quota's window.
    window: EpochMillis,
}

impl Origin {
    fn of(shard: &Shard, limit: &LimitName) -> Option<Self> {
        let state = shard.limits.get(limit)?;
        Some(Self { kind: state.rule.kind(), window: state.window_end })
    }
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
    ) -> Result<Vec<Option<LocalHold>>, Denied> {
        let mut buckets = self.0.lock();
        let (mut short, mut has_room) = (vec![], true);
        let mut holds: Vec<_> = targets.iter().map(|_| None).collect();
        let mut ordered: Vec<_> = targets.iter().zip(&mut holds).collect();
        ordered.sort_by_key(|(target, _)| target.is_shadow);
        for (target, hold) in ordered {
            let Some(bucket) = buckets.bucket(&target.bucket.key, now) else {
                has_room &= !needs_balance(target);
                continue;
            };
            let mut shard = bucket.lock();
            *shard = adopting(&shard, &target.request.limits, percent, now);
            let taken = match amounts(&shard, target, percent, now) {
                Ok(taken) => taken,
                Err(denied) => {
                    short.extend(denied.limits);
                    continue;
                }
            };
            begin_sessions(&mut shard, &taken, now);
            let origin = |name: &LimitName| Some((name.clone(), Origin::of(&shard, name)?));
            let origins = taken.keys().filter_map(origin).collect();
            // Subtract now, so that another target of the same bucket sees the rest.
            for (limit, need) in &taken {
                change(&mut shard, limit, -*need);
            }
            drop(shard);
            *hold = Some(LocalHold { bucket, taken, origins });
        }
        if short.is_empty() && has_room {
            return Ok(holds);
        }
        holds.into_iter().flatten().for_each(LocalHold::roll_back);
        let mut denied = denial_of(short);
        if !has_room {
            denied.retry_after = denied.retry_after.map(|after| after.max(DROP_INTERVAL));
        }
        Err(denied)
    }
}

impl Buckets {
    /// Returns the local bucket of the key, or a new one without limits, unless there is no room. Drops
    /// full ones if there is none.
    fn bucket(&mut self, key: &BucketKey, now: EpochMillis) -> Option<Arc<Locked<Shard>>> {
        if let Some(known) = self.by_key.get(key) {
            return Some(Arc::clone(known));
        }
        if self.by_key.len() >= MAX_BUCKETS && now.since(self.dropped_at) >= DROP_INTERVAL.into() {
            self.dropped_at = now;
            let is_full = |shard: &Shard| {
                let mut states = shard.limits.values();
                states.all(|state| is_full(shard, state, now))
            };
            self.by_key
                .retain(|_, bucket| Arc::strong_count(bucket) > 1 || !is_full(&bucket.lock()));
        }
        (self.by_key.len() < MAX_BUCKETS).then(|| {
            let shard = Shard::full(key.clone(), terms(&[], IN_FORCE), now);
            let bucket = Arc::new(Locked::new(shard));
            self.by_key.insert(key.clone(), Arc::clone(&bucket));
            bucket
        })
    }
}

fn terms(limits: &[Limit], version: LimitsVersion) -> VersionedLimits<'_> {
    VersionedLimits { limits, version: Some(version), is_own: false, calendar: CALENDAR }
}

/// Returns a shard with `percent` of these limits: of the capacity, at least one token, and of the
/// refill. It has them as a bucket of the table would, so no balance is there twice. Others stay until
/// all pools of theirs are full.
fn adopting(shard: &Shard, limits: &Limits, percent: u8, now: EpochMillis) -> Shard {
    let scaled = |limit: &Limit| {
        let mut rule = *limit.rule();
        rule.capacity = rule.capacity.percent(percent).max(MilliTokens(1_000));
        if rule.kind().refills() {
            rule.refill_amount = rule.refill_amount.percent(percent).max(MilliTokens(1));
        }
        Limit::of(limit.name().clone(), rule)
    };
    let scaled: Vec<_> = limits.iter().map(scaled).collect();
    let asked = |name: &str| scaled.iter().find(|limit| limit.name().as_str() == name);
    let has = |name: &LimitName| shard.limits.contains_key(name) && !shard.is_gone(name);
    // Of a pool that goes, the shared one gets what it has.
    let goes = |name: &LimitName| {
        name.is_pool()
            && has(name)
            && asked(name.as_str()).is_none()
            && asked(name.base()).is_some()
    };
    let rests = |name: &LimitName| {
        let mut pools = shard.limits.iter().filter(|(of, _)| of.base() == name.base());
        pools.all(|(_, state)| is_full(shard, state, now))
    };
    let stays = |name: &LimitName, state: &mut LimitState| match asked(name.as_str()) {
        // Of another kind, it begins again where nothing is held or owed.
        Some(limit) => shard.other_kind(limit).is_none() || !is_full(shard, state, now),
        None => goes(name) || !rests(name),
    };
    let mut known = shard.clone();
    known.limits.retain(stays);
    // The time since its last use brings what the new rule gives, also above the old capacity; what
    // those of its pools give that begin, too.
    for (name, state) in &mut known.limits {
        let is_rate = |rule: &RefillRule| rule.kind().refills();
        let limit = asked(name.as_str()).filter(|limit| is_rate(limit.rule()));
        let loses_pool = (shard.limits.keys()).any(|pool| goes(pool) && pool.base() == name.base());
        let Some(limit) = limit.filter(|_| has(name) && is_rate(&state.rule) && !loses_pool) else {
            continue;
        };
        let mut rule = *limit.rule();
        let begins = |pool: &&Limit| {
            let (pool, shared) = (pool.name(), name.as_str());
            pool.is_pool() && pool.base() == shared && !has(pool)
        };
        for pool in scaled.iter().filter(begins) {
            rule.capacity += pool.rule().capacity;
            rule.refill_amount += pool.rule().refill_amount;
        }
        state.available = state.available.min(rule.capacity);
        state.rule = rule;
    }
    known.projected(terms(&scaled, NEWER), now)
}

/// Returns whether a balance is at its capacity, as in a new bucket.
fn is_full(shard: &Shard, state: &LimitState, now: EpochMillis) -> bool {
    shard.balance(state, now) >= state.rule.capacity
}

fn change(shard: &mut Shard, limit: &LimitName, by: MilliTokens) {
    if let Some(state) = shard.limits.get_mut(limit) {
        state.available = (state.available + by).min(state.rule.capacity);
    }
}

/// Returns whether a target needs a balance, so that it is denied without a bucket.
fn needs_balance(target: &BucketTarget) -> bool {
    target.denying().any(|(_, amount)| amount > MilliTokens::ZERO)
}

/// Returns what a request takes, without what shadow mode waives: by the first choice of pools that
/// has enough.
///
/// # Errors
/// The denial by the choice that has enough first.
fn amounts(
    shard: &Shard,
    target: &BucketTarget,
    percent: u8,
    now: EpochMillis,
) -> Result<Amounts, Denied> {
    let by =
        |choice: &BucketRequest| amounts_of(shard, choice.clone(), target.is_shadow, percent, now);
    target.request.choose(by)
}

fn amounts_of(
    shard: &Shard,
    mut choice: BucketRequest,
    is_shadow: bool,
    percent: u8,
    now: EpochMillis,
) -> Result<Amounts, Denied> {
    choice.asks.set_floors(|ask| ask.floor.percent(percent));
    let mut amounts = debited(&choice.asks);
    // Of another kind, all of it must be back first.
    let is_other = |name: &LimitName| {
        let mut limits = choice.limits.iter();
        limits.any(|limit| limit.name() == name && shard.other_kind(limit).is_some())
    };
    // What is taken even into debt is short of nothing.
    let need = |name: &LimitName| {
        let amount = choice.asks.enforced(name.as_str())?;
        let whole = shard.limits.get(name).filter(|_| is_other(name));
        Some(whole.map_or(amount, |state| state.rule.capacity))
    };
    let above = choice.above_floors(shard.clone());
    // Of the shard's own version, so its scaled ones count.
    let limits = choice.limits.with_version(IN_FORCE);
    let status = with_floors(&choice, status(&above, &limits, need, now));
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
        let mut taken = self.taken.iter_mut();
        if let Some((limit, taken)) = taken.find(|(name, _)| name.base() == limit) {
            let mut shard = self.bucket.lock();
            let (of, now) = (self.origins.get(limit), Origin::of(&shard, limit));
            let is_debt = *taken < actual
                && (of.zip(now)).is_some_and(|(of, now)| of.kind.may_become(now.kind));
            if is_debt || of == now.as_ref() {
                change(&mut shard, limit, *taken - actual);
            }
            drop(shard);
            *taken = actual;
        }
    }

    /// Returns all tokens.
    pub(crate) fn roll_back(mut self) {
        self.give_back(|_| true);
    }

    fn give_back(&mut self, goes_back: fn(LimitKind) -> bool) {
        let mut shard = self.bucket.lock();
        for (limit, need) in std::mem::take(&mut self.taken) {
            let now = Origin::of(&shard, &limit);
            let goes_back = now.is_some_and(|now| goes_back(now.kind));
            if goes_back && self.origins.get(&limit) == now.as_ref() {
                change(&mut shard, &limit, need);
            }
        }
    }
}

/// Begins the sessions of which something is taken. Other windows begin by themselves.
fn begin_sessions(shard: &mut Shard, amounts: &Amounts, now: EpochMillis) {
    let some = amounts.iter().filter(|(_, amount)| **amount > MilliTokens::ZERO);
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
        self.give_back(LimitKind::is_held);
    }
}
