//! Which waiters a machine replies to without a write.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Millis, Shard};

use super::{Machine, is_key_range_throttle};
use crate::queue::shard_state::ShardView;
use crate::queue::waiter::{Plan, Reason, Waiter};
use crate::session::Env;
use crate::values::{
    Denied, LimitStatus, Outcome, check_bucket_limits, count, denial_ttl, shortage, subtract,
};

/// Longest time by which a denial goes back to when a write was planned, 100 ms.
const MAX_DENIAL_AGE: Millis = Millis(100);
/// Time for which slots that a view lacks count as taken while the shard cannot be read, 1 s: they may
/// have been released since. More of a rate than a view shows comes only by refunds and operators.
pub(crate) const SLOTS_UNREAD_TTL: Duration = Duration::from_secs(1);

/// Returns whether a view of this age denies for lack of this limit, while the shard cannot be read.
fn denies_unread(short: &LimitStatus, age: Duration) -> bool {
    !short.may_return() || age < SLOTS_UNREAD_TTL
}

impl Machine {
    /// Fails the waiters whose limits the shard cannot have.
    pub(super) fn refuse_limits(&mut self, shard: &Shard) {
        let check = |waiter: &Waiter| check_bucket_limits(shard, &waiter.request.limits);
        // Almost always; nothing is moved then.
        if self.line.iter().all(|waiter| check(waiter).is_ok()) {
            return;
        }
        for waiter in std::mem::take(&mut self.line) {
            match check(&waiter) {
                Ok(()) => self.line.push_back(waiter),
                Err(error) => self.fail(vec![waiter], &error),
            }
        }
    }

    /// Denies the waiters for which a fresh view is short. In a split bucket, sends them elsewhere
    /// instead.
    pub(super) fn deny_insufficient(&mut self, env: &Env, view: &ShardView) {
        let now = env.now();
        for waiter in std::mem::take(&mut self.line) {
            match waiter.shortage(&view.shard, now) {
                Some(denied) if self.is_fresh(env, view, &waiter, &denied, now) => {
                    let was_seen = self.shard.is_since(view, waiter.enqueued_at);
                    if view.shard.shard().count == 1 {
                        count(&env.counters.local_denied, u64::from(!was_seen));
                    }
                    self.deny(&waiter, &view.shard, denied, now);
                }
                _ => self.line.push_back(waiter),
            }
        }
    }

    /// Denies the waiters for which there was too little when a write was planned, or 100 ms ago if
    /// that is later, by the response to it, if they had arrived by then. Others compete for what is
    /// refilled meanwhile: a waiter that is kept for it, or loses each race, would wait until its
    /// deadline.
    pub(super) fn deny_as_of(&mut self, env: &Env, plan: Plan) {
        // A request that is gone reserves nothing.
        self.expire(env);
        let Some(first) = self.line.front() else {
            return;
        };
        let now = env.now();
        let at = plan.at.max(EpochMillis(now.0 - MAX_DENIAL_AGE.0));
        // If more leases have expired than one write reclaims, the next write has their tokens.
        let is_whole = |view: &ShardView| !view.shard.has_unreclaimable(at);
        let Some(view) = self.shard.view().filter(is_whole) else {
            return;
        };
        let since = Duration::from(now.since(at));
        let mut left = view.shard.projected(&first.request.limits, at);
        for waiter in std::mem::take(&mut self.line) {
            let start_by = waiter.request.start_by(now);
            let denied = shortage(&left, &waiter.request, start_by, at);
            let Some(denied) = denied.filter(|_| waiter.id <= plan.last_arrived) else {
                let debits = waiter.request.asks.debits();
                subtract(&mut left, debits.map(|ask| (&ask.limit, &ask.amount)));
                self.line.push_back(waiter);
                continue;
            };
            self.deny(&waiter, &view.shard, denied.sooner_by(since), now);
        }
    }

    /// Denies a waiter for which its shard is short. Other shards of the bucket may have enough.
    fn deny(&mut self, waiter: &Waiter, shard: &Shard, denied: Denied, now: EpochMillis) {
        // A pause of one shard is one of all.
        if shard.shard().count > 1 && shard.paused_until(now).is_none() {
            return self.reply_to(waiter, Ok(Outcome::Elsewhere(Reason::Insufficient)));
        }
        let retry_after = denied.retry_after;
        self.shard.summary.record_retry_time(now, retry_after);
        self.reply_to(waiter, Ok(Outcome::Denied(denied)));
    }

    fn is_fresh(
        &self,
        env: &Env,
        view: &ShardView,
        waiter: &Waiter,
        denied: &Denied,
        now: EpochMillis,
    ) -> bool {
        let (age, most) = (env.ages.age(view.sent_at), env.denial_cache_ttl);
        self.shard.is_since(view, waiter.enqueued_at)
            || !waiter.queues()
                && !self.shard.summary.retry_time_passed(now, age)
                && (self.shard.trusts_view()
                    && denied.short().any(|short| denies_unread(short, age))
                    || denied.short().all(|status| age < denial_ttl(status, age, most)))
    }

    /// Replies to the waiters in line whose deadlines have passed.
    pub(super) fn expire(&mut self, env: &Env) {
        let now = Instant::now();
        if self.line.iter().all(|waiter| waiter.has_time(now)) {
            return;
        }
        for waiter in std::mem::take(&mut self.line) {
            match waiter.has_time(now) {
                true => self.line.push_back(waiter),
                false => self.reply_too_late(env, &waiter),
            }
        }
    }

    /// Replies to a waiter past its deadline: denies it by the last view, if the shard is too throttled
    /// to be read.
    pub(super) fn reply_too_late(&mut self, env: &Env, waiter: &Waiter) {
        let now = env.now();
        let last = self.shard.last_error();
        let is_throttled = last.is_some_and(|error| is_key_range_throttle(&error));
        let decides = |view: &ShardView| is_throttled && view.shard.shard().count == 1;
        let view = self.shard.view_since_clock_jump().filter(decides);
        let short = view.and_then(|view| {
            let age = env.ages.age(view.sent_at);
            let denied = waiter.shortage(&view.shard, now)?;
            let denies = denied.short().any(|status| denies_unread(status, age));
            denies.then_some((denied, view))
        });
        match short {
            Some((denied, view)) => self.deny(waiter, &view.shard, denied, now),
            None => {
                let error = self.timeout(env, waiter.enqueued_at, waiter.deadline);
                self.reply(waiter.id, Err(error));
            }
        }
    }
}
