//! The instants that denied callers were told to come back at.

use std::collections::BTreeSet;
use std::time::Duration;

use weirgate_shared::{EpochMillis, Millis};

/// The most instants that are kept; the nearest ones.
const MOST: usize = 64;

/// The instants that denied callers were told to come back at. A caller that comes back then is not
/// denied by what was seen before.
#[derive(Debug, Default)]
pub(super) struct RetryTimes {
    ahead: BTreeSet<EpochMillis>,
    /// The latest that has passed.
    due: Option<EpochMillis>,
}

impl RetryTimes {
    /// Keeps when a caller that is denied at `now` may come back.
    pub(super) fn insert(&mut self, now: EpochMillis, retry_after: Option<Duration>) {
        let Some(after) = retry_after.filter(|after| !after.is_zero()) else {
            return;
        };
        self.ahead.insert(now.plus(after.into()));
        if self.ahead.len() > MOST {
            self.ahead.pop_last();
        }
    }

    /// Returns whether what was seen so long ago is older than an instant that has come since.
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
    fn what_was_seen_before_the_instant_is_outdated_once_it_has_come() {
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
