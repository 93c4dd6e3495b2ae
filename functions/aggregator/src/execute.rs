//! Runs planned writes side by side, each one safe to repeat, until the time is up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate_runtime::{LogBudget, shorten};
use weirgate_shared::write::{Update, UsageCopy, finish_writes};
use weirgate_shared::{ItemError, ItemKey, Shard, Snapshot};
use weirgate_store::{ErrorKind, Item, RetryPolicy, ReturnValues, StoreError, Table, WriteOutcome};

use crate::plan::{Kind, Write};
use crate::split::Split;

/// How often a copy is planned. The first finds no copy, or one of the same life; the second knows
/// what is there. Another one means that two functions copy different lives of a shard at once.
const COPY_TRIES: usize = 4;

/// How often a split that loses a race plans anew. Takes do not make it lose; credits and other
/// limits do, and they are rare.
const SPLIT_TRIES: usize = 4;

/// For how long the writes of a split are tried while DynamoDB refuses them. The records of other
/// buckets wait meanwhile.
const SPLIT_PATIENCE: Duration = Duration::from_secs(2);

/// How long a final copy is tried again whose own item is throttled, once all other writes had
/// their turn.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause between two of these tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a log line that one text may take.
const SHOWN: usize = 1024;

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
    /// The shard could not be split this time. It stays hot, so the next batch asks again; this one
    /// need not wait.
    SplitPutOff,
    /// It cannot be made for what its item holds (somebody has filled it, or written into it), or
    /// because its item stayed throttled. A line of the log has what it was to do; no other records
    /// wait for it.
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
    /// The snapshot has as many earlier lives, or limits of them, as one may have.
    #[error("the snapshot {} {} has no room for another life of a shard", key.pk, key.sk)]
    Full {
        /// Which.
        key: ItemKey,
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
        let is_invalid = matches!(
            self,
            Self::Store(StoreError {
                kind: ErrorKind::Invalid,
                ..
            })
        );
        is_invalid || matches!(self, Self::Snapshot { .. } | Self::Full { .. })
    }

    /// Whether it was the item's own key range, or a transaction on the item, that kept the write
    /// from being made. Other items are written meanwhile.
    const fn is_of_item(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError {
                kind: ErrorKind::Throttled { key_range: true } | ErrorKind::Conflict,
                ..
            })
        )
    }

    /// Whether the same write may succeed later. What DynamoDB means by an answer that is not known
    /// may change, too.
    fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient() || error.kind == ErrorKind::Rejected,
            Self::OutOfTime | Self::Races => true,
            Self::Snapshot { .. } | Self::Full { .. } => false,
        }
    }
}

/// How far a batch may go.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Writes at a time.
    pub concurrency: usize,
    /// When the invocation must end.
    pub stop: Instant,
    /// Records that do not come again for an item that stays throttled.
    pub old: &'a HashSet<usize>,
}

/// Runs all writes, so many at a time, and none past the end: what is under way then is given
/// up, what has not started fails at once. Copies of a shard to the same snapshot are made one
/// after the other, because those of an earlier life must come first. Only a failed final copy
/// fails a record: everything else is made again by later records anyway.
///
/// A final copy whose own item is throttled waits until all other writes had their turn. If the
/// item stays throttled for [`PATIENCE`] after that, the record comes again; the copy of an old
/// record is refused instead, because a tenant can keep its snapshot throttled indefinitely.
pub async fn execute(
    table: &Table,
    writes: &[Write<'_>],
    limits: Limits<'_>,
    budget: &LogBudget,
) -> Vec<Result<Effect, Failure>> {
    let (mut results, mut patience) = (vec![], None);
    let mut turns = in_turns(writes);
    while !turns.is_empty() {
        let is_over = patience.is_some_and(|until| Instant::now() >= until);
        let run_all = async |turn: Vec<_>| run_all(table, turn, limits, is_over, budget).await;
        let mut all = futures_util::stream::iter(std::mem::take(&mut turns))
            .map(run_all)
            .buffer_unordered(limits.concurrency);
        while let Some((done, throttled)) = all.next().await {
            results.extend(done);
            turns.extend((!throttled.is_empty()).then_some(throttled));
        }
        patience.get_or_insert_with(|| Instant::now() + PATIENCE);
        if !turns.is_empty() {
            sleep_until((Instant::now() + PAUSE.mul_f64(fastrand::f64())).min(limits.stop)).await;
        }
    }
    results
}

/// Runs the writes of one turn, until one fails. Returns what became of them, and those from the
/// one on whose own item is throttled.
async fn run_all<'a, 'w>(
    table: &Table,
    turn: Vec<&'a Write<'w>>,
    Limits { stop, old, .. }: Limits<'_>,
    is_over: bool,
    budget: &LogBudget,
) -> (Vec<Result<Effect, Failure>>, Vec<&'a Write<'w>>) {
    let mut results = vec![];
    for (at, write) in turn.iter().enumerate() {
        let result = if Instant::now() >= stop {
            Err(Why::OutOfTime)
        } else {
            timeout_at(stop, run(table, write, budget))
                .await
                .unwrap_or(Err(Why::OutOfTime))
        };
        let result = match (&write.kind, result) {
            (Kind::Split(split), Err(why)) if why.may_pass() => {
                Ok(put_off(split, &why.to_string(), budget))
            }
            (Kind::Refill(_), Err(why)) if why.may_pass() => Ok(Effect::RefillPutOff),
            (Kind::Copy(copy), Err(why)) if why.may_pass() && !copy.is_final => {
                Ok(Effect::CopyPutOff)
            }
            // A tenant that may write an item may spoil it, and the records of all others would
            // come again with its own.
            (kind, Err(why))
                if why.is_lasting()
                    || is_over && why.is_of_item() && old.contains(&write.record) =>
            {
                Ok(refused(kind, &why, budget))
            }
            (_, Err(why)) if why.is_of_item() && !is_over => return (results, turn[at..].to_vec()),
            (_, result) => result,
        };
        let is_failed = result.is_err();
        results.push(result.map_err(|why| Failure {
            record: write.record,
            why,
        }));
        if is_failed {
            break;
        }
    }
    (results, vec![])
}

/// The writes of which each must wait for the one before it. Those of a namespace keep their order;
/// between namespaces they alternate, so that one with many writes comes after the first ones of
/// all others.
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
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let ranked = turns.into_iter().map(|turn| {
        let rank = counts.entry(turn[0].kind.namespace()).or_default();
        *rank += 1;
        (*rank, turn)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, turn)| turn).collect()
}

impl Kind<'_> {
    fn namespace(&self) -> &str {
        match self {
            Self::Copy(copy) => copy.key.namespace.as_str(),
            Self::Refill(update) => update.key.pk.split('/').next().unwrap_or_default(),
            Self::Split(split) => split.image.key.namespace.as_str(),
        }
    }
}

async fn run(table: &Table, write: &Write<'_>, budget: &LogBudget) -> Result<Effect, Why> {
    match &write.kind {
        Kind::Copy(copy) => run_copy(table, copy, RetryPolicy::Elsewhere).await,
        // Conditional on `rf`, so a second time does nothing.
        Kind::Refill(update) => match table
            .update_with(update, ReturnValues::None, RetryPolicy::AlsoUnconfirmed)
            .await?
        {
            WriteOutcome::Applied(_) => Ok(Effect::Refilled),
            WriteOutcome::ConditionFailed(_) => Ok(Effect::RefillLost),
        },
        Kind::Split(split) => make_two(table, split, budget).await,
    }
}

/// Makes one copy, unless the snapshot has a newer one. `retry` must allow a second time.
///
/// # Errors
/// [`Why`] it was not made, or perhaps not; it can be made again.
pub async fn run_copy(table: &Table, copy: &UsageCopy, retry: RetryPolicy) -> Result<Effect, Why> {
    let mut update = copy.first();
    for _ in 0..COPY_TRIES {
        let WriteOutcome::ConditionFailed(item) = table
            .update_with(&update, ReturnValues::None, retry)
            .await?
        else {
            return Ok(Effect::Copied);
        };
        let unreadable = |error| Why::Snapshot {
            key: copy.key.item_key(),
            error,
        };
        let seen = item
            .map_or_else(|| Ok(Snapshot::default()), |item| item.snapshot())
            .map_err(unreadable)?;
        match copy.after(&seen) {
            Some(_) if !copy.fits(&seen) => {
                return Err(Why::Full {
                    key: copy.key.item_key(),
                });
            }
            Some(next) => update = next,
            None => return Ok(Effect::Superseded),
        }
    }
    Err(Why::Races)
}

/// Makes two of a hot shard, or finishes what another process has begun of it.
async fn make_two(table: &Table, split: &Split<'_>, budget: &LogBudget) -> Result<Effect, Why> {
    let until = Instant::now() + SPLIT_PATIENCE;
    let mut newer: Option<Shard> = None;
    for _ in 0..SPLIT_TRIES {
        let image = newer.as_ref().unwrap_or(split.image);
        if image.escrow.is_some() {
            return finish_split(table, image, until, budget).await;
        }
        // The escrow, and then the new half, carries the id of its split.
        let op = weirgate_store::random_id();
        let Some(first) = split.first(image, op.clone()) else {
            return Ok(Effect::SplitLost);
        };
        let (is_applied, item) = match insist(table, &first, ReturnValues::AllNew, until).await? {
            WriteOutcome::Applied(item) => (true, item),
            WriteOutcome::ConditionFailed(item) => (false, item),
        };
        let Some(item) = item else {
            return Ok(Effect::SplitLost);
        };
        let shard = match item.bucket() {
            Ok(shard) => shard,
            Err(error) => return Ok(put_off(split, &error.to_string(), budget)),
        };
        let Some(escrow) = &shard.escrow else {
            if !split.is_wanted(&shard) {
                return Ok(Effect::SplitLost);
            }
            newer = Some(shard);
            continue;
        };
        // Also where an answer was lost, and this one is of the same write once more.
        let is_ours = is_applied || escrow.last_write_id.as_ref() == Some(&op);
        let done = finish_split(table, &shard, until, budget).await?;
        return Ok(if is_ours { Effect::Split } else { done });
    }
    Ok(put_off(
        split,
        "it was credited by others each time first",
        budget,
    ))
}

/// Makes the new half of `parent`, and removes the escrow. If both were done before, another
/// process has split it.
async fn finish_split(
    table: &Table,
    parent: &Shard,
    until: Instant,
    budget: &LogBudget,
) -> Result<Effect, Why> {
    let Some([make, clear]) = finish_writes(parent) else {
        return Ok(Effect::SplitLost);
    };
    if let WriteOutcome::ConditionFailed(Some(item)) =
        insist(table, &make, ReturnValues::None, until).await?
    {
        tell_foreign(parent, &item, budget);
    }
    match insist(table, &clear, ReturnValues::None, until).await? {
        WriteOutcome::Applied(_) => Ok(Effect::Split),
        WriteOutcome::ConditionFailed(_) => Ok(Effect::SplitLost),
    }
}

/// Names a half that was there before the split. Nothing but a hand makes one of a shard that was
/// not split; it has its own tokens, so what was put aside for it is dropped.
fn tell_foreign(parent: &Shard, item: &Item, budget: &LogBudget) {
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

/// Sends a write that can be repeated until it is decided: the partition of a hot shard refuses
/// many, and the next one may be taken.
async fn insist(
    table: &Table,
    update: &Update,
    answer: ReturnValues,
    until: Instant,
) -> Result<WriteOutcome, StoreError> {
    loop {
        match table.update(update, answer).await {
            Err(error)
                if error.kind.is_transient()
                    && error.kind != ErrorKind::ClockSkew
                    && Instant::now() < until =>
            {
                tracing::debug!(%error, "a split tries again");
                tokio::time::sleep(Duration::from_micros(fastrand::u64(5_000..=20_000))).await;
            }
            result => return result,
        }
    }
}

fn refused(kind: &Kind<'_>, why: &Why, budget: &LogBudget) -> Effect {
    let (what, pk) = match kind {
        Kind::Copy(copy) => (copy.to_string(), copy.key.item_key().pk),
        Kind::Refill(update) => (
            format!("refill of {}", update.key.pk),
            update.key.pk.clone(),
        ),
        Kind::Split(split) => {
            let pk = split.image.key.item_key().pk;
            (format!("split of {pk}"), pk)
        }
    };
    // With the amounts of all limits that a bucket can have.
    let (what, why) = (shorten(&what, 4 * SHOWN), why.to_string());
    let why = shorten(&why, SHOWN);
    if budget.allows(&pk, &[&what, &why]) {
        // The text that an alarm looks for.
        tracing::error!(%what, %why, "refused write");
    }
    Effect::Refused
}

fn put_off(split: &Split<'_>, why: &str, budget: &LogBudget) -> Effect {
    let (shard, why) = (split.image.key.item_key().pk, shorten(why, SHOWN));
    if budget.allows(&shard, &[&shard, &why]) {
        tracing::warn!(shard, %why, "a hot shard could not be split this time");
    }
    Effect::SplitPutOff
}
