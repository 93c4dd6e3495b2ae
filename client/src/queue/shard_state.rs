//! What this process knows of one shard, its view, throttles, and contention; and what it knows of all
//! shards of a bucket.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use weirgate_shared::write::{Contention, Roll};
use weirgate_shared::{
    BucketKey, EpochMillis, Hour, LimitsVersion, MAX_SHARDS, Millis, Pause, Shard, Window,
};
use weirgate_store::{Item, StoreError};

use super::pace::{ContentionBackoff, OtherWriters, ThrottleHistory};
use crate::session::{AgeClock, ClockJumps, Env, Moment, Sent, Session};
use crate::values::{Error, Locked};

/// Shortest interval between ends of *rare* leases, 60 s. For more frequent ends, leaving `due` to
/// the reconciler costs less than moving it each time.
const RARE_LEASE_INTERVAL: Duration = Duration::from_secs(60);
/// Usual greatest age of an eventually consistent response, latency included, 10 ms.
const CROWDED_WITHIN: Millis = Millis(10);
/// Acquires within [`CROWDED_WITHIN`] from which a plan on a read expects writes of other processes,
/// 2.
const CROWDED_ACQUIRES: i64 = 2;
/// Acquires that a process must expect since an hour or a window began before it assumes that one of
/// them began it, 4.
const MIN_EXPECTED_ACQUIRES: i64 = 4;

/// A copy of the shard as a response showed it, and the times of that response and its request.
#[derive(Debug, Clone)]
pub(crate) struct ShardView {
    pub(crate) shard: Arc<Shard>,
    pub(crate) seen_at: Moment,
    /// When the request was sent: a write was planned then.
    pub(crate) sent_at: Moment,
    /// Whether the wall clock has jumped ahead since the request that brought the view was sent: the
    /// process was frozen, or the clock was set.
    pub(crate) predates_clock_jump: bool,
}

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
struct State {
    view: Option<ShardView>,
    /// Jumps of the wall clock that the view has taken into account.
    jumps: ClockJumps,
    pace: ContentionBackoff,
    others: OtherWriters,
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
        Self { key, parent: None, state: Locked::default(), summary }
    }

    /// Creates the state of a shard that was split off `parent`: the same processes write to it.
    pub(crate) fn split_off(key: BucketKey, parent: Arc<Self>) -> Self {
        let state = State { throttles: parent.state().throttles.inherited(), ..State::default() };
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

    /// Records the shard of a response, as it was when the response came, unless the view has a later
    /// write sequence.
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
            self.summary.record_shard_count(shard.shard().count.min(MAX_SHARDS), at);
            let version = shard.config_version.and_then(LimitsVersion::changes);
            self.summary.version.fetch_max(version.unwrap_or_default(), Ordering::Relaxed);
            self.summary.record_pause(shard.pause);
            state.absent = None;
            if state.view.as_ref().is_some_and(|view| view.shard.shard() != shard.shard()) {
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
        self.state().absent.is_some_and(|at| self.summary.ages.age(at) < Duration::from_secs(1))
    }

    /// Reads or changes what is known of the shard's throttles.
    pub(super) fn with_throttles<T>(
        &self,
        change: impl FnOnce(&mut ThrottleHistory, &AgeClock) -> T,
    ) -> T {
        change(&mut self.state().throttles, &self.summary.ages)
    }

    /// Returns whether requests should avoid the shard.
    pub(crate) fn is_throttled(&self) -> bool {
        self.with_throttles(|throttles, ages| throttles.is_recent(ages))
    }

    /// Lets the view count as fresh for `span`, because the shard is too throttled to be read.
    pub(super) fn trust_view_for(&self, span: Duration) {
        self.state().trusted_until = Some(self.summary.ages.now() + span);
    }

    pub(super) fn trusts_view(&self) -> bool {
        self.state().trusted_until.is_some_and(|until| self.summary.ages.now() < until)
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    /// Returns whether there is a view, or the shard is missing where a take may create it.
    pub(super) fn is_known(&self) -> bool {
        self.view().is_some() || self.may_be_created()
    }

    /// Returns whether the shard has probably been split since the view, as other shards were.
    pub(super) fn is_outgrown(&self) -> bool {
        self.view()
            .is_some_and(|view| self.summary.is_outgrown(view.shard.shard().count, view.seen_at))
    }

    /// Returns whether the shard is missing and is the only one: a take then creates the bucket, by a
    /// time that a response has confirmed.
    pub(super) fn may_be_created(&self) -> bool {
        let is_missing = self.view().is_none() && self.is_missing() && self.is_only();
        is_missing && self.summary.ages.is_confirmed()
    }

    /// Returns whether the shard is missing and is one of several: its tokens are in other shards.
    pub(super) fn was_merged_away(&self) -> bool {
        self.view().is_none() && self.is_missing() && !self.is_only()
    }

    /// Returns whether this is the bucket's only shard, as far as this process has seen.
    pub(super) fn is_only(&self) -> bool {
        self.key.shard == 0 && self.summary.max_shards_seen() == 1
    }

    /// Records the result of a read, unless the view is newer. The shard may be missing.
    pub(crate) fn record_read(&self, shard: Option<Shard>, sent: Sent, now: EpochMillis) {
        match shard {
            Some(shard) => {
                let is_crowded = expected_acquires(&shard, now, CROWDED_WITHIN) >= CROWDED_ACQUIRES;
                self.record_read_response(shard, sent);
                self.record_others(|others| others.record_read(is_crowded));
            }
            None if self.view().is_none() => self.mark_missing(),
            None => {}
        }
    }

    /// Records the item of a read that other items were the reason for. A take that follows reports
    /// an item that cannot be read.
    pub(crate) fn record_item(&self, item: Option<&Item>, sent: Sent, session: &Session) {
        match item.map(Item::bucket).transpose() {
            Ok(shard) => self.record_read(shard, sent, session.now()),
            Err(error) => {
                tracing::debug!(%error, bucket = self.key.item_key().pk, "bucket unreadable");
            }
        }
    }

    /// Returns whether nothing was seen of the bucket yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_only() && !self.is_known()
    }

    /// Returns the hour that a write at `now` counts for. Where other processes write often, one of
    /// them has already begun the hour: beginning it again would fail, once per process.
    pub(crate) fn roll(&self, env: &Env, now: EpochMillis) -> Roll {
        let hour = Hour::of(EpochMillis(now.0.saturating_sub(env.roll_lag.0)));
        let begun = now.since(hour.start());
        let now_aged = self.summary.ages.now();
        let state = self.state();
        let is_begun = state
            .view
            .as_ref()
            .filter(|_| !state.others.are_none())
            .is_some_and(|view| is_done_by_others(view, now_aged, now, begun));
        Roll { hour, by_others: is_begun }
    }

    /// Returns whether another process has probably begun the windows that have ended in the view.
    pub(super) fn windows_begun(&self, now: EpochMillis) -> bool {
        let ages_now = self.summary.ages.now();
        let state = self.state();
        let view = state.view.as_ref().filter(|_| !state.others.are_none());
        view.is_some_and(|view| {
            let limits = view.shard.limits.values();
            let ended = limits.filter(|limit| limit.has_ended(now)).map(|limit| limit.window_end);
            let since = ended.max().map(|ended| now.since(ended));
            since.is_some_and(|since| is_done_by_others(view, ages_now, now, since))
        })
    }
}

/// Returns whether other processes have probably acquired within the time `since` something was due
/// that the first of them does. A younger view shows whether it was done.
fn is_done_by_others(view: &ShardView, ages_now: Moment, now: EpochMillis, since: Millis) -> bool {
    let age = Millis::from(ages_now.since(view.seen_at));
    let seen = EpochMillis(now.0.saturating_sub(age.0));
    age > since && expected_acquires(&view.shard, seen, since) >= MIN_EXPECTED_ACQUIRES
}

/// Returns the acquires expected within `time`, at the rate of the shard's hour, or of its life if
/// shorter, until it was `seen`. Never more than were counted by then.
fn expected_acquires(shard: &Shard, seen: EpochMillis, time: Millis) -> i64 {
    let since = shard.hour.start().max(EpochMillis(shard.birth_seq / 1000));
    let counted = shard.acquires.used(Window::Hourly);
    let expected =
        counted.saturating_mul(i128::from(time.0)) / i128::from(seen.since(since).0.max(1));
    i64::try_from(counted.min(expected)).unwrap_or(i64::MAX)
}

/// State that the queues of all shards of a bucket share.
#[derive(Debug)]
pub(crate) struct BucketSummary {
    /// Clock for the ages of views.
    pub(crate) ages: AgeClock,
    /// Notification that tokens returned to the bucket through this process.
    pub(crate) tokens_returned: Arc<Notify>,
    /// Largest shard count seen.
    max_shards_seen: AtomicU32,
    /// Time of the view in which it last rose.
    rose: Locked<Option<Moment>>,
    /// Shard that the router chose last.
    last_shard: AtomicU32,
    /// Newest version of configured limits that a shard was seen with.
    version: AtomicI64,
    promises: Locked<RetryTimes>,
    /// Time at which this process last returned tokens of a rate, epoch ms.
    returned_at: AtomicI64,
    /// End of the pause that the last response showed, epoch ms; 0 for none.
    paused_until: AtomicI64,
    /// Time at which this process last lowered a balance as its vendor said, epoch ms.
    lowered_at: AtomicI64,
}

impl BucketSummary {
    pub(crate) fn new(ages: AgeClock) -> Self {
        Self {
            ages,
            tokens_returned: Arc::default(),
            max_shards_seen: AtomicU32::new(1),
            rose: Locked::default(),
            last_shard: AtomicU32::new(0),
            version: AtomicI64::new(0),
            promises: Locked::default(),
            returned_at: AtomicI64::new(0),
            paused_until: AtomicI64::new(0),
            lowered_at: AtomicI64::new(0),
        }
    }

    pub(crate) fn max_shards_seen(&self) -> u32 {
        self.max_shards_seen.load(Ordering::Relaxed)
    }

    pub(crate) fn last_shard(&self) -> u32 {
        self.last_shard.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Records the shard count of a view.
    pub(super) fn record_shard_count(&self, count: u32, at: Moment) {
        if self.max_shards_seen.fetch_max(count, Ordering::Relaxed) < count {
            *self.rose.lock() = Some(at);
        }
    }

    /// Returns whether a shard with this count, seen at `at`, has probably been split since,
    /// because a later view showed a higher count.
    pub(super) fn is_outgrown(&self, count: u32, at: Moment) -> bool {
        count < self.max_shards_seen() && self.rose.lock().is_some_and(|rose| at < rose)
    }

    pub(crate) fn set_last_shard(&self, shard: u32) {
        self.last_shard.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn set_max_shards_seen(&self, most: u32) {
        self.max_shards_seen.store(most, Ordering::Relaxed);
    }

    /// Records the pause of a shard as a response showed it.
    fn record_pause(&self, pause: Option<Pause>) {
        let until = pause.map_or(0, |pause| pause.until.0);
        if self.paused_until.load(Ordering::Relaxed) != until {
            self.paused_until.store(until, Ordering::Relaxed);
        }
    }

    /// Returns whether the last response showed a pause that is in force `now`. Almost none did, and then
    /// no clock is read.
    pub(crate) fn is_paused(&self, now: impl FnOnce() -> EpochMillis) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until != 0 && now().0 < until
    }

    /// Returns whether this process may lower a balance at `now`, as it may once in so long; if so,
    /// records it.
    pub(crate) fn may_lower(&self, now: EpochMillis, interval: Millis) -> bool {
        let due = |last: i64| (now.0.abs_diff(last) >= interval.0.unsigned_abs()).then_some(now.0);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.lowered_at.fetch_update(set, fetch, due).is_ok()
    }

    /// Records that this process returned tokens of a rate: older views show too little.
    pub(crate) fn record_return(&self, now: EpochMillis) {
        self.returned_at.fetch_max(now.0, Ordering::Relaxed);
    }

    pub(crate) fn returned_since(&self, at: EpochMillis) -> bool {
        self.returned_at.load(Ordering::Relaxed) >= at.0
    }

    /// Records the retry time of a request that is denied at `now`.
    pub(crate) fn record_retry_time(&self, now: EpochMillis, retry_after: Option<Duration>) {
        self.promises.lock().insert(now, retry_after);
    }

    /// Returns whether a view of this `age` is older than a retry time that has passed.
    pub(crate) fn retry_time_passed(&self, now: EpochMillis, age: Duration) -> bool {
        self.promises.lock().passed_since(now, age)
    }
}

/// Most instants kept, the nearest ones.
const MOST: usize = 64;

/// Instants at which denied requests may retry. A request that comes after such an instant is not
/// denied by a view from before it.
#[derive(Debug, Default)]
struct RetryTimes {
    ahead: BTreeSet<EpochMillis>,
    /// Latest instant that has passed.
    due: Option<EpochMillis>,
}

impl RetryTimes {
    /// Inserts the retry time of a request that is denied at `now`.
    fn insert(&mut self, now: EpochMillis, retry_after: Option<Duration>) {
        let Some(after) = retry_after.filter(|after| !after.is_zero()) else {
            return;
        };
        self.ahead.insert(now.plus(after.into()));
        if self.ahead.len() > MOST {
            self.ahead.pop_last();
        }
    }

    /// Returns whether a view of this `age` is older than a retry time that has passed.
    fn passed_since(&mut self, now: EpochMillis, age: Duration) -> bool {
        while let Some(at) = self.ahead.first().copied().filter(|at| *at <= now) {
            self.ahead.pop_first();
            self.due = Some(self.due.map_or(at, |due| due.max(at)));
        }
        self.due.is_some_and(|due| Millis::from(age) > now.since(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_from_before_a_retry_time_is_outdated_once_it_has_passed() {
        let (mut promises, at, secs) = (RetryTimes::default(), EpochMillis, Duration::from_secs);
        promises.insert(at(1_000), Some(secs(5)));
        promises.insert(at(2_000), None);
        promises.insert(at(3_000), Some(secs(9)));
        assert!(!promises.passed_since(at(5_999), secs(5)));
        assert!(promises.passed_since(at(6_000), Duration::from_millis(1)));
        assert!(!promises.passed_since(at(8_000), secs(2)), "it was seen when the instant came");
        assert!(promises.passed_since(at(8_000), Duration::from_millis(2_001)));
        assert!(promises.passed_since(at(20_000), Duration::from_millis(8_001)), "the second one");
        assert!(!promises.passed_since(at(20_000), secs(8)));
    }
}
