//! Drains a queue until it is empty: reads, selects a batch, writes, replies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::EpochMillis;
use weirgate_store::{ErrorKind, StoreError};

use super::batch;
use super::maintenance::maintain;
use super::recheck::denial_ttl;
use super::shard_queue::ShardQueue;
use super::take::{TakeOutcome, pause, take};
use super::view::ShardView;
use super::waiter::{RerouteReason, ShardDecision, Waiter};
use crate::session::Session;
use crate::values::{Error, LimitStatus, count, denial_of};

/// Balance, in multiples of the request, from which a shard counts as ample: its last tokens are
/// far, so there is no contention for them.
pub(crate) const AMPLE_FACTOR: i64 = 8;
/// Time in which a view of a throttled shard counts as fresh, 1 s.
const THROTTLED_VIEW_TTL: Duration = Duration::from_secs(1);

/// Drains `queue` until it is empty.
pub(crate) async fn run_worker(session: Arc<Session>, queue: Arc<ShardQueue>) {
    let mut server = QueueWorker {
        session,
        queue,
        waiting: VecDeque::new(),
        failures: 0,
        losses: 0,
        is_done: false,
    };
    loop {
        let newcomers = server.queue.drain(!server.waiting.is_empty());
        server.waiting.extend(newcomers);
        if server.waiting.is_empty() {
            server.is_done = true;
            return;
        }
        server.step().await;
    }
}

/// If the runtime shuts down, the worker stops early. Aborting the waiters lets a later request,
/// from another runtime, start a new worker.
impl Drop for QueueWorker {
    fn drop(&mut self) {
        if !self.is_done {
            self.queue.abort_waiters();
        }
    }
}

struct QueueWorker {
    session: Arc<Session>,
    queue: Arc<ShardQueue>,
    waiting: VecDeque<Waiter>,
    /// Failed requests in a row.
    failures: u32,
    /// Lost races in a row.
    losses: u32,
    is_done: bool,
}

impl QueueWorker {
    /// Decides waiters from the view where it can, and makes one write for the others.
    async fn step(&mut self) {
        self.expire_waiters();
        // Races count only from the write just before: waiters that come after a reply have lost
        // none.
        let losses = std::mem::take(&mut self.losses);
        self.back_off(losses).await;
        if (!self.queue.shard.is_known() || self.queue.shard.is_outgrown())
            && !self.read_view().await
        {
            return;
        }
        let now = self.session.now();
        let view = self.queue.shard.view();
        let shard = view.as_ref().map(|view| &*view.shard);
        let (mut chosen, others) =
            batch::select_batch(shard, std::mem::take(&mut self.waiting), now);
        self.waiting = others;
        if let Some(view) = &view {
            if let (true, Some(first)) = (
                chosen.is_empty() && !view.predates_clock_jump,
                self.waiting.front(),
            ) && maintain(&self.session, &self.queue.shard, &view.shard, first, now).await
            {
                return;
            }
            self.deny_insufficient(view);
            if chosen.is_empty() {
                // No waiter fits into an old view, so read the current state.
                self.recheck().await;
                return;
            }
        }
        if chosen.is_empty() {
            chosen.extend(self.waiting.pop_front());
        }
        if chosen.is_empty() {
            return;
        }
        if let Some(until) = self.queue.shard.paused_until() {
            self.requeue(chosen);
            self.wait_until(until).await;
            // By now the shard may be short, or split.
            self.recheck().await;
            return;
        }
        match take(&self.session, &self.queue.shard, chosen).await {
            TakeOutcome::Replied => self.failures = 0,
            TakeOutcome::Retry(chosen) => {
                self.losses = losses + 1;
                self.failures = 0;
                self.requeue(chosen);
            }
            TakeOutcome::ShardMissing(chosen) => {
                self.requeue(chosen);
                self.reroute(&RerouteReason::ShardMissing);
            }
            TakeOutcome::Rejected(chosen, error) if self.can_reroute(&error) => {
                for waiter in chosen {
                    waiter.reroute(RerouteReason::Throttled(Arc::clone(&error)));
                }
            }
            TakeOutcome::Rejected(chosen, error) => {
                self.requeue(chosen);
                self.failures += 1;
                if is_key_range_throttle(&error) {
                    // By now the shard may be short, or split.
                    self.recheck().await;
                } else {
                    pause(self.failures, &self.waiting).await;
                }
            }
        }
    }

    /// Reads the shard, because there is no view or it is outgrown. Returns whether its waiters can
    /// be served here. Waiters that arrive meanwhile share the read.
    async fn read_view(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let known = self.count();
        let was_only = self.queue.shard.summary.max_shards_seen() == 1;
        let looked = self.queue.shard.read_shard(&self.session).await;
        self.waiting.extend(self.queue.drain(true));
        match looked {
            Ok(()) if was_only && self.queue.shard.summary.max_shards_seen() > 1 => {
                self.reroute(&RerouteReason::BucketWasSplit)
            }
            Ok(()) if !self.queue.shard.is_known() => self.reroute(&RerouteReason::ShardMissing),
            Ok(()) if self.was_split(known) => self.reroute(&RerouteReason::BucketWasSplit),
            Ok(()) => {
                self.failures = 0;
                self.expire_waiters();
                return true;
            }
            // A write planned on the old view shows as much as the read would.
            Err(Error::Store(error))
                if is_key_range_throttle(&error) && self.queue.shard.is_known() =>
            {
                return true;
            }
            Err(Error::Store(error)) if self.can_reroute(&error) => {
                self.reroute(&RerouteReason::Throttled(error))
            }
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&self.session.counters.refused, 1);
                self.failures += 1;
                pause(self.failures, &self.waiting).await;
            }
            Err(error) => {
                for waiter in std::mem::take(&mut self.waiting) {
                    waiter.reply(Err(error.clone()));
                }
            }
        }
        false
    }

    /// Returns the bucket's shard count in the view.
    fn count(&self) -> Option<u32> {
        self.queue.shard.view().map(|view| view.shard.shard().count)
    }

    /// Returns whether the shard was split since the bucket had `count` shards. Other shards then
    /// hold some of its tokens.
    fn was_split(&self, count: Option<u32>) -> bool {
        count.is_some_and(|count| self.count().is_some_and(|now| count < now))
    }

    fn reroute(&mut self, why: &RerouteReason) {
        for waiter in std::mem::take(&mut self.waiting) {
            waiter.reroute(why.clone());
        }
    }

    /// Reads the shard for its waiters. If the read is throttled, denies the waiters for which the
    /// view is short.
    async fn recheck(&mut self) {
        let (view, Some(first)) = (self.queue.shard.view(), self.waiting.front()) else {
            return;
        };
        let seen = view.as_ref().map(|view| &*view.shard);
        let known = self.count();
        let short = seen.and_then(|shard| batch::shortage(shard, first, self.session.now()));
        let lacks_slots = short
            .iter()
            .flatten()
            .any(|status| status.is_short() && status.is_concurrent());
        match self
            .queue
            .shard
            .recheck(&self.session, seen, lacks_slots)
            .await
        {
            Ok(()) if self.queue.shard.was_merged_away() => {
                self.reroute(&RerouteReason::ShardMissing)
            }
            Ok(()) if self.was_split(known) => self.reroute(&RerouteReason::BucketWasSplit),
            Ok(()) => {}
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&self.session.counters.refused, 1);
                tracing::debug!(%error, "could not be read for now");
                self.failures += 1;
                if let Some(view) = view.filter(|_| is_key_range_throttle(&error)) {
                    self.queue.shard.trust_view_for(THROTTLED_VIEW_TTL);
                    self.deny_insufficient(&view);
                }
                pause(self.failures, &self.waiting).await;
            }
            Err(error) => {
                for waiter in std::mem::take(&mut self.waiting) {
                    waiter.reply(Err(error.clone()));
                }
            }
        }
    }

    /// Waits until `until`, or until the first deadline of a waiter.
    async fn wait_until(&mut self, until: Instant) {
        let first = self.waiting.iter().map(|waiter| waiter.deadline).min();
        tokio::time::sleep_until(first.map_or(until, |first| until.min(first))).await;
        self.waiting.extend(self.queue.drain(true));
    }

    /// Returns whether DynamoDB throttles this shard alone, and the bucket has others.
    fn can_reroute(&self, error: &StoreError) -> bool {
        is_key_range_throttle(error) && self.queue.shard.summary.max_shards_seen() > 1
    }

    fn requeue(&mut self, chosen: Vec<Waiter>) {
        for waiter in chosen.into_iter().rev() {
            self.waiting.push_front(waiter);
        }
    }

    /// Denies the waiters for which a fresh view is short. In a split bucket, reroutes them
    /// instead.
    fn deny_insufficient(&mut self, view: &ShardView) {
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

    /// Waits a random time where processes compete for the last tokens; more waiters may arrive
    /// meanwhile.
    async fn back_off(&mut self, losses: u32) {
        // After one lost race the view is current, and a wait would make it old. After a second one
        // in a row this process may be in step with another that always wins, so it waits.
        if losses % 2 == 1 {
            return;
        }
        let Some(moment) = self.queue.shard.with_backoff(|pace| pace.delay()) else {
            return;
        };
        let now = self.session.now();
        let has_plenty = |view: ShardView| {
            let shard = &view.shard;
            let holds = |waiter: &Waiter| {
                waiter.request.amounts.iter().all(|(name, need)| {
                    let balance = shard
                        .limits
                        .get(name)
                        .map(|state| shard.balance(state, now));
                    balance.is_some_and(|balance| balance / AMPLE_FACTOR >= *need)
                })
            };
            self.waiting.front().is_some_and(holds)
        };
        if !self.queue.shard.view().is_some_and(has_plenty) {
            let until = Instant::now() + moment;
            let first = self.waiting.iter().map(|waiter| waiter.deadline).min();
            tokio::time::sleep_until(first.map_or(until, |first| until.min(first))).await;
            self.waiting.extend(self.queue.drain(true));
            self.expire_waiters();
        }
    }

    /// Denies waiters past their deadline or fails them with a timeout, and removes dropped
    /// requests.
    fn expire_waiters(&mut self) {
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
            let timeout = Error::Timeout {
                bucket: self.queue.shard.key.item_key().pk,
                after: waiter.deadline - waiter.enqueued_at,
                last: self.queue.shard.last_error(),
            };
            waiter.reply(Err(timeout));
        }
    }

    /// Returns what the waiter lacks by the last view, if the shard is too throttled to be read.
    fn last_seen_short(&self, waiter: &Waiter) -> Option<Vec<LimitStatus>> {
        let view = self
            .queue
            .shard
            .view()
            .filter(|view| !view.is_plan_only && view.shard.shard().count == 1)?;
        self.queue
            .shard
            .last_error()
            .filter(|error| is_key_range_throttle(error))?;
        batch::shortage(&view.shard, waiter, self.session.now())
    }
}

/// Returns whether the throttle is of the item's own key range.
fn is_key_range_throttle(error: &StoreError) -> bool {
    error.kind == (ErrorKind::Throttled { key_range: true })
}
