//! Takes from several buckets in one transaction, and from several shards of a bucket where no
//! shard has enough alone.

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

/// Reason that a transaction was not applied: DynamoDB's error, or `None` if the shards had
/// changed.
pub(super) type TransactionFailure = Option<Arc<StoreError>>;

/// What a transaction takes from one bucket.
pub(super) struct BucketAllocation<'a> {
    pub(super) bucket: &'a Arc<BucketState>,
    pub(super) request: &'a BucketRequest,
    /// Amounts per shard.
    pub(super) parts: Vec<(u32, Amounts)>,
}

/// What a transaction takes from one shard.
struct ShardTake<'a> {
    request: &'a BucketRequest,
    queue: Arc<ShardQueue>,
    /// Shard as it was viewed; `None` if the transaction creates the bucket.
    shard: Option<Arc<Shard>>,
    needs: Amounts,
    /// Soft amounts, which the first shard of a bucket takes.
    soft: Amounts,
    is_first: bool,
    /// Lease id and expiry, the same in all parts of a request.
    lease: Option<(WriteId, EpochMillis)>,
}

/// Takes all parts of all buckets in one transaction. Returns the holds in the order of the
/// buckets, or a failure if a shard had changed or DynamoDB rejected the transaction for now.
///
/// An unconfirmed transaction is sent again with the same token, which DynamoDB remembers for ten
/// minutes. So it is applied once, and the response shows the outcome.
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
    /// Returns the take of each shard. Returns `None` if a shard is missing, or holds more expired
    /// leases than its take can return; those are returned first.
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

    /// Returns this shard's write in the transaction `op`.
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
            // Only the first part counts the acquire.
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
            // The token identifies the transaction, so no unconfirmed ids are needed.
            unconfirmed: &[],
        };
        if self.shard.is_some() {
            take.plan(self.shard.as_deref(), now)
        } else {
            take.create(now)
        }
    }

    /// Returns the part that was taken, and updates the view.
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
        // A transaction does not return the items.
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
        // The write requires an unchanged shard, so another attempt is safe.
        Err(error) if error.kind.is_transient() => {
            tracing::debug!(%error, "could not give back yet")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Sends the transaction until its outcome is known.
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
                    // The first request may still be in flight.
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

/// Counts the tokens of an unconfirmed transaction as taken.
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
