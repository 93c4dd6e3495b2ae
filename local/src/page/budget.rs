//! How many read units the page takes.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Time over which the present rate is the average.
const SHOWN: Duration = Duration::from_secs(10);

/// Read units, spent at a limited rate. A read is paid after it, because its size is known then: on
/// average the rate is never above the limit, and ahead of it by one page of a list at most.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Allowed units a second, at least 1.
    per_second: u32,
    /// Units spent since the start, in halves.
    halves: u64,
    /// When all units spent so far are paid.
    paid_at: Instant,
    /// Halves that were spent, and when.
    recent: VecDeque<(Instant, u64)>,
}

impl Budget {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second: per_second.max(1), halves: 0, paid_at: now, recent: VecDeque::new() }
    }

    /// Counts a read of so many half units. Returns when the next one may begin.
    pub(crate) fn spend(&mut self, halves: u64, now: Instant) -> Instant {
        self.halves += halves;
        self.recent.push_back((now, halves));
        let nanos = halves.saturating_mul(500_000_000) / u64::from(self.per_second);
        self.paid_at = self.paid_at.max(now) + Duration::from_nanos(nanos);
        self.paid_at
    }

    /// Returns when all units spent so far are paid.
    pub(crate) const fn paid_at(&self) -> Instant {
        self.paid_at
    }

    /// Returns the half units spent since the start.
    pub(crate) const fn halves(&self) -> u64 {
        self.halves
    }

    /// Returns the half units a second, over the last 10 s.
    pub(crate) fn halves_per_second(&mut self, now: Instant) -> u64 {
        self.recent.retain(|(at, _)| now.saturating_duration_since(*at) < SHOWN);
        let sum: u64 = self.recent.iter().map(|(_, halves)| halves).sum();
        sum / SHOWN.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_any_size_are_on_average_within_the_allowed_units() {
        let start = Instant::now();
        let (mut budget, mut now) = (Budget::new(25, start), start);
        for size in (0..200).map(|number| [1, 201, 2, 40][number % 4]) {
            now = budget.spend(size, now);
            let seconds = (now - start).as_secs_f64();
            let units = f64::from(u32::try_from(budget.halves()).unwrap()) / 2.0;
            assert!(units <= seconds * 25.0 + 0.001, "{units} units in {seconds} s");
        }
        // An idle time is not saved up.
        let later = now + Duration::from_secs(3600);
        assert_eq!(budget.spend(50, later), later + Duration::from_secs(1));
        assert_eq!(budget.halves_per_second(later), 5);
        assert_eq!(budget.halves_per_second(later + Duration::from_secs(10)), 0);
    }
}
