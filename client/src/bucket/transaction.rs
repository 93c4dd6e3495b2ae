//! Takes from several buckets in one transaction, and from several shards of a bucket where no
//! shard has enough alone.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{Action, Contention, Take, Update, expire};
use weirgate_shared::{EpochMillis, Lease, MilliTokens, Shard, WriteId};
use weirgate_store::{
    ActionOutcome as Unheld, ErrorKind, StoreError, TransactOutcome, WriteOutcome,
};

use super::hold::Hold;
use super::state::BucketState;
use crate::queue::{HoldPart, ShardState};
use crate::session::{Sent, Session, backoff, decode_shard};
use crate::values::{
    Amounts, BucketRequest, Error, check_bucket_limit_count, count, merge_amounts,
};

/// Outcome of a transaction.
pub(super) enum TransactionOutcome<T = Vec<Hold>> {
    /// The holds, in the order of the buckets; `()` while they are not built.
    Taken(T),
    /// Nothing was taken, because the shards had changed.
    ShardsChanged,
    /// Nothing was taken: DynamoDB rejected the transaction for now.
    Rejected(Arc<StoreError>),
}

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
    state: Arc<ShardState>,
    /// Shard as it was viewed; `None` if the transaction creates the bucket.
    shard: Option<Arc<Shard>>,
    needs: Amounts,
    /// Soft amounts, which the first shard of a bucket takes.
    soft: Amounts,
    /// Amounts that bypass the limits, which the first shard counts.
    counted: Amounts,
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
    session: &Arc<Session>,
    buckets: &[BucketAllocation<'_>],
    deadline: Instant,
) -> Result<TransactionOutcome, Error> {
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
                .map(|shard| check_bucket_limit_count(shard, &self.request.limits))
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

impl ShardTake<'_> {
    /// Returns the amounts that are taken.
    fn all(&self) -> Amounts {
        merge_amounts(&self.needs, &self.soft)
    }

    /// Returns this shard's write in the transaction `op`.
    fn update(&self, session: &Session, op: &WriteId, now: EpochMillis) -> Update {
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
            key: &self.state.key,
            limits: (&self.request.limits).into(),
            amounts: self.needs.clone(),
            soft_amounts: self.soft.clone(),
            counted_amounts: self.counted.clone(),
            // Only the first part counts the acquire.
            acquires: if self.is_first {
                self.request.acquires
            } else {
                0
            },
            leases: self.lease.iter().map(lease).collect(),
            roll: self.state.roll(session, now),
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
                state,
                shard,
                request,
                counted,
                lease,
                ..
            },
        ) = (self.all(), self);
        // A transaction does not return the items.
        let mut shard = match shard {
            Some(shard) => {
                state.mark_plan_only();
                shard.projected(&request.limits, now)
            }
            None => {
                let made = Shard::full(state.key.clone(), &request.limits, now);
                state.record_created(&made);
                made
            }
        };
        for (limit, need) in &amounts {
            if let Some(state) = shard.limits.get_mut(limit) {
                state.available -= *need;
            }
        }
        let is_bypass = request.is_bypass();
        HoldPart {
            state,
            amounts: if is_bypass { counted } else { amounts },
            is_bypass,
            shard: Arc::new(shard),
            prefetched_at: None,
            lease,
        }
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

/// Sends the transaction until its outcome is known.
async fn send(
    session: &Session,
    shares: &[&ShardTake<'_>],
    actions: &[Action],
    op: &WriteId,
    deadline: Instant,
) -> Result<TransactionOutcome<()>, Error> {
    let mut unconfirmed: Option<Arc<StoreError>> = None;
    let mut failures = 0;
    loop {
        let sent = session.ages.sent();
        match session.transact(actions, op).await {
            Ok(TransactOutcome::Applied) => return Ok(TransactionOutcome::Taken(())),
            Ok(TransactOutcome::ConditionFailed(unheld)) => {
                count(&session.counters.lost_races, 1);
                if unconfirmed.is_some() {
                    // The first request may still be in flight.
                    count_unconfirmed_tokens(session, shares);
                }
                for (share, part) in shares.iter().zip(unheld) {
                    match part {
                        Unheld::ConditionFailed(Some(item)) => {
                            drop(record_item(&share.state, &item, sent)?)
                        }
                        Unheld::ConditionFailed(None) => share.state.mark_missing(),
                        Unheld::NotReported => {}
                    }
                }
                return Ok(TransactionOutcome::ShardsChanged);
            }
            Err(error) if error.kind.is_transient() => {
                let is_unknown = error.kind == ErrorKind::Unconfirmed;
                count(
                    if is_unknown {
                        &session.counters.unconfirmed
                    } else {
                        &session.counters.refused
                    },
                    1,
                );
                if !is_unknown && unconfirmed.is_none() {
                    tracing::debug!(%error, "transaction rejected for now");
                    return Ok(TransactionOutcome::Rejected(Arc::new(error)));
                }
                let error = Arc::new(error);
                if is_unknown {
                    unconfirmed = Some(Arc::clone(&error));
                }
                if Instant::now() >= deadline {
                    count_unconfirmed_tokens(session, shares);
                    return Err(Error::Store(unconfirmed.unwrap_or(error)));
                }
                failures += 1;
                tokio::time::sleep(backoff(failures)).await;
            }
            Err(error) => {
                if unconfirmed.is_some() {
                    count_unconfirmed_tokens(session, shares);
                }
                return Err(unconfirmed.map_or_else(|| error.into(), Error::Store));
            }
        }
    }
}

fn record_item(
    state: &ShardState,
    item: &weirgate_store::Item,
    sent: Sent,
) -> Result<Arc<Shard>, Error> {
    Ok(state.record_response(decode_shard(item)?, sent))
}

/// Counts the tokens of an unconfirmed transaction as taken.
fn count_unconfirmed_tokens(session: &Session, shares: &[&ShardTake<'_>]) {
    let needs: MilliTokens = shares
        .iter()
        .flat_map(|share| {
            share
                .all()
                .into_values()
                .chain(share.counted.values().copied())
        })
        .sum();
    count(
        &session.counters.unconfirmed_millitokens,
        u64::try_from(needs.0).unwrap_or_default(),
    );
}
