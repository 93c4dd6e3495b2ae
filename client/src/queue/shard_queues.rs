//! The queues of one bucket, and which of them a request asks first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use weirgate_shared::{BucketKey, Effect, EpochMillis, Limit, LimitName, MilliTokens, ShardIndex};

use super::driver::ShardQueue;
use super::machine::AMPLE_FACTOR;
use super::shard_state::{ShardState, ShardView};
use super::summary::BucketSummary;
use crate::session::{AgeClock, Moment};
use crate::values::{BucketRequest, Locked, status_for};

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

impl ShardQueues {
    /// Returns the queue of the shard to try, avoiding `tried`. Prefers the last shard if its
    /// next write can be shared, and it has ample tokens or is being read for the first
    /// time. Otherwise picks two at random and returns the one with the higher score.
    pub(crate) fn pick(
        &self,
        request: &BucketRequest,
        now: EpochMillis,
        tried: &[u32],
    ) -> Arc<ShardQueue> {
        let most = self.summary().max_shards_seen();
        if most == 1 {
            return Arc::clone(self.first());
        }
        let last = self.queue(self.summary().last_shard());
        let is_plenty = |queue: &Arc<ShardQueue>| {
            let has_plenty = |view: ShardView| {
                let mut needs = request.asks.required(view.shard.shard());
                needs.all(|(name, need)| view.shard.balance_at(name, now) / AMPLE_FACTOR >= need)
            };
            !queue.shard.is_throttled()
                && queue
                    .shard
                    .view()
                    .map_or(queue.shard.last_error().is_none(), has_plenty)
        };
        if last.is_busy() && !tried.contains(&last.index()) && is_plenty(&last) {
            return last;
        }
        let queues: BTreeMap<u32, Arc<ShardQueue>> = self
            .all()
            .into_iter()
            .map(|queue| (queue.index(), queue))
            .collect();
        if request.start_by.is_some() {
            let shard = first_start(&queues, most, request, now, tried).unwrap_or(0);
            self.summary().set_last_shard(shard);
            return self.queue(shard);
        }
        let (first, further) = (fastrand::u32(..most), fastrand::u32(1..most));
        let picks = [first, first + further].map(|pick| live_shard(&queues, most, pick % most));
        let fresh = picks.into_iter().filter(|shard| !tried.contains(shard));
        let score = |shard: &u32| {
            score(
                queues.get(shard),
                ShardIndex {
                    index: *shard,
                    count: most,
                },
                request,
                now,
            )
        };
        let shard = fresh.max_by_key(score).unwrap_or(picks[0]);
        self.summary().set_last_shard(shard);
        self.queue(shard)
    }
}

/// Returns the shard in which a request that queues starts first, by the views, one of several at
/// random. Without a view it starts at once; a throttled shard comes last, after those that were `tried`.
fn first_start(
    queues: &BTreeMap<u32, Arc<ShardQueue>>,
    most: u32,
    request: &BucketRequest,
    now: EpochMillis,
    tried: &[u32],
) -> Option<u32> {
    let start = |shard: &u32| {
        let queue = queues.get(shard);
        let view = queue.and_then(|queue| queue.shard.view());
        let start = view.map_or(Some(Duration::ZERO), |view| {
            status_for(&view.shard, request, request.start_by(now), now).1
        });
        let is_throttled = queue.is_some_and(|queue| queue.shard.is_throttled());
        let start = start.unwrap_or(Duration::MAX);
        (
            is_throttled,
            tried.contains(shard),
            start,
            fastrand::u32(..),
        )
    };
    let live = (0..most).map(|pick| live_shard(queues, most, pick));
    live.collect::<BTreeSet<_>>().into_iter().min_by_key(start)
}

/// Returns the shard that has the tokens of `pick`, a random number below `most`: the one that the
/// newest view shows as not split further, or else the deepest that may exist.
fn live_shard(queues: &BTreeMap<u32, Arc<ShardQueue>>, most: u32, pick: u32) -> u32 {
    let (mut whole, mut deepest): (Option<(Moment, u32)>, _) = (None, None);
    let counts = std::iter::successors(Some(1_u32), |count| count.checked_mul(2))
        .take_while(|count| *count <= most);
    for count in counts {
        let index = pick % count;
        let queue = queues.get(&index);
        if queue.is_some_and(|queue| queue.shard.is_missing()) {
            continue;
        }
        deepest = Some(index);
        let Some(view) = queue.and_then(|queue| queue.shard.view()) else {
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
    request: &BucketRequest,
    now: EpochMillis,
) -> i128 {
    if queue.is_some_and(|queue| queue.shard.is_throttled()) {
        return i128::MIN;
    }
    let view: Option<ShardView> = queue.and_then(|queue| queue.shard.view());
    let full = |limit: &Limit| shard.share(limit.rule().capacity);
    let holds = |name: &LimitName| match &view {
        Some(view) => view.shard.balance_at(name, now),
        None => request
            .limits
            .iter()
            .find(|limit| limit.name() == name)
            .map_or(MilliTokens::ZERO, full),
    };
    let times = request
        .asks
        .with(Effect::Enforce)
        .map(|(name, need)| i128::from(holds(name).0) * 1000 / i128::from(need.0.max(1)));
    times.min().unwrap_or(i128::MAX)
}
