//! The buckets that a limiter has used.

use std::sync::{Arc, MutexGuard};

use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};
use weirgate_shared::{BucketKey, EntityId, Resource};

use super::prefetch::Pool;
use super::state::BucketState;
use crate::session::Session;
use crate::values::Locked;

/// Buckets that a limiter keeps, 10,000. Beyond that, the least used are dropped unless in use.
const MAX_BUCKETS: usize = 10_000;

/// The buckets of a limiter.
#[derive(Debug)]
pub(crate) struct BucketRegistry {
    pub(crate) session: Arc<Session>,
    state: Locked<State>,
}

#[derive(Debug)]
struct State {
    known: Cache<BucketKey, Arc<BucketState>, UnitWeighter, DefaultHashBuilder, Used>,
    /// Whether prefetch has ended.
    is_shut_down: bool,
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

impl BucketRegistry {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let known = Cache::with(
            MAX_BUCKETS,
            u64::try_from(MAX_BUCKETS).unwrap_or(u64::MAX),
            UnitWeighter,
            DefaultHashBuilder::default(),
            Used,
        );
        let state = Locked::new(State {
            known,
            is_shut_down: false,
        });
        Self { session, state }
    }

    /// Returns the state of a bucket, and creates it if needed.
    pub(crate) fn bucket(&self, entity: EntityId, resource: Resource) -> Arc<BucketState> {
        let session = &self.session;
        let key = BucketKey {
            namespace: session.namespace.clone(),
            entity,
            resource,
            shard: 0,
        };
        let mut state = self.state();
        if let Some(bucket) = state.known.get(&key) {
            return Arc::clone(bucket);
        }
        let takes_ahead = !state.is_shut_down && !session.settings.is_shadow;
        let pool = takes_ahead.then(|| Pool::of(session, &key.resource));
        let bucket = Arc::new(BucketState::new(
            key.clone(),
            pool.flatten(),
            session.env.ages.clone(),
        ));
        state.known.insert(key, Arc::clone(&bucket));
        bucket
    }

    /// Ends prefetch. Returns the buckets that have a pool.
    pub(crate) fn shut_down(&self) -> Vec<Arc<BucketState>> {
        let mut state = self.state();
        state.is_shut_down = true;
        with_pool(&state)
    }

    /// Returns the buckets that have a pool.
    pub(crate) fn with_pool(&self) -> Vec<Arc<BucketState>> {
        with_pool(&self.state())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn with_pool(state: &State) -> Vec<Arc<BucketState>> {
    let all = state.known.iter().map(|(_, bucket)| bucket);
    all.filter(|bucket| bucket.pool.is_some())
        .map(Arc::clone)
        .collect()
}

#[cfg(test)]
mod tests {
    use weirgate_store::{ConnectOptions, Table, connect_with};

    use super::*;
    use crate::api::RateLimiter;

    #[tokio::test]
    async fn one_bucket_too_many_drops_one_that_is_not_used() {
        let table = Table::new(connect_with(ConnectOptions::default(), |_| None), "limits");
        let limiter = RateLimiter::builder("limits")
            .table(table)
            .build()
            .await
            .unwrap();
        let bucket = |at: usize| {
            let entity = EntityId::new(format!("e-{at}")).unwrap();
            limiter
                .buckets
                .bucket(entity, Resource::new("gpt-4").unwrap())
        };
        let held = bucket(0);
        for at in 1..MAX_BUCKETS + 100 {
            drop(bucket(at));
        }
        assert!(Arc::ptr_eq(&held, &bucket(0)), "a bucket in use stays");
        let state = limiter.buckets.state();
        let is_known = |at: &usize| {
            let key = BucketKey {
                entity: EntityId::new(format!("e-{at}")).unwrap(),
                ..held.key.clone()
            };
            state.known.peek(&key).is_some()
        };
        let known = (0..MAX_BUCKETS + 100).filter(is_known).count();
        assert_eq!((known, state.known.len()), (MAX_BUCKETS, MAX_BUCKETS));
    }
}
