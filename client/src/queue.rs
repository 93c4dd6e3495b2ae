//! Callers of one bucket shard share its writes, and the acquire protocol.
//!
//! While a take is in flight, those who come stand in line; the next write takes for all of them.
//! The line is served by a task of its own, so a caller that goes away does not stop the others.

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

/// What is asked of each limit.
pub(crate) type Amounts = BTreeMap<LimitName, MilliTokens>;

/// What is taken of each limit: what must be there, and what is taken in any case. They are of
/// different limits.
pub(crate) fn merge_amounts(amounts: &Amounts, soft_amounts: &Amounts) -> Amounts {
    amounts
        .iter()
        .chain(soft_amounts)
        .map(|(limit, need)| (limit.clone(), *need))
        .collect()
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum ShardDecision {
    Granted(Unclaimed),
    Denied(Denied),
}

/// What a caller in line is told.
#[derive(Debug)]
pub(crate) enum QueueReply {
    Decided(ShardDecision),
    /// This shard cannot say: others of the bucket must be asked.
    Reroute(RerouteReason),
}

/// Why other shards must be asked.
#[derive(Debug, Clone)]
pub(crate) enum RerouteReason {
    /// It is not there.
    ShardMissing,
    /// It has not enough, which says nothing about the others.
    Insufficient,
    /// Its partition is too hot.
    Throttled(Arc<StoreError>),
    /// It is the first of several, which its callers did not know: they spread over all of them.
    BucketWasSplit,
}

/// What was taken, on its way to its caller. If the caller has gone away nobody will use the
/// tokens: they go back.
#[derive(Debug)]
pub(crate) struct Unclaimed(Option<Hold>);

impl Unclaimed {
    /// What was taken, granted to the caller.
    pub(crate) fn claim(self) -> Hold {
        self.claim_provisionally().granted()
    }

    /// What was taken, which may still go back as if it had not been.
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

/// A caller in line.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) amounts: Amounts,
    /// What is taken whether it is there or not.
    pub(crate) soft_amounts: Amounts,
    pub(crate) limits: Limits,
    /// How long a durable lease lasts, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Acquires that the write counts.
    pub(crate) acquires: i64,
    pub(crate) enqueued_at: Instant,
    pub(crate) deadline: Instant,
    /// The bucket the line is of.
    pub(crate) bucket: Arc<BucketState>,
    pub(crate) reply: oneshot::Sender<Result<QueueReply, Error>>,
}

/// The callers of one bucket shard, and what the last answer showed of it.
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
    /// Others have written to the shard between what was seen of it last and the time before.
    has_company: Option<bool>,
    /// The first read of the shard showed that others must be expected to write between a read and
    /// the write after it.
    is_crowded: Option<bool>,
    /// When the shard was found missing, if that is the last that is known of it: there is no view
    /// then.
    absent: Option<Moment>,
    throttled: Option<Throttled>,
    /// What throttles leave of this process's writes.
    gap: ThrottleBackoff,
    /// Until when what was seen counts as new, because the shard is too hot to be read.
    trusted_until: Option<Moment>,
    /// When the only lease of the shard ended last.
    lone_end: Option<Instant>,
    /// The operation that is under way, and since when.
    asking: Option<(&'static str, Instant)>,
    /// Why the last one failed, if it did.
    failure: Option<Arc<StoreError>>,
}

/// A throttle of the shard.
#[derive(Debug, Clone, Copy)]
struct Throttled {
    at: Moment,
    /// There was another a moment before.
    again: bool,
    /// No write has passed since.
    is_last: bool,
}

/// What an answer showed of the bucket, and when.
#[derive(Debug, Clone)]
pub(crate) struct ShardView {
    pub(crate) shard: Arc<Shard>,
    pub(crate) seen_at: Moment,
    /// This process has taken from it since, by a write that does not answer with the item.
    pub(crate) is_plan_only: bool,
    /// The wall clock has jumped ahead since: the process was frozen, or the clock was set.
    pub(crate) predates_clock_jump: bool,
}

/// For how long a throttle is a reason to ask for a split.
const SPLIT_SIGNAL_WINDOW: Duration = Duration::from_secs(5);
/// Leases that end more often than this are not rare: leaving `due` to the reconciler costs less
/// than to move it with each of them.
const RARE_LEASE_INTERVAL: Duration = Duration::from_secs(60);
/// For how long it is a reason to go elsewhere.
const AVOID_FOR: Duration = Duration::from_secs(1);

impl ShardQueue {
    pub(crate) fn new(key: BucketKey, bucket: Arc<BucketSummary>) -> Self {
        Self {
            key,
            state: Mutex::default(),
            summary: bucket,
        }
    }

    /// Puts a caller in line. `true` if nobody serves it: the caller must see to that.
    #[must_use]
    pub(crate) fn enqueue(&self, waiter: Waiter) -> bool {
        let mut state = self.state();
        state.waiting.push_back(waiter);
        !std::mem::replace(&mut state.served, true)
    }

    /// Whether others write to the shard too. Before it is known: of several shards yes, or there
    /// were not several.
    fn is_contended(&self) -> bool {
        let state = self.state();
        state
            .has_company
            .or(state.is_crowded)
            .unwrap_or_else(|| self.summary.max_shards_seen() > 1)
    }

    /// Whether the lease that ends is alone in the shard, as `seen`, and such leases are rare: then
    /// `due` goes with it.
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

    /// A request of this operation is under way from now on.
    fn request_started(&self, operation: &'static str) {
        self.state().asking = Some((operation, Instant::now()));
    }

    /// What became of it: what failed last, if the last request did.
    fn request_finished<T>(&self, outcome: &Result<T, StoreError>) {
        let failure = outcome
            .as_ref()
            .err()
            .map(|error| Arc::new(error.without_source()));
        let mut state = self.state();
        (state.asking, state.failure) = (None, failure);
    }

    /// Why its last request failed, if it did.
    pub(crate) fn last_error(&self) -> Option<Arc<StoreError>> {
        self.state().failure.clone()
    }

    /// The operation of a request that has been without an answer for this long.
    pub(crate) fn in_flight_for(&self, least: Duration) -> Option<&'static str> {
        self.state()
            .asking
            .filter(|(_, since)| since.elapsed() >= least)
            .map(|(operation, _)| operation)
    }

    /// Whether callers are in it: a newcomer shares their next write.
    pub(crate) fn has_worker(&self) -> bool {
        self.state().served
    }

    /// All who came since the last call, in order; whoever serves the line is done when nobody did.
    fn drain(&self, has_callers: bool) -> VecDeque<Waiter> {
        let mut state = self.state();
        if state.waiting.is_empty() && !has_callers {
            state.served = false;
        }
        std::mem::take(&mut state.waiting)
    }

    /// Nobody serves the line any more, and whoever did has not come to its end: those in it are
    /// told so.
    fn abort_waiters(&self) {
        let mut state = self.state();
        state.served = false;
        state.waiting.clear();
    }

    pub(crate) fn view(&self) -> Option<ShardView> {
        self.state().view.clone()
    }

    /// Keeps what an answer showed, unless a later one is known already.
    pub(crate) fn record_view(&self, shard: Shard) -> Arc<Shard> {
        self.record_view_at(shard, self.summary.ages.now())
    }

    fn record_view_at(&self, shard: Shard, at: Moment) -> Arc<Shard> {
        let shard = Arc::new(shard);
        let mut state = self.state();
        let is_older = |view: &ShardView| view.shard.write_seq > shard.write_seq;
        if !state.view.as_ref().is_some_and(is_older) {
            // An item may say what it likes; so many keys are read, when all shards are.
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
                // It was split or merged: the heat was another shard's.
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

    /// How old a view is.
    pub(crate) fn age(&self, view: &ShardView) -> Duration {
        self.summary.ages.age(view.seen_at)
    }

    /// Whether a view is of after a call had `joined`.
    pub(crate) fn is_since(&self, view: &ShardView, joined: Instant) -> bool {
        view.seen_at >= self.summary.ages.of(joined)
    }

    /// What of the pace changes with what became of a write.
    fn with_backoff<T>(&self, change: impl FnOnce(&mut ContentionBackoff) -> T) -> T {
        change(&mut self.state().pace)
    }

    /// Forgets what was seen of the bucket.
    pub(crate) fn clear_view(&self) {
        self.state().view = None;
    }

    /// What was seen is good for planning a write, and for nothing else.
    pub(crate) fn mark_plan_only(&self) {
        if let Some(view) = &mut self.state().view {
            view.is_plan_only = true;
        }
    }

    /// The wall clock has jumped ahead since it was seen.
    pub(crate) fn mark_clock_jump(&self) {
        if let Some(view) = &mut self.state().view {
            view.predates_clock_jump = true;
        }
    }

    /// What was seen, by a time that is beyond doubt.
    pub(crate) fn view_since_clock_jump(&self) -> Option<ShardView> {
        self.view().filter(|view| !view.predates_clock_jump)
    }

    /// Keeps a bucket that was made by a write which does not answer with it.
    pub(crate) fn record_created(&self, shard: &Shard) {
        drop(self.record_view(shard.clone()));
        self.mark_plan_only();
    }

    /// Forgets the shard, and remembers for a while that it is gone.
    pub(crate) fn mark_missing(&self) {
        let mut state = self.state();
        (state.view, state.absent) = (None, Some(self.summary.ages.now()));
    }

    /// Whether the shard was missing a moment ago.
    pub(crate) fn is_missing(&self) -> bool {
        self.state()
            .absent
            .is_some_and(|at| self.summary.ages.age(at) < Duration::from_secs(1))
    }

    /// The shard is too hot.
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

    /// A write was not throttled.
    fn record_unthrottled_write(&self) {
        let mut state = self.state();
        if let Some(throttled) = &mut state.throttled {
            throttled.is_last = false;
        }
        state.gap.narrow(&self.summary.ages);
    }

    /// Until when this process leaves the shard to others, after throttles.
    fn paused_until(&self) -> Option<Instant> {
        self.state().gap.until(&self.summary.ages)
    }

    /// Takes over the gap of the shard that this one was split off: its first write need not wait,
    /// and if that is throttled the next one comes as late as it would there.
    pub(crate) fn inherit_pause(&self, older: &Self) {
        let gap = older.state().gap;
        self.state().gap.inherit(gap);
    }

    /// The shard is too hot to be read: what was seen of it counts as new for a moment.
    fn trust_view_for(&self, span: Duration) {
        self.state().trusted_until = Some(self.summary.ages.now() + span);
    }

    fn trusts_view(&self) -> bool {
        self.state()
            .trusted_until
            .is_some_and(|until| self.summary.ages.now() < until)
    }

    /// How long ago the shard was last throttled, if that was twice in a row and a moment ago. Once
    /// is a crest, which a partition that is used to the full meets now and then.
    fn repeatedly_throttled_for(&self) -> Option<Duration> {
        let throttled = self.state().throttled.filter(|throttled| throttled.again)?;
        Some(self.summary.ages.age(throttled.at)).filter(|age| *age < SPLIT_SIGNAL_WINDOW)
    }

    /// Whether the shard is to be left alone for a moment, or this process does not write to it
    /// yet.
    pub(crate) fn is_throttled(&self) -> bool {
        let state = self.state();
        let is_recent = |throttled: Throttled| self.summary.ages.age(throttled.at) < AVOID_FOR;
        state.throttled.is_some_and(is_recent) || state.gap.until(&self.summary.ages).is_some()
    }

    /// A write asked for the split: that is enough.
    fn clear_throttle(&self) {
        self.state().throttled = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements: a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// What is taken of each limit.
    pub(crate) fn all(&self) -> Amounts {
        merge_amounts(&self.amounts, &self.soft_amounts)
    }

    /// The lease as it will be written, if the caller wants one.
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

    /// Answers the caller. One that has gone away needs no answer, and a grant goes back by itself.
    fn reply(self, verdict: Result<ShardDecision, Error>) {
        let _ = self.reply.send(verdict.map(QueueReply::Decided));
    }

    /// Sends the caller to other shards.
    fn reroute(self, why: RerouteReason) {
        let _ = self.reply.send(Ok(QueueReply::Reroute(why)));
    }
}
