//! The offset between this machine's clock and DynamoDB's, estimated from the dates of responses.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_smithy_async::time::TimeSource;
use weirgate_shared::{EpochMillis, Millis};

use crate::{Clock, SystemClock};

/// A machine's clock, corrected by the dates of DynamoDB's responses. Clones share the estimate.
///
/// A response has a date in whole seconds, between the sending of its request and its arrival. That
/// bounds the offset of the clocks. Further responses narrow the bounds, down to about the time of
/// a request. A clock within the bounds is not corrected; one outside is corrected as little as
/// possible. The first response leaves an error of at most a second and the time of the request.
#[derive(Debug, Clone)]
pub struct CorrectedClock(Arc<State>);

#[derive(Debug)]
struct State {
    clock: Arc<dyn Clock>,
    correction_ms: AtomicI64,
    known: Mutex<Option<Estimate>>,
}

/// Bounds of the time that DynamoDB's clock is ahead of this one, in ms; negative if it is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetBounds {
    least: i64,
    most: i64,
}

/// Bounds, and the local time for which they hold. With time they widen by the drift.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    ahead: OffsetBounds,
    at: EpochMillis,
}

/// Maximum difference between DynamoDB's machines, in ms. It also covers rounding to whole
/// milliseconds.
const AGREEMENT_MS: i64 = 10;
/// Maximum drift between clocks, one part in this number: what NTP permits itself when it corrects
/// a clock.
const DRIFT: i64 = 2_000;
/// Minimum correction that is logged, in ms.
const NEWS_MS: u64 = 1_000;

impl Default for CorrectedClock {
    fn default() -> Self {
        Self::of(Arc::new(SystemClock))
    }
}

impl CorrectedClock {
    /// Returns a corrected `clock`, without correction until a response requires one.
    #[must_use]
    pub fn of(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(State { clock, correction_ms: AtomicI64::new(0), known: Mutex::default() }))
    }

    /// Returns the corrected current time.
    #[must_use]
    pub fn now(&self) -> EpochMillis {
        self.local().plus(Millis(self.0.correction_ms.load(Ordering::Relaxed)))
    }

    /// Returns the machine's current time.
    #[must_use]
    pub fn local(&self) -> EpochMillis {
        self.0.clock.now()
    }

    /// Updates the bounds by a response with this date, to a request that was sent and received at
    /// these local times.
    ///
    /// The times are of the wall clock. After a Lambda function was frozen in between, its wall
    /// clock is right, and its monotonic clock has missed that time.
    pub(crate) fn observe(&self, date_seconds: i64, sent: EpochMillis, received: EpochMillis) {
        self.observe_within(date_seconds.checked_mul(1_000), 999, sent, received);
    }

    /// Updates the bounds by a response with the server's time in ms, as [`Self::observe`] does.
    #[cfg(feature = "redis")]
    pub(crate) fn observe_ms(&self, now_ms: i64, sent: EpochMillis, received: EpochMillis) {
        self.observe_within(Some(now_ms), 0, sent, received);
    }

    /// The time of the response is known to this many ms.
    fn observe_within(
        &self,
        date_ms: Option<i64>,
        precision_ms: i64,
        sent: EpochMillis,
        received: EpochMillis,
    ) {
        let bounds =
            date_ms.and_then(|date| OffsetBounds::of_date(date, precision_ms, sent, received));
        let Some(bounds) = bounds else {
            return;
        };
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match *known {
            Some(known) => known.and(bounds, received),
            None => Estimate { ahead: bounds, at: received },
        };
        *known = Some(next);
        let correction = next.ahead.correction();
        let before = self.0.correction_ms.swap(correction, Ordering::Relaxed);
        if before.abs_diff(correction) >= NEWS_MS {
            tracing::warn!(
                correction_ms = correction,
                "this machine's clock differs from that of the table and is corrected"
            );
        }
    }
}

impl Estimate {
    /// Returns the intersection with the bounds of another response. If it is empty, the clock was
    /// set, so the old bounds are dropped.
    fn and(self, bounds: OffsetBounds, now: EpochMillis) -> Self {
        let drift = now.since(self.at).0 / DRIFT;
        let (least, most) = (self.ahead.least - drift, self.ahead.most + drift);
        let both = OffsetBounds { least: least.max(bounds.least), most: most.min(bounds.most) };
        if both.least > both.most {
            return Self { ahead: bounds, at: now };
        }
        // The remainder of the division counts the next time.
        Self { ahead: both, at: self.at.plus(Millis(drift.saturating_mul(DRIFT))) }
    }
}

impl OffsetBounds {
    /// Returns the bounds of one response; `None` if the clock was set back in between.
    ///
    /// A date D is an instant from D to D + `precision` of the server's clock, 999 ms of DynamoDB's, at which
    /// the local clock showed a time from `sent` to `received`.
    fn of_date(
        date: i64,
        precision: i64,
        sent: EpochMillis,
        received: EpochMillis,
    ) -> Option<Self> {
        let least = date.checked_sub(received.0)? - AGREEMENT_MS;
        let most = date.checked_sub(sent.0)? + precision + AGREEMENT_MS;
        (sent <= received).then_some(Self { least, most })
    }

    /// Returns the smallest correction within the bounds.
    fn correction(self) -> i64 {
        0.clamp(self.least, self.most)
    }
}

/// Lets the SDK sign with the corrected time, so signatures are valid although the machine's clock
/// is off.
impl TimeSource for CorrectedClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from(Millis(self.now().0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two clocks, to the microsecond: the local one, and DynamoDB's, which is ahead of it.
    #[derive(Debug)]
    struct Clocks {
        local_us: i64,
        ahead_us: i64,
    }

    /// A local clock that shows 1970; only what is handed to `learn` counts.
    #[derive(Debug)]
    struct Still;

    impl Clock for Still {
        fn now(&self) -> EpochMillis {
            EpochMillis(0)
        }
    }

    impl Clocks {
        fn local(&self) -> EpochMillis {
            EpochMillis(self.local_us.div_euclid(1_000))
        }

        /// A request whose answer is dated after `there` and arrives after `back` more.
        fn ask(&mut self, skew: &CorrectedClock, there_us: i64, back_us: i64) {
            let sent = self.local();
            self.local_us += there_us;
            let date = (self.local_us + self.ahead_us).div_euclid(1_000_000);
            self.local_us += back_us;
            skew.observe(date, sent, self.local());
        }
    }

    fn known(skew: &CorrectedClock) -> OffsetBounds {
        skew.0.known.lock().unwrap().expect("something was learnt").ahead
    }

    const HOUR_US: i64 = 3_600_000_000;

    fn clocks() -> impl Strategy<Value = Clocks> {
        let ahead = prop_oneof![-2_000_000..2_000_000_i64, -HOUR_US..HOUR_US];
        (1_795_197_600_000_000..1_795_197_700_000_000_i64, ahead)
            .prop_map(|(local_us, ahead_us)| Clocks { local_us, ahead_us })
    }

    /// Pauses before requests, and both ways of each, in us.
    fn requests() -> impl Strategy<Value = Vec<(i64, i64, i64)>> {
        let way = || prop_oneof![0..3_000_i64, 0..2_000_000_i64];
        prop::collection::vec((prop_oneof![0..5_000_i64, 0..90_000_000_i64], way(), way()), 1..60)
    }

    proptest! {
        /// DynamoDB's machines differ, and the clocks drift as much as is allowed for.
        #[test]
        fn what_is_known_never_excludes_the_truth(
            mut clocks in clocks(), requests in requests(), drift in -1_i64..=1, off in prop::collection::vec(-4_000..=4_000_i64, 60),
        ) {
            let skew = CorrectedClock::of(Arc::new(Still));
            for ((pause, there, back), off) in requests.into_iter().zip(off) {
                clocks.ahead_us += off;
                clocks.ask(&skew, there, back);
                clocks.ahead_us -= off;
                let (known, ahead) = (known(&skew), clocks.ahead_us.div_euclid(1_000));
                prop_assert!((known.least..=known.most).contains(&ahead), "{known:?} {clocks:?}");
                // The correction is no larger than the truth, and of the same sign.
                let correction = skew.0.correction_ms.load(Ordering::Relaxed);
                prop_assert!(correction == 0 || (correction > 0) == (ahead >= 0) && correction.abs() <= ahead.abs());
                clocks.local_us += pause;
                clocks.ahead_us += drift * (pause + there + back) / DRIFT;
            }
        }

        #[test]
        fn one_answer_leaves_a_second_and_many_leave_the_time_of_a_request(
            mut clocks in clocks(), pauses in prop::collection::vec(0..1_000_000_i64, 400), way in 0..20_000_i64,
        ) {
            let skew = CorrectedClock::of(Arc::new(Still));
            let off = |clocks: &Clocks| (clocks.ahead_us / 1_000 - skew.0.correction_ms.load(Ordering::Relaxed)).abs();
            clocks.ask(&skew, way, way);
            prop_assert!(off(&clocks) <= 1_000 + 2 * way / 1_000 + AGREEMENT_MS, "{}", off(&clocks));
            for pause in pauses {
                clocks.local_us += pause;
                clocks.ask(&skew, way, way);
            }
            let width = known(&skew).most - known(&skew).least;
            prop_assert!(width <= 2 * way / 1_000 + 2 * AGREEMENT_MS + 200, "{width}");
            prop_assert!(off(&clocks) <= width + 1);
        }

        #[test]
        fn a_clock_that_was_set_is_corrected_by_the_next_response(
            mut clocks in clocks(), requests in requests(), set_us in -HOUR_US..HOUR_US, way in 0..500_000_i64,
        ) {
            let skew = CorrectedClock::of(Arc::new(Still));
            for (pause, there, back) in requests {
                clocks.ask(&skew, there, back);
                clocks.local_us += pause;
            }
            clocks.local_us += set_us;
            clocks.ahead_us -= set_us;
            clocks.ask(&skew, way, way);
            let off = (clocks.ahead_us / 1_000 - skew.0.correction_ms.load(Ordering::Relaxed)).abs();
            // Ageing lets what was known before stand beside a step that is small, but no step
            // passes unseen for long.
            let aged = (set_us.abs() + 60 * 94_000_000) / 1_000 / DRIFT;
            prop_assert!(off <= 1_000 + 2 * way / 1_000 + AGREEMENT_MS + aged, "{off}");
        }
    }

    #[test]
    fn a_clock_that_may_be_right_is_left_alone() {
        for (date, sent, received, correction) in [
            (10, 10_000, 10_000, 0),
            (10, 10_999, 10_999, 0),
            // The last millisecond that may be right, and the first that is not.
            (10, 9_000, 10_000 - AGREEMENT_MS, 0),
            (10, 10_999 + AGREEMENT_MS, 12_000, 0),
            (10, 11_000 + AGREEMENT_MS, 12_000, -1),
            (10, 8_000, 9_999 - AGREEMENT_MS, 1),
            // An hour fast, and an hour slow.
            (10, 3_610_000, 3_610_000, -3_599_001 + AGREEMENT_MS),
            (3_610, 10_000, 10_000, 3_600_000 - AGREEMENT_MS),
        ] {
            let skew = CorrectedClock::of(Arc::new(Still));
            skew.observe(date, EpochMillis(sent), EpochMillis(received));
            assert_eq!(skew.now(), EpochMillis(correction), "{date} {sent} {received}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_while_it_waited_tells_nothing() {
        let skew = CorrectedClock::of(Arc::new(Still));
        skew.observe(10, EpochMillis(3_610_000), EpochMillis(10_000));
        assert!(skew.0.known.lock().unwrap().is_none());
        for date in [i64::MIN, i64::MAX, i64::MAX / 1000] {
            skew.observe(date, EpochMillis(i64::MIN), EpochMillis(i64::MAX));
        }
    }
}
