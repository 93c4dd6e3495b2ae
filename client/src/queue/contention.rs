//! Wait before a write where processes compete for the refill of one shard.
//!
//! When a shard is empty, every process sees the next token come at the same instant: one wins it,
//! and the others pay for a failed write. After a random wait, one write takes several tokens. The
//! wait grows with lost races and shrinks with won ones.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(100);

/// Longest wait before a write that refills, 4 to 100 ms; zero without contention.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ContentionBackoff(Duration);

impl ContentionBackoff {
    /// Returns a random time up to the longest wait; `None` without contention.
    pub(super) fn delay(self) -> Option<Duration> {
        let most = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        (most > 0).then(|| Duration::from_micros(fastrand::u64(0..=most)))
    }

    /// Records a write that lost its race.
    pub(super) fn lost_race(&mut self) {
        self.0 = (self.0 * 2).clamp(FIRST, MOST);
    }

    /// Records a write that was applied.
    pub(super) fn won_race(&mut self) {
        self.0 = if self.0 < FIRST {
            Duration::ZERO
        } else {
            self.0 * 7 / 8
        };
    }
}
