//! Splits a hot shard.

use std::time::Duration;

use weirgate_runtime::LogBudget;
use weirgate_shared::Shard;
use weirgate_shared::write::{Update, finish_writes};
use weirgate_store::{ErrorKind, Item, ReturnValues, StoreError, Table, WriteOutcome};

use super::effect::{Effect, split_put_off};
use super::failure::FailureReason;
use super::limits::Limits;
use crate::split::Split;

/// Maximum number of plans for a split whose condition fails. Takes do not make it fail; refills
/// and changed limits do, and they are rare.
const SPLIT_TRIES: usize = 4;

/// Splits a hot shard, or finishes a split that another process has begun. Its throttled
/// writes are retried until the end that splits have.
pub(super) async fn split_shard(
    table: &Table,
    split: &Split<'_>,
    limits: Limits<'_>,
    budget: &LogBudget,
) -> Result<Effect, FailureReason> {
    let mut newer: Option<Shard> = None;
    for _ in 0..SPLIT_TRIES {
        let image = newer.as_ref().unwrap_or(split.image);
        if image.escrow.is_some() {
            return finish_split(table, image, budget).await;
        }
        // The escrow, and then the new half, has the write id of its split.
        let op = weirgate_store::random_id();
        let Some(first) = split.first(image, op.clone(), limits.now()) else {
            return Ok(Effect::SplitLost);
        };
        let (is_applied, item) = match apply(table, &first, ReturnValues::AllNew).await? {
            WriteOutcome::Applied(item) => (true, item),
            WriteOutcome::ConditionFailed(item) => (false, item),
        };
        let Some(item) = item else {
            return Ok(Effect::SplitLost);
        };
        let shard = match item.bucket() {
            Ok(shard) => shard,
            Err(error) => return Ok(split_put_off(split, &error.to_string(), budget)),
        };
        let Some(escrow) = &shard.escrow else {
            if !split.is_wanted(&shard, limits.now()) {
                return Ok(Effect::SplitLost);
            }
            newer = Some(shard);
            continue;
        };
        // Also covers a split whose first response was lost, and which was then repeated.
        let is_ours = is_applied || escrow.last_write_id.as_ref() == Some(&op);
        let done = finish_split(table, &shard, budget).await?;
        return Ok(if is_ours { Effect::Split } else { done });
    }
    Ok(split_put_off(split, "other processes credited it first each time", budget))
}

/// Creates the new half of `parent`, and removes the escrow. If both were done before, another
/// process has finished the split.
async fn finish_split(
    table: &Table,
    parent: &Shard,
    budget: &LogBudget,
) -> Result<Effect, FailureReason> {
    let Some([make, clear]) = finish_writes(parent) else {
        return Ok(Effect::SplitLost);
    };
    if let WriteOutcome::ConditionFailed(Some(item)) =
        apply(table, &make, ReturnValues::None).await?
    {
        log_foreign_half(parent, &item, budget);
    }
    match apply(table, &clear, ReturnValues::None).await? {
        WriteOutcome::Applied(_) => Ok(Effect::Split),
        WriteOutcome::ConditionFailed(_) => Ok(Effect::SplitLost),
    }
}

/// Logs a half that existed before the split, which only a manual write can cause. It has its own
/// tokens, so its escrow is dropped.
fn log_foreign_half(parent: &Shard, item: &Item, budget: &LogBudget) {
    let (Some(half), Ok(there)) = (&parent.escrow, item.bucket()) else {
        return;
    };
    if there.write_seq < half.write_seq {
        let (shard, half) = (parent.key.item_key().pk, half.key.item_key().pk);
        if budget.allows(&shard, &[&shard, &half]) {
            tracing::error!(
                shard,
                half,
                "the new half of the shard was there before it was split, and is left as it is"
            );
        }
    }
}

/// Sends a repeatable write until it is decided. The partition of a hot shard throttles many
/// writes, but may accept the next one.
async fn apply(
    table: &Table,
    update: &Update,
    answer: ReturnValues,
) -> Result<WriteOutcome, StoreError> {
    loop {
        match table.update(update, answer).await {
            Err(error) if error.kind.is_transient() && error.kind != ErrorKind::ClockSkew => {
                tracing::debug!(%error, "split retries");
                tokio::time::sleep(Duration::from_micros(fastrand::u64(5_000..=20_000))).await;
            }
            result => return result,
        }
    }
}
