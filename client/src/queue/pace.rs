//! When this process writes to a shard next: contention, of which other writers are the cause, and
//! throttles.
//!
//! - When a shard is empty, every process sees the next token come at the same instant: one wins it, and
//!   the others pay for a failed write. After a random wait, one write takes several tokens. The wait
//!   grows with lost races and shrinks with won ones.
//! - The pause while DynamoDB throttles a partition doubles with each throttle and halves with each write
//!   that passes. So any number of processes offer a partition about twice what it accepts, and a single
//!   write, such as a split, gets through.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::Contention;

use crate::session::{AgeClock, Moment};

/// Age below which a view of a contended shard counts as fresh, 3 ms.
pub(super) const FRESH_VIEW: Duration = Duration::from_millis(3);

/// Time without writes of other processes after which this one is alone, 20 ms: longer than a read
/// and the write after it.
const ALONE_AFTER: Duration = Duration::from_millis(20);

const FIRST_WAIT: Duration = Duration::from_millis(4);
/// At 400 ms, 30 servers that ask for half as much again as the limit need 1.41 writes a grant, on 4
/// shards 3.00; at 100 ms 1.85 and 5.00. At 800 ms (1.24 and 2.23) the last tokens lie for long.
const LONGEST_WAIT: Duration = Duration::from_millis(400);

/// Longest wait before a contended write, 4 to 400 ms; zero without contention.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ContentionBackoff(Duration);

impl ContentionBackoff {
    /// Returns the longest wait; `None` without contention.
    pub(super) fn longest(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }

    /// Records a write that lost its race.
    pub(super) fn lost_race(&mut self) {
        self.0 = (self.0 * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
    }

    /// Records a write that was applied.
    pub(super) fn won_race(&mut self) {
        self.0 = if self.0 < FIRST_WAIT { Duration::ZERO } else { self.0 * 7 / 8 };
    }
}

/// Returns writes within a time as writes a day: 0 only if there were none.
fn per_day(writes: i64, within: Duration) -> u32 {
    if writes <= 0 {
        return 0;
    }
    let millis = i64::try_from(within.as_millis()).unwrap_or(i64::MAX).max(1);
    let number = writes.saturating_mul(86_400_000) / millis;
    u32::try_from(number).unwrap_or(u32::MAX).max(1)
}

/// What this process knows of the writes of others to a shard.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OtherWriters {
    /// Writes a day, as last counted; `None` until known.
    per_day: Option<u32>,
    /// Whether the first read of the shard showed so much traffic that others probably write between
    /// a read and the write after it.
    is_crowded: Option<bool>,
    /// Time without any since the last one that was seen.
    quiet: Duration,
    /// Whether a take on an older view last failed because the shard was full.
    found_full: bool,
}

impl OtherWriters {
    /// Records whether a read showed much traffic.
    pub(super) fn record_read(&mut self, is_crowded: bool) {
        self.is_crowded = Some(is_crowded);
    }

    /// Records writes of others within the time between two responses.
    pub(super) fn record(&mut self, writes: i64, within: Duration) {
        if writes > 0 {
            (self.per_day, self.quiet) = (Some(per_day(writes, within)), Duration::ZERO);
            return;
        }
        self.quiet += within;
        if self.quiet >= ALONE_AFTER {
            self.per_day = Some(0);
        }
    }

    /// Records that others write, however often: many if none were counted before.
    pub(super) fn record_lost_race(&mut self) {
        self.quiet = Duration::ZERO;
        self.per_day = self.per_day.filter(|count| *count > 0).or(Some(u32::MAX));
    }

    /// Records why a take on an older view failed: the shard was full, or it was not.
    pub(super) fn record_failed_guess(&mut self, was_full: bool) {
        self.found_full = was_full;
    }

    /// Returns whether it is known that no other process writes.
    pub(super) fn are_none(self) -> bool {
        self.per_day == Some(0)
    }

    /// Returns what a take should expect that is planned on a view of this age. Until anything is
    /// counted, the first read tells, or whether the bucket `has_shards`. Where the last guess at
    /// headroom was wrong, the view itself is the better guess.
    pub(super) fn contention(self, age: Duration, has_shards: bool) -> Contention {
        match self.per_day {
            Some(0) => Contention::Alone,
            Some(others_per_day) if age >= FRESH_VIEW && !self.found_full => {
                Contention::SharedStale { others_per_day }
            }
            None if !self.is_crowded.unwrap_or(has_shards) => Contention::Alone,
            _ => Contention::Shared,
        }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
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
            at.since(last.at) < if last.is_last { SPLIT_SIGNAL_WINDOW } else { AVOID_FOR }
        });
        self.last = Some(Throttle { at, is_repeated, is_last: true });
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
        let length = if self.is_over(ages) { Duration::ZERO } else { self.length };
        self.throttled = Some(ages.now());
        self.set((length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE));
    }

    /// Halves the pause after a write that was not throttled.
    pub(super) fn narrow(&mut self, ages: &AgeClock) {
        self.set(if self.is_over(ages) { Duration::ZERO } else { self.half() });
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
        self.until.filter(|until| Instant::now() < *until && !self.is_over(ages))
    }

    /// Returns whether the pause is over. Reads the clock only if a write was throttled before.
    fn is_over(&self, ages: &AgeClock) -> bool {
        self.throttled.is_none_or(|at| ages.now().since(at) >= OVER)
    }

    fn half(self) -> Duration {
        if self.length > FIRST_PAUSE { self.length / 2 } else { Duration::ZERO }
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

    #[test]
    fn writes_become_writes_a_day_and_only_none_become_0() {
        for (writes, millis, number) in [
            (0, 500, 0),
            (-3, 500, 0),
            (1, 500, 172_800),
            (7, 60_000, 10_080),
            (1, 3_600_000, 24),
            (1, 864_000_000, 1),
            (2, 0, 172_800_000),
            (i64::MAX, 1, u32::MAX),
        ] {
            let within = Duration::from_millis(millis);
            assert_eq!(per_day(writes, within), number, "{writes} in {millis} ms");
        }
    }

    const OLD: Duration = Duration::from_millis(50);

    fn stale(others_per_day: u32) -> Contention {
        Contention::SharedStale { others_per_day }
    }

    #[test]
    fn the_first_read_tells_until_anything_is_counted() {
        let mut others = OtherWriters::default();
        assert_eq!(others.contention(OLD, false), Contention::Alone);
        assert_eq!(others.contention(OLD, true), Contention::Shared);
        others.record_read(true);
        assert_eq!(others.contention(OLD, false), Contention::Shared);
        others.record_read(false);
        assert_eq!(others.contention(OLD, true), Contention::Alone);
        others.record(1, Duration::from_secs(1));
        assert_eq!(others.contention(OLD, false), stale(86_400));
        assert_eq!(others.contention(Duration::ZERO, false), Contention::Shared);
    }

    /// Short silences add up: a process that calls all the time never sees a long one.
    #[test]
    fn a_process_is_alone_after_silences_of_20_ms_together() {
        let mut others = OtherWriters::default();
        let silence = Duration::from_millis(8);
        others.record(3, silence);
        for _ in 0..2 {
            others.record(0, silence);
            assert!(!others.are_none());
        }
        others.record(1, silence);
        others.record(0, silence);
        assert!(!others.are_none(), "another write came between");
        others.record(0, silence);
        others.record(0, silence);
        assert_eq!(others.contention(OLD, true), Contention::Alone);
        others.record_lost_race();
        assert_eq!(others.contention(OLD, false), stale(u32::MAX));
    }

    #[test]
    fn after_a_wrong_guess_the_view_is_believed_until_it_was_wrong() {
        let mut others = OtherWriters::default();
        others.record(1, Duration::from_secs(1));
        others.record_failed_guess(true);
        assert_eq!(others.contention(OLD, false), Contention::Shared);
        others.record_failed_guess(false);
        assert_eq!(others.contention(OLD, false), stale(86_400));
    }

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
        assert_eq!(lengths, [25, 50, 100, 200, 400, 800, 1600, 3200, 4000, 4000]);
        let wait = gap.until(&ages).unwrap() - Instant::now();
        assert!((LONGEST_PAUSE / 2..=LONGEST_PAUSE * 3 / 2).contains(&wait), "{wait:?}");
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
        assert_eq!(gap.length, LONGEST_PAUSE / 2);
        advance(Duration::from_millis(1)).await;
        assert_eq!(gap.until(&ages), None);
        gap.widen(&ages);
        assert_eq!(gap.length, FIRST_PAUSE);
    }
}
