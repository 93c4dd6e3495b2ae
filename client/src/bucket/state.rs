//! The buckets that a limiter has used: their state in this process, the queues of their shards, and which
//! of them a request asks first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};
use weirgate_shared::{
    Bucket, BucketKey, Effect, EntityId, EpochMillis, Limit, LimitMode, LimitName, MilliTokens,
    Millis, Resource, ShardIndex, Stamp,
};
use weirgate_store::Consistency;

use super::prefetch::Pool;
use crate::config::LimitsSlot;
use crate::queue::{AMPLE_FACTOR, BucketSummary, ShardQueue, ShardState, ShardView};
use crate::session::{AgeClock, Env, LoadTurn, Moment, Session};
use crate::values::{Amounts, BucketRequest, Limits, Locked, status_for, subtract};

/// Buckets that a limiter keeps, 10,000. Beyond that, the least used are dropped unless in use.
const MAX_BUCKETS: usize = 10_000;

/// State of one bucket in this process.
#[derive(Debug)]
pub(crate) struct BucketState {
    /// Key of shard 0.
    pub(crate) key: BucketKey,
    /// Queue of shard 0, the only shard of most buckets.
    first: Arc<ShardQueue>,
    /// Queues of the other shards that were used.
    others: Locked<BTreeMap<u32, Arc<ShardQueue>>>,
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
    /// Place of its request among several.
    pub(crate) request_at: usize,
}

impl BucketTarget {
    /// Iterates over the amounts that can deny, so neither those of a request in shadow mode, nor those
    /// of limits that are.
    pub(crate) fn denying(&self) -> impl Iterator<Item = (&LimitName, MilliTokens)> {
        let is_shadow = |name: &LimitName| {
            let mut limits = self.request.limits.iter();
            limits.any(|limit| limit.name() == name && limit.mode() == LimitMode::Shadow)
        };
        let enforced = self.request.asks.with(Effect::Enforce);
        enforced.filter(move |(name, _)| !self.is_shadow && !is_shadow(name))
    }
}

impl BucketState {
    pub(crate) fn new(key: BucketKey, pool: Option<Pool>, ages: AgeClock) -> Self {
        let summary = Arc::new(BucketSummary::new(ages));
        let first = Arc::new(ShardQueue::new(ShardState::first(key.clone(), summary)));
        Self {
            key,
            first,
            others: Locked::default(),
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
        &self.first.shard.summary
    }

    /// Returns the pool, unless it serves nothing because the bucket is paused.
    pub(crate) fn serving_pool(&self, env: &Env) -> Option<&Pool> {
        let pool = self.pool.as_ref()?;
        (!self.summary().is_paused(|| env.now())).then_some(pool)
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
        let views = self.views_since_clock_jump().filter(fresh);
        Bucket::new(views.map(|view| view.shard.projected(limits, now)).collect())
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
        let views = self.views_since_clock_jump();
        let fresh = views.filter(|view| view.sent_at >= since);
        Bucket::new(fresh.map(as_shown).collect())
    }
}

/// The queues of its shards.
impl BucketState {
    /// Returns the queue of shard 0.
    pub(crate) const fn first_queue(&self) -> &Arc<ShardQueue> {
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
        self.all_queues().into_iter().filter_map(|queue| queue.shard.view())
    }

    /// Returns the views of all shards since the last jump of the wall clock.
    pub(crate) fn views_since_clock_jump(&self) -> impl Iterator<Item = ShardView> {
        self.views().filter(|view| !view.predates_clock_jump)
    }

    /// Returns the queues of all shards.
    pub(crate) fn all_queues(&self) -> Vec<Arc<ShardQueue>> {
        std::iter::once(&self.first).chain(self.others().values()).map(Arc::clone).collect()
    }

    /// Forgets all shards but the first, because the bucket has no others or no items at all.
    pub(super) fn reset_shards(&self) {
        self.others().clear();
        self.summary().set_max_shards_seen(1);
    }

    /// Returns the largest balance of `limit` in a shard. Without a view, returns a shard's full
    /// share.
    pub(crate) fn max_balance(&self, limit: &Limit, now: EpochMillis) -> MilliTokens {
        let known = self.views().map(|view| view.shard.balance_at(limit.name(), now)).max();
        known.unwrap_or_else(|| {
            ShardIndex { index: 0, count: self.summary().max_shards_seen() }
                .share(limit.rule().capacity)
        })
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<ShardQueue>>> {
        self.others.lock()
    }

    /// Returns the queue of the shard to try, avoiding `tried`. Prefers the last shard if its
    /// next write can be shared, and it has ample tokens or is being read for the first
    /// time. Otherwise picks two at random and returns the one with the higher score.
    pub(super) fn pick(
        &self,
        request: &BucketRequest,
        now: EpochMillis,
        tried: &[u32],
    ) -> Arc<ShardQueue> {
        let most = self.summary().max_shards_seen();
        if most == 1 {
            return Arc::clone(self.first_queue());
        }
        let last = self.queue(self.summary().last_shard());
        let is_plenty = |queue: &Arc<ShardQueue>| {
            let has_plenty = |view: ShardView| {
                let mut needs = request.asks.required(view.shard.shard());
                needs.all(|(name, need)| view.shard.balance_at(name, now) / AMPLE_FACTOR >= need)
            };
            !queue.shard.is_throttled()
                && queue.shard.view().map_or(queue.shard.last_error().is_none(), has_plenty)
        };
        if last.is_busy() && !tried.contains(&last.index()) && is_plenty(&last) {
            return last;
        }
        let queues: BTreeMap<u32, Arc<ShardQueue>> =
            self.all_queues().into_iter().map(|queue| (queue.index(), queue)).collect();
        if request.start_by.is_some() {
            let shard = first_start(&queues, most, request, now, tried).unwrap_or(0);
            self.summary().set_last_shard(shard);
            return self.queue(shard);
        }
        let (first, further) = (fastrand::u32(..most), fastrand::u32(1..most));
        let picks = [first, first + further].map(|pick| live_shard(&queues, most, pick % most));
        let fresh = picks.into_iter().filter(|shard| !tried.contains(shard));
        let score = |shard: &u32| {
            score(queues.get(shard), ShardIndex { index: *shard, count: most }, request, now)
        };
        let shard = fresh.max_by_key(score).unwrap_or(picks[0]);
        self.summary().set_last_shard(shard);
        self.queue(shard)
    }
}

/// Returns the shard that `shard` was split off: its number without the highest bit.
const fn split_off_from(shard: u32) -> u32 {
    shard & !(1 << shard.ilog2())
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
        (is_throttled, tried.contains(shard), start, fastrand::u32(..))
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
        None => {
            request.limits.iter().find(|limit| limit.name() == name).map_or(MilliTokens::ZERO, full)
        }
    };
    let times = request
        .asks
        .with(Effect::Enforce)
        .map(|(name, need)| i128::from(holds(name).0) * 1000 / i128::from(need.0.max(1)));
    times.min().unwrap_or(i128::MAX)
}

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
        let state = Locked::new(State { known, is_shut_down: false });
        Self { session, state }
    }

    /// Returns the state of a bucket, and creates it if needed.
    pub(crate) fn bucket(&self, entity: EntityId, resource: Resource) -> Arc<BucketState> {
        let session = &self.session;
        let key = BucketKey { namespace: session.namespace.clone(), entity, resource, shard: 0 };
        let mut state = self.state();
        if let Some(bucket) = state.known.get(&key) {
            return Arc::clone(bucket);
        }
        let takes_ahead = !state.is_shut_down && !session.settings.is_shadow;
        let pool = takes_ahead.then(|| Pool::of(session, &key.resource));
        let bucket =
            Arc::new(BucketState::new(key.clone(), pool.flatten(), session.env.ages.clone()));
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
    all.filter(|bucket| bucket.pool.is_some()).map(Arc::clone).collect()
}

#[cfg(test)]
mod tests {
    use weirgate_store::{ConnectOptions, Table, connect_with};

    use super::*;
    use crate::api::RateLimiter;

    #[tokio::test]
    async fn one_bucket_too_many_drops_one_that_is_not_used() {
        let table = Table::new(connect_with(ConnectOptions::default(), |_| None), "limits");
        let limiter = RateLimiter::builder("limits").table(table).build().await.unwrap();
        let bucket = |at: usize| {
            let entity = EntityId::new(format!("e-{at}")).unwrap();
            limiter.buckets.bucket(entity, Resource::new("gpt-4").unwrap())
        };
        let held = bucket(0);
        for at in 1..MAX_BUCKETS + 100 {
            drop(bucket(at));
        }
        assert!(Arc::ptr_eq(&held, &bucket(0)), "a bucket in use stays");
        let state = limiter.buckets.state();
        let is_known = |at: &usize| {
            let key =
                BucketKey { entity: EntityId::new(format!("e-{at}")).unwrap(), ..held.key.clone() };
            state.known.peek(&key).is_some()
        };
        let known = (0..MAX_BUCKETS + 100).filter(is_known).count();
        assert_eq!((known, state.known.len()), (MAX_BUCKETS, MAX_BUCKETS));
    }
}
