//! Returns tokens without a grant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{EpochMillis, Limit, LimitName, LimitState, MilliTokens, MilliTotal, Shard};

use super::acquire::Acquire;
use super::limiter::RateLimiter;
use crate::bucket::{BucketState, refresh_all};
use crate::config::Freshness;
use crate::queue::{HoldPart, SettleOutcome, windows_in};
use crate::session::{Session, deadline};
use crate::values::{Amounts, BucketRequest, Error, Settlement, check_bucket_limits, debited};

impl RateLimiter {
    /// Returns tokens of `entity` on `resource` that turned out to be unused, if there is no grant
    /// to adjust: the process that took them is another one, and passed no
    /// [token](crate::Grant::into_token) on.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// limiter.refund("customer-1", "gpt-4").give_back("tpm", 287).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund(&self, entity: &str, resource: &str) -> Refund<'_> {
        Refund { request: self.acquire(entity, resource) }
    }
}

/// Tokens to return without a grant. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a refund does nothing until it is sent"]
pub struct Refund<'a> {
    request: Acquire<'a>,
}

impl Refund<'_> {
    /// Sets the limits of the bucket, as for an [acquire](Acquire::limits). Then nothing returns to
    /// the entity's parents.
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.request = self.request.limits(limits);
        self
    }

    /// Returns `tokens` of a rate, 0 to 10^12: to the bucket, and to the parents that an acquire
    /// takes from. A balance rises to its capacity at most. Usage falls by the whole amount.
    pub fn give_back(mut self, limit: &str, tokens: i64) -> Self {
        self.request = self.request.take(limit, tokens);
        self
    }

    /// Sets the time allowed for reading the limits. Default: the
    /// [limiter's](crate::Builder::timeout), which the writes have anyway.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request = self.request.timeout(timeout);
        self
    }

    /// Returns the tokens: one write per bucket, and a read before it if the bucket was not seen.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is written to a bucket, also for a limit with slots, or for
    /// more than the bucket has consumed since it was created. [`Error::Store`] if the outcome is not known: the write is not repeated, because it could return the tokens
    /// twice, so they count as consumed.
    pub async fn send(self) -> Result<(), Error> {
        self.request
            .limiter()
            .session
            .at_home(async {
                let (limiter, request) = (self.request.limiter(), self.request.request());
                let answer_by = deadline(request.timeout);
                let resolved =
                    request.targets(&limiter.buckets, Freshness::AnyAge, answer_by).await?;
                let requested =
                    resolved.targets.iter().filter(|target| !target.request.asks.is_empty());
                let refunds = requested
                    .map(|target| refund(&limiter.session, &target.bucket, &target.request));
                // A failed one does not stop the others.
                Settlement::all(join_all(refunds).await).map(drop)
            })
            .await
    }
}

/// Returns the request's amounts to the bucket, each limit at most to its capacity, and subtracts
/// them from the consumption. A bucket without an item is full, so nothing returns. More than the
/// shards have consumed since they were created is refused.
///
/// In a bucket of several shards, each amount goes where there is most room, so mostly one shard is
/// written. Of a limit with classes, it fills the pool that the class prefers first, then the others: it
/// does not say which one it was taken from.
async fn refund(
    session: &Session,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
) -> Result<Settlement, Error> {
    let amounts = debited(&request.asks);
    if let Some(name) = amounts.keys().find(|name| request.limits.is_held(name)) {
        return Err(Error::Invalid(format!(
            "limit {name:?} has slots, which return when their lease ends: release the grant that holds them"
        )));
    }
    let is_complete = || {
        let known = bucket.cached_bucket(&request.limits, session.now());
        known.is_complete()
    };
    let read = || refresh_all(session, std::slice::from_ref(&bucket), session.env.ages.now());
    let views = || -> Vec<_> { bucket.views().map(|view| view.shard).collect() };
    let has_window =
        |limit: &Limit| limit.rule().kind().has_window() && amounts.contains_key(limit.name());
    // What returns to a quota returns to its present window.
    if !is_complete() || request.limits.iter().any(has_window) {
        read().await?;
    }
    let mut shards = views();
    if check_consumed(&shards, &amounts).is_err() {
        // Another process may have consumed since.
        read().await?;
        shards = views();
        check_consumed(&shards, &amounts)?;
    }
    for shard in &shards {
        check_bucket_limits(shard, &request.limits)?;
    }
    let by_shard = allot(&shards, &amounts, session.now());
    let writes = by_shard.into_iter().map(|(at, amounts)| {
        let shard = &shards[at];
        let state = bucket.shard(shard.key.shard);
        HoldPart { windows: windows_in(shard), ..HoldPart::of(state, Arc::clone(shard), amounts) }
    });
    let ended = join_all(writes.map(|part| async move {
        // It is not known which window of a quota the amount was taken from.
        let back = |(limit, amount): (&LimitName, &MilliTokens)| {
            let ceiling = part.share(limit);
            let back = LimitDelta { ceiling, ..part.rate_return(limit, *amount) };
            (limit.clone(), back)
        };
        let back = part.amounts.iter().map(back).collect();
        match part.settle(session, LeaseChange::End, back, 0).await? {
            SettleOutcome::Done(settlement) => Ok(settlement),
            SettleOutcome::LeaseDiffers(_) => Ok(Settlement::LeaseGone),
        }
    }))
    .await;
    // The only other settlement is a lease that is gone: these have none, and a shard that is gone
    // was full.
    Settlement::all(ended)
}

/// Refuses to return more of a limit than the shards have consumed. A limit that no shard has is
/// full, so nothing of it returns.
fn check_consumed(shards: &[Arc<Shard>], amounts: &Amounts) -> Result<(), Error> {
    for (name, amount) in amounts {
        let states = shards.iter().flat_map(|shard| pools(shard, name));
        let consumed = states
            .map(|(_, state)| state)
            .map(|state| state.consumed)
            .reduce(|one, other| one + other);
        let consumed = consumed.map(|consumed| consumed.max(MilliTotal::ZERO));
        if let Some(consumed) = consumed.filter(|consumed| *consumed < *amount) {
            let name = name.base();
            return Err(Error::Invalid(format!(
                "refund of limit {name:?} must be 0 to {consumed}, what the bucket has consumed, got {amount}: give back at most {consumed}"
            )));
        }
    }
    Ok(())
}

/// Returns the pools that a shard has of the limit of a pool.
fn pools<'s>(
    shard: &'s Shard,
    of: &LimitName,
) -> impl Iterator<Item = (&'s LimitName, &'s LimitState)> {
    let pools = shard.limits.iter();
    pools.filter(move |(pool, _)| pool.base() == of.base())
}

/// Returns the amounts for each shard, by its place: first where there is most room. What exceeds
/// the capacity goes to the shard with most room too, whose write cuts it.
fn allot(shards: &[Arc<Shard>], amounts: &Amounts, now: EpochMillis) -> BTreeMap<usize, Amounts> {
    let mut by_shard = BTreeMap::<usize, Amounts>::new();
    for (name, amount) in amounts {
        let room = |shard: &Arc<Shard>, state: &LimitState| {
            (shard.share(state) - shard.balance(state, now)).max(MilliTokens::ZERO)
        };
        // A shard gets new limits with the next take from it; until then that limit is full.
        let mut rooms: Vec<_> = shards
            .iter()
            .enumerate()
            .flat_map(|(at, shard)| {
                pools(shard, name).map(move |(pool, state)| (room(shard, state), at, pool))
            })
            .collect();
        rooms.sort_by_key(|(room, _, pool)| (*pool != name, std::cmp::Reverse(*room)));
        let Some((_, first, preferred)) = rooms.first().copied() else {
            continue;
        };
        let mut left = *amount;
        let mut give = |at: usize, pool: &LimitName, part: MilliTokens| {
            let amounts = by_shard.entry(at).or_default();
            *amounts.entry(pool.clone()).or_default() += part;
        };
        for (room, at, pool) in rooms {
            let part = room.min(left);
            if part > MilliTokens::ZERO {
                give(at, pool, part);
                left -= part;
            }
        }
        if left > MilliTokens::ZERO {
            give(first, preferred, left);
        }
    }
    by_shard
}
