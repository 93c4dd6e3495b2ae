//! A bucket as the lines of all its shards see it together.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use weirgate_shared::EpochMillis;

use super::Promises;
use crate::ages::{AgeClock, Moment};

/// A bucket as the lines of all its shards see it together.
#[derive(Debug)]
pub(crate) struct Overview {
    /// What the ages of all that was seen are measured by.
    pub(crate) ages: AgeClock,
    /// Tokens came back to the bucket through this process.
    pub(crate) given_back: Arc<Notify>,
    /// The largest number of shards seen.
    most: AtomicU32,
    /// When that last rose.
    rose: Mutex<Option<Moment>>,
    /// The shard chosen last.
    last: AtomicU32,
    /// The newest version of configured limits that a shard was seen with.
    pub(super) version: AtomicI64,
    promises: Mutex<Promises>,
    /// When this process last gave tokens of a rate back, epoch ms.
    gave_back_at: AtomicI64,
}

impl Overview {
    pub(crate) fn new(ages: AgeClock) -> Self {
        Self {
            ages,
            given_back: Arc::default(),
            most: AtomicU32::new(1),
            rose: Mutex::default(),
            last: AtomicU32::new(0),
            version: AtomicI64::new(0),
            promises: Mutex::default(),
            gave_back_at: AtomicI64::new(0),
        }
    }

    pub(crate) fn most(&self) -> u32 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Relaxed)
    }

    /// A shard was seen of a bucket of so many.
    pub(super) fn saw(&self, count: u32, at: Moment) {
        if self.most.fetch_max(count, Ordering::Relaxed) < count {
            *self.rose.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        }
    }

    /// Whether a shard of so many, as it was seen at `at`, has probably been split since: others
    /// were seen to be.
    pub(super) fn is_outgrown(&self, count: u32, at: Moment) -> bool {
        count < self.most()
            && self
                .rose
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some_and(|rose| at < rose)
    }

    pub(crate) fn set_last(&self, shard: u32) {
        self.last.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn set_most(&self, most: u32) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// This process gave tokens of a rate back: what others saw of the bucket before is too little.
    pub(crate) fn gives_back(&self, now: EpochMillis) {
        self.gave_back_at.fetch_max(now.0, Ordering::Relaxed);
    }

    pub(crate) fn gave_back_since(&self, at: EpochMillis) -> bool {
        self.gave_back_at.load(Ordering::Relaxed) >= at.0
    }

    /// A caller is denied at `now`, and told to come back.
    pub(crate) fn promise(&self, now: EpochMillis, retry_after: Option<Duration>) {
        self.promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .keep(now, retry_after);
    }

    /// Whether what was seen so long ago is older than an instant that a denied caller was told to
    /// come back at, and that has come.
    pub(crate) fn is_due(&self, now: EpochMillis, age: Duration) -> bool {
        self.promises
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .outdate(now, age)
    }
}
