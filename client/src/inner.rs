//! What all clones of a limiter share: the table, the settings, and what is known of every bucket.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use weirgate_shared::{BucketKey, EntityId, Millis, Namespace, Resource};
use weirgate_store::Table;

use crate::away::{Circuit, LocalBuckets};
use crate::config::Known;
use crate::prefetch::Pool;
use crate::shards::Shards;
use crate::stats::Counters;
use crate::{Breaker, Prefetch, WhenAway};

/// How many buckets a limiter remembers; more than these are forgotten while nobody waits for them.
const MAX_BUCKETS: usize = 10_000;
/// The latest that a process begins to count for a new hour.
const MAX_ROLL_LAG: Millis = Millis(2_000);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) breaker: Circuit,
    pub(crate) local: LocalBuckets,
    pub(crate) known: Known,
    /// Where a decision was made last: grants may be dropped on other threads.
    runtime: OnceLock<Handle>,
    pub(crate) started: Instant,
    /// By how much the machine's clock was ahead of the time since then when it was last read, in ms.
    pub(crate) ahead_ms: AtomicI64,
    /// How long after an hour has begun this process goes on counting for the hour before: random, so that processes do
    /// not all begin a bucket's new hour at once.
    pub(crate) roll_lag: Millis,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    known: HashMap<BucketKey, Arc<Shards>>,
    /// Nothing is taken ahead any more.
    is_shut_down: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) denial_memory: Duration,
    pub(crate) owner: Arc<str>,
    pub(crate) principal: Arc<str>,
    pub(crate) config_ttl: Duration,
    pub(crate) audit_kept: Duration,
    pub(crate) is_shadow: bool,
    pub(crate) tells_resource: bool,
    pub(crate) when_away: WhenAway,
    pub(crate) prefetch: HashMap<Resource, Prefetch>,
    #[cfg(feature = "yaml")]
    pub(crate) file: Option<crate::LimitsFile>,
}

impl Inner {
    pub(crate) fn new(table: Table, namespace: Namespace, settings: Settings, breaker: Breaker) -> Self {
        Self {
            ahead_ms: AtomicI64::new(table.skew().local().0),
            roll_lag: Millis(fastrand::i64(0..MAX_ROLL_LAG.0)),
            started: Instant::now(),
            table,
            namespace,
            settings,
            counters: Counters::default(),
            breaker: Circuit::new(breaker),
            local: LocalBuckets::default(),
            known: Known::default(),
            runtime: OnceLock::new(),
            buckets: Mutex::default(),
        }
    }

    /// A runtime for what is to be done in the background.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.runtime.get().cloned())
    }

    /// Remembers the runtime that decides.
    pub(crate) fn runs_here(&self) {
        self.runtime.get_or_init(Handle::current);
    }

    /// What is known of a bucket.
    pub(crate) fn bucket(&self, entity: EntityId, resource: Resource) -> Arc<Shards> {
        let key = BucketKey { namespace: self.namespace.clone(), entity, resource, shard: 0 };
        let mut buckets = self.buckets();
        if let Some(bucket) = buckets.known.get(&key) {
            return Arc::clone(bucket);
        }
        if buckets.known.len() >= MAX_BUCKETS {
            // Who keeps a pool is among those that hold its bucket.
            buckets.known.retain(|_, bucket| Arc::strong_count(bucket) > 1);
        }
        let takes_ahead = !buckets.is_shut_down && !self.settings.is_shadow;
        let prefetch = self.settings.prefetch.get(&key.resource).filter(|_| takes_ahead);
        let bucket = Arc::new(Shards::new(key.clone(), prefetch.copied().map(Pool::new)));
        buckets.known.insert(key, Arc::clone(&bucket));
        bucket
    }

    /// Forgets what was seen of all buckets.
    pub(crate) fn forget_views(&self) {
        self.buckets().known.values().for_each(|bucket| bucket.forget_views());
    }

    /// The buckets that tokens may have been taken ahead of; from now on none are.
    pub(crate) fn shut_down(&self) -> Vec<Arc<Shards>> {
        let mut buckets = self.buckets();
        buckets.is_shut_down = true;
        buckets.known.values().filter(|bucket| bucket.pool.is_some()).map(Arc::clone).collect()
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
