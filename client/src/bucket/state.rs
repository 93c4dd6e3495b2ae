//! State of one bucket in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use weirgate_shared::{Bucket, BucketKey, EpochMillis, Millis, Stamp};
use weirgate_store::Consistency;

use super::prefetch::Pool;
use crate::config::LimitsSlot;
use crate::queue::{BucketSummary, ShardQueues, ShardState, ShardView};
use crate::session::{AgeClock, Env, LoadTurn, Moment};
use crate::values::{Amounts, BucketRequest, Limits, Locked, subtract};

/// State of one bucket in this process.
#[derive(Debug)]
pub(crate) struct BucketState {
    /// Key of shard 0.
    pub(crate) key: BucketKey,
    pub(crate) queues: ShardQueues,
    /// Limits configured for the bucket.
    pub(crate) config: Arc<LimitsSlot>,
    pub(crate) ancestors: LoadTurn,
    /// Pool of prefetched tokens, if prefetch is on.
    pub(crate) pool: Option<Pool>,
    /// Time of the last denial by all shards together.
    denied_at: Locked<Option<Moment>>,
    /// Denial stamp of another process, or of this one.
    stamp: Locked<Option<Arc<Stamp>>>,
    /// Random seed that decides when this process stops using a stamp.
    pub(super) salt: u64,
    /// Parts that requests of this process take from several shards now, by their ids.
    pub(super) spreading: Locked<BTreeMap<u64, (u32, Amounts)>>,
    /// Time and consistency of the last read of all shards.
    pub(super) refreshed_at: tokio::sync::Mutex<Option<(Moment, Consistency)>>,
    /// Held while a pause is written.
    pub(super) pausing: tokio::sync::Mutex<()>,
}

/// One bucket of a request.
#[derive(Debug)]
pub(crate) struct BucketTarget {
    pub(crate) bucket: Arc<BucketState>,
    pub(crate) request: BucketRequest,
    /// Whether its limits never deny, whatever their mode.
    pub(crate) is_shadow: bool,
}

impl BucketState {
    pub(crate) fn new(key: BucketKey, pool: Option<Pool>, ages: AgeClock) -> Self {
        Self {
            queues: ShardQueues::new(key.clone(), ages),
            key,
            config: Arc::default(),
            ancestors: LoadTurn::default(),
            pool,
            denied_at: Locked::default(),
            stamp: Locked::default(),
            salt: fastrand::u64(..),
            spreading: Locked::default(),
            refreshed_at: tokio::sync::Mutex::default(),
            pausing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn summary(&self) -> &BucketSummary {
        self.queues.summary()
    }

    /// Returns the pool, unless it serves nothing because the bucket is paused.
    pub(crate) fn serving_pool(&self, env: &Env) -> Option<&Pool> {
        let pool = self.pool.as_ref()?;
        (!self.summary().is_paused(|| env.now())).then_some(pool)
    }

    /// Returns the state of one shard, and creates it if needed.
    pub(crate) fn shard(&self, shard: u32) -> Arc<ShardState> {
        self.queues.shard(shard)
    }

    pub(super) fn denied(&self) -> MutexGuard<'_, Option<Moment>> {
        self.denied_at.lock()
    }

    /// Records a denial by all shards together.
    pub(super) fn record_denial(&self) {
        *self.denied() = Some(self.summary().ages.now());
    }

    pub(super) fn stamp(&self) -> MutexGuard<'_, Option<Arc<Stamp>>> {
        self.stamp.lock()
    }

    /// Returns the viewed shards with the request's limits at `now`, however old the views are.
    pub(crate) fn cached_bucket(&self, limits: &Limits, now: EpochMillis) -> Bucket {
        self.seen_bucket(limits, now, |_| true)
    }

    /// Returns the shards with the request's limits at `now`, from views that are `fresh`.
    pub(crate) fn seen_bucket(
        &self,
        limits: &Limits,
        now: EpochMillis,
        fresh: impl FnMut(&ShardView) -> bool,
    ) -> Bucket {
        let views = self.queues.views_since_clock_jump().filter(fresh);
        Bucket::new(
            views
                .map(|view| view.shard.projected(limits, now))
                .collect(),
        )
    }

    /// Returns the shards with the request's limits as requests sent since `since` showed them: at
    /// `now` they have no more than when the request was sent, without the parts that other requests
    /// take.
    pub(super) fn bucket_as_shown(
        &self,
        limits: &Limits,
        since: Moment,
        now: EpochMillis,
    ) -> Bucket {
        let moment = self.summary().ages.now();
        let spreading = self.spreading.lock().clone();
        let as_shown = |view: ShardView| {
            let age = Millis::from(moment.since(view.sent_at));
            let mut shard = view.shard.projected(limits, EpochMillis(now.0 - age.0));
            shard.refilled_at = shard.refilled_at.max(now);
            let index = shard.key.shard;
            let parts = spreading.values().filter(|(other, _)| *other == index);
            parts.for_each(|(_, part)| subtract(&mut shard, part));
            shard
        };
        let views = self.queues.views_since_clock_jump();
        let fresh = views.filter(|view| view.sent_at >= since);
        Bucket::new(fresh.map(as_shown).collect())
    }
}
