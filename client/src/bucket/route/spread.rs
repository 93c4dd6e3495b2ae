//! Takes from several shards of a bucket, when none of them has enough alone.
//!
//! Each part is a write of its own, which other requests of the process share. A transaction would
//! cost twice as much, and any concurrent write to one of the shards would cancel it: on busy
//! shards it practically never succeeds.

use std::time::Duration;

use weirgate_shared::{Asks, Bucket, Effect, MilliTokens};

use super::{Command, Next, Reply, Router, Spread};
use crate::bucket::evaluate::{above_floors, evaluate};
use crate::bucket::state::BucketState;
use crate::queue::{Portion, Reason};
use crate::session::Env;
use crate::values::{Amounts, BucketRequest, Denied, Outcome, shortage};

/// Rounds in which other shards replace short ones, 4, before all parts return and all shards are
/// read again. Meanwhile other requests are denied the tokens that this one holds.
const ROUNDS: usize = 4;
/// Times that all parts return before the request is denied, 2: of several that take parts from the
/// same shards, each makes the others short.
const MAX_FAILED_SPREADS: u32 = 2;
/// Longest retry-after of such a denial, 100 ms: what the others hold may return with theirs.
const RETRY_SPREAD: Duration = Duration::from_millis(100);

/// A part that is being taken: the request's own, until the reply shows what the shard has left.
pub(super) struct Reserved<'a> {
    bucket: &'a BucketState,
    id: u64,
}

impl<'a> Reserved<'a> {
    pub(super) fn new(bucket: &'a BucketState, shard: u32, part: &BucketRequest) -> Self {
        let id = fastrand::u64(..);
        let enforced = part.asks.with(Effect::Enforce);
        let amounts = enforced.map(|(limit, need)| (limit.clone(), need)).collect();
        bucket.spreading.lock().insert(id, (shard, amounts));
        Self { bucket, id }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.bucket.spreading.lock().remove(&self.id);
    }
}

impl<T: AsRef<Portion>> Router<'_, T> {
    /// Asks the planned shards for parts. If some shards are short by then, others with a
    /// sufficient view give the rest. If that is not enough, all parts return, and all shards must
    /// be read again; the second time, the request is denied by what all shards had together.
    pub(super) fn ask_for_parts(&mut self, env: &Env, mut spread: Box<Spread<T>>) -> Command<T> {
        if spread.rounds > 0 {
            let now = env.now();
            let known = self.bucket.cached_bucket(&self.request.limits, now);
            let more = above_floors(&known, self.request).spread(&spread.left, now);
            let Some(more) = more.filter(|_| spread.rounds < ROUNDS) else {
                return self.return_parts(env, *spread);
            };
            spread.planned = more;
        }
        spread.rounds += 1;
        let parts = spread.planned.iter().enumerate();
        let parts = parts.map(|(at, (shard, amounts))| {
            let is_first = at == 0 && !spread.has_first;
            (*shard, part(self.request, amounts.clone(), is_first))
        });
        let command = Command::AskForParts(parts.collect());
        self.next = Next::Parts(spread);
        command
    }

    /// Takes the replies to the parts that were asked for last, in their order.
    pub(super) fn parts_replied(&mut self, env: &Env, replies: Vec<Reply<T>>) {
        let Next::Parts(mut spread) = std::mem::replace(&mut self.next, Next::Awaits) else {
            return;
        };
        let (mut failed, mut throttled) = (None, None);
        for (at, (reply, (_, amounts))) in replies.into_iter().zip(&spread.planned).enumerate() {
            match reply {
                Ok(Outcome::Granted(part)) => {
                    spread.has_first |= at == 0;
                    spread.parts.push(part);
                    for (limit, amount) in amounts {
                        if let Some(left) = spread.left.get_mut(limit) {
                            *left -= *amount;
                            // An amount of 0 is left until a shard replies that it is not in
                            // debt.
                            if *left <= MilliTokens::ZERO {
                                spread.left.remove(limit);
                            }
                        }
                    }
                }
                Ok(Outcome::Elsewhere(Reason::Throttled(error))) => throttled = Some(error),
                Ok(Outcome::Denied(_) | Outcome::Elsewhere(_)) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            self.next = Next::Done(Err(error));
            return;
        }
        if throttled.is_some() {
            self.last_error = throttled;
            self.pause();
        }
        if spread.left.is_empty() {
            if self.lasts(env, &spread.parts) {
                self.done(Outcome::Granted(spread.parts));
                return;
            }
            spread.rounds = ROUNDS;
        }
        self.next = Next::Parts(spread);
    }

    fn return_parts(&mut self, env: &Env, spread: Spread<T>) -> Command<T> {
        self.failed_spreads += 1;
        let denied = self.denied_beside(env, &spread.left);
        let denied = denied.or_else(|| self.denied_alone(env));
        match denied.filter(|_| self.failed_spreads >= MAX_FAILED_SPREADS) {
            Some(denied) => self.done(Outcome::Denied(denied)),
            None => self.next = Next::Returned,
        }
        Command::Return(spread.parts)
    }

    /// Returns the denial of a request that has all but `left` of its amounts, by the views of the
    /// other shards. The tokens that they lack may return soon, so it may retry soon.
    fn denied_beside(&self, env: &Env, left: &Amounts) -> Option<Denied> {
        let (request, now) = (self.request, env.now());
        let known = self.bucket.cached_bucket(&request.limits, now);
        let mut shards = known.shards().to_vec();
        let first = shards.first_mut()?;
        for (limit, need) in request.asks.with(Effect::Enforce) {
            let taken = need - left.get(limit).copied().unwrap_or_default();
            if let Some(state) = first.limits.get_mut(limit) {
                state.available += taken;
            }
        }
        let mut denied = evaluate(&Bucket::new(shards), request, now).err()?;
        let soon = |wait: Duration| wait.min(RETRY_SPREAD);
        denied.retry_after = denied.retry_after.map(soon);
        for status in &mut denied.limits {
            status.retry_after = status.retry_after.map(soon);
        }
        Some(denied)
    }

    /// Returns the denial of a request of limits with classes by its best shard: their pools are small, so
    /// many spread over them at once, and one shard has enough soon.
    fn denied_alone(&self, env: &Env) -> Option<Denied> {
        let now = env.now();
        let count = self.bucket.summary().max_shards_seen();
        if !self.request.limits.have_classes() || self.request.exceeds_one_shard(count) {
            return None;
        }
        let known = self.bucket.cached_bucket(&self.request.limits, now);
        let shards = known.shards().iter();
        let denials: Option<Vec<_>> =
            shards.map(|shard| shortage(shard, self.request, None, now)).collect();
        let wait = |denied: &Denied| denied.retry_after.unwrap_or(Duration::MAX);
        denials?.into_iter().min_by_key(wait)
    }

    /// Returns whether at least half of its lease time is left: an early part may nearly have
    /// expired before the last one came.
    fn lasts(&self, env: &Env, parts: &[T]) -> bool {
        let half = self.request.lease.as_ref().map_or(Duration::ZERO, |(lasts, _)| *lasts / 2);
        let first = parts
            .iter()
            .filter_map(|taken| taken.as_ref().part.lease.as_ref())
            .map(|(_, expires)| *expires)
            .min();
        first.is_none_or(|expires| expires > env.now().plus(half.into()))
    }
}

/// Returns a part of the request. The first part has the soft amounts and counts the acquire.
/// What bypasses the limits has no parts, because every shard has room for it.
fn part(request: &BucketRequest, amounts: Amounts, is_first: bool) -> BucketRequest {
    let mut part = BucketRequest {
        asks: Asks::of(Effect::Enforce, amounts),
        acquires: 0,
        // What one shard's share cannot hold does not queue.
        start_by: None,
        ..request.clone()
    };
    if request.asks.has_floor() {
        part.asks.set_floors(|ask| {
            let whole = request.asks.debit(ask.limit.as_str());
            whole.map_or(MilliTokens::ZERO, |whole| whole.floor)
        });
    }
    if is_first {
        let soft = request.asks.iter();
        soft.filter(|ask| ask.effect == Effect::IntoDebt)
            .for_each(|ask| part.asks.add(ask.clone()));
        part.acquires = request.acquires;
    }
    part
}
