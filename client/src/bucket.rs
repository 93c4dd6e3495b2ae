//! State of one bucket in this process: the queues of its shards, and the choice among them.

mod all_or_none;
mod denial_stamp;
mod evaluate;
mod refresh;
mod reshard;
mod route;
mod spread;
mod stamp;
mod transaction;
mod unfinished;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weirgate_shared::{BucketKey, EpochMillis, Limit, MilliTokens, ShardIndex, Stamp};

use weirgate_store::Consistency;

use crate::ages::{AgeClock, Moment};
use crate::config::LimitsSlot;
use crate::prefetch::{Pool, Prefetch};
use crate::queue::{Amounts, BucketSummary, ShardQueue, ShardView};

pub(crate) use all_or_none::{AllOrNone, take_in_transaction};
pub(crate) use refresh::refresh_all;
pub(crate) use route::{BucketRequest, acquire, acquire_from_table, cached_denial};

/// Balance, in multiples of the request, from which a shard counts as ample: its last tokens are
/// far, so there is no contention for them.
pub(crate) const AMPLE_FACTOR: i64 = 8;

/// The queues of one bucket, one for each shard that was used.
#[derive(Debug)]
pub(crate) struct BucketState {
    /// Key of shard 0.
    pub(crate) key: BucketKey,
    /// Queue of shard 0, the only shard of most buckets.
    first: Arc<ShardQueue>,
    /// Queues of the other shards.
    others: Mutex<BTreeMap<u32, Arc<ShardQueue>>>,
    /// Time of the last denial by all shards together.
    denied_at: Mutex<Option<Moment>>,
    /// Denial stamp of another process, or of this one.
    stamp: Mutex<Option<Arc<Stamp>>>,
    /// Random seed that decides when this process stops using a stamp.
    salt: u64,
    /// Limits configured for the bucket.
    pub(crate) config: LimitsSlot,
    /// Time and consistency of the last read of all shards.
    refreshed_at: tokio::sync::Mutex<Option<(Moment, Consistency)>>,
    /// Pool of prefetched tokens, if prefetch is on.
    pub(crate) pool: Option<Pool>,
}

impl BucketState {
    pub(crate) fn new(key: BucketKey, prefetch: Option<Prefetch>, ages: AgeClock) -> Self {
        let pool = prefetch.map(|prefetch| Pool::new(prefetch, ages.clone()));
        let first = Arc::new(ShardQueue::new(
            key.clone(),
            Arc::new(BucketSummary::new(ages)),
        ));
        let (others, denied, config) = (Mutex::default(), Mutex::default(), LimitsSlot::default());
        let (stamp, salt) = (Mutex::default(), fastrand::u64(..));
        Self {
            key,
            first,
            others,
            denied_at: denied,
            stamp,
            salt,
            config,
            refreshed_at: tokio::sync::Mutex::default(),
            pool,
        }
    }

    pub(crate) fn summary(&self) -> &BucketSummary {
        &self.first.summary
    }

    /// Returns the queue of one shard, and creates it if needed.
    pub(crate) fn queue(&self, shard: u32) -> Arc<ShardQueue> {
        if shard == 0 {
            return Arc::clone(&self.first);
        }
        let mut others = self.others();
        if let Some(known) = others.get(&shard) {
            return Arc::clone(known);
        }
        // Find the nearest known shard that this one was split off: the same processes write to it.
        let olders = std::iter::successors(Some(shard), |shard| {
            (*shard > 0).then(|| shard ^ (1 << shard.ilog2()))
        });
        let older = olders
            .skip(1)
            .find_map(|older| others.get(&older))
            .unwrap_or(&self.first);
        let new = Arc::new(ShardQueue::new(
            self.key.with_shard(shard),
            Arc::clone(&self.first.summary),
        ));
        new.inherit_pause(older);
        others.insert(shard, Arc::clone(&new));
        new
    }

    /// Returns all queues.
    fn queues(&self) -> Vec<Arc<ShardQueue>> {
        std::iter::once(&self.first)
            .chain(self.others().values())
            .map(Arc::clone)
            .collect()
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<ShardQueue>>> {
        // Ignore poisoning: the map is consistent between any two statements.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self) -> MutexGuard<'_, Option<Moment>> {
        self.denied_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a denial by all shards together.
    fn record_denial(&self) {
        *self.denied() = Some(self.summary().ages.now());
    }

    fn stamp(&self) -> MutexGuard<'_, Option<Arc<Stamp>>> {
        self.stamp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the views of all shards.
    pub(crate) fn clear_views(&self) {
        self.queues().iter().for_each(|queue| queue.clear_view());
    }

    /// Marks the views of all shards as older than a jump of the wall clock.
    pub(crate) fn mark_clock_jump(&self) {
        self.queues()
            .iter()
            .for_each(|queue| queue.mark_clock_jump());
    }

    /// Returns the largest balance of `limit` in a shard. Without a view, returns a shard's full
    /// share.
    pub(crate) fn max_balance(&self, limit: &Limit, now: EpochMillis) -> MilliTokens {
        let lines = self.queues();
        let views = lines.iter().filter_map(|queue| queue.view());
        let known = views
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

    /// Forgets all shards but the first, because the bucket has no others or no items at all.
    fn reset(&self) {
        self.others().clear();
        self.summary().set_max_shards_seen(1);
    }

    /// Returns the queue of the shard to try, avoiding `tried`. Prefers the last shard if its
    /// worker's next write can be shared, and it has ample tokens or is being read for the first
    /// time. Otherwise picks two at random and returns the one with the higher score.
    fn pick_shard(
        &self,
        amounts: &Amounts,
        limits: &[Limit],
        now: EpochMillis,
        tried: &[u32],
    ) -> Arc<ShardQueue> {
        let most = self.summary().max_shards_seen();
        if most == 1 {
            return Arc::clone(&self.first);
        }
        let last = self.queue(self.summary().last_shard());
        let is_plenty = |queue: &Arc<ShardQueue>| {
            let has_plenty = |view: ShardView| {
                amounts
                    .iter()
                    .all(|(name, need)| view.shard.balance_at(name, now) / AMPLE_FACTOR >= *need)
            };
            !queue.is_throttled()
                && queue
                    .view()
                    .map_or(queue.last_error().is_none(), has_plenty)
        };
        if last.has_worker() && !tried.contains(&last.key.shard) && is_plenty(&last) {
            return last;
        }
        let lines: BTreeMap<u32, Arc<ShardQueue>> = self
            .queues()
            .into_iter()
            .map(|queue| (queue.key.shard, queue))
            .collect();
        let (first, further) = (fastrand::u32(..most), fastrand::u32(1..most));
        let picks = [first, first + further].map(|pick| live_shard(&lines, most, pick % most));
        let fresh = picks.into_iter().filter(|shard| !tried.contains(shard));
        let score = |shard: &u32| {
            score(
                lines.get(shard),
                ShardIndex {
                    index: *shard,
                    count: most,
                },
                amounts,
                limits,
                now,
            )
        };
        let shard = fresh.max_by_key(score).unwrap_or(picks[0]);
        self.summary().set_last_shard(shard);
        self.queue(shard)
    }
}

/// Returns the shard that has the tokens of `pick`, a random number below `most`: the one that the
/// newest view shows as not split further, or else the deepest that may exist.
fn live_shard(lines: &BTreeMap<u32, Arc<ShardQueue>>, most: u32, pick: u32) -> u32 {
    let (mut whole, mut deepest): (Option<(Moment, u32)>, _) = (None, None);
    let counts = std::iter::successors(Some(1_u32), |count| count.checked_mul(2))
        .take_while(|count| *count <= most);
    for count in counts {
        let index = pick % count;
        let queue = lines.get(&index);
        if queue.is_some_and(|queue| queue.is_missing()) {
            continue;
        }
        deepest = Some(index);
        let Some(view) = queue.and_then(|queue| queue.view()) else {
            continue;
        };
        if view.shard.shard().count <= count && whole.is_none_or(|(at, _)| at < view.seen_at) {
            whole = Some((view.seen_at, index));
        }
    }
    whole.map(|(_, index)| index).or(deepest).unwrap_or(0)
}

/// Returns how many times a shard covers the amounts, in thousandths. A shard without a view counts
/// as full, or it would never be tried; a throttled one comes last.
fn score(
    queue: Option<&Arc<ShardQueue>>,
    shard: ShardIndex,
    amounts: &Amounts,
    limits: &[Limit],
    now: EpochMillis,
) -> i128 {
    if queue.is_some_and(|queue| queue.is_throttled()) {
        return i128::MIN;
    }
    let view: Option<ShardView> = queue.and_then(|queue| queue.view());
    let full = |limit: &Limit| shard.share(limit.rule().capacity);
    let holds = |name: &weirgate_shared::LimitName| match &view {
        Some(view) => view.shard.balance_at(name, now),
        None => limits
            .iter()
            .find(|limit| limit.name() == name)
            .map_or(MilliTokens::ZERO, full),
    };
    let times = amounts
        .iter()
        .map(|(name, need)| i128::from(holds(name).0) * 1000 / i128::from(need.0.max(1)));
    times.min().unwrap_or(i128::MAX)
}
