//! Runs planned writes side by side, each one safe to repeat, until the time is up.

use std::collections::HashMap;

use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};
use weirgate_shared::write::Copy;
use weirgate_shared::{Bucket, ItemError, ItemKey, Snapshot};
use weirgate_store::{Answer, ErrorKind, Outcome, Part, Retry, StoreError, Table, Transacted};

use crate::plan::{Kind, Write};
use crate::split::Split;

/// How often a copy is planned. The first finds no copy, or one of the same life; the second knows what is there. Another
/// one means that two functions copy different lives of a shard at once.
const COPY_TRIES: usize = 4;

/// How often a split that loses a race plans anew. Takes do not make it lose; credits and other limits do, and they are
/// rare.
const SPLIT_TRIES: usize = 4;

/// What became of a planned write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It copied usage.
    Copied,
    /// The snapshot has a newer copy, or this one.
    Superseded,
    /// An interim copy that was not made this time: a later one says as much.
    CopyPutOff,
    /// It credited a bucket.
    Refilled,
    /// Another process had credited the bucket, or it needs no credit any more.
    RefillLost,
    /// The bucket could not be credited this time. Callers find what flowed in by themselves.
    RefillPutOff,
    /// It made two of a hot shard.
    Split,
    /// Somebody else had split the shard, or nobody needs to any more.
    SplitLost,
    /// The shard could not be split this time. It stays hot, so the next batch asks again; this one need not wait.
    SplitPutOff,
    /// It cannot be made, now or later, for what its item holds: somebody has filled it, or written into it. A line of the
    /// log has what it was to do; nobody else's records wait for it.
    Refused,
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
    /// The snapshot does not say what it has copied.
    #[error("the snapshot {} {} cannot be read: {error}", key.pk, key.sk)]
    Snapshot {
        /// Which.
        key: ItemKey,
        /// What is wrong with it.
        error: ItemError,
    },
    /// Others copied other lives of the shard at the same time.
    #[error("lost {COPY_TRIES} races for the snapshot")]
    Races,
    /// The invocation was about to end.
    #[error("no time left before the deadline")]
    OutOfTime,
}

impl Why {
    /// Whether what the item holds keeps the write from being made, also later.
    const fn is_lasting(&self) -> bool {
        matches!(self, Self::Snapshot { .. } | Self::Store(StoreError { kind: ErrorKind::Invalid, .. }))
    }

    /// Whether the same write may succeed later. What DynamoDB means by an answer that is not known may change, too.
    fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient() || error.kind == ErrorKind::Rejected,
            Self::OutOfTime | Self::Races => true,
            Self::Snapshot { .. } => false,
        }
    }
}

/// Runs all writes, `concurrency` at a time, and none past `stop`: what is under way then is given up, what has not
/// started fails at once. Copies of a shard to the same snapshot are made one after the other, because those of an earlier
/// life must come first. Only a failed final copy fails a record: everything else is made again by later records anyway.
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
        let result = match (&write.kind, result) {
            (Kind::Split(split), Err(why)) if why.may_pass() => Ok(put_off(split, &why.to_string())),
            (Kind::Refill(_), Err(why)) if why.may_pass() => Ok(Effect::RefillPutOff),
            (Kind::Copy(copy), Err(why)) if why.may_pass() && !copy.is_final => Ok(Effect::CopyPutOff),
            // A tenant that may write an item may spoil it, and the records of all others would come again with its own.
            (kind, Err(why)) if why.is_lasting() => Ok(refused(kind, &why)),
            (_, result) => result,
        };
        result.map_err(|why| Failure { record: write.record, why })
    };
    let run_all = async |writes: Vec<&Write<'_>>| {
        let mut results = vec![];
        for write in writes {
            results.push(run(write).await);
            if results.last().is_some_and(Result::is_err) {
                break;
            }
        }
        results
    };
    let results = futures_util::stream::iter(in_turns(writes)).map(run_all).buffer_unordered(concurrency);
    results.map(futures_util::stream::iter).flatten().collect().await
}

/// The writes of which each must wait for the one before it.
fn in_turns<'a, 'w>(writes: &'a [Write<'w>]) -> Vec<Vec<&'a Write<'w>>> {
    let mut places = HashMap::new();
    let mut turns: Vec<Vec<_>> = Vec::with_capacity(writes.len());
    for write in writes {
        let place = match &write.kind {
            Kind::Copy(copy) => *places.entry((&copy.key, copy.shard)).or_insert(turns.len()),
            Kind::Refill(_) | Kind::Split(_) => turns.len(),
        };
        match turns.get_mut(place) {
            Some(turn) => turn.push(write),
            None => turns.push(vec![write]),
        }
    }
    turns
}

async fn run(table: &Table, write: &Write<'_>) -> Result<Effect, Why> {
    match &write.kind {
        Kind::Copy(copy) => run_copy(table, copy).await,
        // Conditional on `rf`, so a second time does nothing.
        Kind::Refill(update) => match table.update_with(update, Answer::Nothing, Retry::Unknown).await? {
            Outcome::Applied(_) => Ok(Effect::Refilled),
            Outcome::LostRace(_) => Ok(Effect::RefillLost),
        },
        Kind::Split(split) => make_two(table, split).await,
    }
}

/// Makes one copy, unless the snapshot has a newer one.
///
/// # Errors
/// [`Why`] it was not made, or perhaps not; it can be made again.
pub async fn run_copy(table: &Table, copy: &Copy) -> Result<Effect, Why> {
    let mut update = copy.first();
    for _ in 0..COPY_TRIES {
        let Outcome::LostRace(item) = table.update_with(&update, Answer::Nothing, Retry::Unknown).await? else {
            return Ok(Effect::Copied);
        };
        let unreadable = |error| Why::Snapshot { key: copy.key.item_key(), error };
        let seen = item.map_or_else(|| Ok(Snapshot::default()), |item| item.snapshot()).map_err(unreadable)?;
        match copy.after(&seen) {
            Some(next) => update = next,
            None => return Ok(Effect::Superseded),
        }
    }
    Err(Why::Races)
}

async fn make_two(table: &Table, split: &Split<'_>) -> Result<Effect, Why> {
    let mut newer: Option<Bucket> = None;
    for _ in 0..SPLIT_TRIES {
        let image = newer.as_ref().unwrap_or(split.image);
        // The new half carries the id of its transaction.
        let op = weirgate_store::random_id();
        let Some(actions) = split.actions(image, op.clone()) else { return Ok(Effect::SplitLost) };
        let Transacted::LostRace(parts) = table.transact_with(&actions, &op, Retry::Unknown).await? else {
            return Ok(Effect::Split);
        };
        let item = match parts.into_iter().next() {
            Some(Part::Lost(Some(item))) => item,
            Some(Part::Lost(None)) => return Ok(Effect::SplitLost),
            // Then it was the new half. Nothing but a hand makes one of a shard that was not split.
            Some(Part::Held) | None => {
                let (shard, half) = (&image.key, image.key.with_shard(image.shard().halves().1.index));
                let (shard, half) = (shard.item_key().pk, half.item_key().pk);
                tracing::error!(shard, half, "the shard cannot be split, as its new half is there");
                return Ok(Effect::SplitLost);
            }
        };
        match item.bucket() {
            Ok(bucket) if !split.is_wanted(&bucket) => return Ok(Effect::SplitLost),
            Ok(bucket) => newer = Some(bucket),
            Err(error) => return Ok(put_off(split, &error.to_string())),
        }
    }
    Ok(put_off(split, "it was credited by others each time first"))
}

fn refused(kind: &Kind<'_>, why: &Why) -> Effect {
    let what = match kind {
        Kind::Copy(copy) => copy.to_string(),
        Kind::Refill(update) => format!("refill of {}", update.key.pk),
        Kind::Split(split) => format!("split of {}", split.image.key.item_key().pk),
    };
    // The text that an alarm looks for.
    tracing::error!(what, %why, "refused write");
    Effect::Refused
}

fn put_off(split: &Split<'_>, why: &str) -> Effect {
    let shard = split.image.key.item_key().pk;
    tracing::warn!(shard, why, "a hot shard could not be split this time");
    Effect::SplitPutOff
}
