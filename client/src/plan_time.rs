//! The time that writes are planned by, and what becomes of them if it turns out to have been
//! wrong.

use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Millis};

use crate::inner::Inner;

/// By how much a clock is off, in ms, before it counts as wrong: dates of answers are whole
/// seconds.
const CLOCK_TOLERANCE_MS: i64 = 1_000;

/// By how much a clock is off, in ms, before DynamoDB refuses what is signed by it, with a margin.
const SIGNATURE_TOLERANCE_MS: i64 = 305_000;

/// When a write was planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanTime {
    /// By the limiter's clock.
    pub(crate) now: EpochMillis,
    at: Instant,
}

impl Inner {
    /// The time now: the machine's, corrected by the table's answers.
    ///
    /// A clock that was set is wrong until the next answer, and one that went back or ahead by less
    /// than minutes still signs well. A view and a time that is too late let a write move a balance
    /// out of its place. So views are doubted when the wall clock has run ahead of the monotonic
    /// one: where a process was frozen they are as good as before, and where the clock was set the
    /// answer to the next take tells. Views are forgotten when the clock has gone back.
    pub(crate) fn now(&self) -> EpochMillis {
        let skew = self.table.skew();
        let ahead = skew
            .local()
            .0
            .saturating_sub(Millis::from(self.started.elapsed()).0);
        // Before it is stored: where nothing is found to forget, nothing may be found to use
        // either.
        let jump = ahead.saturating_sub(self.clock_offset_ms.load(Ordering::Relaxed));
        if jump < -CLOCK_TOLERANCE_MS {
            self.forget_views();
        } else if jump > CLOCK_TOLERANCE_MS && jump < SIGNATURE_TOLERANCE_MS {
            // What a clock that is further ahead signs is refused.
            self.doubt_views();
        }
        self.clock_offset_ms.store(ahead, Ordering::Relaxed);
        skew.now()
    }

    /// The time now, for a plan.
    pub(crate) fn plan_time(&self) -> PlanTime {
        PlanTime {
            now: self.now(),
            at: Instant::now(),
        }
    }
}

impl PlanTime {
    /// How much later it was than it seemed, in ms, as is known by now.
    fn lag_ms(self, inner: &Inner) -> i64 {
        let passed = inner.now().0.saturating_sub(self.now.0);
        passed.saturating_sub(Millis::from(self.at.elapsed()).0)
    }

    /// Whether it was planned too early: what was there seems to have been there longer, and leases
    /// expire too soon.
    pub(crate) fn clock_was_slow(self, inner: &Inner) -> bool {
        self.lag_ms(inner) > CLOCK_TOLERANCE_MS
    }

    /// Whether it was planned too late: less had flowed in than it seemed.
    pub(crate) fn clock_was_fast(self, inner: &Inner) -> bool {
        self.lag_ms(inner) < -CLOCK_TOLERANCE_MS
    }

    /// Whether the clock has changed since by more than time passed.
    pub(crate) fn clock_jumped(self, inner: &Inner) -> bool {
        is_wrong(self.lag_ms(inner))
    }
}

const fn is_wrong(off_ms: i64) -> bool {
    off_ms.unsigned_abs() > CLOCK_TOLERANCE_MS.unsigned_abs()
}
