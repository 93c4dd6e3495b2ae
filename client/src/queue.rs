//! The queue of one shard: the waiters of one process share its writes.
//!
//! While a take is in flight, new requests wait in the queue; the next write takes for all of them.
//! A worker task of its own drains the queue, so a dropped request does not stop the others.

mod batch;
mod clock_jump;
mod contention;
mod hour;
mod maintenance;
mod read;
mod recheck;
mod retake;
mod retry_times;
mod summary;
mod take;
mod throttle;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weirgate_shared::{
    BucketKey, EpochMillis, Lease, LimitName, MAX_SHARDS, MilliTokens, Shard, WriteId,
};
use weirgate_store::StoreError;

use crate::ages::Moment;
use crate::bucket::BucketState;
use crate::hold::Hold;
use crate::limits::Limits;
use crate::{Denied, Error};

use contention::ContentionBackoff;
#[cfg(test)]
pub(crate) use recheck::SLOT_DENIAL_TTL;
pub(crate) use recheck::denial_ttl;
use retry_times::RetryTimes;
pub(crate) use summary::BucketSummary;
pub(crate) use take::backoff;
use throttle::ThrottleBackoff;
pub(crate) use worker::run_worker;

/// Amount per limit.
pub(crate) type Amounts = BTreeMap<LimitName, MilliTokens>;

/// Merges the amounts that must be available with the soft amounts, which are taken in any case.
/// The two name different limits.
pub(crate) fn merge_amounts(amounts: &Amounts, soft_amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        .chain(soft_amounts)
        .map(|(limit, need)| (limit.clone(), *need))
        .collect()
}

/// Decision of one shard on a request.
#[derive(Debug)]
pub(crate) enum ShardDecision {
    Granted(Unclaimed),
    Denied(Denied),
}

/// Reply to a waiter.
#[derive(Debug)]
pub(crate) enum QueueReply {
    Decided(ShardDecision),
    /// This shard cannot decide: the router must try other shards of the bucket.
    Reroute(RerouteReason),
}

/// Reason to try other shards.
#[derive(Debug, Clone)]
pub(crate) enum RerouteReason {
    /// The shard has no item.
    ShardMissing,
    /// This shard has too few tokens; others may have enough.
    Insufficient,
    /// DynamoDB throttles the shard's partition.
    Throttled(Arc<StoreError>),
    /// The bucket has several shards, which the router did not expect: waiters spread over all of
    /// them.
    BucketWasSplit,
}

/// A hold on its way to the waiter. Dropping it rolls the hold back, so the tokens of a dropped
/// request return.
#[derive(Debug)]
pub(crate) struct Unclaimed(Option<Hold>);

impl Unclaimed {
    /// Returns the hold as granted.
    pub(crate) fn claim(self) -> Hold {
        self.claim_provisionally().granted()
    }

    /// Returns the hold, which can still be rolled back as if it had not been taken.
    pub(crate) fn claim_provisionally(mut self) -> Hold {
        self.0.take().expect("nothing else takes it out")
    }
}

impl From<Hold> for Unclaimed {
    fn from(hold: Hold) -> Self {
        Self(Some(hold))
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.roll_back_in_background();
        }
    }
}

/// A request in a queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) amounts: Amounts,
    /// Amounts that are taken even into debt.
    pub(crate) soft_amounts: Amounts,
    pub(crate) limits: Limits,
    /// Duration of a durable lease, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Acquires that the write counts.
    pub(crate) acquires: i64,
    pub(crate) enqueued_at: Instant,
    pub(crate) deadline: Instant,
    /// Bucket of the queue.
    pub(crate) bucket: Arc<BucketState>,
    pub(crate) reply: oneshot::Sender<Result<QueueReply, Error>>,
}

/// The waiters of one shard, and the view from the last response.
#[derive(Debug)]
pub(crate) struct ShardQueue {
    pub(crate) key: BucketKey,
    state: Mutex<State>,
    pub(crate) summary: Arc<BucketSummary>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiter>,
    served: bool,
    view: Option<ShardView>,
    pace: ContentionBackoff,
    /// Whether other processes wrote to the shard between the last two responses; `None` until
    /// known.
    has_company: Option<bool>,
    /// Whether the first read of the shard showed so much traffic that other processes probably
    /// write between a read and the write after it.
    is_crowded: Option<bool>,
    /// Time at which the shard was found missing, if that is the latest information; there is no
    /// view then.
    absent: Option<Moment>,
    throttled: Option<Throttled>,
    /// Pause between this process's writes while DynamoDB throttles the shard.
    gap: ThrottleBackoff,
    /// End of the time in which the view counts as fresh, because a throttled shard cannot be read.
    trusted_until: Option<Moment>,
    /// Time at which the shard's only lease last ended.
    lone_end: Option<Instant>,
    /// Operation in flight, and its start.
    asking: Option<(&'static str, Instant)>,
    /// Error of the last request, if it failed.
    failure: Option<Arc<StoreError>>,
}

/// A throttle of the shard.
#[derive(Debug, Clone, Copy)]
struct Throttled {
    at: Moment,
    /// Whether another throttle came shortly before.
    again: bool,
    /// Whether no write has passed since.
    is_last: bool,
}

/// A copy of the shard as a response showed it, and the time of that response.
#[derive(Debug, Clone)]
pub(crate) struct ShardView {
    pub(crate) shard: Arc<Shard>,
    pub(crate) seen_at: Moment,
    /// Whether this process has since taken by a write that does not return the item.
    pub(crate) is_plan_only: bool,
    /// Whether the wall clock has since jumped ahead: the process was frozen, or the clock was set.
    pub(crate) predates_clock_jump: bool,
}

/// Time after a throttle in which it is a reason to request a split, 5 s.
const SPLIT_SIGNAL_WINDOW: Duration = Duration::from_secs(5);
/// Shortest interval between ends of *rare* leases, 60 s. For more frequent ends, leaving `due` to
/// the reconciler costs less than moving it each time.
const RARE_LEASE_INTERVAL: Duration = Duration::from_secs(60);
/// Time after a throttle in which requests avoid the shard, 1 s.
const AVOID_FOR: Duration = Duration::from_secs(1);

impl ShardQueue {
    pub(crate) fn new(key: BucketKey, bucket: Arc<BucketSummary>) -> Self {
        Self {
            key,
            state: Mutex::default(),
            summary: bucket,
        }
    }

    /// Adds a waiter. Returns whether the queue has no worker, so that one must be started.
    #[must_use]
    pub(crate) fn enqueue(&self, waiter: Waiter) -> bool {
        let mut state = self.state();
        state.waiting.push_back(waiter);
        !std::mem::replace(&mut state.served, true)
    }

    /// Returns whether other processes write to the shard too. Until that is known, returns whether
    /// the bucket has had several shards.
    fn is_contended(&self) -> bool {
        let state = self.state();
        state
            .has_company
            .or(state.is_crowded)
            .unwrap_or_else(|| self.summary.max_shards_seen() > 1)
    }

    /// Returns whether the ending lease is the only one in `seen`, and such ends are rare. Then the
    /// write that ends it moves `due` as well.
    pub(crate) fn ends_rare_lease(&self, seen: &Shard) -> bool {
        if self.is_contended() || seen.leases.as_ref().is_none_or(|leases| leases.len() != 1) {
            return false;
        }
        let last = self.state().lone_end.replace(Instant::now());
        last.is_none_or(|last| last.elapsed() >= RARE_LEASE_INTERVAL)
    }

    pub(crate) fn set_contended(&self, others: bool) {
        self.state().has_company = Some(others);
    }

    /// Records that a request of this operation is in flight.
    fn request_started(&self, operation: &'static str) {
        self.state().asking = Some((operation, Instant::now()));
    }

    /// Records that the request has ended, and its error if it failed.
    fn request_finished<T>(&self, outcome: &Result<T, StoreError>) {
        let failure = outcome
            .as_ref()
            .err()
            .map(|error| Arc::new(error.without_source()));
        let mut state = self.state();
        (state.asking, state.failure) = (None, failure);
    }

    /// Returns the error of the last request, if it failed.
    pub(crate) fn last_error(&self) -> Option<Arc<StoreError>> {
        self.state().failure.clone()
    }

    /// Returns the operation in flight if it has had no response for at least this long.
    pub(crate) fn in_flight_for(&self, least: Duration) -> Option<&'static str> {
        self.state()
            .asking
            .filter(|(_, since)| since.elapsed() >= least)
            .map(|(operation, _)| operation)
    }

    /// Returns whether a worker drains the queue: a new request then shares its next write.
    pub(crate) fn has_worker(&self) -> bool {
        self.state().served
    }

    /// Removes and returns the waiters in order. If there are none and the worker has none either,
    /// marks the queue as without a worker.
    fn drain(&self, has_callers: bool) -> VecDeque<Waiter> {
        let mut state = self.state();
        if state.waiting.is_empty() && !has_callers {
            state.served = false;
        }
        std::mem::take(&mut state.waiting)
    }

    /// Drops the waiters after the worker stopped early: their reply channels close.
    fn abort_waiters(&self) {
        let mut state = self.state();
        state.served = false;
        state.waiting.clear();
    }

    pub(crate) fn view(&self) -> Option<ShardView> {
        self.state().view.clone()
    }

    /// Records the shard of a response, unless the view has a later write sequence.
    pub(crate) fn record_view(&self, shard: Shard) -> Arc<Shard> {
        self.record_view_at(shard, self.summary.ages.now())
    }

    fn record_view_at(&self, shard: Shard, at: Moment) -> Arc<Shard> {
        let shard = Arc::new(shard);
        let mut state = self.state();
        let is_older = |view: &ShardView| view.shard.write_seq > shard.write_seq;
        if !state.view.as_ref().is_some_and(is_older) {
            // Cap a damaged item's shard count, because a refresh reads that many keys.
            self.summary
                .record_shard_count(shard.shard().count.min(MAX_SHARDS), at);
            self.summary
                .version
                .fetch_max(shard.config_version.unwrap_or_default(), Ordering::Relaxed);
            state.absent = None;
            if state
                .view
                .as_ref()
                .is_some_and(|view| view.shard.shard() != shard.shard())
            {
                // It was split or merged: the throttles were another shard's.
                state.throttled = None;
                state.gap.shrink();
            }
            state.view = Some(ShardView {
                shard: Arc::clone(&shard),
                seen_at: at,
                is_plan_only: false,
                predates_clock_jump: false,
            });
        }
        shard
    }

    /// Returns the age of a view.
    pub(crate) fn age(&self, view: &ShardView) -> Duration {
        self.summary.ages.age(view.seen_at)
    }

    /// Returns whether a view is from after a request was enqueued, at `joined`.
    pub(crate) fn is_since(&self, view: &ShardView, joined: Instant) -> bool {
        view.seen_at >= self.summary.ages.of(joined)
    }

    /// Changes the contention backoff by the outcome of a write.
    fn with_backoff<T>(&self, change: impl FnOnce(&mut ContentionBackoff) -> T) -> T {
        change(&mut self.state().pace)
    }

    /// Removes the view.
    pub(crate) fn clear_view(&self) {
        self.state().view = None;
    }

    /// Restricts the view to planning writes; it can no longer deny.
    pub(crate) fn mark_plan_only(&self) {
        if let Some(view) = &mut self.state().view {
            view.is_plan_only = true;
        }
    }

    /// Marks the view as older than a jump of the wall clock.
    pub(crate) fn mark_clock_jump(&self) {
        if let Some(view) = &mut self.state().view {
            view.predates_clock_jump = true;
        }
    }

    /// Returns the view, if the wall clock has not jumped since.
    pub(crate) fn view_since_clock_jump(&self) -> Option<ShardView> {
        self.view().filter(|view| !view.predates_clock_jump)
    }

    /// Records a shard that was created by a write which does not return the item.
    pub(crate) fn record_created(&self, shard: &Shard) {
        drop(self.record_view(shard.clone()));
        self.mark_plan_only();
    }

    /// Removes the view, and marks the shard as missing for 1 s.
    pub(crate) fn mark_missing(&self) {
        let mut state = self.state();
        (state.view, state.absent) = (None, Some(self.summary.ages.now()));
    }

    /// Returns whether the shard was found missing less than 1 s ago.
    pub(crate) fn is_missing(&self) -> bool {
        self.state()
            .absent
            .is_some_and(|at| self.summary.ages.age(at) < Duration::from_secs(1))
    }

    /// Records a throttle of the shard.
    fn record_throttle(&self) {
        let mut state = self.state();
        let at = self.summary.ages.now();
        let is_again = |throttled: Throttled| {
            at.since(throttled.at)
                < if throttled.is_last {
                    SPLIT_SIGNAL_WINDOW
                } else {
                    AVOID_FOR
                }
        };
        let again = state.throttled.is_some_and(is_again);
        state.throttled = Some(Throttled {
            at,
            again,
            is_last: true,
        });
        state.gap.widen(&self.summary.ages);
    }

    /// Records a write that was not throttled.
    fn record_unthrottled_write(&self) {
        let mut state = self.state();
        if let Some(throttled) = &mut state.throttled {
            throttled.is_last = false;
        }
        state.gap.narrow(&self.summary.ages);
    }

    /// Returns the end of this process's pause after throttles, if it is still ahead.
    fn paused_until(&self) -> Option<Instant> {
        self.state().gap.until(&self.summary.ages)
    }

    /// Copies the pause length of the shard that this one was split off. The first write need not
    /// wait; if it is throttled, the next waits as long as it would in the old shard.
    pub(crate) fn inherit_pause(&self, older: &Self) {
        let gap = older.state().gap;
        self.state().gap.inherit(gap);
    }

    /// Lets the view count as fresh for `span`, because the shard is too throttled to be read.
    fn trust_view_for(&self, span: Duration) {
        self.state().trusted_until = Some(self.summary.ages.now() + span);
    }

    fn trusts_view(&self) -> bool {
        self.state()
            .trusted_until
            .is_some_and(|until| self.summary.ages.now() < until)
    }

    /// Returns the age of the last throttle, if it was the second within a short time and is
    /// recent. A partition near its limit throttles now and then, so one throttle alone is no
    /// signal.
    fn repeatedly_throttled_for(&self) -> Option<Duration> {
        let throttled = self.state().throttled.filter(|throttled| throttled.again)?;
        Some(self.summary.ages.age(throttled.at)).filter(|age| *age < SPLIT_SIGNAL_WINDOW)
    }

    /// Returns whether requests should avoid the shard: it was throttled less than 1 s ago, or this
    /// process pauses its writes.
    pub(crate) fn is_throttled(&self) -> bool {
        let state = self.state();
        let is_recent = |throttled: Throttled| self.summary.ages.age(throttled.at) < AVOID_FOR;
        state.throttled.is_some_and(is_recent) || state.gap.until(&self.summary.ages).is_some()
    }

    /// Clears the throttle, because a write has requested the split.
    fn clear_throttle(&self) {
        self.state().throttled = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: the state is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Returns the amounts of all limits, soft ones included.
    pub(crate) fn all(&self) -> Amounts {
        merge_amounts(&self.amounts, &self.soft_amounts)
    }

    /// Returns a new lease for the request, if it wants one.
    fn new_lease(&self, now: EpochMillis) -> Option<(WriteId, Lease)> {
        let (lasts, owner) = self.lease.as_ref()?;
        let expires = now.plus((*lasts).into());
        let lease = Lease {
            expires_at: expires,
            tokens: self.all(),
            owner: owner.to_string(),
        };
        Some((weirgate_store::random_id(), lease))
    }

    /// Sends the decision. If the request was dropped, a dropped grant returns its tokens.
    fn reply(self, verdict: Result<ShardDecision, Error>) {
        let _ = self.reply.send(verdict.map(QueueReply::Decided));
    }

    /// Sends the waiter to other shards.
    fn reroute(self, why: RerouteReason) {
        let _ = self.reply.send(Ok(QueueReply::Reroute(why)));
    }
}
