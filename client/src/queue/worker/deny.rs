//! Which waiters a worker denies without a write.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Shard};

use super::super::batch;
use super::super::denial_ttl::denial_ttl;
use super::super::view::ShardView;
use super::super::waiter::{RerouteReason, ShardDecision, Waiter};
use super::{QueueWorker, is_key_range_throttle};
use crate::values::{Error, LimitStatus, check_bucket_limits, count, denial_of};

impl QueueWorker {
    /// Fails the waiters whose limits the shard cannot have.
    pub(super) fn refuse_limits(&mut self, shard: &Shard) {
        let check = |waiter: &Waiter| check_bucket_limits(shard, &waiter.request.limits);
        // Almost always; nothing is moved then.
        if self.waiting.iter().all(|waiter| check(waiter).is_ok()) {
            return;
        }
        for waiter in std::mem::take(&mut self.waiting) {
            match check(&waiter) {
                Ok(()) => self.waiting.push_back(waiter),
                Err(error) => {
                    // The next request reads again, because an operator may have deleted the item
                    // as the error advises.
                    self.queue.shard.clear_view();
                    waiter.reply(Err(error));
                }
            }
        }
    }

    /// Denies the waiters for which a fresh view is short. In a split bucket, reroutes them
    /// instead.
    pub(super) fn deny_insufficient(&mut self, view: &ShardView) {
        let now = self.session.now();
        for waiter in std::mem::take(&mut self.waiting) {
            match batch::shortage(&view.shard, &waiter, now) {
                Some(shortage) if !self.is_fresh(view, &waiter, &shortage, now) => {
                    self.waiting.push_back(waiter)
                }
                Some(_) if view.shard.shard().count > 1 => {
                    waiter.reroute(RerouteReason::Insufficient)
                }
                Some(shortage) => {
                    count(
                        &self.session.counters.local_denied,
                        u64::from(!self.queue.shard.is_since(view, waiter.enqueued_at)),
                    );
                    self.deny(waiter, shortage, now);
                }
                None => self.waiting.push_back(waiter),
            }
        }
    }

    /// Denies the waiters for which there was too little when a write was planned, by the response to
    /// it. All have waited since before. Others compete for what is refilled meanwhile: a waiter that
    /// is kept for it, or loses each race, would wait until its deadline.
    pub(super) fn deny_as_of(&mut self, planned_at: EpochMillis) {
        if self.waiting.is_empty() {
            return;
        }
        // A request that is gone reserves nothing.
        self.expire_waiters();
        let Some(first) = self.waiting.front() else {
            return;
        };
        let view = self.queue.shard.view();
        // If more leases have expired than one write reclaims, the next write has their tokens.
        let is_whole = |view: &ShardView| !view.shard.has_unreclaimable(planned_at);
        let Some(view) = view.filter(|view| is_whole(view)) else {
            return;
        };
        let now = self.session.now();
        let since = Duration::from(now.since(planned_at));
        let mut left = view.shard.projected(&first.request.limits, planned_at);
        for waiter in std::mem::take(&mut self.waiting) {
            match batch::shortage(&left, &waiter, planned_at) {
                None => {
                    batch::subtract(&mut left, &waiter);
                    self.waiting.push_back(waiter);
                }
                Some(_) if left.shard().count > 1 => waiter.reroute(RerouteReason::Insufficient),
                Some(mut shortage) => {
                    for status in &mut shortage {
                        status.retry_after =
                            status.retry_after.map(|wait| wait.saturating_sub(since));
                    }
                    self.deny(waiter, shortage, now);
                }
            }
        }
    }

    fn deny(&self, waiter: Waiter, shortage: Vec<LimitStatus>, now: EpochMillis) {
        let denied = denial_of(shortage);
        self.queue
            .shard
            .summary
            .record_retry_time(now, denied.retry_after);
        waiter.reply(Ok(ShardDecision::Denied(denied)));
    }

    fn is_fresh(
        &self,
        view: &ShardView,
        waiter: &Waiter,
        shortage: &[LimitStatus],
        now: EpochMillis,
    ) -> bool {
        let (age, most) = (
            self.queue.shard.age(view),
            self.session.settings.denial_cache_ttl,
        );
        let mut short = shortage.iter().filter(|status| status.is_short());
        self.queue.shard.is_since(view, waiter.enqueued_at)
            || !self.queue.shard.summary.retry_time_passed(now, age)
                && (self.queue.shard.trusts_view()
                    || short.all(|status| age < denial_ttl(status, age, most)))
    }

    /// Denies waiters past their deadline or fails them with a timeout, and removes dropped
    /// requests.
    pub(super) fn expire_waiters(&mut self) {
        let now = Instant::now();
        for waiter in std::mem::take(&mut self.waiting) {
            if waiter.reply.is_closed() {
                continue;
            }
            if now < waiter.deadline {
                self.waiting.push_back(waiter);
                continue;
            }
            if let Some(shortage) = self.last_seen_short(&waiter) {
                self.deny(waiter, shortage, self.session.now());
                continue;
            }
            let (shard, after) = (&self.queue.shard, waiter.deadline - waiter.enqueued_at);
            let timeout = Error::timeout(&shard.key, after, shard.last_error());
            waiter.reply(Err(timeout));
        }
    }

    /// Returns what the waiter lacks by the last view, if the shard is too throttled to be read.
    fn last_seen_short(&self, waiter: &Waiter) -> Option<Vec<LimitStatus>> {
        let view = self
            .queue
            .shard
            .view()
            .filter(|view| view.shard.shard().count == 1)?;
        self.queue
            .shard
            .last_error()
            .filter(|error| is_key_range_throttle(error))?;
        batch::shortage(&view.shard, waiter, self.session.now())
    }
}
