//! Runs what is planned for one bucket shard, and goes on from what it meets.

use weirgate_runtime::LogBudget;
use weirgate_shared::write::{self, ExpiredLeases};
use weirgate_shared::{EpochMillis, ItemKey, Shard};
use weirgate_store::{ErrorKind, RetryPolicy, ReturnValues, StoreError, Table, WriteOutcome};

use crate::plan::{Fate, Plan, Planned};
use crate::read;

/// How often one bucket is tried. Whoever loses this often meets a bucket that is in use, whose
/// callers take back expired leases themselves when they need them.
const TRIES: u32 = 4;

/// What became of one due bucket.
#[derive(Debug)]
pub enum Done {
    /// This run wrote it, and gave this back.
    Written(ExpiredLeases),
    /// Nothing was to be done, or it is gone.
    Nothing,
    /// Others wrote to it each time first; it is still due.
    LostRace,
    /// Nothing was written to it, and still its conditions do not hold: what it holds keeps it from
    /// being written.
    Stuck,
    /// It cannot be read.
    Undecodable,
}

/// Does what `plan` says about a bucket shard, and plans again from what it is when somebody else
/// was faster.
///
/// A lost answer is not repeated blindly: the write would only lose its race against itself, and
/// what it gave back would be in nobody's report. The item tells whether it was applied.
///
/// # Errors
/// [`StoreError`] if DynamoDB refused or could not be reached; the bucket is still due then, or was
/// written without anybody knowing.
pub async fn settle(
    table: &Table,
    budget: &LogBudget,
    mut image: Shard,
    plan: impl Fn(&Shard) -> Plan,
) -> Result<Done, StoreError> {
    let (mut unsure, mut lost): (Option<Planned>, _) = (None, None);
    for _ in 0..TRIES {
        let planned = match plan(&image) {
            Plan::Write(planned) => planned,
            Plan::Nothing => return Ok(Done::Nothing),
        };
        let item = match table
            .update_with(
                &planned.update,
                ReturnValues::None,
                RetryPolicy::IfNotApplied,
            )
            .await
        {
            // At most one of the writes that were sent from one `v` is applied, and they all give
            // the same back.
            Ok(WriteOutcome::Applied(_)) => return Ok(Done::Written(planned.restored)),
            Ok(WriteOutcome::ConditionFailed(item)) => {
                lost = None;
                item
            }
            Err(error) if error.kind == ErrorKind::Unconfirmed => {
                let item = table
                    .read(std::slice::from_ref(&planned.update.key))
                    .await?
                    .pop();
                (unsure, lost) = (Some(planned), Some(error));
                item
            }
            Err(error) => return Err(error),
        };
        let Some(item) = item else {
            return Ok(Done::Nothing);
        };
        let Some(next) = read::bucket(&item, budget) else {
            return Ok(Done::Undecodable);
        };
        if unsure.is_none() && next == image {
            return Ok(Done::Stuck);
        }
        image = next;
        if let Some(sent) = unsure.take() {
            match sent.fate(&image) {
                Fate::Applied => return Ok(Done::Written(sent.restored)),
                Fate::Open => unsure = Some(sent),
                Fate::Never => {}
            }
        }
    }
    lost.map_or(Ok(Done::LostRace), Err)
}

/// Has an item, about which nothing can be done now, not come back for an hour. One that has no
/// room for that leaves the index. Returns whether it was still due.
///
/// # Errors
/// [`StoreError`] if the item could not be written; it is still due then.
pub async fn postpone(table: &Table, key: &ItemKey, now: EpochMillis) -> Result<bool, StoreError> {
    // It may be of any size, so it is not asked for.
    let send = async |update| {
        table
            .update_with(&update, ReturnValues::Never, RetryPolicy::AlsoUnconfirmed)
            .await
    };
    let sent = match send(write::postpone(key, now)).await {
        Err(error) if error.kind == ErrorKind::Invalid => send(write::forget_due(key, now)).await,
        sent => sent,
    };
    sent.map(|outcome| matches!(outcome, WriteOutcome::Applied(_)))
}
