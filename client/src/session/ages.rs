//! Ages by the larger of two clocks: the monotonic clock stops in a frozen function, and a wall
//! clock can be set back.

use std::ops::Add;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::CorrectedClock;

use super::deadline::after;
use crate::values::Locked;

/// Lead of the wall clock over the monotonic one from which the difference counts as missed time,
/// in ms: both are read in whole milliseconds, one after the other.
const AGREEMENT_MS: i64 = 5;

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
        let ahead_ms = AtomicI64::new(wall.local().0);
        let state = State {
            wall,
            started: Instant::now(),
            began: OnceLock::new(),
            ahead_ms,
            missed_ms: AtomicI64::new(0),
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
        Sent {
            at: self.now(),
            jumps: self.jumps(),
        }
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
        let State {
            confirmed_ahead,
            confirmed_back,
            ..
        } = &*self.0;
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

    /// Records that the wall clock was set ahead, or that the process was frozen.
    pub(crate) fn record_jump_ahead(&self) {
        self.0.jumps_ahead.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the wall clock was set back.
    pub(crate) fn record_jump_back(&self) {
        self.0.jumps_back.fetch_add(1, Ordering::AcqRel);
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
            let all = self
                .missed_ms
                .load(Ordering::Relaxed)
                .saturating_add(missed);
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
