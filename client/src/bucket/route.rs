//! Router of one request: asks the shard that [`pick_shard`](crate::queue) picks, then others or all
//! of them, until a decision is made.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weirgate_shared::{Effect, Limit, ShardIndex};
use weirgate_store::StoreError;

use super::cached_denial::cached_denial;
use super::hold::{BucketDecision, Hold};
use super::state::BucketState;
use crate::queue;
use crate::queue::{QueueReply, RerouteReason, ShardDecision, ShardQueue, Waiter};
use crate::session::{Session, backoff};
use crate::values::{BucketRequest, Error, count};

/// Time after the deadline in which a queue may still reply with its own timeout, 20 ms.
const QUEUE_GRACE: Duration = Duration::from_millis(20);
/// Time without a response after which a request counts as hanging, 1 s.
const HANG_THRESHOLD: Duration = Duration::from_secs(1);
/// Shards that are tried one by one before all are read, 3.
const MAX_SHARDS_TRIED: usize = 3;

/// Decides one request, enqueued at `enqueued_at`, by the table until the deadline.
pub(crate) async fn acquire_from_table(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    enqueued_at: Instant,
    deadline: Instant,
) -> Result<BucketDecision, Error> {
    Router::new(session, bucket, request, enqueued_at, deadline)
        .run()
        .await
}

/// What to do after all shards were evaluated together.
pub(super) enum RouteStep {
    Decided(BucketDecision),
    /// This shard has enough.
    Try(Arc<ShardQueue>),
    /// The shards have changed: evaluate them again.
    Refresh,
}

/// One request on one bucket, until a decision is made.
pub(super) struct Router<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) bucket: &'a Arc<BucketState>,
    pub(super) request: &'a BucketRequest,
    pub(super) enqueued_at: Instant,
    pub(super) deadline: Instant,
    /// Shards that were short.
    pub(super) tried: Vec<u32>,
    /// Whether any shard was short since it was enqueued.
    pub(super) was_short: bool,
    pub(super) failures: u32,
    /// Times that its parts returned, because together they were too little.
    pub(super) failed_spreads: u32,
    /// Whether shards had changed when the request was spread over them, so that all must be read
    /// again.
    pub(super) must_refresh: bool,
    /// Error of the last shard that could not be used.
    pub(super) last_error: Option<Arc<StoreError>>,
}

impl<'a> Router<'a> {
    fn new(
        session: &'a Arc<Session>,
        bucket: &'a Arc<BucketState>,
        request: &'a BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            session,
            bucket,
            request,
            enqueued_at,
            deadline,
            tried: vec![],
            was_short: false,
            failures: 0,
            failed_spreads: 0,
            must_refresh: false,
            last_error: None,
        }
    }

    async fn run(mut self) -> Result<BucketDecision, Error> {
        // With one shard, its queue decides, first come, first served.
        if self.bucket.summary().max_shards_seen() > 1
            && let Some(denied) = cached_denial(self.session, self.bucket, self.request)
        {
            count(&self.session.counters.local_denied, 1);
            return Ok(BucketDecision::Denied(denied));
        }
        let mut next = self.first();
        loop {
            let Some(queue) = next.take() else {
                match Box::pin(self.decide_over_all_shards()).await? {
                    RouteStep::Decided(decision) => return Ok(decision),
                    RouteStep::Try(queue) => next = Some(queue),
                    RouteStep::Refresh => {}
                }
                self.check_deadline()?;
                continue;
            };
            match self.enqueue_and_wait(&queue, self.request).await? {
                QueueReply::Decided(ShardDecision::Granted(taken)) => {
                    let hold = Hold::of(self.session, self.bucket, self.request, [taken]);
                    return Ok(BucketDecision::Granted(hold));
                }
                QueueReply::Decided(ShardDecision::Denied(denied)) => {
                    return Ok(BucketDecision::Denied(denied));
                }
                QueueReply::Reroute(RerouteReason::ShardMissing) => {
                    next = self.replacement_for(&queue)
                }
                QueueReply::Reroute(RerouteReason::BucketWasSplit) => next = self.first(),
                QueueReply::Reroute(RerouteReason::Insufficient) => {
                    self.tried.push(queue.index());
                    self.was_short = true;
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

    pub(super) fn choose(&self) -> Arc<ShardQueue> {
        self.bucket
            .queues
            .pick(self.request, self.session.now(), &self.tried)
    }

    /// Returns whether the request exceeds the share of the largest shard.
    pub(super) fn exceeds_one_shard(&self) -> bool {
        let largest = ShardIndex {
            index: 0,
            count: self.bucket.summary().max_shards_seen(),
        };
        let is_above = |limit: &Limit| {
            let need = self.request.asks.enforced(limit.name().as_str());
            need.is_some_and(|need| need > largest.share(limit.rule().capacity))
        };
        largest.count > 1 && self.request.limits.iter().any(is_above)
    }

    /// Returns the next shard after a short one: the one with the most room by its view. `None` to
    /// decide over all shards.
    fn next_candidate(&self) -> Option<Arc<ShardQueue>> {
        if self.tried.len() >= MAX_SHARDS_TRIED {
            return None;
        }
        let now = self.session.now();
        let has_enough = |queue: &Arc<ShardQueue>| {
            let view = queue
                .shard
                .view()
                .filter(|_| !self.tried.contains(&queue.index()))?;
            let needs = self.request.asks.with(Effect::Enforce);
            let holds = needs
                .map(|(limit, need)| view.shard.balance_at(limit, now) - need)
                .min()?;
            (holds.0 >= 0).then_some(holds)
        };
        let queues = self.bucket.queues.all();
        queues
            .iter()
            .filter_map(|queue| Some((has_enough(queue)?, queue)))
            .max_by_key(|(room, _)| *room)
            .map(|(_, queue)| Arc::clone(queue))
    }

    /// Returns a shard to try instead of a missing one: after shard 0, any with a view. `None` to
    /// decide over all shards, because the bucket may have no items left.
    fn replacement_for(&self, missing: &ShardQueue) -> Option<Arc<ShardQueue>> {
        if missing.index() > 0 {
            return Some(self.choose());
        }
        self.bucket
            .queues
            .all()
            .into_iter()
            .find(|queue| queue.shard.view().is_some())
    }

    /// Enqueues the request, or a part of it, at one shard. Returns the reply.
    pub(super) async fn enqueue_and_wait(
        &self,
        queue: &Arc<ShardQueue>,
        request: &BucketRequest,
    ) -> Result<QueueReply, Error> {
        let (reply, response) = oneshot::channel();
        let waiter = Waiter {
            raised: None,
            request: request.clone(),
            enqueued_at: self.enqueued_at,
            deadline: self.deadline,
            reply,
        };
        if queue.enqueue(waiter) {
            tokio::spawn(queue::run_worker(
                Arc::clone(self.session),
                Arc::clone(queue),
            ));
        }
        let mut waiting = Waiting(Some(queue));
        // Only a runtime that shuts down drops the queue without a reply.
        let bucket = || queue.shard.key.item_key().pk;
        // The queue replies in time unless its request hangs; tokens of a later reply return.
        match tokio::time::timeout_at(self.deadline + QUEUE_GRACE, response).await {
            Ok(reply) => {
                waiting.0 = None;
                reply.unwrap_or_else(|_| {
                    let reason = "the runtime of the limiter has ended".to_owned();
                    let error = self
                        .session
                        .unconfirmed(&format!("take of {}", bucket()), reason);
                    Err(error.into())
                })
            }
            Err(_) => {
                let after = self.request.timeout;
                // Without a hanging request, contention took the time.
                let hanging = queue
                    .shard
                    .in_flight_for(HANG_THRESHOLD.min(after / 2))
                    .map(|operation| {
                        Arc::new(
                            self.session
                                .no_answer(&format!("{operation} of {}", bucket()), after),
                        )
                    });
                let last = hanging.or_else(|| queue.shard.last_error());
                Err(Error::timeout(&queue.shard.key, after, last))
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
        Err(Error::timeout(
            &self.bucket.key,
            self.request.timeout,
            self.last_error.clone(),
        ))
    }
}

/// A request in a queue, without a reply. A request that goes away leaves it.
struct Waiting<'a>(Option<&'a Arc<ShardQueue>>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0 {
            queue.leave();
        }
    }
}

#[cfg(test)]
mod tests;
