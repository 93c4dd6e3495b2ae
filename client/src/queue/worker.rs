//! Drains a queue until it is empty: reads, selects a batch, writes, replies.

mod deny;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{Effect, EpochMillis, LimitName, MilliTokens};
use weirgate_store::{ErrorKind, StoreError};

use super::batch;
use super::maintenance::maintain;
use super::shard_queue::ShardQueue;
use super::take::{TakeOutcome, pause, take};
use super::view::ShardView;
use super::waiter::{RerouteReason, Waiter};
use crate::session::{Refusals, Session, Work, quarter_left};
use crate::values::{Error, count};

/// Balance, in multiples of the request, from which a shard counts as ample: its last tokens are
/// far, so there is no contention for them.
pub(crate) const AMPLE_FACTOR: i64 = 8;
/// Lost races in a row after which waiters are denied that were short at the last one, 3.
const PATIENCE: u32 = 3;
/// Wait before a contended write, 100 ms, that is not shortened where a shard fills sooner.
const MIN_LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Time in which a view of a throttled shard counts as fresh, 1 s.
const THROTTLED_VIEW_TTL: Duration = Duration::from_secs(1);

/// Drains `queue` until it is empty.
pub(crate) async fn run_worker(session: Arc<Session>, queue: Arc<ShardQueue>) {
    let mut worker = QueueWorker {
        session,
        queue,
        waiting: VecDeque::new(),
        failures: 0,
        losses: 0,
        refusals: Refusals::default(),
        is_done: false,
    };
    loop {
        let newcomers = worker.queue.drain(!worker.waiting.is_empty());
        worker.waiting.extend(newcomers);
        if worker.waiting.is_empty() {
            worker.is_done = true;
            return;
        }
        // Also for a request that has gone by then; the next step drops it first.
        let work = Work::begin(&worker.session);
        worker.step().await;
        drop(work);
    }
}

/// If the runtime shuts down, the worker stops early, and its waiters elsewhere get an error.
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
    refusals: Refusals,
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
        if !self.ensure_view().await {
            return;
        }
        let Some(batch) = self.select_batch().await else {
            return;
        };
        if let Some(until) = self.queue.shard.paused_until() {
            self.requeue(batch);
            self.wait_until(until).await;
            // By now the shard may be short, or split.
            self.recheck().await;
            return;
        }
        self.queue.keep(std::mem::take(&mut self.waiting));
        let outcome = take(&self.session, &self.queue.shard, batch).await;
        self.waiting = self.queue.take_kept();
        self.handle_outcome(outcome, losses).await;
    }

    /// Reads the shard if there is no view, or if it is outgrown. Returns whether its waiters can
    /// be served here.
    async fn ensure_view(&mut self) -> bool {
        let shard = &self.queue.shard;
        let is_current = shard.is_known() && !shard.is_outgrown();
        is_current || self.read_view().await
    }

    /// Selects the waiters of the next write, and denies those for which the view is short. Returns
    /// `None` if the waiters must be looked at again.
    async fn select_batch(&mut self) -> Option<Vec<Waiter>> {
        let now = self.session.now();
        let view = self.queue.shard.view();
        let shard = view.as_ref().map(|view| &*view.shard);
        shard.inspect(|shard| self.refuse_limits(shard));
        let (mut batch, others) =
            batch::select_batch(shard, std::mem::take(&mut self.waiting), now);
        self.waiting = others;
        if let Some(view) = &view {
            if batch.is_empty() && self.makes_room(view, now).await {
                return None;
            }
            // The batch's write cannot reclaim all: the next one has what is left.
            if batch.is_empty() || !view.shard.has_unreclaimable(now) {
                self.deny_insufficient(view);
            }
            if batch.is_empty() {
                // No waiter fits into an old view, so read the current state.
                self.recheck().await;
                return None;
            }
        }
        if batch.is_empty() {
            batch.extend(self.waiting.pop_front());
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Writes what may let the first waiter fit. Returns whether the view is new.
    async fn makes_room(&mut self, view: &ShardView, now: EpochMillis) -> bool {
        let first = self.waiting.front();
        let Some(first) = first.filter(|_| !view.predates_clock_jump) else {
            return false;
        };
        if !maintain(&self.session, &self.queue.shard, &view.shard, first, now).await {
            return false;
        }
        if let Err(error) = self.record_refusal() {
            let first = self.waiting.pop_front().into_iter().collect();
            self.fail(first, &error);
        }
        true
    }

    /// Counts a refused write, by the item that is the view now. An applied one changes it.
    fn record_refusal(&mut self) -> Result<(), Error> {
        let shard = &self.queue.shard;
        shard.view().map_or(Ok(()), |view| {
            let version = Some(view.shard.write_seq);
            self.refusals.record(&shard.key, version)
        })
    }

    /// Takes the waiters of a batch back if they were not replied to, and waits where needed.
    async fn handle_outcome(&mut self, outcome: TakeOutcome, losses: u32) {
        match outcome {
            TakeOutcome::Replied => self.failures = 0,
            TakeOutcome::Granted(planned_at) => {
                self.failures = 0;
                self.deny_as_of(planned_at);
            }
            TakeOutcome::Retry(batch) => {
                self.losses = losses + 1;
                self.failures = 0;
                self.requeue_refused(batch);
            }
            TakeOutcome::LostRace(batch, planned_at) => {
                self.losses = losses + 1;
                self.failures = 0;
                self.requeue_refused(batch);
                if self.losses >= PATIENCE {
                    self.deny_as_of(planned_at);
                }
            }
            TakeOutcome::ShardMissing(batch) => {
                self.requeue(batch);
                self.reroute(&RerouteReason::ShardMissing);
            }
            TakeOutcome::Rejected(batch, error) if self.can_reroute(&error) => {
                for waiter in batch {
                    waiter.reroute(RerouteReason::Throttled(Arc::clone(&error)));
                }
            }
            TakeOutcome::Rejected(batch, error) => {
                self.requeue(batch);
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
        self.queue.keep(std::mem::take(&mut self.waiting));
        let read = self.queue.shard.read_shard(&self.session).await;
        self.waiting = self.queue.take_kept();
        self.waiting.extend(self.queue.drain(true));
        match read {
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

    fn reroute(&mut self, reason: &RerouteReason) {
        for waiter in std::mem::take(&mut self.waiting) {
            waiter.reroute(reason.clone());
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
        self.queue.keep(std::mem::take(&mut self.waiting));
        let shard = &self.queue.shard;
        let checked = shard.recheck(&self.session, seen, lacks_slots).await;
        self.waiting = self.queue.take_kept();
        match checked {
            Ok(()) if self.queue.shard.was_merged_away() => {
                self.reroute(&RerouteReason::ShardMissing)
            }
            Ok(()) if self.was_split(known) => self.reroute(&RerouteReason::BucketWasSplit),
            Ok(()) => {}
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&self.session.counters.refused, 1);
                tracing::debug!(%error, "shard not readable for now");
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

    /// Takes the waiters of a refused write back, unless the next one would be refused too.
    fn requeue_refused(&mut self, batch: Vec<Waiter>) {
        let Err(error) = self.record_refusal() else {
            return self.requeue(batch);
        };
        self.fail(batch, &error);
    }

    /// Fails waiters by what the item shows. The next request reads it again.
    fn fail(&self, waiters: Vec<Waiter>, error: &Error) {
        self.queue.shard.clear_view();
        for waiter in waiters {
            waiter.reply(Err(error.clone()));
        }
    }

    fn requeue(&mut self, chosen: Vec<Waiter>) {
        for waiter in chosen.into_iter().rev() {
            self.waiting.push_front(waiter);
        }
    }

    /// Waits a random time where processes compete for the last tokens; more waiters may arrive
    /// meanwhile.
    async fn back_off(&mut self, losses: u32) {
        // After one lost race the view is current, and a wait would make it old. After a second one
        // in a row this process may be in step with another that always wins, so it waits.
        if losses % 2 == 1 {
            return;
        }
        let Some(longest) = self.queue.shard.with_backoff(|pace| pace.longest()) else {
            return;
        };
        let (view, Some(first)) = (self.queue.shard.view(), self.waiting.front()) else {
            return;
        };
        let now = self.session.now();
        let needs = first.request.asks.with(Effect::Enforce);
        let shard = view.as_ref().map(|view| &view.shard);
        let state =
            |name: &LimitName| shard.and_then(|shard| Some((shard, shard.limits.get(name)?)));
        let is_ample = |(name, need): (&LimitName, MilliTokens)| {
            let balance = state(name).map(|(shard, state)| shard.balance(state, now));
            balance.is_some_and(|balance| balance / AMPLE_FACTOR >= need)
        };
        if needs.clone().all(is_ample) {
            return;
        }
        // A full shard wastes what flows in, and a waiter needs time to be decided.
        let fills = needs.filter_map(|(name, _)| Some(state(name)?.1.rule.time_to_fill()? / 2));
        let fills = fills.map(|half| half.max(MIN_LONGEST_WAIT)).min();
        let left = self.waiting.iter().map(|waiter| waiter.deadline).min();
        let most = [Some(longest), fills, left.map(quarter_left)].into_iter();
        let most = most.flatten().min().unwrap_or_default();
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..=micros))).await;
        self.waiting.extend(self.queue.drain(true));
        self.expire_waiters();
    }
}

/// Returns whether the throttle is of the item's own key range.
fn is_key_range_throttle(error: &StoreError) -> bool {
    error.kind == (ErrorKind::Throttled { key_range: true })
}
