//! Expired leases of one due shard: plans the write, sends it, plans again after a failed condition.

use weirgate_runtime::LogBudget;
use weirgate_shared::write::{self, ExpiredLeases, Update, expire, sample};
use weirgate_shared::{EpochMillis, ItemKey, Shard};
use weirgate_store::{ErrorKind, RetryPolicy, ReturnValues, StoreError, Table, WriteOutcome};

use crate::read;

/// Maximum number of attempts for one shard. More failed conditions mean a busy shard, whose
/// clients reclaim expired leases themselves.
const TRIES: u32 = 4;

/// A write, and the tokens of expired leases that it returns.
pub type Planned = (Update, ExpiredLeases);

/// Returns the write for `shard` at `now`. `None` if the index was behind, or another process has
/// done the work.
#[must_use]
pub fn plan(shard: &Shard, now: EpochMillis) -> Option<Planned> {
    let is_due = shard.due_at.is_some_and(|due| due <= now);
    is_due.then(|| expire(shard, now)).flatten()
}

/// Returns the write for `shard`, one of several, when its bucket is reviewed at `now`: [`plan`],
/// with a new activity sample.
#[must_use]
pub fn plan_sample(shard: &Shard, now: EpochMillis) -> Option<Planned> {
    if shard.shard().count == 1 || shard.scaling.sample.is_some_and(|sample| sample.at >= now) {
        return plan(shard, now);
    }
    Some(sample(shard, now))
}

/// Returns whether a write planned for `seen`, whose response was lost, was applied before `found`.
///
/// The write raises `due` or removes it, and a take can only lower it. That distinguishes the
/// write from a take that reclaimed the same leases, even after later writes. Two cases remain:
/// the same write by an overlapping run, and a client that found more expired leases than one take
/// reclaims. Then both report it. Only the report is wrong; the tokens are returned once.
#[must_use]
pub fn was_applied(seen: &Shard, found: &Shard) -> bool {
    let is_raised = |due| seen.due_at.is_some_and(|seen| due > seen);
    found.due_at.is_none_or(is_raised)
}

/// The outcome of one due shard.
#[derive(Debug)]
pub enum Done {
    /// This run wrote it, and returned these tokens.
    Written(ExpiredLeases),
    /// There was no work, or the shard is gone.
    Nothing,
    /// Other processes wrote to it first in each attempt; it is still due.
    LostRace,
    /// No other process wrote to it, and its conditions still fail: its content prevents the write.
    Stuck,
    /// It cannot be read.
    Undecodable,
}

/// Runs the write of `plan` for a shard, and plans again if another process wrote first.
///
/// An unconfirmed write is not repeated blindly: it would fail against itself, and no report would
/// include the tokens it returned. Instead, the item tells whether it was applied.
///
/// # Errors
/// [`StoreError`] if DynamoDB refused or could not be reached; the shard is still due then, or was
/// written without confirmation.
pub async fn settle(
    table: &Table,
    budget: &LogBudget,
    mut image: Shard,
    plan: impl Fn(&Shard) -> Option<Planned>,
) -> Result<Done, StoreError> {
    let mut unconfirmed = None;
    for _ in 0..TRIES {
        let Some((update, restored)) = plan(&image) else {
            return Ok(Done::Nothing);
        };
        let item =
            match table.update_with(&update, ReturnValues::None, RetryPolicy::IfNotApplied).await {
                // At most one of the writes sent from one `v` is applied.
                Ok(WriteOutcome::Applied(_)) => return Ok(Done::Written(restored)),
                Ok(WriteOutcome::ConditionFailed(item)) => item,
                Err(error) if error.kind == ErrorKind::Unconfirmed => {
                    unconfirmed = Some(error);
                    table.read(&[update.key]).await?.pop()
                }
                Err(error) => return Err(error),
            };
        let Some(item) = item else {
            return Ok(Done::Nothing);
        };
        let Some(next) = read::bucket(&item, budget) else {
            return Ok(Done::Undecodable);
        };
        if unconfirmed.is_none() && next == image {
            return Ok(Done::Stuck);
        }
        // With the same `v`, it may still arrive.
        let is_decided = next.write_seq != image.write_seq;
        if is_decided && unconfirmed.take().is_some() && was_applied(&image, &next) {
            return Ok(Done::Written(restored));
        }
        image = next;
    }
    unconfirmed.map_or(Ok(Done::LostRace), Err)
}

/// Postpones an item that cannot be processed by an hour. Removes an item without room for that
/// from the index. Returns whether it was still due.
///
/// # Errors
/// [`StoreError`] if the item could not be written; it is still due then.
pub async fn postpone(table: &Table, key: &ItemKey, now: EpochMillis) -> Result<bool, StoreError> {
    // The item may have any size, so it is not requested.
    let send = async |update| {
        table.update_with(&update, ReturnValues::Never, RetryPolicy::AlsoUnconfirmed).await
    };
    let sent = match send(write::postpone(key, now)).await {
        Err(error) if error.kind == ErrorKind::Invalid => send(write::forget_due(key, now)).await,
        sent => sent,
    };
    sent.map(|outcome| matches!(outcome, WriteOutcome::Applied(_)))
}
