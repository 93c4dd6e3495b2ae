//! LocalBuckets in this process, for as long as DynamoDB is away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weirgate_shared::{Bucket, BucketKey, EpochMillis, LimitName, MilliTokens, Mode, Rule};

use crate::decide::Target;
use crate::decision::{self, Denied};
use crate::limits::Limits;
use crate::line::Needs;

/// How many local buckets are remembered; more than these are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// The local buckets of a limiter. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalBuckets(Arc<Mutex<HashMap<BucketKey, Bucket>>>);

/// What was taken of a local bucket.
#[derive(Debug)]
pub(crate) struct LocalHold {
    buckets: LocalBuckets,
    key: BucketKey,
    /// Only its slots go back when it is released.
    taken: Needs,
}

impl LocalBuckets {
    /// Takes what all `targets` ask of their local buckets, which have `percent` of every limit; or says what is short.
    pub(crate) fn take(&self, targets: &[Target], percent: u8, now: EpochMillis) -> Result<Vec<LocalHold>, Denied> {
        let mut buckets = self.lock();
        if buckets.len() > MAX_BUCKETS {
            buckets.clear();
        }
        let mut short = vec![];
        for target in targets {
            let key = &target.shards.key;
            // The numbers of the limits give way to those of the local bucket, which are of the same version.
            let limits = target.request.limits.of_version(0);
            let known = buckets.entry(key.clone()).or_insert_with(|| part(key, &limits, percent, now));
            *known = known.advanced(&limits, now);
            let status = decision::status(known, &limits, &target.needs(), now);
            if !target.is_shadow && status.iter().any(|status| status.is_short() && status.mode != Mode::Shadow) {
                short.extend(status);
            }
        }
        if !short.is_empty() {
            return Err(decision::denied(short));
        }
        let mut take = |target: &Target| {
            let (key, taken) = (target.shards.key.clone(), target.needs());
            for (limit, need) in &taken {
                change(&mut buckets, &key, limit, -*need);
            }
            LocalHold { buckets: self.clone(), key, taken }
        };
        Ok(targets.iter().map(&mut take).collect())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BucketKey, Bucket>> {
        // The map is whole between any two statements: a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalHold {
    /// What was taken of a limit, as adjusted.
    pub(crate) fn amount(&self, limit: &str) -> MilliTokens {
        self.taken.get(limit).copied().unwrap_or_default()
    }

    /// `actual` of `limit` was used in truth, which was taken.
    pub(crate) fn adjust(&mut self, limit: &str, actual: MilliTokens) {
        if let Some((limit, taken)) = self.taken.get_key_value(limit).map(|(limit, taken)| (limit.clone(), *taken)) {
            change(&mut self.buckets.lock(), &self.key, &limit, taken - actual);
            self.taken.insert(limit, actual);
        }
    }

    /// Gives everything back.
    pub(crate) fn rollback(mut self) {
        self.give_back(|_| true);
    }

    fn give_back(&mut self, goes_back: fn(&Rule) -> bool) {
        let mut buckets = self.buckets.lock();
        for (limit, need) in std::mem::take(&mut self.taken) {
            let state = buckets.get(&self.key).and_then(|bucket| bucket.limits.get(&limit));
            if state.is_some_and(|state| goes_back(&state.rule)) {
                change(&mut buckets, &self.key, &limit, need);
            }
        }
    }
}

/// Slots go back however the hold ends.
impl Drop for LocalHold {
    fn drop(&mut self) {
        self.give_back(|rule| rule.is_concurrent());
    }
}

fn change(buckets: &mut HashMap<BucketKey, Bucket>, key: &BucketKey, limit: &LimitName, by: MilliTokens) {
    if let Some(state) = buckets.get_mut(key).and_then(|bucket| bucket.limits.get_mut(limit)) {
        state.tk = (state.tk + by).min(state.rule.capacity);
    }
}

/// A full bucket with `percent` of every limit: of its capacity, which holds one token at least, and of its rate.
fn part(key: &BucketKey, limits: &Limits, percent: u8, now: EpochMillis) -> Bucket {
    let part = |amount: MilliTokens| amount.0 / 100 * i64::from(percent) + amount.0 % 100 * i64::from(percent) / 100;
    let mut bucket = Bucket::full(key.clone(), limits, now);
    for state in bucket.limits.values_mut() {
        let Rule { capacity, refill_amount, .. } = state.rule;
        state.rule.capacity = MilliTokens(part(capacity).max(1_000));
        if !state.rule.is_concurrent() {
            state.rule.refill_amount = MilliTokens(part(refill_amount).max(1));
        }
        state.tk = state.rule.capacity;
    }
    bucket
}
