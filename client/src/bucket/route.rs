//! Router of one request: asks the shard that [`ShardQueues`](crate::queue) picks, then others or all
//! of them, until a decision is made.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{
    Bucket, Effect, EpochMillis, Limit, Millis, Shard, ShardIndex, Stamp, read_stamp,
};
use weirgate_store::{Consistency, ErrorKind, StoreError};

use super::cached_denial::{cached_denial, denies, draw};
use super::evaluate::{Allocation, evaluate};
use super::hold::Hold;
use super::state::BucketState;
use crate::queue::{Reason, ShardQueue, Taken};
use crate::session::{Session, backoff};
use crate::values::{BucketRequest, Denied, Error, Outcome, count};

/// Longest wait for the stamp of another process before reading all shards, per shard: 1 ms.
const MAX_WAIT_PER_SHARD: Duration = Duration::from_millis(1);
/// Age below which a stamp that no longer denies is renewed by this process without a wait, 60 s:
/// other processes renewed it until a moment ago.
const RENEWED: Millis = Millis(60_000);
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

/// What to do if all shards together do not decide.
pub(super) enum NextStep {
    /// This shard has enough, or may be created.
    Try(Arc<ShardQueue>),
    /// They have changed, or could not be read for now: evaluate them again.
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
                    Outcome::Elsewhere(NextStep::Try(queue)) => next = Some(queue),
                    Outcome::Elsewhere(NextStep::Refresh) => {}
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

impl Router<'_> {
    /// Decides over all shards together. Returns the decision, or the next step.
    pub(super) async fn decide_over_all_shards(
        &mut self,
    ) -> Result<Outcome<Hold, NextStep>, Error> {
        if !self.must_refresh
            && let Some(denied) = self.ask_the_stamp().await
        {
            self.bucket
                .summary()
                .record_retry_time(self.session.now(), denied.retry_after);
            return Ok(Outcome::Denied(denied));
        }
        let Some((bucket, looked_at)) = self.refresh_all_shards().await? else {
            return Ok(Outcome::Elsewhere(NextStep::Refresh));
        };
        let now = looked_at.unwrap_or_else(|| self.session.now());
        let is_unmade = |shard: &u32| self.bucket.shard(*shard).view().is_none();
        self.tried.clear();
        if bucket.shards().is_empty() {
            if self.bucket.queues.views().next().is_some() {
                // All views are from before a jump of the wall clock.
                return Ok(Outcome::Elsewhere(NextStep::Refresh));
            }
            self.bucket.queues.reset();
            return Ok(Outcome::Elsewhere(NextStep::Try(self.choose())));
        }
        match evaluate(&bucket, self.request, now) {
            Allocation::Denied(denied) => {
                self.bucket.record_denial();
                self.bucket
                    .summary()
                    .record_retry_time(now, denied.retry_after);
                if looked_at.is_some() {
                    self.bucket.write_stamp(self.session, &bucket, now);
                }
                Ok(Outcome::Denied(denied))
            }
            Allocation::Single(shard) if is_unmade(&shard) => {
                self.pause().await;
                Ok(Outcome::Elsewhere(NextStep::Refresh))
            }
            Allocation::Single(shard) => Ok(Outcome::Elsewhere(NextStep::Try(
                self.bucket.queues.queue(shard),
            ))),
            Allocation::Spread(parts) if parts.iter().any(|(shard, _)| is_unmade(shard)) => {
                self.pause().await;
                Ok(Outcome::Elsewhere(NextStep::Refresh))
            }
            Allocation::Spread(parts) => self.take_parts(parts).await,
        }
    }

    /// Returns the state of all shards, and the time of the read if there was one; `None` if they
    /// could not be read for now.
    async fn refresh_all_shards(&mut self) -> Result<Option<(Bucket, Option<EpochMillis>)>, Error> {
        let BucketRequest { limits, .. } = self.request;
        let enqueued_at = self.session.env.ages.of(self.enqueued_at);
        // A balance of a rate may be half a second old; a count of free slots may not.
        let first = if self.request.takes_slots() {
            Consistency::Strong
        } else {
            Consistency::Eventual
        };
        let now = self.session.now();
        let mut bucket = self
            .bucket
            .seen_bucket(limits, now, |view| view.seen_at >= enqueued_at);
        // Others compete for what a shard was refilled with since it was short for this request: it
        // would go from shard to shard for that until its deadline.
        if self.was_short && !matches!(evaluate(&bucket, self.request, now), Allocation::Denied(_))
        {
            bucket = self.bucket.bucket_as_shown(limits, enqueued_at, now);
        }
        if std::mem::take(&mut self.must_refresh) {
            bucket = Bucket::default();
        }
        let (mut looked_at, mut is_unread) = (None, false);
        // One read may see shards at different times, so read twice. If they are still incomplete,
        // items were deleted manually, and the existing shards decide.
        for (since, consistency) in [
            (Some(enqueued_at).filter(|_| self.failures == 0), first),
            (None, Consistency::Strong),
        ] {
            if bucket.is_complete() {
                break;
            }
            let refreshed = tokio::time::timeout_at(
                self.deadline,
                self.bucket.refresh(self.session, since, consistency),
            );
            is_unread = true;
            match refreshed.await {
                Ok(Err(Error::Store(error)))
                    if error.kind == (ErrorKind::Throttled { key_range: true }) =>
                {
                    self.last_error = Some(error);
                    self.pause().await;
                }
                Ok(refreshed) => {
                    refreshed?;
                    (looked_at, is_unread) = (Some(self.session.now()), false);
                }
                Err(_) => {
                    let error = self
                        .session
                        .timeout_error("BatchGetItem of all shards", self.request.timeout);
                    self.last_error = Some(Arc::new(error));
                }
            }
            self.check_deadline()?;
            bucket = self.bucket.cached_bucket(limits, self.session.now());
        }
        if !bucket.is_complete() && is_unread {
            // The shards that could not be read may have the missing tokens.
            return Ok(None);
        }
        if !bucket.is_complete() {
            // Tokens in the escrow of a split count as present; they can be taken a little later.
            bucket = self.bucket.seen_with_escrows(limits, self.session.now());
        }
        Ok(Some((bucket, looked_at)))
    }

    /// Returns whether the cached stamp, at any age, shows that the bucket is short. Then no shard
    /// is tried alone.
    pub(super) fn is_stamped_short(&self) -> bool {
        let stamp = self
            .bucket
            .stamp()
            .clone()
            .filter(|_| self.bucket.is_stamped());
        let (most, now) = (self.bucket.summary().max_shards_seen(), self.session.now());
        stamp.is_some_and(|stamp| {
            denies(&stamp, &self.bucket.key, self.request, most, now).is_some()
        })
    }

    /// Reads the stamp that another process may have written, and returns the denial that it
    /// implies.
    pub(super) async fn ask_the_stamp(&self) -> Option<Denied> {
        let asks_rate = |limit: &Limit| {
            let need = self.request.asks.enforced(limit.name().as_str());
            limit.rule().kind().refills() && need.is_some()
        };
        if !self.bucket.is_stamped() || !self.request.limits.iter().any(asks_rate) {
            return None;
        }
        let key = Stamp::key(&self.bucket.key);
        for is_second in [false, true] {
            let read = self.session.read_once(&key, Consistency::Eventual);
            // Without a readable stamp, all shards are read.
            let item = tokio::time::timeout_at(self.deadline, read)
                .await
                .ok()?
                .ok()?;
            let stamp = item
                .as_ref()
                .and_then(|item| read_stamp(item.attributes()).ok());
            let is_renewal = stamp
                .as_ref()
                .is_some_and(|stamp| self.session.now().since(stamp.at) < RENEWED);
            *self.bucket.stamp() = stamp.map(Arc::new);
            let denied = self.bucket.denied_by_stamp(self.session, self.request);
            if denied.is_some() || is_second || is_renewal || !self.is_far_from_enough() {
                return denied;
            }
            // Many processes may have been denied at this moment: one of them writes a stamp while
            // the others wait.
            let most = MAX_WAIT_PER_SHARD * self.bucket.summary().max_shards_seen();
            let wait =
                most - most * draw(&mut fastrand::Rng::with_seed(fastrand::u64(..))) / 10_000;
            tokio::time::sleep(wait).await;
        }
        None
    }

    /// Returns whether no viewed shard has enough of its rates within a second. For a request above
    /// a shard's share, returns whether all shards together lack it, if the others hold as much on
    /// average as the viewed ones.
    fn is_far_from_enough(&self) -> bool {
        let BucketRequest { asks, limits, .. } = self.request;
        let now = self.session.now();
        let seen = self.bucket.cached_bucket(limits, now);
        let soon = now.plus(Millis(1_000));
        let rates = || limits.iter().filter(|limit| limit.rule().kind().refills());
        let lacks = |shard: &Shard, limit: &Limit| {
            asks.enforced(limit.name().as_str())
                .is_some_and(|need| shard.balance_at(limit.name(), soon) < need)
        };
        if self.exceeds_one_shard() {
            let all = |limit: &Limit| {
                let seen_of = i64::try_from(seen.shards().len()).unwrap_or(i64::MAX);
                let holds = i128::from(seen.balance_at(limit.name(), soon).0)
                    * i128::from(self.bucket.summary().max_shards_seen());
                asks.enforced(limit.name().as_str())
                    .is_some_and(|need| holds < i128::from(need.0) * i128::from(seen_of))
            };
            return rates().any(all);
        }
        seen.shards()
            .iter()
            .all(|shard| rates().any(|limit| lacks(shard, limit)))
    }
}

#[cfg(test)]
mod tests;
