//! Takes from several buckets in one transaction, and from several shards of a bucket where no
//! shard has enough alone.

mod send;
mod shard_take;

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{Action, expire};
use weirgate_shared::{EpochMillis, Shard};
use weirgate_store::WriteOutcome;

use send::{record_item, send};
use shard_take::ShardTake;

pub(super) use send::TransactionOutcome;

use super::hold::Hold;
use super::state::BucketState;
use crate::queue::ShardState;
use crate::session::Session;
use crate::values::{Amounts, BucketRequest, Error, check_bucket_limits};

/// What a transaction takes from one bucket.
pub(super) struct BucketAllocation<'a> {
    pub(super) bucket: &'a Arc<BucketState>,
    pub(super) request: &'a BucketRequest,
    /// Amounts per shard.
    pub(super) parts: Vec<(u32, Amounts)>,
}

/// Takes all parts of all buckets in one transaction. Returns the holds in the order of the
/// buckets, or a failure if a shard had changed or DynamoDB rejected the transaction for now.
///
/// An unconfirmed transaction is sent again with the same token, which DynamoDB remembers for ten
/// minutes. So it is applied once, and the response shows the outcome.
pub(super) async fn take(
    session: &Arc<Session>,
    buckets: &[BucketAllocation<'_>],
    deadline: Instant,
) -> Result<TransactionOutcome<Vec<Hold>>, Error> {
    let now = session.now();
    let mut shares = vec![];
    for bucket in buckets {
        let Some(more) = bucket.shares(session, now).await? else {
            return Ok(TransactionOutcome::ShardsChanged);
        };
        shares.push(more);
    }
    let op = weirgate_store::random_id();
    let all: Vec<_> = shares.iter().flatten().collect();
    let actions: Vec<_> = all
        .iter()
        .map(|share| Action::Update(share.update(session, &op, now)))
        .collect();
    match send(session, &all, &actions, &op, deadline).await? {
        TransactionOutcome::Taken(()) => {}
        TransactionOutcome::ShardsChanged => return Ok(TransactionOutcome::ShardsChanged),
        TransactionOutcome::Rejected(error) => return Ok(TransactionOutcome::Rejected(error)),
    }
    let hold = |(bucket, shares): (&BucketAllocation<'_>, Vec<ShardTake<'_>>)| {
        let parts = shares.into_iter().map(|share| share.taken(now)).collect();
        let limits = bucket.request.limits.clone();
        Hold::new(session, bucket.bucket, parts, limits, now)
    };
    Ok(TransactionOutcome::Taken(
        buckets.iter().zip(shares).map(hold).collect(),
    ))
}

impl<'a> BucketAllocation<'a> {
    /// Returns the take of each shard. Returns `None` if a shard is missing, its view is from before
    /// a jump of the wall clock, or it holds more expired leases than its take can return; those are
    /// returned first.
    async fn shares(
        &self,
        session: &Session,
        now: EpochMillis,
    ) -> Result<Option<Vec<ShardTake<'a>>>, Error> {
        let lease = self.request.lease.as_ref();
        let lease =
            lease.map(|(lasts, _)| (weirgate_store::random_id(), now.plus((*lasts).into())));
        let mut shares = vec![];
        for (index, amounts) in &self.parts {
            let state = self.bucket.shard(*index);
            let view = state.view();
            if view.as_ref().is_some_and(|view| view.predates_clock_jump) {
                // No item returns by which the take could be corrected, if the clock was set.
                state.clear_view();
                return Ok(None);
            }
            let shard = view.map(|view| view.shard);
            if let Some(Err(error)) = shard
                .as_deref()
                .map(|shard| check_bucket_limits(shard, &self.request.limits))
            {
                state.clear_view();
                return Err(error);
            }
            match &shard {
                None if *index > 0
                    || !state.is_missing()
                    || self.bucket.summary().max_shards_seen() > 1 =>
                {
                    return Ok(None);
                }
                Some(shard) if shard.expired(now).count() > shard.reclaimable(now).count() => {
                    release_expired(session, &state, shard, now).await?;
                    return Ok(None);
                }
                _ => {}
            }
            let is_first = shares.is_empty();
            let of_first = |amounts: &Amounts| match is_first {
                true => amounts.clone(),
                false => Amounts::new(),
            };
            let (request, amounts, lease) = (self.request, amounts.clone(), lease.clone());
            shares.push(ShardTake {
                request,
                state,
                shard,
                needs: amounts,
                soft: of_first(&request.soft_amounts),
                counted: of_first(&request.counted_amounts),
                is_first,
                lease,
            });
        }
        Ok(Some(shares))
    }
}

async fn release_expired(
    session: &Session,
    state: &ShardState,
    shard: &Shard,
    now: EpochMillis,
) -> Result<(), Error> {
    let Some((update, _)) = expire(shard, now) else {
        return Ok(());
    };
    let sent = session.ages.sent();
    match session.update(&update).await {
        Ok(WriteOutcome::Applied(Some(item)) | WriteOutcome::ConditionFailed(Some(item))) => {
            drop(record_item(state, &item, sent)?)
        }
        Ok(_) => state.mark_missing(),
        // The write requires an unchanged shard, so another attempt is safe.
        Err(error) if error.kind.is_transient() => {
            tracing::debug!(%error, "expired leases not returned yet")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
