//! One request on a bucket of any number of shards: whom to ask, and in which order, until it is
//! decided.

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

/// How long a line may take to say that the time is over.
const QUEUE_GRACE: Duration = Duration::from_millis(20);
/// After how long without an answer a request is said to hang.
const HANG_THRESHOLD: Duration = Duration::from_secs(1);
/// How many shards are asked one by one before all are read.
const MAX_SHARDS_TRIED: usize = 3;

/// What is asked of a bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketRequest {
    pub(crate) amounts: Amounts,
    /// What is taken whether it is there or not.
    pub(crate) soft_amounts: Amounts,
    pub(crate) limits: Limits,
    /// How long a durable lease lasts, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// How long the decision may take.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, or those that were granted from tokens taken ahead.
    pub(crate) acquires: i64,
}

impl BucketRequest {
    /// Whether anything is asked.
    pub(crate) fn has_amounts(&self) -> bool {
        !self.amounts.is_empty() || !self.soft_amounts.is_empty()
    }
}

/// Decides about one request.
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

/// Decides about one request that `joined` a while ago, by the table.
pub(crate) async fn acquire_from_table(
    inner: &Arc<Inner>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    joined: Instant,
) -> Result<ShardDecision, Error> {
    Router::new(inner, bucket, request, joined).run().await
}

/// A denial that a former answer already implies: nothing is sent.
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

/// A denial that what was seen of all shards implies.
fn denial_by_views(inner: &Inner, bucket: &BucketState, request: &BucketRequest) -> Option<Denied> {
    let most = inner.settings.denial_cache_ttl;
    // What one shard of several lacks says nothing about the others: only a denial by all of them
    // is remembered.
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
    /// Shards that had not enough.
    tried: Vec<u32>,
    failures: u32,
    /// Shards were not what they seemed when they were to give a part each.
    must_refresh: bool,
    /// Why the last shard could not be asked.
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
        // A bucket of one shard is asked in its line, where it is first come, first served.
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

    /// The shard to ask first; `None` for asking the whole bucket.
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

    /// Whether no shard of a bucket of so many can have what is asked.
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

    /// After a shard that had not enough: another that is known to have, or `None` for asking the
    /// whole bucket.
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

    /// After a shard that is missing: the one it was split off, or any other that is known; `None`
    /// for asking the whole bucket, of which there may be nothing left.
    fn replacement_for(&self, missing: &ShardQueue) -> Option<Arc<ShardQueue>> {
        if missing.key.shard > 0 {
            return Some(self.choose());
        }
        self.bucket
            .queues()
            .into_iter()
            .find(|queue| queue.view().is_some())
    }

    /// Decides by all shards together: a verdict, or else the shard to ask, or nothing if they are
    /// not what they seemed.
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

    /// All shards as they are, and when they were read if they were; `None` if they could not be
    /// read for now.
    async fn refresh_all_shards(&mut self) -> Result<Option<(Bucket, Option<EpochMillis>)>, Error> {
        let BucketRequest {
            amounts, limits, ..
        } = self.request;
        let joined = self.inner.ages.of(self.enqueued_at);
        // Whether there is enough of a rate can be half a second old; whether a slot is free, not.
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
        // Read twice, they may have been of two times; if they still are no whole, items were
        // deleted by hand, and the shards that are there decide.
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
            // Those that could not be read may have what these lack.
            return Ok(None);
        }
        if !bucket.is_complete() {
            // What a split has put aside is there; it can only be taken a little later.
            bucket = self.bucket.seen_with_escrows(limits, self.inner.now());
        }
        Ok(Some((bucket, looked_at)))
    }

    /// Stands in the line of one shard with the request, or a part of it.
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
        // Only a runtime that shuts down drops the line unserved.
        let bucket = || queue.key.item_key().pk;
        // The line answers in time itself, unless its request hangs; what that gives in the end
        // goes back.
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
                // Otherwise it is competition that takes so long.
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
