//! How much other processes write to a shard, and the wait before a write where they compete for its
//! refill.
//!
//! When a shard is empty, every process sees the next token come at the same instant: one wins it,
//! and the others pay for a failed write. After a random wait, one write takes several tokens. The
//! wait grows with lost races and shrinks with won ones.

use std::time::Duration;

use weirgate_shared::write::Contention;

/// Age below which a view of a contended shard counts as fresh, 3 ms.
pub(super) const FRESH_VIEW: Duration = Duration::from_millis(3);

/// Time without writes of other processes after which this one is alone, 20 ms: longer than a read
/// and the write after it.
const ALONE_AFTER: Duration = Duration::from_millis(20);

const FIRST: Duration = Duration::from_millis(4);
/// At 400 ms, 30 servers that ask for half as much again as the limit need 1.41 writes a grant, on 4
/// shards 3.00; at 100 ms 1.85 and 5.00. At 800 ms (1.24 and 2.23) the last tokens lie for long.
const MOST: Duration = Duration::from_millis(400);

/// Longest wait before a write that refills, 4 to 400 ms; zero without contention.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ContentionBackoff(Duration);

impl ContentionBackoff {
    /// Returns the longest wait; `None` without contention.
    pub(super) fn longest(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
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

#[cfg(test)]
mod tests {
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
}
