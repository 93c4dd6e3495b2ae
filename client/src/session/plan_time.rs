//! The time that writes are planned by, and the checks after it proved wrong.

use std::sync::atomic::Ordering;

use tokio::time::Instant;
use weirgate_shared::{EpochMillis, ItemKey, Millis};
use weirgate_store::{Consistency, StoreError};

use super::{Sent, Session};

/// Clock error, in ms, from which a clock counts as wrong: the dates of responses are whole
/// seconds.
const CLOCK_TOLERANCE_MS: i64 = 1_000;

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
    /// A clock that was set is wrong until the next response, and a write planned by it can change a
    /// balance wrongly. So a jump ahead marks the views: after a freeze they are as valid as before,
    /// and if the clock was set, the response to the next take shows it. A jump back removes the
    /// views. Smaller steps add up to a jump.
    pub(crate) fn now(&self) -> EpochMillis {
        let skew = self.table.skew();
        let ahead = skew
            .local()
            .0
            .saturating_sub(Millis::from(self.started.elapsed()).0);
        let jump = ahead.saturating_sub(self.clock_offset_ms.load(Ordering::Acquire));
        if is_wrong(jump) {
            // Recorded before the offset is stored, so no other thread uses views that should be
            // removed.
            if jump < 0 {
                self.ages.record_jump_back();
            } else {
                self.ages.record_jump_ahead();
            }
            self.clock_offset_ms.store(ahead, Ordering::Release);
        }
        skew.now()
    }

    /// Returns whether a response has corrected the clock since it last jumped, or since the start.
    pub(crate) fn is_time_confirmed(&self) -> bool {
        // Reading the clock notices a jump.
        let _ = self.now();
        self.ages.is_confirmed()
    }

    /// Returns the time by DynamoDB's clock: reads an item first if no response has confirmed it. If
    /// that fails, the time may be wrong, and a write by it fails as well.
    pub(crate) async fn confirmed_now(&self, key: &ItemKey) -> EpochMillis {
        if !self.is_time_confirmed() {
            let read = self.read_once(key, Consistency::Eventual).await;
            if let Err(error) = read {
                tracing::debug!(%error, "time not confirmed");
            }
        }
        self.now()
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
        /// A clock that jumps during each of so many reads is broken.
        const READS: u32 = 3;
        let mut reads = 0;
        loop {
            let _ = self.now();
            let sent = self.ages.sent();
            let found = read().await?;
            reads += 1;
            let _ = self.now();
            if reads == READS || self.ages.jumps() == sent.jumps {
                return Ok((sent, found));
            }
        }
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
