//! What this process knows of all shards of a bucket.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use weirgate_shared::{EpochMillis, Millis, Pause};

use crate::session::{AgeClock, Moment};
use crate::values::Locked;

/// State that the queues of all shards of a bucket share.
#[derive(Debug)]
pub(crate) struct BucketSummary {
    /// Clock for the ages of views.
    pub(crate) ages: AgeClock,
    /// Notification that tokens returned to the bucket through this process.
    pub(crate) tokens_returned: Arc<Notify>,
    /// Largest shard count seen.
    max_shards_seen: AtomicU32,
    /// Time of the view in which it last rose.
    rose: Locked<Option<Moment>>,
    /// Shard that the router chose last.
    last_shard: AtomicU32,
    /// Newest version of configured limits that a shard was seen with.
    pub(super) version: AtomicI64,
    promises: Locked<RetryTimes>,
    /// Time at which this process last returned tokens of a rate, epoch ms.
    returned_at: AtomicI64,
    /// End of the pause that the last response showed, epoch ms; 0 for none.
    paused_until: AtomicI64,
    /// Time at which this process last lowered a balance as its vendor said, epoch ms.
    lowered_at: AtomicI64,
}

impl BucketSummary {
    pub(crate) fn new(ages: AgeClock) -> Self {
        Self {
            ages,
            tokens_returned: Arc::default(),
            max_shards_seen: AtomicU32::new(1),
            rose: Locked::default(),
            last_shard: AtomicU32::new(0),
            version: AtomicI64::new(0),
            promises: Locked::default(),
            returned_at: AtomicI64::new(0),
            paused_until: AtomicI64::new(0),
            lowered_at: AtomicI64::new(0),
        }
    }

    pub(crate) fn max_shards_seen(&self) -> u32 {
        self.max_shards_seen.load(Ordering::Relaxed)
    }

    pub(crate) fn last_shard(&self) -> u32 {
        self.last_shard.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Records the shard count of a view.
    pub(super) fn record_shard_count(&self, count: u32, at: Moment) {
        if self.max_shards_seen.fetch_max(count, Ordering::Relaxed) < count {
            *self.rose.lock() = Some(at);
        }
    }

    /// Returns whether a shard with this count, seen at `at`, has probably been split since,
    /// because a later view showed a higher count.
    pub(super) fn is_outgrown(&self, count: u32, at: Moment) -> bool {
        count < self.max_shards_seen() && self.rose.lock().is_some_and(|rose| at < rose)
    }

    pub(crate) fn set_last_shard(&self, shard: u32) {
        self.last_shard.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn set_max_shards_seen(&self, most: u32) {
        self.max_shards_seen.store(most, Ordering::Relaxed);
    }

    /// Records the pause of a shard as a response showed it.
    pub(super) fn record_pause(&self, pause: Option<Pause>) {
        let until = pause.map_or(0, |pause| pause.until.0);
        if self.paused_until.load(Ordering::Relaxed) != until {
            self.paused_until.store(until, Ordering::Relaxed);
        }
    }

    /// Returns whether the last response showed a pause that is in force `now`. Almost none did, and then
    /// no clock is read.
    pub(crate) fn is_paused(&self, now: impl FnOnce() -> EpochMillis) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until != 0 && now().0 < until
    }

    /// Returns whether this process may lower a balance at `now`, as it may once in so long; if so,
    /// records it.
    pub(crate) fn may_lower(&self, now: EpochMillis, interval: Millis) -> bool {
        let due = |last: i64| (now.0.abs_diff(last) >= interval.0.unsigned_abs()).then_some(now.0);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.lowered_at.fetch_update(set, fetch, due).is_ok()
    }

    /// Records that this process returned tokens of a rate: older views show too little.
    pub(crate) fn record_return(&self, now: EpochMillis) {
        self.returned_at.fetch_max(now.0, Ordering::Relaxed);
    }

    pub(crate) fn returned_since(&self, at: EpochMillis) -> bool {
        self.returned_at.load(Ordering::Relaxed) >= at.0
    }

    /// Records the retry time of a request that is denied at `now`.
    pub(crate) fn record_retry_time(&self, now: EpochMillis, retry_after: Option<Duration>) {
        self.promises.lock().insert(now, retry_after);
    }

    /// Returns whether a view of this `age` is older than a retry time that has passed.
    pub(crate) fn retry_time_passed(&self, now: EpochMillis, age: Duration) -> bool {
        self.promises.lock().passed_since(now, age)
    }
}

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
