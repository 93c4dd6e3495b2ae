//! What decisions read beside their events: the clocks, the settings and the counters.
//!
//! Ages are by the larger of two clocks: the monotonic clock stops in a frozen function, and a wall
//! clock can be set back.

use std::ops::Add;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use weirgate_shared::{EpochMillis, ItemKey, Millis, rounded_span};
use weirgate_store::{Consistency, CorrectedClock, ErrorKind, StoreError};

use super::Session;
use crate::values::{Counters, Locked};

/// Clock error, in ms, from which a clock counts as wrong: the dates of responses are whole
/// seconds.
const CLOCK_TOLERANCE_MS: i64 = 1_000;
/// A clock that jumps during each of so many reads in a row is broken, 3.
pub(crate) const MAX_JUMPED_READS: u32 = 3;
/// Longest delay before a process counts for a new hour, 2 s.
const MAX_ROLL_LAG: Millis = Millis(2_000);
/// Lead of the wall clock over the monotonic one from which the difference counts as missed time,
/// in ms: both are read in whole milliseconds, one after the other.
const AGREEMENT_MS: i64 = 5;

/// Returns the instant `span` from now, or a far one on overflow.
pub(crate) fn deadline(span: Duration) -> Instant {
    after(Instant::now(), span)
}

/// Returns the instant `span` after `start`, or a far one on overflow.
pub(crate) fn after(start: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(span).unwrap_or_else(|| start + FAR)
}

/// Returns a quarter of the time that is left: what a request waits for that it can do without.
pub(crate) fn quarter_left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / 4
}

/// An instant that ages are measured from. Later instants are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Instant);

/// A cached value.
#[derive(Debug, Clone)]
pub(crate) struct Cached<T> {
    /// Time just before the read.
    pub(crate) read_at: Moment,
    pub(crate) value: T,
}

/// A clock for ages: the monotonic clock, plus the time it missed by the wall clock. Clones share
/// it.
///
/// Missed time only grows, so setting the wall clock back makes nothing younger. Setting it ahead
/// makes all views older, which costs a read.
#[derive(Debug, Clone)]
pub(crate) struct AgeClock(Arc<State>);

#[derive(Debug)]
struct State {
    wall: CorrectedClock,
    started: Instant,
    /// The date of `started`, by what is known of it as it is first needed.
    began: OnceLock<EpochMillis>,
    /// Smallest lead of the wall clock over the time since `started`, in ms, since time was last
    /// missed.
    ahead_ms: AtomicI64,
    missed_ms: AtomicI64,
    /// That lead when the wall clock was last read for a time, in ms.
    offset_ms: AtomicI64,
    turn: Locked<()>,
    jumps_ahead: AtomicU64,
    jumps_back: AtomicU64,
    /// Jumps up to the last request that was answered.
    confirmed_ahead: AtomicU64,
    confirmed_back: AtomicU64,
}

/// The instant at which a request was sent. If the wall clock jumps ahead before the response
/// arrives, the response does not show whether the clock was set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Moment,
    pub(crate) jumps: ClockJumps,
}

/// Number of jumps of the wall clock that were seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClockJumps {
    /// Jumps that mark every view recorded before them.
    pub(crate) ahead: u64,
    /// Jumps that remove every view recorded before them.
    pub(crate) back: u64,
}

impl AgeClock {
    pub(crate) fn new(wall: CorrectedClock) -> Self {
        let ahead = wall.local().0;
        let state = State {
            wall,
            started: Instant::now(),
            began: OnceLock::new(),
            ahead_ms: AtomicI64::new(ahead),
            missed_ms: AtomicI64::new(0),
            offset_ms: AtomicI64::new(ahead),
            turn: Locked::default(),
            // The start counts as a jump, because the clock may be wrong.
            jumps_ahead: AtomicU64::new(1),
            jumps_back: AtomicU64::new(1),
            confirmed_ahead: AtomicU64::new(0),
            confirmed_back: AtomicU64::new(0),
        };
        Self(Arc::new(state))
    }

    /// Returns the instant at which a request is sent.
    pub(crate) fn sent(&self) -> Sent {
        Sent { at: self.now(), jumps: self.jumps() }
    }

    /// Returns the jumps of the wall clock so far.
    pub(crate) fn jumps(&self) -> ClockJumps {
        ClockJumps {
            ahead: self.0.jumps_ahead.load(Ordering::Acquire),
            back: self.0.jumps_back.load(Ordering::Acquire),
        }
    }

    /// Records the answer to a request that was sent after these jumps: its date corrects the wall
    /// clock.
    pub(crate) fn confirm(&self, sent: ClockJumps) {
        let State { confirmed_ahead, confirmed_back, .. } = &*self.0;
        confirmed_ahead.fetch_max(sent.ahead, Ordering::AcqRel);
        confirmed_back.fetch_max(sent.back, Ordering::AcqRel);
    }

    /// Returns whether a request was answered that was sent after all jumps so far.
    pub(crate) fn is_confirmed(&self) -> bool {
        let confirmed = self.0.confirmed_ahead.load(Ordering::Acquire);
        confirmed == self.jumps().ahead && !self.may_be_slow()
    }

    /// Returns whether the wall clock was set back, and no request was answered that was sent since.
    pub(crate) fn may_be_slow(&self) -> bool {
        self.0.confirmed_back.load(Ordering::Acquire) < self.jumps().back
    }

    /// Returns the current time: the wall clock, corrected by DynamoDB's responses.
    ///
    /// A clock that was set is wrong until the next response, and a write planned by it can change a
    /// balance wrongly. So a jump ahead marks the views: after a freeze they are as valid as before,
    /// and if the clock was set, the response to the next take shows it. A jump back removes the
    /// views. Smaller steps add up to a jump.
    pub(crate) fn wall(&self) -> EpochMillis {
        let state = &*self.0;
        let (_, ahead) = state.read();
        let jump = ahead.saturating_sub(state.offset_ms.load(Ordering::Acquire));
        if is_wrong(jump) {
            // Recorded before the offset is stored, so no other thread uses views that should be
            // removed.
            let jumps = match jump < 0 {
                true => &state.jumps_back,
                false => &state.jumps_ahead,
            };
            jumps.fetch_add(1, Ordering::AcqRel);
            state.offset_ms.store(ahead, Ordering::Release);
        }
        state.wall.now()
    }

    /// Returns the moment now.
    pub(crate) fn now(&self) -> Moment {
        let state = &*self.0;
        let (now, ahead) = state.read();
        let known = state.ahead_ms.load(Ordering::Acquire);
        if ahead < known || ahead.saturating_sub(known) > AGREEMENT_MS {
            state.compare();
        }
        self.of(now)
    }

    /// Returns the moment of an instant within a running request. Time missed during the request
    /// counts as missed before it, so a view from before a freeze is older than the request.
    pub(crate) fn of(&self, instant: Instant) -> Moment {
        let missed = Duration::from(Millis(self.0.missed_ms.load(Ordering::Relaxed)));
        Moment(after(instant, missed))
    }

    /// Returns the time for balances of this process alone: it only grows, and a freeze counts. It is the
    /// date, up to what the wall clock was off as it was first asked for.
    pub(crate) fn time(&self) -> EpochMillis {
        let passed = Millis::from(self.now().since(Moment(self.0.started)));
        let began = || self.0.wall.now().plus(Millis(-passed.0));
        self.0.began.get_or_init(began).plus(passed)
    }

    /// Returns the age of a moment; zero if it is in the future.
    pub(crate) fn age(&self, at: Moment) -> Duration {
        self.now().since(at)
    }
}

impl State {
    /// Reads both clocks, the monotonic one first, so a thread preempted in between sees the wall
    /// clock ahead and never behind.
    fn read(&self) -> (Instant, i64) {
        let now = Instant::now();
        let passed = Millis::from(now.saturating_duration_since(self.started));
        (now, self.wall.local().0.saturating_sub(passed.0))
    }

    /// Reads the clocks again, and adds the time that the monotonic clock has missed.
    fn compare(&self) {
        let _turn = self.turn.lock();
        // A thread is rarely preempted three times in a row.
        let ahead = (0..3).map(|_| self.read().1).min().unwrap_or_default();
        let known = self.ahead_ms.load(Ordering::Relaxed);
        let missed = ahead.saturating_sub(known);
        if missed > AGREEMENT_MS {
            let all = self.missed_ms.load(Ordering::Relaxed).saturating_add(missed);
            self.missed_ms.store(all, Ordering::Relaxed);
        } else if missed >= 0 {
            return;
        }
        // Stored after the missed time, so a reader that sees this value sees that one too.
        self.ahead_ms.store(ahead, Ordering::Release);
    }
}

impl Moment {
    /// Returns the time since an earlier moment; zero if that is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the moment `span` earlier, or this one if there is none.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.checked_sub(span).unwrap_or(self.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(after(self.0, span))
    }
}

/// What decisions read beside their events. There is no table in it, so what has only this makes no
/// request.
#[derive(Debug)]
pub(crate) struct Env {
    /// Name of the table, for errors.
    table: String,
    pub(crate) counters: Arc<Counters>,
    /// Clock for ages.
    pub(crate) ages: AgeClock,
    /// Delay before this process counts for a new hour. Random, so that processes do not all begin
    /// a bucket's new hour at once.
    pub(crate) roll_lag: Millis,
    /// Timeout of an acquire that sets none.
    pub(crate) timeout: Duration,
    /// Longest time for which a denial is cached.
    pub(crate) denial_cache_ttl: Duration,
}

impl Env {
    pub(crate) fn new(
        table: String,
        skew: CorrectedClock,
        timeout: Duration,
        denial_cache_ttl: Duration,
    ) -> Self {
        Self {
            table,
            counters: Arc::default(),
            ages: AgeClock::new(skew),
            roll_lag: Millis(fastrand::i64(0..MAX_ROLL_LAG.0)),
            timeout,
            denial_cache_ttl,
        }
    }

    /// Returns the current time, as [`AgeClock::wall`].
    pub(crate) fn now(&self) -> EpochMillis {
        self.ages.wall()
    }

    /// Returns whether a response has corrected the clock since it last jumped, or since the start.
    pub(crate) fn is_time_confirmed(&self) -> bool {
        // Reading the clock notices a jump.
        let _ = self.now();
        self.ages.is_confirmed()
    }

    /// Returns the error of a request without a timely response, whose outcome is unknown.
    pub(crate) fn no_answer(&self, request: &str, within: Duration) -> StoreError {
        self.unconfirmed(request, format!("no answer within {}", rounded_span(within)))
    }

    /// Returns the error of a request whose outcome is unknown for this reason.
    pub(crate) fn unconfirmed(&self, request: &str, reason: String) -> StoreError {
        StoreError {
            kind: ErrorKind::Unconfirmed,
            request: request.to_owned(),
            table: self.table.clone(),
            reason,
            source: None,
        }
    }
}

impl Session {
    /// Returns the current time, as [`Env::now`].
    pub(crate) fn now(&self) -> EpochMillis {
        self.env.now()
    }

    /// Returns whether the time is confirmed, as [`Env::is_time_confirmed`].
    pub(crate) fn is_time_confirmed(&self) -> bool {
        self.env.is_time_confirmed()
    }

    /// Returns the time by DynamoDB's clock: reads an item first if no response has confirmed it.
    ///
    /// # Errors
    /// That of the read: the time may be wrong, and a write by it could still be applied.
    pub(crate) async fn confirmed_now(
        self: &Arc<Self>,
        key: &ItemKey,
    ) -> Result<EpochMillis, StoreError> {
        if !self.is_time_confirmed() {
            let (keys, timeout) = (std::slice::from_ref(key), self.settings.timeout);
            let answer_by = deadline(timeout);
            let read = || self.read_with(keys, Consistency::Eventual, Some(answer_by));
            let read = timeout_at(answer_by, self.read_between_jumps(read)).await;
            read.unwrap_or_else(|_| Err(self.given_up("BatchGetItem", timeout, key)))?;
        }
        Ok(self.now())
    }

    /// Reads, and reads again if the wall clock jumped meanwhile: the response would show items as
    /// of before the jump. Returns when the read was sent.
    pub(crate) async fn read_between_jumps<T, F>(
        &self,
        mut read: impl FnMut() -> F,
    ) -> Result<(Sent, T), StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut reads = 0;
        loop {
            let _ = self.now();
            let sent = self.env.ages.sent();
            let found = read().await?;
            reads += 1;
            let _ = self.now();
            if reads == MAX_JUMPED_READS || self.env.ages.jumps() == sent.jumps {
                return Ok((sent, found));
            }
        }
    }
}

const fn is_wrong(off_ms: i64) -> bool {
    off_ms.unsigned_abs() > CLOCK_TOLERANCE_MS.unsigned_abs()
}

#[cfg(test)]
impl Default for AgeClock {
    fn default() -> Self {
        Self::new(CorrectedClock::default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::FakeClock;

    const DAY_MS: i64 = 86_400_000;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// Both clocks run, for this many ms.
        Run(u64),
        /// Only the wall clock runs, and real time with it.
        Freeze(i64),
        /// The wall clock is set by this many ms.
        Set(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let freeze = prop_oneof![1..9_i64, 1..2_000_i64, 1_000..DAY_MS];
        let set = prop_oneof![-9..0_i64, -2_000..0_i64, -DAY_MS..0, 0..DAY_MS];
        prop_oneof![
            4 => (0..100_000_u64).prop_map(Step::Run),
            3 => freeze.prop_map(Step::Freeze),
            1 => set.prop_map(Step::Set),
        ]
    }

    fn clocks() -> (FakeClock, AgeClock) {
        let wall = FakeClock::at(EpochMillis(1_795_197_600_000));
        let ages = AgeClock::new(CorrectedClock::of(Arc::new(wall.clone())));
        (wall, ages)
    }

    proptest! {
        /// The clock is read after each step, as each acquire does: a step back plus a freeze
        /// between two readings looks like a shorter freeze, and a step back that only takes away a lead
        /// too small to count hides it.
        #[test]
        fn nothing_seems_younger_than_it_is(steps in prop::collection::vec(step(), 1..40), since in 0..40_usize) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (wall, ages) = clocks();
                let (mut skew, mut truth, mut unseen, mut ahead, mut hidden) = (0, 0, 0, 0, AGREEMENT_MS);
                let mut begun = None;
                for (at, step) in steps.into_iter().enumerate() {
                    if at == since {
                        begun = Some((ages.now(), truth));
                        (unseen, ahead, hidden) = (0, 0, AGREEMENT_MS);
                    }
                    match step {
                        Step::Run(ms) => {
                            tokio::time::advance(Duration::from_millis(ms)).await;
                            truth += i64::try_from(ms).unwrap();
                        }
                        Step::Freeze(ms) => {
                            skew += ms;
                            truth += ms;
                            unseen += ms.min(AGREEMENT_MS);
                        }
                        Step::Set(ms) => {
                            skew += ms;
                            ahead += ms.max(0);
                            hidden += if ms < 0 { AGREEMENT_MS } else { 0 };
                        }
                    }
                    wall.skew(skew);
                    let now = ages.now();
                    if let Some((begun, was)) = begun {
                        let age = i64::try_from(now.since(begun).as_millis()).unwrap();
                        prop_assert!(age >= truth - was - hidden.min(unseen), "{age} of {}", truth - was);
                        prop_assert!(age <= truth - was + ahead + AGREEMENT_MS, "{age} of {}", truth - was);
                    }
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_request_is_later_than_views_from_before_a_freeze() {
        let (wall, ages) = clocks();
        let enqueued_at = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        let seen = ages.now();
        assert!(seen >= ages.of(enqueued_at));
        wall.skew(1_000);
        assert_eq!(ages.age(seen), Duration::from_secs(1));
        assert!(seen < ages.of(enqueued_at));
        assert!(ages.now() >= ages.of(enqueued_at));
    }

    /// A clock may show any time.
    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_at_the_end_of_time_breaks_nothing() {
        let (wall, ages) = clocks();
        let begun = ages.now();
        for skew in [i64::MAX / 2, -(i64::MAX / 2), i64::MAX / 2, 0] {
            wall.skew(skew);
            assert!(ages.now() >= begun);
        }
        assert!(ages.age(begun) > Duration::from_secs(30 * 365 * 86_400));
    }
}
