//! Pause between a process's writes to a shard while DynamoDB throttles its partition.
//!
//! The pause doubles with each throttle and halves with each write that passes. So any number of
//! processes offer a partition about twice what it accepts, and a single write, such as a split,
//! gets through.

use std::time::Duration;

use tokio::time::Instant;

use crate::session::{AgeClock, Moment};

const FIRST: Duration = Duration::from_millis(25);
const LONGEST: Duration = Duration::from_secs(4);
/// Time without a throttle after which the pause ends, 10 s. It exceeds the longest wait, so a
/// shard that throttles every write keeps its pause.
const OVER: Duration = Duration::from_secs(10);

/// Time after a throttle in which it is a reason to request a split, 5 s.
const SPLIT_SIGNAL_WINDOW: Duration = Duration::from_secs(5);
/// Time after a throttle in which requests avoid the shard, 1 s.
const AVOID_FOR: Duration = Duration::from_secs(1);

/// Throttles of one shard, and the pause after them.
#[derive(Debug, Default)]
pub(super) struct ThrottleHistory {
    last: Option<Throttle>,
    pause: ThrottleBackoff,
}

#[derive(Debug, Clone, Copy)]
struct Throttle {
    at: Moment,
    /// Whether another throttle came shortly before.
    is_repeated: bool,
    /// Whether no write has passed since.
    is_last: bool,
}

impl ThrottleHistory {
    /// Records a throttle.
    pub(super) fn record(&mut self, ages: &AgeClock) {
        let at = ages.now();
        let is_repeated = self.last.is_some_and(|last| {
            at.since(last.at)
                < if last.is_last {
                    SPLIT_SIGNAL_WINDOW
                } else {
                    AVOID_FOR
                }
        });
        self.last = Some(Throttle {
            at,
            is_repeated,
            is_last: true,
        });
        self.pause.widen(ages);
    }

    /// Records a write that was not throttled.
    pub(super) fn record_pass(&mut self, ages: &AgeClock) {
        if let Some(last) = &mut self.last {
            last.is_last = false;
        }
        self.pause.narrow(ages);
    }

    /// Records that the shard was split or merged: the throttles were another shard's.
    pub(super) fn record_reshard(&mut self) {
        self.last = None;
        self.pause.shrink();
    }

    /// Clears the last throttle, because a write has requested the split.
    pub(super) fn clear(&mut self) {
        self.last = None;
    }

    /// Returns the pause of a shard that was split off this one. The first write need not wait; if
    /// it is throttled, the next waits as long as it would in this shard.
    pub(super) fn inherited(&self) -> Self {
        let mut pause = ThrottleBackoff::default();
        pause.inherit(self.pause);
        Self { last: None, pause }
    }

    /// Returns the end of the pause between writes, if it is still ahead.
    pub(super) fn paused_until(&self, ages: &AgeClock) -> Option<Instant> {
        self.pause.until(ages)
    }

    /// Returns the age of the last throttle, if it was the second within a short time and is
    /// recent. A partition near its limit throttles now and then, so one throttle alone is no
    /// signal.
    pub(super) fn repeated_for(&self, ages: &AgeClock) -> Option<Duration> {
        let last = self.last.filter(|last| last.is_repeated)?;
        Some(ages.age(last.at)).filter(|age| *age < SPLIT_SIGNAL_WINDOW)
    }

    /// Returns whether requests should avoid the shard: it was throttled less than 1 s ago, or this
    /// process pauses its writes.
    pub(super) fn is_recent(&self, ages: &AgeClock) -> bool {
        self.last.is_some_and(|last| ages.age(last.at) < AVOID_FOR)
            || self.pause.until(ages).is_some()
    }
}

/// Pause between two writes; zero without throttles.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ThrottleBackoff {
    length: Duration,
    until: Option<Instant>,
    /// Time of the last throttle, by a clock that includes the time a process was frozen.
    throttled: Option<Moment>,
}

impl ThrottleBackoff {
    /// Doubles the pause after a throttle.
    pub(super) fn widen(&mut self, ages: &AgeClock) {
        let length = if self.is_over(ages) {
            Duration::ZERO
        } else {
            self.length
        };
        self.throttled = Some(ages.now());
        self.set((length * 2).clamp(FIRST, LONGEST));
    }

    /// Halves the pause after a write that was not throttled.
    pub(super) fn narrow(&mut self, ages: &AgeClock) {
        self.set(if self.is_over(ages) {
            Duration::ZERO
        } else {
            self.half()
        });
    }

    /// Halves the pause after a split, because the partition has half of the load.
    pub(super) fn shrink(&mut self) {
        self.length = self.half();
    }

    /// Copies the pause of the shard that this one was split off.
    pub(super) fn inherit(&mut self, older: Self) {
        (self.length, self.throttled) = (older.length, older.throttled);
    }

    /// Returns the end of the pause; `None` if it has passed.
    pub(super) fn until(&self, ages: &AgeClock) -> Option<Instant> {
        self.until
            .filter(|until| Instant::now() < *until && !self.is_over(ages))
    }

    /// Returns whether the pause is over. Reads the clock only if a write was throttled before.
    fn is_over(&self, ages: &AgeClock) -> bool {
        self.throttled.is_none_or(|at| ages.now().since(at) >= OVER)
    }

    fn half(self) -> Duration {
        if self.length > FIRST {
            self.length / 2
        } else {
            Duration::ZERO
        }
    }

    /// Sets the pause. The next write waits a random half to one and a half of it, so that
    /// processes do not stay in step.
    fn set(&mut self, length: Duration) {
        self.length = length;
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let wait = Duration::from_micros(micros / 2 + fastrand::u64(0..=micros));
        self.until = (!length.is_zero()).then(|| Instant::now() + wait);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_gap_doubles_with_each_throttle_and_halves_with_each_write_that_passes() {
        let (mut gap, ages) = (ThrottleBackoff::default(), AgeClock::default());
        assert_eq!(gap.until(&ages), None);
        let lengths: Vec<_> = (0..10)
            .map(|_| {
                gap.widen(&ages);
                gap.length.as_millis()
            })
            .collect();
        assert_eq!(
            lengths,
            [25, 50, 100, 200, 400, 800, 1600, 3200, 4000, 4000]
        );
        let wait = gap.until(&ages).unwrap() - Instant::now();
        assert!((LONGEST / 2..=LONGEST * 3 / 2).contains(&wait), "{wait:?}");
        advance(wait).await;
        assert_eq!(gap.until(&ages), None);
        for _ in 0..9 {
            gap.narrow(&ages);
        }
        assert_eq!((gap.length, gap.until(&ages)), (Duration::ZERO, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_is_over_some_time_after_the_last_throttle() {
        let (mut gap, ages) = (ThrottleBackoff::default(), AgeClock::default());
        (0..9).for_each(|_| gap.widen(&ages));
        advance(OVER - Duration::from_millis(1)).await;
        gap.narrow(&ages);
        assert_eq!(gap.length, LONGEST / 2);
        advance(Duration::from_millis(1)).await;
        assert_eq!(gap.until(&ages), None);
        gap.widen(&ages);
        assert_eq!(gap.length, FIRST);
    }
}
