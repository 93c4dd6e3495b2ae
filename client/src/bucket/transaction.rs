//! Takes from the buckets of several requests in one transaction, and from several shards of those
//! of which no shard has enough alone.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{Action, Contention, Take, Update, expire};
use weirgate_shared::{EpochMillis, Lease, MilliTokens, Shard, WriteId};
use weirgate_store::{
    ActionOutcome as Unheld, ErrorKind, StoreError, TransactOutcome, WriteOutcome,
};

use super::{BucketRequest, BucketState};
use crate::Error;
use crate::hold::{Hold, HoldPart};
use crate::inner::Inner;
use crate::limits::check_bucket_limit_count;
use crate::queue::{Amounts, ShardQueue, Unclaimed, backoff, merge_amounts};
use crate::stats::count;

/// A transaction that did not happen: refused with this error, or the shards were not what they
/// seemed.
pub(super) type TransactionFailure = Option<Arc<StoreError>>;

/// What a transaction takes of one bucket.
pub(super) struct BucketAllocation<'a> {
    pub(super) bucket: &'a Arc<BucketState>,
    pub(super) request: &'a BucketRequest,
    /// How much of each shard.
    pub(super) parts: Vec<(u32, Amounts)>,
}

/// One shard's part.
struct ShardTake<'a> {
    request: &'a BucketRequest,
    queue: Arc<ShardQueue>,
    /// As it was seen; nothing for a bucket that is yet to be made.
    shard: Option<Arc<Shard>>,
    needs: Amounts,
    /// What is taken whether it is there or not, which the first of a bucket gives.
    soft: Amounts,
    is_first: bool,
    /// One id and expiry in all parts of a request.
    lease: Option<(WriteId, EpochMillis)>,
}

/// Takes all `parts` of all buckets, in their order. Nothing if one of the shards is not what it
/// seemed any more, or DynamoDB refused for now: then with its error.
///
/// A transaction of unknown outcome is sent again under the same token, which DynamoDB remembers
/// for ten minutes: it happens once, and the answer tells.
pub(super) async fn take(
    inner: &Arc<Inner>,
    buckets: &[BucketAllocation<'_>],
    deadline: Instant,
) -> Result<Result<Vec<Unclaimed>, TransactionFailure>, Error> {
    let now = inner.now();
    let mut shares = vec![];
    for bucket in buckets {
        let Some(more) = bucket.shares(inner, now).await? else {
            return Ok(Err(None));
        };
        shares.push(more);
    }
    let op = weirgate_store::random_id();
    let all: Vec<_> = shares.iter().flatten().collect();
    let actions: Vec<_> = all
        .iter()
        .map(|share| Action::Update(share.update(inner, &op, now)))
        .collect();
    if let Err(lost) = send(inner, &all, &actions, &op, deadline).await? {
        return Ok(Err(lost));
    }
    let delivery = |(bucket, shares): (&BucketAllocation<'_>, Vec<ShardTake<'_>>)| {
        let parts = shares.into_iter().map(|share| share.taken(now)).collect();
        Hold::new(
            (Arc::clone(inner), Arc::clone(bucket.bucket)),
            parts,
            bucket.request.limits.clone(),
            now,
        )
        .into()
    };
    Ok(Ok(buckets.iter().zip(shares).map(delivery).collect()))
}

impl<'a> BucketAllocation<'a> {
    /// What is known of the shards, each with its part; `None` if one is gone, or holds more
    /// expired leases than its part of the transaction could give back: those are given back first.
    async fn shares(
        &self,
        inner: &Inner,
        now: EpochMillis,
    ) -> Result<Option<Vec<ShardTake<'a>>>, Error> {
        let lease = self.request.lease.as_ref();
        let lease =
            lease.map(|(lasts, _)| (weirgate_store::random_id(), now.plus((*lasts).into())));
        let mut shares = vec![];
        for (index, amounts) in &self.parts {
            let queue = self.bucket.queue(*index);
            let shard = queue.view().map(|view| view.shard);
            if let Some(Err(error)) = shard
                .as_deref()
                .map(|shard| check_bucket_limit_count(shard, &self.request.limits))
            {
                queue.clear_view();
                return Err(error);
            }
            match &shard {
                None if *index > 0
                    || !queue.is_missing()
                    || self.bucket.summary().max_shards_seen() > 1 =>
                {
                    return Ok(None);
                }
                Some(shard) if shard.expired(now).count() > shard.reclaimable(now).count() => {
                    release_expired(inner, &queue, shard, now).await?;
                    return Ok(None);
                }
                _ => {}
            }
            let is_first = shares.is_empty();
            let soft_amounts = if is_first {
                self.request.soft_amounts.clone()
            } else {
                Amounts::new()
            };
            let (request, amounts, lease) = (self.request, amounts.clone(), lease.clone());
            shares.push(ShardTake {
                request,
                queue,
                shard,
                needs: amounts,
                soft: soft_amounts,
                is_first,
                lease,
            });
        }
        Ok(Some(shares))
    }
}

impl ShardTake<'_> {
    fn all(&self) -> Amounts {
        merge_amounts(&self.needs, &self.soft)
    }

    /// The share's part of the transaction `op`.
    fn update(&self, inner: &Inner, op: &WriteId, now: EpochMillis) -> Update {
        let owner = self
            .request
            .lease
            .as_ref()
            .map(|(_, owner)| owner.to_string())
            .unwrap_or_default();
        let lease = |(id, expires): &(WriteId, EpochMillis)| {
            (
                id.clone(),
                Lease {
                    expires_at: *expires,
                    tokens: self.all(),
                    owner: owner.clone(),
                },
            )
        };
        let take = Take {
            key: &self.queue.key,
            limits: (&self.request.limits).into(),
            amounts: self.needs.clone(),
            soft_amounts: self.soft.clone(),
            // The acquire counts once.
            acquires: if self.is_first {
                self.request.acquires
            } else {
                0
            },
            leases: self.lease.iter().map(lease).collect(),
            roll: self.queue.roll(inner, now),
            write_id: op.clone(),
            request_split: false,
            contention: Contention::Alone,
            // The token tells what became of the transaction.
            unconfirmed: &[],
        };
        if self.shard.is_some() {
            take.plan(self.shard.as_deref(), now)
        } else {
            take.create(now)
        }
    }

    /// The part that was taken.
    fn taken(self, now: EpochMillis) -> HoldPart {
        let (
            amounts,
            ShardTake {
                queue,
                shard,
                request,
                lease,
                ..
            },
        ) = (self.all(), self);
        // A transaction does not answer with the items.
        let mut shard = match shard {
            Some(shard) => {
                queue.mark_plan_only();
                shard.projected(&request.limits, now)
            }
            None => {
                let made = Shard::full(queue.key.clone(), &request.limits, now);
                queue.record_created(&made);
                made
            }
        };
        for (limit, need) in &amounts {
            if let Some(state) = shard.limits.get_mut(limit) {
                state.available -= *need;
            }
        }
        HoldPart {
            queue,
            amounts,
            shard: Arc::new(shard),
            prefetched_at: None,
            lease,
        }
    }
}

async fn release_expired(
    inner: &Inner,
    queue: &ShardQueue,
    shard: &Shard,
    now: EpochMillis,
) -> Result<(), Error> {
    let Some((update, _)) = expire(shard, now) else {
        return Ok(());
    };
    match inner.update(&update).await {
        Ok(WriteOutcome::Applied(Some(item)) | WriteOutcome::ConditionFailed(Some(item))) => {
            drop(record_item(queue, &item)?)
        }
        Ok(_) => queue.mark_missing(),
        // Restoring is conditional on what was seen, so another try does no harm.
        Err(error) if error.kind.is_transient() => {
            tracing::debug!(%error, "could not give back yet")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Sends the transaction until it is known what became of it.
async fn send(
    inner: &Inner,
    shares: &[&ShardTake<'_>],
    actions: &[Action],
    op: &WriteId,
    deadline: Instant,
) -> Result<Result<(), TransactionFailure>, Error> {
    let mut doubt: Option<Arc<StoreError>> = None;
    let mut failures = 0;
    loop {
        match inner.transact(actions, op).await {
            Ok(TransactOutcome::Applied) => return Ok(Ok(())),
            Ok(TransactOutcome::ConditionFailed(unheld)) => {
                count(&inner.counters.lost_races, 1);
                if doubt.is_some() {
                    // The first request may still be on its way.
                    count_unconfirmed_tokens(inner, shares);
                }
                for (share, part) in shares.iter().zip(unheld) {
                    match part {
                        Unheld::ConditionFailed(Some(item)) => {
                            drop(record_item(&share.queue, &item)?)
                        }
                        Unheld::ConditionFailed(None) => share.queue.mark_missing(),
                        Unheld::NotReported => {}
                    }
                }
                return Ok(Err(None));
            }
            Err(error) if error.kind.is_transient() => {
                let is_unknown = error.kind == ErrorKind::Unconfirmed;
                count(
                    if is_unknown {
                        &inner.counters.unconfirmed
                    } else {
                        &inner.counters.refused
                    },
                    1,
                );
                if !is_unknown && doubt.is_none() {
                    tracing::debug!(%error, "a transaction was refused for now");
                    return Ok(Err(Some(Arc::new(error))));
                }
                let error = Arc::new(error);
                if is_unknown {
                    doubt = Some(Arc::clone(&error));
                }
                if Instant::now() >= deadline {
                    count_unconfirmed_tokens(inner, shares);
                    return Err(Error::Store(doubt.unwrap_or(error)));
                }
                failures += 1;
                tokio::time::sleep(backoff(failures)).await;
            }
            Err(error) => {
                if doubt.is_some() {
                    count_unconfirmed_tokens(inner, shares);
                }
                return Err(doubt.map_or_else(|| error.into(), Error::Store));
            }
        }
    }
}

fn record_item(queue: &ShardQueue, item: &weirgate_store::Item) -> Result<Arc<Shard>, Error> {
    let unreadable = |error| Error::Unreadable {
        bucket: queue.key.item_key().pk,
        error,
    };
    Ok(queue.record_view(item.bucket().map_err(unreadable)?))
}

/// The tokens count as taken.
fn count_unconfirmed_tokens(inner: &Inner, shares: &[&ShardTake<'_>]) {
    let needs: MilliTokens = shares
        .iter()
        .flat_map(|share| share.all().into_values())
        .sum();
    count(
        &inner.counters.unconfirmed_millitokens,
        u64::try_from(needs.0).unwrap_or_default(),
    );
}
