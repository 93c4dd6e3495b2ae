//! Router of one request: asks the shard that [`pick_shard`](crate::queue) picks, then others or all
//! of them, until a decision is made.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{Effect, Limit, ShardIndex};
use weirgate_store::StoreError;

use super::cached_denial::cached_denial;
use super::hold::Hold;
use super::state::BucketState;
use crate::queue::{Reason, ShardQueue, Taken};
use crate::session::{Session, backoff};
use crate::values::{BucketRequest, Error, Outcome, count};

/// Shards that are tried one by one before all are read, 3.
const MAX_SHARDS_TRIED: usize = 3;

/// Decides one request, enqueued at `enqueued_at`, by the table until the deadline.
pub(crate) async fn acquire_from_table(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    enqueued_at: Instant,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    Router::new(session, bucket, request, enqueued_at, deadline)
        .run()
        .await
}

/// What all shards together say: this one has enough, or, with `None`, they have changed and must be
/// evaluated again.
pub(super) type AllShards = Outcome<Hold, Option<Arc<ShardQueue>>>;

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

    async fn run(mut self) -> Result<Outcome<Hold>, Error> {
        // With one shard, its queue decides, first come, first served.
        if self.bucket.summary().max_shards_seen() > 1
            && let Some(denied) = cached_denial(self.session, self.bucket, self.request)
        {
            count(&self.session.env.counters.local_denied, 1);
            return Ok(Outcome::Denied(denied));
        }
        let mut next = self.first();
        loop {
            let Some(queue) = next.take() else {
                match Box::pin(self.decide_over_all_shards()).await? {
                    Outcome::Granted(hold) => return Ok(Outcome::Granted(hold)),
                    Outcome::Denied(denied) => return Ok(Outcome::Denied(denied)),
                    Outcome::Elsewhere(shard) => next = shard,
                }
                self.check_deadline()?;
                continue;
            };
            match self.ask(&queue, self.request).await? {
                Outcome::Granted(taken) => {
                    let hold = Hold::of(self.session, self.bucket, self.request, [taken]);
                    return Ok(Outcome::Granted(hold));
                }
                Outcome::Denied(denied) => {
                    return Ok(Outcome::Denied(denied));
                }
                Outcome::Elsewhere(Reason::ShardMissing) => next = self.replacement_for(&queue),
                Outcome::Elsewhere(Reason::BucketWasSplit) => next = self.first(),
                Outcome::Elsewhere(Reason::Insufficient) => {
                    self.tried.push(queue.index());
                    self.was_short = true;
                    next = self.next_candidate();
                }
                Outcome::Elsewhere(Reason::Throttled(error)) => {
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

    /// Asks one shard for the request, or for a part of it.
    pub(super) async fn ask(
        &self,
        queue: &Arc<ShardQueue>,
        request: &BucketRequest,
    ) -> Result<Outcome<Taken, Reason>, Error> {
        let request = request.clone();
        queue
            .ask(self.session, request, self.enqueued_at, self.deadline)
            .await
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

#[cfg(test)]
mod tests;
