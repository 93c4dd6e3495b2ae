//! How long to hold back where processes compete for the refill of one bucket.
//!
//! At the refill edge every process sees the next token come due at the same instant, one wins it
//! and the others pay for a write that fails. Waiting a random moment lets several tokens gather
//! for one refill; the moment grows with lost races and shrinks with won ones.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(100);

/// The longest wait before a write that refills; zero where nobody competes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ContentionBackoff(Duration);

impl ContentionBackoff {
    /// A random moment up to the longest wait; `None` where nobody competes.
    pub(super) fn delay(self) -> Option<Duration> {
        let most = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        (most > 0).then(|| Duration::from_micros(fastrand::u64(0..=most)))
    }

    /// A write lost its race.
    pub(super) fn lost_race(&mut self) {
        self.0 = (self.0 * 2).clamp(FIRST, MOST);
    }

    /// A write was applied.
    pub(super) fn won_race(&mut self) {
        self.0 = if self.0 < FIRST {
            Duration::ZERO
        } else {
            self.0 * 7 / 8
        };
    }
}
