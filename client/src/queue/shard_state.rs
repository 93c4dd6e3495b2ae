//! What this process knows of one shard: its view, throttles, and contention.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::Contention;
use weirgate_shared::{BucketKey, LimitsVersion, MAX_SHARDS, Shard};
use weirgate_store::StoreError;

use super::contention::{ContentionBackoff, OtherWriters};
use super::summary::BucketSummary;
use super::throttle::ThrottleHistory;
use super::view::ShardView;
use crate::session::{ClockJumps, Moment, Sent};
use crate::values::{Error, Locked};

/// Shortest interval between ends of *rare* leases, 60 s. For more frequent ends, leaving `due` to
/// the reconciler costs less than moving it each time.
const RARE_LEASE_INTERVAL: Duration = Duration::from_secs(60);

/// What this process knows of one shard.
#[derive(Debug)]
pub(crate) struct ShardState {
    pub(crate) key: BucketKey,
    /// State of the shard that this one was split off; `None` for shard 0.
    parent: Option<Arc<ShardState>>,
    state: Locked<State>,
    pub(crate) summary: Arc<BucketSummary>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) view: Option<ShardView>,
    /// Jumps of the wall clock that the view has taken into account.
    jumps: ClockJumps,
    pace: ContentionBackoff,
    pub(super) others: OtherWriters,
    /// Time at which the shard was found missing, if that is the latest information; there is no
    /// view then.
    absent: Option<Moment>,
    throttles: ThrottleHistory,
    /// End of the time in which the view counts as fresh, because a throttled shard cannot be read.
    trusted_until: Option<Moment>,
    /// Time at which the shard's only lease last ended.
    lone_end: Option<Instant>,
    /// Error of the last request, if it failed.
    failure: Option<Arc<StoreError>>,
}

impl ShardState {
    /// Creates the state of shard 0.
    pub(crate) fn first(key: BucketKey, summary: Arc<BucketSummary>) -> Self {
        Self {
            key,
            parent: None,
            state: Locked::default(),
            summary,
        }
    }

    /// Creates the state of a shard that was split off `parent`: the same processes write to it.
    pub(super) fn split_off(key: BucketKey, parent: Arc<Self>) -> Self {
        let state = State {
            throttles: parent.state().throttles.inherited(),
            ..State::default()
        };
        Self {
            key,
            summary: Arc::clone(&parent.summary),
            parent: Some(parent),
            state: Locked::new(state),
        }
    }

    /// Returns the state of the shard that this one was split off, and is merged into.
    pub(super) const fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Returns what a take should expect of other processes that is planned on a view of this age.
    pub(super) fn contention(&self, age: Duration) -> Contention {
        let has_shards = self.summary.max_shards_seen() > 1;
        self.state().others.contention(age, has_shards)
    }

    /// Returns whether other processes write to the shard too.
    pub(super) fn is_contended(&self) -> bool {
        self.contention(Duration::ZERO) != Contention::Alone
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

    /// Changes what is known of the writes of other processes.
    pub(super) fn record_others(&self, record: impl FnOnce(&mut OtherWriters)) {
        record(&mut self.state().others);
    }

    /// Records the error of a request, if it failed.
    pub(super) fn record_outcome<T>(&self, outcome: &Result<T, Error>) {
        let failure = match outcome {
            Err(Error::Store(error)) => Some(Arc::new(error.without_source())),
            _ => None,
        };
        self.state().failure = failure;
    }

    /// Returns the error of the last request, if it failed.
    pub(crate) fn last_error(&self) -> Option<Arc<StoreError>> {
        self.state().failure.clone()
    }

    pub(crate) fn view(&self) -> Option<ShardView> {
        self.state().view.clone()
    }

    /// Records a shard as it is now, unless the view has a later write sequence.
    #[cfg(test)]
    pub(crate) fn record_view(&self, shard: Shard) -> Arc<Shard> {
        let ages = &self.summary.ages;
        self.record(shard, ages.now(), ages.sent())
    }

    /// Records the shard of a response to a write, as [`Self::record_view`] does.
    pub(crate) fn record_response(&self, shard: Shard, sent: Sent) -> Arc<Shard> {
        self.record(shard, self.summary.ages.now(), sent)
    }

    /// Records the shard of a response to a read, as it was when the read was sent.
    pub(super) fn record_read_response(&self, shard: Shard, sent: Sent) -> Arc<Shard> {
        self.record(shard, sent.at, sent)
    }

    /// Records a shard as seen `at`, by this request.
    fn record(&self, shard: Shard, at: Moment, sent: Sent) -> Arc<Shard> {
        let shard = Arc::new(shard);
        let mut state = self.state();
        let is_older = |view: &ShardView| view.shard.write_seq > shard.write_seq;
        if !state.view.as_ref().is_some_and(is_older) {
            // Cap a damaged item's shard count, because a refresh reads that many keys.
            self.summary
                .record_shard_count(shard.shard().count.min(MAX_SHARDS), at);
            let version = shard.config_version.and_then(LimitsVersion::changes);
            self.summary
                .version
                .fetch_max(version.unwrap_or_default(), Ordering::Relaxed);
            state.absent = None;
            if state
                .view
                .as_ref()
                .is_some_and(|view| view.shard.shard() != shard.shard())
            {
                state.throttles.record_reshard();
            }
            state.view = Some(ShardView {
                shard: Arc::clone(&shard),
                seen_at: at,
                sent_at: sent.at,
                // A response on its way while the clock was set has not corrected it.
                predates_clock_jump: sent.jumps.ahead != state.jumps.ahead,
            });
        }
        shard
    }

    /// Returns the age of a view.
    pub(crate) fn age(&self, view: &ShardView) -> Duration {
        self.summary.ages.age(view.seen_at)
    }

    /// Returns whether a view shows the shard as of after a request was enqueued, at `enqueued_at`.
    pub(super) fn is_since(&self, view: &ShardView, enqueued_at: Instant) -> bool {
        view.sent_at >= self.summary.ages.of(enqueued_at)
    }

    /// Changes the contention backoff by the outcome of a write.
    pub(super) fn with_backoff<T>(&self, change: impl FnOnce(&mut ContentionBackoff) -> T) -> T {
        change(&mut self.state().pace)
    }

    /// Removes the view.
    pub(crate) fn clear_view(&self) {
        self.state().view = None;
    }

    /// Returns the view, if the wall clock has not jumped since.
    pub(crate) fn view_since_clock_jump(&self) -> Option<ShardView> {
        self.view().filter(|view| !view.predates_clock_jump)
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
    pub(super) fn record_throttle(&self) {
        self.state().throttles.record(&self.summary.ages);
    }

    /// Records a write that was not throttled.
    pub(super) fn record_unthrottled_write(&self) {
        self.state().throttles.record_pass(&self.summary.ages);
    }

    /// Returns the end of this process's pause after throttles, if it is still ahead.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.state().throttles.paused_until(&self.summary.ages)
    }

    /// Returns the age of the last throttle, if throttles repeat.
    pub(super) fn repeatedly_throttled_for(&self) -> Option<Duration> {
        self.state().throttles.repeated_for(&self.summary.ages)
    }

    /// Returns whether requests should avoid the shard.
    pub(crate) fn is_throttled(&self) -> bool {
        self.state().throttles.is_recent(&self.summary.ages)
    }

    /// Clears the throttle, because a write has requested the split.
    pub(super) fn clear_throttle(&self) {
        self.state().throttles.clear();
    }

    /// Lets the view count as fresh for `span`, because the shard is too throttled to be read.
    pub(super) fn trust_view_for(&self, span: Duration) {
        self.state().trusted_until = Some(self.summary.ages.now() + span);
    }

    pub(super) fn trusts_view(&self) -> bool {
        self.state()
            .trusted_until
            .is_some_and(|until| self.summary.ages.now() < until)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let jumps = self.summary.ages.jumps();
        if state.jumps != jumps {
            if state.jumps.back != jumps.back {
                state.view = None;
            } else if let Some(view) = &mut state.view {
                view.predates_clock_jump = true;
            }
            state.jumps = jumps;
        }
        state
    }
}
