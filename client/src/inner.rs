//! State that all clones of a limiter share: the table, the settings, and every bucket.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};
use tokio::runtime::Handle;
use tokio::time::Instant;
use weirgate_shared::{BucketKey, EntityId, Millis, Namespace, Resource};
use weirgate_store::Table;

use crate::ages::AgeClock;
use crate::bucket::BucketState;
use crate::config::ConfigCache;
use crate::stats::Counters;
use crate::unavailable::{CircuitBreaker, LocalBuckets};
use crate::{CircuitBreakerConfig, OnUnavailable, Prefetch};

/// Buckets that a limiter keeps, 10,000. Beyond that, the least used are dropped unless in use.
const MAX_BUCKETS: usize = 10_000;
/// Longest delay before a process counts for a new hour, 2 s.
const MAX_ROLL_LAG: Millis = Millis(2_000);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) local_buckets: LocalBuckets,
    pub(crate) config_cache: ConfigCache,
    /// Runtime of the last decision, because grants may be dropped on other threads.
    runtime: OnceLock<Handle>,
    /// Clock for ages.
    pub(crate) ages: AgeClock,
    pub(crate) started: Instant,
    /// Lead of the machine's clock over the time since `started`, when it was last read, in ms.
    pub(crate) clock_offset_ms: AtomicI64,
    /// Delay before this process counts for a new hour. Random, so that processes do not all begin
    /// a bucket's new hour at once.
    pub(crate) roll_lag: Millis,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    known: Cache<BucketKey, Arc<BucketState>, UnitWeighter, DefaultHashBuilder, Used>,
    /// Whether prefetch has ended.
    is_shut_down: bool,
}

impl Buckets {
    fn new(most: usize) -> Self {
        let capacity = u64::try_from(most).unwrap_or(u64::MAX);
        let known = Cache::with(
            most,
            capacity,
            UnitWeighter,
            DefaultHashBuilder::default(),
            Used,
        );
        Self {
            known,
            is_shut_down: false,
        }
    }
}

/// Pins buckets that requests, grants or expiry tasks use.
#[derive(Debug)]
struct Used;

impl Lifecycle<BucketKey, Arc<BucketState>> for Used {
    type RequestState = ();

    fn is_pinned(&self, _: &BucketKey, bucket: &Arc<BucketState>) -> bool {
        Arc::strong_count(bucket) > 1
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) denial_cache_ttl: Duration,
    pub(crate) owner: Arc<str>,
    pub(crate) principal: Arc<str>,
    pub(crate) config_ttl: Duration,
    pub(crate) audit_retention: Duration,
    pub(crate) is_shadow: bool,
    pub(crate) has_resource_metrics: bool,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) prefetch: HashMap<Resource, Prefetch>,
    #[cfg(feature = "yaml")]
    pub(crate) file: Option<crate::LimitsFile>,
}

impl Inner {
    pub(crate) fn new(
        table: Table,
        namespace: Namespace,
        settings: Settings,
        breaker: CircuitBreakerConfig,
    ) -> Self {
        let ages = AgeClock::new(table.skew().clone());
        Self {
            clock_offset_ms: AtomicI64::new(table.skew().local().0),
            roll_lag: Millis(fastrand::i64(0..MAX_ROLL_LAG.0)),
            started: Instant::now(),
            table,
            namespace,
            settings,
            counters: Counters::default(),
            breaker: CircuitBreaker::new(breaker, ages.clone()),
            local_buckets: LocalBuckets::default(),
            config_cache: ConfigCache::default(),
            ages,
            runtime: OnceLock::new(),
            buckets: Mutex::new(Buckets::new(MAX_BUCKETS)),
        }
    }

    /// Returns a runtime for background tasks.
    pub(crate) fn runtime(&self) -> Option<Handle> {
        Handle::try_current()
            .ok()
            .or_else(|| self.runtime.get().cloned())
    }

    /// Stores the current runtime.
    pub(crate) fn remember_runtime(&self) {
        self.runtime.get_or_init(Handle::current);
    }

    /// Returns the state of a bucket, and creates it if needed.
    pub(crate) fn bucket(&self, entity: EntityId, resource: Resource) -> Arc<BucketState> {
        let key = BucketKey {
            namespace: self.namespace.clone(),
            entity,
            resource,
            shard: 0,
        };
        let mut buckets = self.buckets();
        if let Some(bucket) = buckets.known.get(&key) {
            return Arc::clone(bucket);
        }
        let takes_ahead = !buckets.is_shut_down && !self.settings.is_shadow;
        let prefetch = self
            .settings
            .prefetch
            .get(&key.resource)
            .filter(|_| takes_ahead);
        let bucket = Arc::new(BucketState::new(
            key.clone(),
            prefetch.copied(),
            self.ages.clone(),
        ));
        buckets.known.insert(key, Arc::clone(&bucket));
        bucket
    }

    /// Removes the views of all buckets.
    pub(crate) fn forget_views(&self) {
        self.buckets()
            .known
            .iter()
            .for_each(|(_, bucket)| bucket.clear_views());
    }

    /// Marks the views of all buckets as older than a jump of the wall clock.
    pub(crate) fn doubt_views(&self) {
        self.buckets()
            .known
            .iter()
            .for_each(|(_, bucket)| bucket.mark_clock_jump());
    }

    /// Ends prefetch. Returns the buckets that have a pool.
    pub(crate) fn shut_down(&self) -> Vec<Arc<BucketState>> {
        let mut buckets = self.buckets();
        buckets.is_shut_down = true;
        let all = buckets.known.iter().map(|(_, bucket)| bucket);
        all.filter(|bucket| bucket.pool.is_some())
            .map(Arc::clone)
            .collect()
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use weirgate_store::{ConnectOptions, connect_with};

    use super::*;
    use crate::RateLimiter;

    #[tokio::test]
    async fn one_bucket_too_many_forgets_no_more_than_one_and_none_that_is_used() {
        let table = Table::new(connect_with(ConnectOptions::default(), |_| None), "limits");
        let limiter = RateLimiter::builder("limits")
            .table(table)
            .build()
            .await
            .unwrap();
        let names = |at: usize| {
            (
                EntityId::new(format!("e-{at}")).unwrap(),
                Resource::new("gpt-4").unwrap(),
            )
        };
        let bucket = |at: usize| {
            let (entity, resource) = names(at);
            limiter.inner.bucket(entity, resource)
        };
        let held = bucket(0);
        for at in 1..MAX_BUCKETS + 100 {
            drop(bucket(at));
        }
        assert!(Arc::ptr_eq(&held, &bucket(0)), "a bucket in use stays");
        let buckets = limiter.inner.buckets();
        let is_known = |at: &usize| {
            let (namespace, (entity, resource)) = (limiter.inner.namespace.clone(), names(*at));
            buckets
                .known
                .peek(&BucketKey {
                    namespace,
                    entity,
                    resource,
                    shard: 0,
                })
                .is_some()
        };
        let known = (0..MAX_BUCKETS + 100).filter(is_known).count();
        assert_eq!((known, buckets.known.len()), (MAX_BUCKETS, MAX_BUCKETS));
    }
}
