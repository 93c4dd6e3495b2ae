//! How much other processes write to a shard, and the wait before a write where they compete for its
//! refill.
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

/// Returns writes within a time as writes a minute: 0 only if there were none.
pub(super) fn per_minute(writes: i64, within: Duration) -> u32 {
    if writes <= 0 {
        return 0;
    }
    let millis = i64::try_from(within.as_millis()).unwrap_or(i64::MAX).max(1);
    let number = writes.saturating_mul(60_000) / millis;
    u32::try_from(number).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_become_writes_a_minute_and_only_none_become_0() {
        for (writes, millis, number) in [
            (0, 500, 0),
            (-3, 500, 0),
            (1, 500, 120),
            (7, 60_000, 7),
            (1, 3_600_000, 1),
            (2, 0, 120_000),
            (i64::MAX, 1, u32::MAX),
        ] {
            let within = Duration::from_millis(millis);
            assert_eq!(
                per_minute(writes, within),
                number,
                "{writes} in {millis} ms"
            );
        }
    }
}
