//! A bucket as the lines of all its shards see it together.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use weirgate_shared::EpochMillis;

use super::RetryTimes;
use crate::ages::{AgeClock, Moment};

/// A bucket as the lines of all its shards see it together.
#[derive(Debug)]
pub(crate) struct BucketSummary {
    /// What the ages of all that was seen are measured by.
    pub(crate) ages: AgeClock,
    /// Tokens came back to the bucket through this process.
    pub(crate) tokens_returned: Arc<Notify>,
    /// The largest number of shards seen.
    max_shards_seen: AtomicU32,
    /// When that last rose.
    rose: Mutex<Option<Moment>>,
    /// The shard chosen last.
    last_shard: AtomicU32,
    /// The newest version of configured limits that a shard was seen with.
    pub(super) version: AtomicI64,
    promises: Mutex<RetryTimes>,
    /// When this process last gave tokens of a rate back, epoch ms.
    returned_at: AtomicI64,
}

impl BucketSummary {
    pub(crate) fn new(ages: AgeClock) -> Self {
        Self {
            ages,
            tokens_returned: Arc::default(),
            max_shards_seen: AtomicU32::new(1),
            rose: Mutex::default(),
            last_shard: AtomicU32::new(0),
            version: AtomicI64::new(0),
            promises: Mutex::default(),
            returned_at: AtomicI64::new(0),
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

    /// A shard was seen of a bucket of so many.
    pub(super) fn record_shard_count(&self, count: u32, at: Moment) {
        if self.max_shards_seen.fetch_max(count, Ordering::Relaxed) < count {
            *self.rose.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        }
    }

    /// Whether a shard of so many, as it was seen at `at`, has probably been split since: others
    /// were seen to be.
    pub(super) fn is_outgrown(&self, count: u32, at: Moment) -> bool {
        count < self.max_shards_seen()
            && self
                .rose
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some_and(|rose| at < rose)
    }

    pub(crate) fn set_last_shard(&self, shard: u32) {
        self.last_shard.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn set_max_shards_seen(&self, most: u32) {
        self.max_shards_seen.store(most, Ordering::Relaxed);
    }

    /// This process gave tokens of a rate back: what others saw of the bucket before is too little.
    pub(crate) fn record_return(&self, now: EpochMillis) {
        self.returned_at.fetch_max(now.0, Ordering::Relaxed);
    }

    pub(crate) fn returned_since(&self, at: EpochMillis) -> bool {
        self.returned_at.load(Ordering::Relaxed) >= at.0
    }

    /// A caller is denied at `now`, and told to come back.
    pub(crate) fn record_retry_time(&self, now: EpochMillis, retry_after: Option<Duration>) {
        self.promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(now, retry_after);
    }

    /// Whether what was seen so long ago is older than an instant that a denied caller was told to
    /// come back at, and that has come.
    pub(crate) fn retry_time_passed(&self, now: EpochMillis, age: Duration) -> bool {
        self.promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .passed_since(now, age)
    }
}
