//! Denials without a write: by the views, and by the denial stamp that the processes of a split
//! bucket share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::write::Update;
use weirgate_shared::{Bucket, BucketKey, Effect, EpochMillis, Millis, Shard, Stamp};

use super::evaluate::evaluate;
use super::state::BucketState;
use crate::queue::ShardView;
use crate::session::Env;
use crate::values::{BucketRequest, Denied, LimitStatus, denial_of, denial_ttl, status_for};

/// Shard count from which a stamp is used, 8: reading fewer shards costs two read units at most.
const WORTH: u32 = 8;
/// Time ahead, 1 s, from which a stamp counts as dated by a wrong clock.
const AHEAD: Millis = Millis(1_000);

/// Returns the denial that the views or the stamp imply. Sends nothing.
pub(crate) fn cached_denial(
    env: &Env,
    bucket: &BucketState,
    request: &BucketRequest,
) -> Option<Denied> {
    let pool = bucket.serving_pool(env);
    let is_queued = request.start_by.is_some();
    if !is_queued && pool.is_some_and(|pool| pool.covers(request)) {
        return None;
    }
    // What queues is denied by the line as it is.
    let known =
        || denial_by_views(env, bucket, request).or_else(|| bucket.denied_by_stamp(env, request));
    let denied =
        denial_by_pause(env, bucket, request).or_else(|| known().filter(|_| !is_queued))?;
    bucket.summary().record_retry_time(env.now(), denied.retry_after);
    Some(denied)
}

/// Returns the denial by a pause that a fresh view of any shard shows.
fn denial_by_pause(env: &Env, bucket: &BucketState, request: &BucketRequest) -> Option<Denied> {
    let denied = bucket.denied_by_pause(env, request)?;
    let (moment, now, most) = (env.ages.now(), env.now(), env.denial_cache_ttl);
    let paused = |view: &ShardView| view.shard.paused_until(now).is_some();
    let views = bucket.views_since_clock_jump().filter(paused);
    let age = views.map(|view| moment.since(view.sent_at)).min()?;
    let is_fresh = denied.short().all(|status| age < denial_ttl(status, age, most));
    is_fresh.then_some(denied)
}

/// Returns the denial that the views of all shards imply.
fn denial_by_views(env: &Env, bucket: &BucketState, request: &BucketRequest) -> Option<Denied> {
    let most = env.denial_cache_ttl;
    // In a split bucket, one short shard proves nothing: only a denial by all shards is cached.
    let moment = env.ages.now();
    let denied = bucket.denied().map(|at| moment.since(at));
    if bucket.summary().max_shards_seen() > 1 && denied.is_none_or(|age| age >= most) {
        return None;
    }
    let now = env.now();
    let mut age = denied.filter(|_| bucket.summary().max_shards_seen() > 1).unwrap_or_default();
    let known = bucket.seen_bucket(&request.limits, now, |view| {
        let seen = moment.since(view.sent_at);
        let is_known = seen < most;
        age = age.max(if is_known { seen } else { Duration::ZERO });
        is_known
    });
    let denied = evaluate(&known, request, now).err()?;
    let is_fresh = denied.short().all(|status| age < denial_ttl(status, age, most));
    (known.is_complete() && is_fresh && !bucket.summary().retry_time_passed(now, age))
        .then_some(denied)
}

impl BucketState {
    /// Returns the denial by a pause that a view of any age shows.
    pub(crate) fn denied_by_pause(&self, env: &Env, request: &BucketRequest) -> Option<Denied> {
        if !self.summary().is_paused(|| env.now()) || !request.asks.has(Effect::Enforce) {
            return None;
        }
        let now = env.now();
        let is_paused = |view: &ShardView| view.shard.paused_until(now).is_some();
        let known = self.seen_bucket(&request.limits, now, is_paused);
        let denied = evaluate(&known, request, now).err();
        denied.filter(|_| !known.shards().is_empty())
    }

    pub(super) fn is_stamped(&self) -> bool {
        self.summary().max_shards_seen() >= WORTH
    }

    /// Returns the denial that the cached stamp implies, while it is valid.
    pub(super) fn denied_by_stamp(&self, env: &Env, request: &BucketRequest) -> Option<Denied> {
        let stamp = self.stamp().clone().filter(|_| self.is_stamped())?;
        let now = env.now();
        let denied = denies(&stamp, &self.key, request, self.summary().max_shards_seen(), now)?;
        let is_void = self.summary().returned_since(stamp.at)
            || self.summary().retry_time_passed(now, now.since(stamp.at).into())
            || is_over(&stamp, &denied, self.salt, env.denial_cache_ttl, now);
        (!is_void).then_some(denied)
    }

    /// Returns the stamp of `bucket` as it was read at `now`, if the bucket has enough shards. Keeps
    /// it.
    pub(super) fn new_stamp(&self, bucket: &Bucket, now: EpochMillis) -> Option<Stamp> {
        let stamp = Stamp::of(bucket, now).filter(|_| self.is_stamped())?;
        *self.stamp() = Some(Arc::new(stamp.clone()));
        Some(stamp)
    }

    /// Returns the write that ends the bucket's denial stamp, if it may have one.
    pub(crate) fn void_stamp(&self, now: EpochMillis) -> Option<Update> {
        let void = Stamp { at: now, until: now, shards: 0, available: BTreeMap::new() };
        self.is_stamped().then(|| void.update(&self.key))
    }
}

/// Returns the denial that the stamp implies for a request on a bucket with this shard count, at
/// any age: for every choice of pools.
pub(super) fn denies(
    stamp: &Stamp,
    key: &BucketKey,
    request: &BucketRequest,
    shards: u32,
    now: EpochMillis,
) -> Option<Denied> {
    let serves = |choice: &BucketRequest| {
        let denied = denies_choice(stamp, key, choice, shards, now);
        denied.map_or(Ok(()), Err)
    };
    request.choose(serves).err()
}

fn denies_choice(
    stamp: &Stamp,
    key: &BucketKey,
    request: &BucketRequest,
    shards: u32,
    now: EpochMillis,
) -> Option<Denied> {
    if stamp.shards != shards || stamp.at > now.plus(AHEAD) {
        return None;
    }
    let mut shard = Shard::full(key.clone(), &request.limits, stamp.at);
    for limit in request.limits.iter() {
        let Some((tk, rule)) = stamp.available.get(limit.name()) else {
            continue;
        };
        let state = shard.limits.get_mut(limit.name()).filter(|_| rule == limit.rule())?;
        state.available = *tk;
    }
    let denied = denial_of(status_for(&shard, request, None, now).0);
    let is_sure = |short: &LimitStatus| {
        let ready_at = short.retry_after.map(|after| now.plus(after.into()));
        stamp.available.contains_key(short.limit.as_str())
            && ready_at.is_some_and(|at| at <= stamp.until)
    };
    (denied.short().next().is_some() && denied.short().all(is_sure)).then_some(denied)
}

/// Returns whether a process with this `salt` no longer uses the stamp for `denied`.
///
/// A process stops using it in the second half of its life, the more probably the nearer the end.
/// So about one of any number of processes reads all shards again, and renews the stamp before the
/// others need to.
pub(super) fn is_over(
    stamp: &Stamp,
    denied: &Denied,
    salt: u64,
    most: Duration,
    now: EpochMillis,
) -> bool {
    let age = Duration::from(now.since(stamp.at));
    let draw = draw(&mut fastrand::Rng::with_seed(salt ^ stamp.at.0.unsigned_abs()));
    denied.short().any(|short| {
        let life = denial_ttl(short, age, most);
        age >= life - life * draw / 20_000
    })
}

/// Returns a random number from 0 to 10,000. Each further 1,000 is half as likely: 0 for most,
/// 10,000 for one in a thousand.
pub(super) fn draw(rng: &mut fastrand::Rng) -> u32 {
    rng.u64(..).trailing_zeros().min(9) * 1_000 + rng.u32(0..=1_000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weirgate_shared::{Asks, Effect, Limit, LimitName, MilliTokens};

    use super::*;
    use crate::values::Limits;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![any::<i64>(), -1_000..1_000_i64, Just(i64::MIN), Just(i64::MAX)]
    }

    proptest! {
        /// Any process of the namespace can write a stamp, even a hostile one.
        #[test]
        fn a_stamp_of_any_numbers_is_answered(
            at in number(), until in number(), available in number(), now in number(), need in number(), salt in any::<u64>(),
        ) {
            let limit = Limit::per_minute("rpm", 600).unwrap();
            let name = LimitName::new("rpm").unwrap();
            let held = BTreeMap::from([(name.clone(), (MilliTokens(available), *limit.rule()))]);
            let stamp = Stamp { at: EpochMillis(at), until: EpochMillis(until), shards: 64, available: held };
            let key = BucketKey::parse("n/BUCKET#e#r#0").unwrap();
            let request = BucketRequest {
                asks: Asks::of(Effect::Enforce, [(name, MilliTokens(need))]),
                ..BucketRequest::of(Limits::new([limit].into(), None))
            };
            if let Some(denied) = denies(&stamp, &key, &request, 64, EpochMillis(now)) {
                prop_assert!(denied.short().next().is_some());
                let _ = is_over(&stamp, &denied, salt, Duration::MAX, EpochMillis(now));
            }
            prop_assert!(denies(&stamp, &key, &request, 32, EpochMillis(now)).is_none());
        }
    }
}
