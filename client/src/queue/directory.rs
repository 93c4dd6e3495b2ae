//! The queues of one bucket.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use weirgate_shared::{BucketKey, EpochMillis, Limit, MilliTokens, ShardIndex};

use super::driver::ShardQueue;
use super::shard_state::ShardState;
use super::shard_state::ShardView;
use super::summary::BucketSummary;
use crate::session::AgeClock;
use crate::values::Locked;

/// The queues of one bucket, one for each shard that was used.
#[derive(Debug)]
pub(crate) struct ShardQueues {
    /// Key of shard 0.
    key: BucketKey,
    /// Queue of shard 0, the only shard of most buckets.
    first: Arc<ShardQueue>,
    /// Queues of the other shards.
    others: Locked<BTreeMap<u32, Arc<ShardQueue>>>,
}

impl ShardQueues {
    pub(crate) fn new(key: BucketKey, ages: AgeClock) -> Self {
        let summary = Arc::new(BucketSummary::new(ages));
        let first = Arc::new(ShardQueue::new(ShardState::first(key.clone(), summary)));
        Self {
            key,
            first,
            others: Locked::default(),
        }
    }

    pub(crate) fn summary(&self) -> &BucketSummary {
        &self.first.shard.summary
    }

    /// Returns the queue of shard 0.
    pub(crate) const fn first(&self) -> &Arc<ShardQueue> {
        &self.first
    }

    /// Returns the queue of one shard, and creates it if needed.
    pub(crate) fn queue(&self, shard: u32) -> Arc<ShardQueue> {
        if shard == 0 {
            return Arc::clone(&self.first);
        }
        self.queue_in(&mut self.others(), shard)
    }

    /// Returns the queue of one shard. Creates it with those of the shards that it was split off
    /// one after the other.
    fn queue_in(&self, others: &mut BTreeMap<u32, Arc<ShardQueue>>, shard: u32) -> Arc<ShardQueue> {
        if shard == 0 {
            return Arc::clone(&self.first);
        }
        if let Some(known) = others.get(&shard) {
            return Arc::clone(known);
        }
        let parent = self.queue_in(others, split_off_from(shard));
        let state = ShardState::split_off(self.key.with_shard(shard), Arc::clone(&parent.shard));
        let queue = Arc::new(ShardQueue::new(state));
        others.insert(shard, Arc::clone(&queue));
        queue
    }

    /// Returns the state of one shard, and creates it if needed.
    pub(crate) fn shard(&self, shard: u32) -> Arc<ShardState> {
        Arc::clone(&self.queue(shard).shard)
    }

    /// Returns the views of all shards.
    pub(crate) fn views(&self) -> impl Iterator<Item = ShardView> {
        self.all()
            .into_iter()
            .filter_map(|queue| queue.shard.view())
    }

    /// Returns the views of all shards since the last jump of the wall clock.
    pub(crate) fn views_since_clock_jump(&self) -> impl Iterator<Item = ShardView> {
        self.views().filter(|view| !view.predates_clock_jump)
    }

    /// Returns all queues.
    pub(crate) fn all(&self) -> Vec<Arc<ShardQueue>> {
        std::iter::once(&self.first)
            .chain(self.others().values())
            .map(Arc::clone)
            .collect()
    }

    /// Forgets all shards but the first, because the bucket has no others or no items at all.
    pub(crate) fn reset(&self) {
        self.others().clear();
        self.summary().set_max_shards_seen(1);
    }

    /// Returns the largest balance of `limit` in a shard. Without a view, returns a shard's full
    /// share.
    pub(crate) fn max_balance(&self, limit: &Limit, now: EpochMillis) -> MilliTokens {
        let known = self
            .views()
            .map(|view| view.shard.balance_at(limit.name(), now))
            .max();
        known.unwrap_or_else(|| {
            ShardIndex {
                index: 0,
                count: self.summary().max_shards_seen(),
            }
            .share(limit.rule().capacity)
        })
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<ShardQueue>>> {
        self.others.lock()
    }
}

/// Returns the shard that `shard` was split off: its number without the highest bit.
const fn split_off_from(shard: u32) -> u32 {
    shard & !(1 << shard.ilog2())
}
