//! What decisions read beside their events: the clocks, the settings and the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use weirgate_shared::{EpochMillis, ItemKey, Millis, rounded_span};
use weirgate_store::{Consistency, CorrectedClock, ErrorKind, StoreError};

use super::{AgeClock, Sent, Session, deadline};
use crate::values::Counters;

/// Clock error, in ms, from which a clock counts as wrong: the dates of responses are whole
/// seconds.
const CLOCK_TOLERANCE_MS: i64 = 1_000;
/// A clock that jumps during each of so many reads in a row is broken, 3.
pub(crate) const MAX_JUMPED_READS: u32 = 3;
/// Longest delay before a process counts for a new hour, 2 s.
const MAX_ROLL_LAG: Millis = Millis(2_000);

/// What decisions read beside their events. There is no table in it, so what has only this makes no
/// request.
#[derive(Debug)]
pub(crate) struct Env {
    /// Name of the table, for errors.
    table: String,
    pub(crate) counters: Arc<Counters>,
    /// Clock for ages.
    pub(crate) ages: AgeClock,
    /// The machine's clock, corrected by DynamoDB's responses.
    skew: CorrectedClock,
    started: Instant,
    /// Lead of the machine's clock over the time since `started`, when it was last read, in ms.
    clock_offset_ms: AtomicI64,
    /// Delay before this process counts for a new hour. Random, so that processes do not all begin
    /// a bucket's new hour at once.
    pub(crate) roll_lag: Millis,
    /// Timeout of an acquire that sets none.
    pub(crate) timeout: Duration,
    /// Longest time for which a denial is cached.
    pub(crate) denial_cache_ttl: Duration,
}

/// Time at which a write was planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanTime {
    /// Time by the limiter's clock.
    pub(crate) now: EpochMillis,
    at: Instant,
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
            ages: AgeClock::new(skew.clone()),
            clock_offset_ms: AtomicI64::new(skew.local().0),
            skew,
            started: Instant::now(),
            roll_lag: Millis(fastrand::i64(0..MAX_ROLL_LAG.0)),
            timeout,
            denial_cache_ttl,
        }
    }

    /// Returns the current time: the machine's clock, corrected by DynamoDB's responses.
    ///
    /// A clock that was set is wrong until the next response, and a write planned by it can change a
    /// balance wrongly. So a jump ahead marks the views: after a freeze they are as valid as before,
    /// and if the clock was set, the response to the next take shows it. A jump back removes the
    /// views. Smaller steps add up to a jump.
    pub(crate) fn now(&self) -> EpochMillis {
        let skew = &self.skew;
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

    /// Returns the error of a request without a timely response, whose outcome is unknown.
    pub(crate) fn no_answer(&self, request: &str, within: Duration) -> StoreError {
        self.unconfirmed(
            request,
            format!("no answer within {}", rounded_span(within)),
        )
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

    /// Returns the current time for a plan.
    pub(crate) fn plan_time(&self) -> PlanTime {
        PlanTime {
            now: self.now(),
            at: Instant::now(),
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

impl PlanTime {
    /// Returns by how many ms the plan's clock was slow, as far as is known now.
    fn lag_ms(self, env: &Env) -> i64 {
        let passed = env.now().0.saturating_sub(self.now.0);
        passed.saturating_sub(Millis::from(self.at.elapsed()).0)
    }

    /// Returns whether the clock has since changed by more than the time passed.
    pub(crate) fn clock_jumped(self, env: &Env) -> bool {
        is_wrong(self.lag_ms(env))
    }
}

const fn is_wrong(off_ms: i64) -> bool {
    off_ms.unsigned_abs() > CLOCK_TOLERANCE_MS.unsigned_abs()
}
