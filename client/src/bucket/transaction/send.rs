//! Sends a transaction until its outcome is known.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::Action;
use weirgate_shared::{MilliTokens, Shard, WriteId};
use weirgate_store::{ActionOutcome, ErrorKind, StoreError, TransactOutcome};

use super::shard_take::ShardTake;
use crate::queue::ShardState;
use crate::session::{Sent, Session, backoff, decode_shard};
use crate::values::{Error, count};

/// Outcome of a transaction.
pub(in crate::bucket) enum TransactionOutcome<T> {
    /// What was taken: `()` until the holds are built, one for each bucket in order.
    Taken(T),
    /// Nothing was taken, because the shards had changed.
    ShardsChanged,
    /// Nothing was taken: DynamoDB rejected the transaction for now.
    Rejected(Arc<StoreError>),
}

/// Sends the transaction until its outcome is known.
pub(super) async fn send(
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
            Ok(TransactOutcome::ConditionFailed(outcomes)) => {
                count(&session.counters.lost_races, 1);
                if unconfirmed.is_some() {
                    // The first request may still be in flight.
                    count_unconfirmed_tokens(session, shares);
                }
                for (share, outcome) in shares.iter().zip(outcomes) {
                    match outcome {
                        ActionOutcome::ConditionFailed(Some(item)) => {
                            drop(record_item(&share.state, &item, sent)?)
                        }
                        ActionOutcome::ConditionFailed(None) => share.state.mark_missing(),
                        ActionOutcome::NotReported => {}
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

pub(super) fn record_item(
    state: &ShardState,
    item: &weirgate_store::Item,
    sent: Sent,
) -> Result<Arc<Shard>, Error> {
    Ok(state.record_response(decode_shard(item)?, sent))
}
