//! A process's clock: the true time plus an offset. A freeze moves both.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use weirgate::{Clock, EpochMillis, FakeClock};

/// Wall clock of a process. Clones share it.
#[derive(Debug, Clone)]
pub struct ProcessClock {
    truth: FakeClock,
    off_ms: Arc<AtomicI64>,
}

impl ProcessClock {
    /// Returns a clock that shows the true time.
    pub fn of(truth: &FakeClock) -> Self {
        Self { truth: truth.clone(), off_ms: Arc::default() }
    }

    /// Sets the clock `ms` milliseconds ahead of the true time, or behind if negative.
    pub fn skew(&self, ms: i64) {
        self.off_ms.store(ms, Ordering::Relaxed);
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> EpochMillis {
        EpochMillis(self.truth.now().0 + self.off_ms.load(Ordering::Relaxed))
    }
}
