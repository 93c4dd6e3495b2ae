//! A bucket as the lines of all its shards see it together.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use tokio::sync::Notify;

/// A bucket as the lines of all its shards see it together.
#[derive(Debug)]
pub(crate) struct Overview {
    /// Tokens came back to the bucket through this process.
    pub(crate) given_back: Arc<Notify>,
    /// The largest number of shards seen.
    pub(super) most: AtomicU32,
    /// The shard chosen last.
    last: AtomicU32,
    /// The newest version of configured limits that a shard was seen with.
    pub(super) version: AtomicI64,
}

impl Default for Overview {
    fn default() -> Self {
        Self {
            given_back: Arc::default(),
            most: AtomicU32::new(1),
            last: AtomicU32::new(0),
            version: AtomicI64::new(0),
        }
    }
}

impl Overview {
    pub(crate) fn most(&self) -> u32 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self) -> i64 {
        self.version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_last(&self, shard: u32) {
        self.last.store(shard, Ordering::Relaxed);
    }

    pub(crate) fn set_most(&self, most: u32) {
        self.most.store(most, Ordering::Relaxed);
    }
}
