//! The time that writes are planned by, and the checks after it proved wrong.

use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, Millis};

use super::{Sent, Session};

/// Clock error, in ms, from which a clock counts as wrong: the dates of responses are whole
/// seconds.
const CLOCK_TOLERANCE_MS: i64 = 1_000;

/// Clock error, in ms, from which DynamoDB rejects its signatures, with a margin.
const SIGNATURE_TOLERANCE_MS: i64 = 305_000;

/// Time at which a write was planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanTime {
    /// Time by the limiter's clock.
    pub(crate) now: EpochMillis,
    at: Instant,
    jumps_back: u64,
}

impl Session {
    /// Returns the current time: the machine's clock, corrected by DynamoDB's responses.
    ///
    /// A clock that was set is wrong until the next response. An error below minutes still gives
    /// valid signatures, and a write planned too late can change a balance wrongly. So a jump ahead
    /// marks the views: after a freeze they are as valid as before, and if the clock was set, the
    /// response to the next take shows it. A jump back removes the views.
    pub(crate) fn now(&self) -> EpochMillis {
        let skew = self.table.skew();
        let ahead = skew
            .local()
            .0
            .saturating_sub(Millis::from(self.started.elapsed()).0);
        // Recorded before the offset is stored, so no other thread uses views that should be
        // removed.
        let jump = ahead.saturating_sub(self.clock_offset_ms.load(Ordering::Acquire));
        if jump < -CLOCK_TOLERANCE_MS {
            self.ages.record_jump_back();
        } else if jump > CLOCK_TOLERANCE_MS && jump < SIGNATURE_TOLERANCE_MS {
            // DynamoDB rejects the signatures of a clock further ahead.
            self.ages.record_jump_ahead();
        }
        self.clock_offset_ms.store(ahead, Ordering::Release);
        skew.now()
    }

    /// Returns whether the clock has jumped since a request was sent. Its response then shows items
    /// as of before the jump.
    pub(crate) fn has_clock_jumped_since(&self, sent: Sent) -> bool {
        // Reading the clock notices a jump.
        let _ = self.now();
        self.ages.jumps() != sent.jumps
    }

    /// Returns the current time for a plan.
    pub(crate) fn plan_time(&self) -> PlanTime {
        PlanTime {
            now: self.now(),
            at: Instant::now(),
            jumps_back: self.ages.jumps().back,
        }
    }
}

impl PlanTime {
    /// Returns by how many ms the plan's clock was slow, as far as is known now.
    fn lag_ms(self, session: &Session) -> i64 {
        let passed = session.now().0.saturating_sub(self.now.0);
        passed.saturating_sub(Millis::from(self.at.elapsed()).0)
    }

    /// Returns whether the plan was too early: its leases expire too soon, and its refill was too
    /// small.
    pub(crate) fn clock_was_slow(self, session: &Session) -> bool {
        self.lag_ms(session) > CLOCK_TOLERANCE_MS
    }

    /// Returns whether the plan was too late, as a response has proved: it assumed too much refill. A
    /// clock that was set back since then proves nothing, because it may be the wrong one.
    pub(crate) fn clock_was_fast(self, session: &Session) -> bool {
        let lag = self.lag_ms(session);
        lag < -CLOCK_TOLERANCE_MS && session.ages.jumps().back == self.jumps_back
    }

    /// Returns whether the clock has since changed by more than the time passed.
    pub(crate) fn clock_jumped(self, session: &Session) -> bool {
        is_wrong(self.lag_ms(session))
    }
}

const fn is_wrong(off_ms: i64) -> bool {
    off_ms.unsigned_abs() > CLOCK_TOLERANCE_MS.unsigned_abs()
}
