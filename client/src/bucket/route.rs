//! Router of one request: chooses the shards of a bucket, and their order, until a decision is
//! made.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weirgate_shared::{Bucket, EpochMillis, Limit, ShardIndex};
use weirgate_store::{Consistency, ErrorKind, StoreError};

use super::BucketState;
use super::evaluate::{Allocation, evaluate};
use crate::clock::after;
use crate::inner::Inner;
use crate::limits::Limits;
use crate::prefetch::{self, Pool};
use crate::queue::{
    self, Amounts, QueueReply, RerouteReason, ShardDecision, ShardQueue, Waiter, backoff,
    denial_ttl,
};
use crate::stats::count;
use crate::{Denied, Error};

/// Time after the deadline in which a queue may still reply with its own timeout, 20 ms.
const QUEUE_GRACE: Duration = Duration::from_millis(20);
/// Time without a response after which a request counts as hanging, 1 s.
const HANG_THRESHOLD: Duration = Duration::from_secs(1);
/// Shards that are tried one by one before all are read, 3.
const MAX_SHARDS_TRIED: usize = 3;

/// What one acquire asks of one bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketRequest {
    pub(crate) amounts: Amounts,
    /// Amounts that are taken even into debt.
    pub(crate) soft_amounts: Amounts,
    pub(crate) limits: Limits,
    /// Duration of a durable lease, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Time allowed for the decision.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, or those that were granted from prefetched tokens.
    pub(crate) acquires: i64,
}

impl BucketRequest {
    /// Returns whether the request asks for any amount.
    pub(crate) fn has_amounts(&self) -> bool {
        !self.amounts.is_empty() || !self.soft_amounts.is_empty()
    }
}

/// Decides one request, from the pool or from the table.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
) -> Result<ShardDecision, Error> {
    match &bucket.pool {
        Some(pool) if Pool::supports(request) => {
            prefetch::acquire(inner, bucket, pool, request).await
        }
        _ => acquire_from_table(inner, bucket, request, Instant::now()).await,
    }
}

/// Decides one request, enqueued at `joined`, by the table.
pub(crate) async fn acquire_from_table(
    inner: &Arc<Inner>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    joined: Instant,
) -> Result<ShardDecision, Error> {
    Router::new(inner, bucket, request, joined).run().await
}

/// Returns the denial that the views or the stamp imply. Sends nothing.
pub(crate) fn cached_denial(
    inner: &Inner,
    bucket: &BucketState,
    request: &BucketRequest,
) -> Option<Denied> {
    if bucket
        .pool
        .as_ref()
        .is_some_and(|pool| pool.covers(request))
    {
        return None;
    }
    let denied = denial_by_views(inner, bucket, request)
        .or_else(|| bucket.denied_by_stamp(inner, request))?;
    bucket
        .summary()
        .record_retry_time(inner.now(), denied.retry_after);
    Some(denied)
}

/// Returns the denial that the views of all shards imply.
fn denial_by_views(inner: &Inner, bucket: &BucketState, request: &BucketRequest) -> Option<Denied> {
    let most = inner.settings.denial_cache_ttl;
    // In a split bucket, one short shard proves nothing: only a denial by all shards is cached.
    let moment = inner.ages.now();
    let denied = bucket.denied().map(|at| moment.since(at));
    if bucket.summary().max_shards_seen() > 1 && denied.is_none_or(|age| age >= most) {
        return None;
    }
    let now = inner.now();
    let mut age = denied
        .filter(|_| bucket.summary().max_shards_seen() > 1)
        .unwrap_or_default();
    let known = bucket.seen_bucket(&request.limits, now, |view| {
        let seen = moment.since(view.seen_at);
        let is_known = seen < most;
        age = age.max(if is_known { seen } else { Duration::ZERO });
        is_known
    });
    let Allocation::Denied(denied) = evaluate(&known, request, now) else {
        return None;
    };
    let is_fresh = denied
        .short()
        .all(|status| age < denial_ttl(status, age, most));
    (known.is_complete() && is_fresh && !bucket.summary().retry_time_passed(now, age))
        .then_some(denied)
}

pub(super) struct Router<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) bucket: &'a Arc<BucketState>,
    pub(super) request: &'a BucketRequest,
    enqueued_at: Instant,
    pub(super) deadline: Instant,
    /// Shards that were short.
    tried: Vec<u32>,
    failures: u32,
    /// Whether shards had changed when the request was spread over them, so that all must be read
    /// again.
    must_refresh: bool,
    /// Error of the last shard that could not be used.
    pub(super) last_error: Option<Arc<StoreError>>,
}

impl<'a> Router<'a> {
    fn new(
        inner: &'a Arc<Inner>,
        bucket: &'a Arc<BucketState>,
        request: &'a BucketRequest,
        joined: Instant,
    ) -> Self {
        let deadline = after(joined, request.timeout);
        Self {
            inner,
            bucket,
            request,
            enqueued_at: joined,
            deadline,
            tried: vec![],
            failures: 0,
            must_refresh: false,
            last_error: None,
        }
    }

    async fn run(mut self) -> Result<ShardDecision, Error> {
        // With one shard, its queue decides, first come, first served.
        if self.bucket.summary().max_shards_seen() > 1
            && let Some(denied) = cached_denial(self.inner, self.bucket, self.request)
        {
            count(&self.inner.counters.local_denied, 1);
            return Ok(ShardDecision::Denied(denied));
        }
        let mut next = self.first();
        loop {
            let Some(queue) = next.take() else {
                match self.decide_over_all_shards().await? {
                    Ok(verdict) => return Ok(verdict),
                    Err(queue) => next = queue,
                }
                self.check_deadline()?;
                continue;
            };
            match self.enqueue_and_wait(&queue, self.request).await? {
                QueueReply::Decided(verdict) => return Ok(verdict),
                QueueReply::Reroute(RerouteReason::ShardMissing) => {
                    next = self.replacement_for(&queue)
                }
                QueueReply::Reroute(RerouteReason::BucketWasSplit) => next = self.first(),
                QueueReply::Reroute(RerouteReason::Insufficient) => {
                    self.tried.push(queue.key.shard);
                    next = self.next_candidate();
                }
                QueueReply::Reroute(RerouteReason::Throttled(error)) => {
                    self.last_error = Some(error);
                    self.pause().await;
                    next = Some(self.choose());
                }
            }
            self.check_deadline()?;
        }
    }

    /// Returns the shard to try first; `None` to decide over all shards.
    fn first(&self) -> Option<Arc<ShardQueue>> {
        (!self.exceeds_one_shard() && !self.is_stamped_short()).then(|| self.choose())
    }

    fn choose(&self) -> Arc<ShardQueue> {
        let BucketRequest {
            amounts, limits, ..
        } = self.request;
        self.bucket
            .pick_shard(amounts, limits, self.inner.now(), &self.tried)
    }

    /// Returns whether the request exceeds the share of the largest shard.
    pub(super) fn exceeds_one_shard(&self) -> bool {
        let largest = ShardIndex {
            index: 0,
            count: self.bucket.summary().max_shards_seen(),
        };
        let is_above = |limit: &Limit| {
            let need = self.request.amounts.get(limit.name());
            need.is_some_and(|need| *need > largest.share(limit.rule().capacity))
        };
        largest.count > 1 && self.request.limits.iter().any(is_above)
    }

    /// Returns the next shard after a short one: the one with the most room by its view. `None` to
    /// decide over all shards.
    fn next_candidate(&self) -> Option<Arc<ShardQueue>> {
        if self.tried.len() >= MAX_SHARDS_TRIED {
            return None;
        }
        let now = self.inner.now();
        let has_enough = |queue: &Arc<ShardQueue>| {
            let view = queue
                .view()
                .filter(|_| !self.tried.contains(&queue.key.shard))?;
            let holds = self
                .request
                .amounts
                .iter()
                .map(|(limit, need)| view.shard.balance_at(limit, now) - *need)
                .min()?;
            (holds.0 >= 0).then_some(holds)
        };
        let lines = self.bucket.queues();
        lines
            .iter()
            .filter_map(|queue| Some((has_enough(queue)?, queue)))
            .max_by_key(|(room, _)| *room)
            .map(|(_, queue)| Arc::clone(queue))
    }

    /// Returns a shard to try instead of a missing one: after shard 0, any with a view. `None` to
    /// decide over all shards, because the bucket may have no items left.
    fn replacement_for(&self, missing: &ShardQueue) -> Option<Arc<ShardQueue>> {
        if missing.key.shard > 0 {
            return Some(self.choose());
        }
        self.bucket
            .queues()
            .into_iter()
            .find(|queue| queue.view().is_some())
    }

    /// Decides over all shards together. Returns the decision, or else the shard to try, or nothing
    /// if the shards have changed.
    async fn decide_over_all_shards(
        &mut self,
    ) -> Result<Result<ShardDecision, Option<Arc<ShardQueue>>>, Error> {
        if !self.must_refresh
            && let Some(denied) = self.ask_the_stamp().await
        {
            self.bucket
                .summary()
                .record_retry_time(self.inner.now(), denied.retry_after);
            return Ok(Ok(ShardDecision::Denied(denied)));
        }
        let Some((bucket, looked_at)) = self.refresh_all_shards().await? else {
            return Ok(Err(None));
        };
        let now = looked_at.unwrap_or_else(|| self.inner.now());
        let is_unmade = |shard: &u32| self.bucket.queue(*shard).view().is_none();
        self.tried.clear();
        if bucket.shards().is_empty() {
            self.bucket.reset();
            return Ok(Err(Some(self.choose())));
        }
        let verdict = match evaluate(&bucket, self.request, now) {
            Allocation::Denied(denied) => {
                self.bucket.record_denial();
                self.bucket
                    .summary()
                    .record_retry_time(now, denied.retry_after);
                if looked_at.is_some() {
                    self.bucket.write_stamp(self.inner, &bucket, now);
                }
                ShardDecision::Denied(denied)
            }
            Allocation::Single(shard) if is_unmade(&shard) => {
                self.pause().await;
                return Ok(Err(None));
            }
            Allocation::Single(shard) => return Ok(Err(Some(self.bucket.queue(shard)))),
            Allocation::Spread(parts) if parts.iter().any(|(shard, _)| is_unmade(shard)) => {
                self.pause().await;
                return Ok(Err(None));
            }
            Allocation::Spread(parts) => {
                let Some(hold) = self.take_parts(parts).await? else {
                    self.must_refresh = true;
                    self.pause().await;
                    return Ok(Err(None));
                };
                ShardDecision::Granted(hold.into())
            }
        };
        Ok(Ok(verdict))
    }

    /// Returns the state of all shards, and the time of the read if there was one; `None` if they
    /// could not be read for now.
    async fn refresh_all_shards(&mut self) -> Result<Option<(Bucket, Option<EpochMillis>)>, Error> {
        let BucketRequest {
            amounts, limits, ..
        } = self.request;
        let joined = self.inner.ages.of(self.enqueued_at);
        // A balance of a rate may be half a second old; a count of free slots may not.
        let asks_slots = limits
            .iter()
            .any(|limit| limit.rule().is_concurrent() && amounts.contains_key(limit.name()));
        let first = if asks_slots {
            Consistency::Strong
        } else {
            Consistency::Eventual
        };
        let mut bucket = self
            .bucket
            .seen_bucket(limits, self.inner.now(), |view| view.seen_at >= joined);
        if std::mem::take(&mut self.must_refresh) {
            bucket = Bucket::default();
        }
        let (mut looked_at, mut is_unread) = (None, false);
        // One read may see shards at different times, so read twice. If they are still incomplete,
        // items were deleted manually, and the existing shards decide.
        for (since, consistency) in [
            (Some(joined).filter(|_| self.failures == 0), first),
            (None, Consistency::Strong),
        ] {
            if bucket.is_complete() {
                break;
            }
            let looked = tokio::time::timeout_at(
                self.deadline,
                self.bucket.refresh(self.inner, since, consistency),
            );
            is_unread = true;
            match looked.await {
                Ok(Err(Error::Store(error)))
                    if error.kind == (ErrorKind::Throttled { key_range: true }) =>
                {
                    self.last_error = Some(error);
                    self.pause().await;
                }
                Ok(looked) => {
                    looked?;
                    (looked_at, is_unread) = (Some(self.inner.now()), false);
                }
                Err(_) => {
                    let error = self
                        .inner
                        .timeout_error("BatchGetItem of all shards", self.request.timeout);
                    self.last_error = Some(Arc::new(error));
                }
            }
            self.check_deadline()?;
            bucket = self.bucket.seen_bucket(limits, self.inner.now(), |_| true);
        }
        if !bucket.is_complete() && is_unread {
            // The shards that could not be read may have the missing tokens.
            return Ok(None);
        }
        if !bucket.is_complete() {
            // Tokens in the escrow of a split count as present; they can be taken a little later.
            bucket = self.bucket.seen_with_escrows(limits, self.inner.now());
        }
        Ok(Some((bucket, looked_at)))
    }

    /// Enqueues the request, or a part of it, at one shard. Returns the reply.
    pub(super) async fn enqueue_and_wait(
        &self,
        queue: &Arc<ShardQueue>,
        request: &BucketRequest,
    ) -> Result<QueueReply, Error> {
        let BucketRequest {
            amounts,
            soft_amounts,
            limits,
            lease,
            acquires: takes,
            ..
        } = request.clone();
        let (answer, verdict) = oneshot::channel();
        let (joined, deadline) = (self.enqueued_at, self.deadline);
        let bucket = Arc::clone(self.bucket);
        if queue.enqueue(Waiter {
            amounts,
            soft_amounts,
            limits,
            lease,
            acquires: takes,
            enqueued_at: joined,
            deadline,
            bucket,
            reply: answer,
        }) {
            tokio::spawn(queue::run_worker(Arc::clone(self.inner), Arc::clone(queue)));
        }
        // Only a runtime that shuts down drops the queue without a reply.
        let bucket = || queue.key.item_key().pk;
        // The queue replies in time unless its request hangs; tokens of a later reply return.
        match tokio::time::timeout_at(deadline + QUEUE_GRACE, verdict).await {
            Ok(told) => told.unwrap_or_else(|_| {
                Err(Error::Timeout {
                    bucket: bucket(),
                    after: joined.elapsed(),
                    last: None,
                })
            }),
            Err(_) => {
                let after = self.request.timeout;
                // Without a hanging request, contention took the time.
                let hanging = queue
                    .in_flight_for(HANG_THRESHOLD.min(after / 2))
                    .map(|operation| {
                        Arc::new(
                            self.inner
                                .timeout_error(&format!("{operation} of {}", bucket()), after),
                        )
                    });
                Err(Error::Timeout {
                    bucket: bucket(),
                    after,
                    last: hanging.or_else(|| queue.last_error()),
                })
            }
        }
    }

    pub(super) async fn pause(&mut self) {
        self.failures += 1;
        let until = Instant::now() + backoff(self.failures);
        tokio::time::sleep_until(until.min(self.deadline)).await;
    }

    pub(super) fn check_deadline(&self) -> Result<(), Error> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let (bucket, last) = (self.bucket.key.item_key().pk, self.last_error.clone());
        Err(Error::Timeout {
            bucket,
            after: self.request.timeout,
            last,
        })
    }
}

#[cfg(test)]
mod tests;
