//! Which shard of a bucket to try.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::{Effect, EpochMillis, Limit, LimitName, MilliTokens, ShardIndex};

use super::directory::ShardQueues;
use super::driver::ShardQueue;
use super::machine::AMPLE_FACTOR;
use super::shard_state::ShardView;
use crate::session::Moment;
use crate::values::BucketRequest;

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
                let mut needs = request.asks.with(Effect::Enforce);
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
