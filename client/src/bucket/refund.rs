//! Returns tokens to a bucket without a hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{EpochMillis, Limit, LimitName, LimitState, MilliTokens, MilliTotal, Shard};

use super::refresh::refresh_all;
use super::state::BucketState;
use crate::queue::{HoldPart, SettleOutcome, windows_in};
use crate::session::Session;
use crate::values::{Amounts, BucketRequest, Error, Settlement, check_bucket_limits, debited};

/// Returns the request's amounts to the bucket, each limit at most to its capacity, and subtracts
/// them from the consumption. A bucket without an item is full, so nothing returns. More than the
/// shards have consumed since they were created is refused.
///
/// In a bucket of several shards, each amount goes where there is most room, so mostly one shard is
/// written. Of a limit with classes, it fills the pool that the class prefers first, then the others: it
/// does not say which one it was taken from.
pub(crate) async fn refund(
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
    let read = || {
        refresh_all(
            session,
            std::slice::from_ref(&bucket),
            session.env.ages.now(),
        )
    };
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
        HoldPart {
            windows: windows_in(shard),
            ..HoldPart::of(state, Arc::clone(shard), amounts)
        }
    });
    let ended = join_all(writes.map(|part| async move {
        // It is not known which window of a quota the amount was taken from.
        let back = |(limit, amount): (&LimitName, &MilliTokens)| {
            let ceiling = part.share(limit);
            let back = LimitDelta {
                ceiling,
                ..part.rate_return(limit, *amount)
            };
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
