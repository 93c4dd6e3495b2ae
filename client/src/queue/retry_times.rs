//! Instants at which denied requests may retry.

use std::collections::BTreeSet;
use std::time::Duration;

use weirgate_shared::{EpochMillis, Millis};

/// Most instants kept, the nearest ones.
const MOST: usize = 64;

/// Instants at which denied requests may retry. A request that comes after such an instant is not
/// denied by a view from before it.
#[derive(Debug, Default)]
pub(super) struct RetryTimes {
    ahead: BTreeSet<EpochMillis>,
    /// Latest instant that has passed.
    due: Option<EpochMillis>,
}

impl RetryTimes {
    /// Inserts the retry time of a request that is denied at `now`.
    pub(super) fn insert(&mut self, now: EpochMillis, retry_after: Option<Duration>) {
        let Some(after) = retry_after.filter(|after| !after.is_zero()) else {
            return;
        };
        self.ahead.insert(now.plus(after.into()));
        if self.ahead.len() > MOST {
            self.ahead.pop_last();
        }
    }

    /// Returns whether a view of this `age` is older than a retry time that has passed.
    pub(super) fn passed_since(&mut self, now: EpochMillis, age: Duration) -> bool {
        while let Some(at) = self.ahead.first().copied().filter(|at| *at <= now) {
            self.ahead.pop_first();
            self.due = Some(self.due.map_or(at, |due| due.max(at)));
        }
        self.due
            .is_some_and(|due| Millis::from(age) > now.since(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_from_before_a_retry_time_is_outdated_once_it_has_passed() {
        let (mut promises, at, secs) = (RetryTimes::default(), EpochMillis, Duration::from_secs);
        promises.insert(at(1_000), Some(secs(5)));
        promises.insert(at(2_000), None);
        promises.insert(at(3_000), Some(secs(9)));
        assert!(!promises.passed_since(at(5_999), secs(5)));
        assert!(promises.passed_since(at(6_000), Duration::from_millis(1)));
        assert!(
            !promises.passed_since(at(8_000), secs(2)),
            "it was seen when the instant came"
        );
        assert!(promises.passed_since(at(8_000), Duration::from_millis(2_001)));
        assert!(
            promises.passed_since(at(20_000), Duration::from_millis(8_001)),
            "the second one"
        );
        assert!(!promises.passed_since(at(20_000), secs(8)));
    }
}
