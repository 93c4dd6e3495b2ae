//! Runs planned writes side by side, each one safe to repeat, until the time is up.

use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};
use weirgate_shared::ItemError;
use weirgate_shared::write::Count;
use weirgate_store::{Answer, Outcome, Retry, StoreError, Table};

use crate::plan::{Kind, Write};

/// How often a count that loses a race plans anew. Who wins a race has counted something, so one more attempt than
/// there are others is always enough; more than a few others mean that something is wrong.
const RACES: usize = 16;

/// What became of a planned write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It added usage.
    Counted,
    /// All of its records had been counted before.
    AlreadyCounted,
    /// It credited a bucket.
    Refilled,
    /// Somebody else had credited the bucket, or nobody needs to any more.
    RefillLost,
}

/// A write that was not made, or perhaps not.
#[derive(Debug)]
pub struct Failure {
    /// Index in the event of the first record it stood for.
    pub record: usize,
    /// Why.
    pub why: Why,
}

/// Why a write was not made.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// DynamoDB refused it, or did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot does not say how far it has counted.
    #[error("the snapshot cannot be read: {0}")]
    Snapshot(#[from] ItemError),
    /// Others kept writing to the same snapshot.
    #[error("lost {RACES} races for the snapshot")]
    Races,
    /// The invocation was about to end.
    #[error("no time left before the deadline")]
    OutOfTime,
}

/// Runs all writes, `concurrency` at a time, and none past `stop`: what is under way then is given up, what has not
/// started fails at once.
pub async fn execute(
    table: &Table,
    writes: &[Write<'_>],
    concurrency: usize,
    stop: Instant,
) -> Vec<Result<Effect, Failure>> {
    let run = async |write: &Write<'_>| {
        let result = if Instant::now() >= stop {
            Err(Why::OutOfTime)
        } else {
            timeout_at(stop, run(table, write)).await.unwrap_or(Err(Why::OutOfTime))
        };
        result.map_err(|why| Failure { record: write.record, why })
    };
    futures_util::stream::iter(writes).map(run).buffer_unordered(concurrency).collect().await
}

async fn run(table: &Table, write: &Write<'_>) -> Result<Effect, Why> {
    match &write.kind {
        Kind::Count(count) => add(table, count).await,
        // Conditional on `rf`, so a second time does nothing.
        Kind::Refill(update) => match table.update_with(update, Answer::Nothing, Retry::Unknown).await? {
            Outcome::Applied(_) => Ok(Effect::Refilled),
            Outcome::LostRace(_) => Ok(Effect::RefillLost),
        },
    }
}

async fn add(table: &Table, count: &Count<'_>) -> Result<Effect, Why> {
    // Conditional on `q`, so a second time is told that it was counted; without a span, a write that may have been made
    // is not made again here, but its records come again.
    let retry = if count.is_exact() { Retry::Unknown } else { Retry::Refused };
    let mut update = count.next();
    for _ in 0..RACES {
        let Outcome::LostRace(old) = table.update_with(&update, Answer::Nothing, retry).await? else {
            return Ok(Effect::Counted);
        };
        let counted = old.map_or_else(|| Ok(Default::default()), |snapshot| snapshot.counted(count.shard))?;
        match count.rest(&counted) {
            Some(rest) => update = rest,
            None => return Ok(Effect::AlreadyCounted),
        }
    }
    Err(Why::Races)
}
