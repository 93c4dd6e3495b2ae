//! The shards of one bucket, as this process knows them, and which of them to ask.

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

/// Of a shard that holds this many times what is asked, nobody takes the last tokens.
pub(crate) const AMPLE_FACTOR: i64 = 8;

/// The lines of one bucket, one for each shard that was met.
#[derive(Debug)]
pub(crate) struct BucketState {
    /// Of shard 0.
    pub(crate) key: BucketKey,
    /// The line of shard 0, the only one of most buckets.
    first: Arc<ShardQueue>,
    /// The lines of the others.
    others: Mutex<BTreeMap<u32, Arc<ShardQueue>>>,
    /// When the bucket as a whole was last too short for somebody.
    denied_at: Mutex<Option<Moment>>,
    /// What a denied process left for the others.
    stamp: Mutex<Option<Arc<Stamp>>>,
    /// By which this process draws when it stops to believe a stamp.
    salt: u64,
    /// What is configured for it.
    pub(crate) config: LimitsSlot,
    /// When all shards were last read, and how.
    refreshed_at: tokio::sync::Mutex<Option<(Moment, Consistency)>>,
    /// What was taken ahead, where that is asked for.
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

    /// The line of one shard.
    pub(crate) fn queue(&self, shard: u32) -> Arc<ShardQueue> {
        if shard == 0 {
            return Arc::clone(&self.first);
        }
        let mut others = self.others();
        if let Some(known) = others.get(&shard) {
            return Arc::clone(known);
        }
        // The shard that it was split off, as far as that is known: their processes are the same.
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

    /// Every line there is.
    fn queues(&self) -> Vec<Arc<ShardQueue>> {
        std::iter::once(&self.first)
            .chain(self.others().values())
            .map(Arc::clone)
            .collect()
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<ShardQueue>>> {
        // The map is whole between any two statements: a panic elsewhere does not spoil it.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self) -> MutexGuard<'_, Option<Moment>> {
        self.denied_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The bucket as a whole is too short for somebody.
    fn record_denial(&self) {
        *self.denied() = Some(self.summary().ages.now());
    }

    fn stamp(&self) -> MutexGuard<'_, Option<Arc<Stamp>>> {
        self.stamp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was seen of all shards.
    pub(crate) fn clear_views(&self) {
        self.queues().iter().for_each(|queue| queue.clear_view());
    }

    /// The wall clock has jumped ahead since all shards were seen.
    pub(crate) fn mark_clock_jump(&self) {
        self.queues()
            .iter()
            .for_each(|queue| queue.mark_clock_jump());
    }

    /// The most that a shard has of `limit`; where none is known, that is all it can have.
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

    /// Forgets all shards but the first, as nothing is left of the bucket, or nothing else.
    fn reset(&self) {
        self.others().clear();
        self.summary().set_max_shards_seen(1);
    }

    /// The shard to ask, none of `tried`: one whose next write can be shared, if it has plenty or
    /// is being read for the first time; or else of two picked at random the one that has more, as
    /// far as it is known.
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

/// The shard that has the tokens of `pick`, a number below `most` drawn for one caller: the one
/// that the newest answer says is whole there, or the smallest that may exist.
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

/// How many times a shard has what is asked, in thousandths; one that is not known is taken for
/// full, or it would never be known, and one that is too hot comes last.
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
