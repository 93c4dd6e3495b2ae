//! Takes from several shards of a bucket, when none of them has enough alone.
//!
//! Each part is a write of its own, which other requests of the process share. A transaction would
//! cost twice as much, and any concurrent write to one of the shards would cancel it: on busy
//! shards it practically never succeeds.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::{Asks, Bucket, Effect, MilliTokens};

use super::evaluate::{Allocation, evaluate};
use super::hold::Hold;
use super::route::{NextStep, Router};
use super::state::BucketState;
use crate::queue::{Reason, Taken};
use crate::values::{Amounts, BucketRequest, Denied, Error, Outcome};

/// Rounds in which other shards replace short ones, 4, before all parts return and all shards are
/// read again. Meanwhile other requests are denied the tokens that this one holds.
const ROUNDS: usize = 4;
/// Times that all parts return before the request is denied, 2: of several that take parts from the
/// same shards, each makes the others short.
const MAX_FAILED_SPREADS: u32 = 2;
/// Longest retry-after of such a denial, 100 ms: what the others hold may return with theirs.
const RETRY_SPREAD: Duration = Duration::from_millis(100);

/// Parts of a request that is not granted yet. Dropping it returns them in the background.
struct SpreadTake {
    left: Amounts,
    parts: Vec<Taken>,
    /// Whether one part counts the acquire and has the soft amounts.
    has_first: bool,
}

/// A part that is being taken: the request's own, until the reply shows what the shard has left.
struct Reserved<'a> {
    bucket: &'a BucketState,
    id: u64,
}

impl<'a> Reserved<'a> {
    fn new(bucket: &'a BucketState, shard: u32, amounts: &Amounts) -> Self {
        let id = fastrand::u64(..);
        bucket.spreading.lock().insert(id, (shard, amounts.clone()));
        Self { bucket, id }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.bucket.spreading.lock().remove(&self.id);
    }
}

impl Router<'_> {
    /// Takes the `planned` parts concurrently. If some shards are short by then, others with a
    /// sufficient view give the rest. If that is not enough, returns all parts, and all shards must be
    /// read again; the second time, the denial by what all shards had together.
    pub(super) async fn take_parts(
        &mut self,
        mut planned: Vec<(u32, Amounts)>,
    ) -> Result<Outcome<Hold, NextStep>, Error> {
        let enforced = self.request.asks.with(Effect::Enforce);
        let mut given = SpreadTake {
            left: enforced
                .map(|(limit, need)| (limit.clone(), need))
                .collect(),
            parts: vec![],
            has_first: false,
        };
        for _ in 0..ROUNDS {
            self.take_round(&planned, &mut given).await?;
            if given.left.is_empty() {
                if !self.lasts(&given.parts) {
                    break;
                }
                let hold = Hold::of(self.session, self.bucket, self.request, given.parts);
                return Ok(Outcome::Granted(hold));
            }
            self.check_deadline()?;
            let now = self.session.now();
            match self
                .bucket
                .cached_bucket(&self.request.limits, now)
                .spread(&given.left, now)
            {
                Some(more) => planned = more,
                None => break,
            }
        }
        self.failed_spreads += 1;
        let denied = self.denied_beside(&given.left);
        self.roll_back(given.parts).await;
        let is_second = self.failed_spreads >= MAX_FAILED_SPREADS;
        if let Some(denied) = denied.filter(|_| is_second) {
            return Ok(Outcome::Denied(denied));
        }
        self.must_refresh = true;
        self.pause().await;
        Ok(Outcome::Elsewhere(NextStep::Refresh))
    }

    /// Returns the denial of a request that has all but `left` of its amounts, by the views of the
    /// other shards. The tokens that they lack may return soon, so it may retry soon.
    fn denied_beside(&self, left: &Amounts) -> Option<Denied> {
        let (request, now) = (self.request, self.session.now());
        let known = self.bucket.cached_bucket(&request.limits, now);
        let mut shards = known.shards().to_vec();
        let first = shards.first_mut()?;
        for (limit, need) in request.asks.with(Effect::Enforce) {
            let taken = need - left.get(limit).copied().unwrap_or_default();
            if let Some(state) = first.limits.get_mut(limit) {
                state.available += taken;
            }
        }
        let Allocation::Denied(mut denied) = evaluate(&Bucket::new(shards), request, now) else {
            return None;
        };
        let soon = |wait: Duration| wait.min(RETRY_SPREAD);
        denied.retry_after = denied.retry_after.map(soon);
        for status in &mut denied.limits {
            status.retry_after = status.retry_after.map(soon);
        }
        Some(denied)
    }

    /// Takes the part of each shard.
    async fn take_round(
        &mut self,
        planned: &[(u32, Amounts)],
        given: &mut SpreadTake,
    ) -> Result<(), Error> {
        let is_first = |at: usize| at == 0 && !given.has_first;
        let requests: Vec<_> = planned
            .iter()
            .enumerate()
            .map(|(at, (_, amounts))| self.part(amounts.clone(), is_first(at)))
            .collect();
        let asking = &*self;
        let replies = planned
            .iter()
            .zip(&requests)
            .map(|((shard, amounts), request)| async move {
                let queue = asking.bucket.queues.queue(*shard);
                let _reserved = Reserved::new(asking.bucket, *shard, amounts);
                asking.ask(&queue, request).await
            });
        let (mut failed, mut throttled) = (Ok(()), None);
        for (at, ((_, amounts), reply)) in planned.iter().zip(join_all(replies).await).enumerate() {
            match reply {
                Ok(Outcome::Granted(part)) => {
                    given.has_first |= at == 0;
                    given.parts.push(part);
                    for (limit, amount) in amounts {
                        given
                            .left
                            .entry(limit.clone())
                            .and_modify(|left| *left -= *amount);
                    }
                }
                Ok(Outcome::Elsewhere(Reason::Throttled(error))) => throttled = Some(error),
                Ok(Outcome::Denied(_) | Outcome::Elsewhere(_)) => {}
                Err(error) => failed = Err(error),
            }
        }
        given.left.retain(|_, left| *left > MilliTokens::ZERO);
        if throttled.is_some() && failed.is_ok() {
            self.last_error = throttled;
            self.pause().await;
        }
        failed
    }

    /// Returns a part of the request. The first part has the soft amounts and counts the acquire.
    /// What bypasses the limits has no parts, because every shard has room for it.
    fn part(&self, amounts: Amounts, is_first: bool) -> BucketRequest {
        let mut part = BucketRequest {
            asks: Asks::of(Effect::Enforce, amounts),
            acquires: 0,
            ..self.request.clone()
        };
        if is_first {
            let soft = self.request.asks.iter();
            soft.filter(|ask| ask.effect == Effect::IntoDebt)
                .for_each(|ask| part.asks.add(ask.clone()));
            part.acquires = self.request.acquires;
        }
        part
    }

    /// Returns whether at least half of its lease time is left: an early part may nearly have
    /// expired before the last one came.
    fn lasts(&self, parts: &[Taken]) -> bool {
        let half = self
            .request
            .lease
            .as_ref()
            .map_or(Duration::ZERO, |(lasts, _)| *lasts / 2);
        let first = parts.iter().filter_map(Taken::expires_at).min();
        first.is_none_or(|expires| expires > self.session.now().plus(half.into()))
    }

    /// Returns the parts, in tasks that continue if the request is dropped. Waits for them until
    /// the deadline.
    async fn roll_back(&self, parts: Vec<Taken>) {
        let back = parts.into_iter().map(|part| {
            self.session.spawn(async move {
                if let Err(error) = part.roll_back().await {
                    // The part counts as consumed; its lease, if any, expires.
                    tracing::warn!(%error, "part of a denied request could not be returned");
                }
            })
        });
        let back: Vec<_> = back.collect();
        let _ = tokio::time::timeout_at(self.deadline, join_all(back)).await;
    }
}
