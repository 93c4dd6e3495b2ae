//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::time::Instant;
use weirgate_shared::EpochMillis;
use weirgate_store::Clock;

/// A clock for tests: it follows the runtime's time, which a test can pause and advance, plus a
/// skew. Clones share the skew.
#[derive(Debug, Clone)]
pub struct FakeClock {
    started: Instant,
    start_ms: i64,
    skew_ms: Arc<AtomicI64>,
}

impl FakeClock {
    /// Returns a clock that shows `start` now.
    #[must_use]
    pub fn at(start: EpochMillis) -> Self {
        Self { started: Instant::now(), start_ms: start.0, skew_ms: Arc::default() }
    }

    /// Lets `by` pass, in whole milliseconds: everything that is due on the way runs, in order, and
    /// sees the time at which it is due. The runtime's time must be paused; otherwise `by` passes in
    /// real time.
    #[cfg(feature = "testing")]
    pub async fn advance(&self, by: std::time::Duration) {
        tokio::time::sleep(by).await;
    }

    /// Sets the clock `ms` milliseconds ahead of the runtime's time, or behind if negative.
    pub fn skew(&self, ms: i64) {
        self.skew_ms.store(ms, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> EpochMillis {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        EpochMillis(self.start_ms + elapsed + self.skew_ms.load(Ordering::Relaxed))
    }
}
