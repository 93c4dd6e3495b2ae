//! Runs planned writes concurrently until the time is up. Each one is safe to repeat.

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

/// Maximum number of plans for a copy. The first assumes no copy or one of the same life; the
/// second has read the snapshot. A further one means that two functions copy different lives of a
/// shard concurrently.
const COPY_TRIES: usize = 4;

/// Maximum number of plans for a split whose condition fails. Takes do not make it fail; refills
/// and changed limits do, and they are rare.
const SPLIT_TRIES: usize = 4;

/// Time for which throttled writes of a split are retried. The records of other buckets wait in the
/// meantime.
const SPLIT_PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a final copy with a throttled item is retried after all other writes.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum pause between two of these retries.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum bytes of one text in a log line.
const SHOWN: usize = 1024;

/// The effect of a planned write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The write copied usage.
    Copied,
    /// The snapshot has a newer copy, or this one.
    Superseded,
    /// An interim copy was put off: a later one includes it.
    CopyPutOff,
    /// The write credited refill to a shard.
    Refilled,
    /// Another process had credited the shard, or it needs no refill any more.
    RefillLost,
    /// The refill was put off. Clients compute refill themselves.
    RefillPutOff,
    /// The write split a hot shard.
    Split,
    /// Another process had split the shard, or the split is no longer needed.
    SplitLost,
    /// The split was put off. The shard stays hot, so the next batch tries again; this one need not
    /// wait.
    SplitPutOff,
    /// The item's content does not allow the write (it is full, or damaged), or its item stayed
    /// throttled. A log line has the write's content; no other records wait for it.
    Refused,
}

/// A write that failed or is unconfirmed.
#[derive(Debug)]
pub struct Failure {
    /// Index in the event of its first record.
    pub record: usize,
    /// Reason.
    pub why: Why,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// DynamoDB refused the write, or did not respond.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot cannot be read.
    #[error("the snapshot {} {} cannot be read: {error}", key.pk, key.sk)]
    Snapshot {
        /// Which.
        key: ItemKey,
        /// Decoding error.
        error: ItemError,
    },
    /// The snapshot has the maximum number of earlier lives, or of their limits.
    #[error("the snapshot {} {} has no room for another life of a shard", key.pk, key.sk)]
    Full {
        /// Which.
        key: ItemKey,
    },
    /// Other processes copied other lives of the shard at the same time.
    #[error("lost {COPY_TRIES} races for the snapshot")]
    Races,
    /// The invocation had no time left.
    #[error("no time left before the deadline")]
    OutOfTime,
}

impl Why {
    /// Returns whether the item's content prevents the write permanently.
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

    /// Returns whether the item's own key range, or a transaction on the item, prevented the write.
    /// Other items are written in the meantime.
    const fn is_of_item(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError {
                kind: ErrorKind::Throttled { key_range: true } | ErrorKind::Conflict,
                ..
            })
        )
    }

    /// Returns whether the same write may succeed later. Includes unknown responses, whose cause
    /// may pass too.
    fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind.is_transient() || error.kind == ErrorKind::Rejected,
            Self::OutOfTime | Self::Races => true,
            Self::Snapshot { .. } | Self::Full { .. } => false,
        }
    }
}

/// Bounds of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Maximum number of concurrent writes.
    pub concurrency: usize,
    /// Instant at which the invocation must end.
    pub stop: Instant,
    /// Records that are not redelivered for an item that stays throttled.
    pub old: &'a HashSet<usize>,
}

/// Runs all writes with this concurrency, and none past the end: writes in progress are then
/// dropped, and others fail at once. Copies of a shard to the same snapshot run in sequence,
/// because those of an earlier life must come first. Only a failed final copy fails a record,
/// because later records repeat all other writes.
///
/// A final copy whose own item is throttled waits for all other writes. If the item stays throttled
/// for [`PATIENCE`] after that, the record is redelivered. The copy of an old record is refused
/// instead, because a tenant can keep its snapshot throttled indefinitely.
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

/// Runs the writes of one sequence until one fails. Returns their effects, and the writes from the
/// first one whose own item is throttled.
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
            // One corrupt item must not block the stream shard: a retry would redeliver the records
            // of all tenants.
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

/// Returns sequences of writes, in which each waits for the one before it. Writes of a namespace
/// keep their order. Namespaces alternate, so that one with many writes does not delay the first
/// writes of the others.
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
        // Requires `rf`, so a second time has no effect.
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

/// Runs one copy, unless the snapshot has a newer one. `retry` must allow a second time.
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

/// Splits a hot shard, or finishes a split that another process has begun.
async fn make_two(table: &Table, split: &Split<'_>, budget: &LogBudget) -> Result<Effect, Why> {
    let until = Instant::now() + SPLIT_PATIENCE;
    let mut newer: Option<Shard> = None;
    for _ in 0..SPLIT_TRIES {
        let image = newer.as_ref().unwrap_or(split.image);
        if image.escrow.is_some() {
            return finish_split(table, image, until, budget).await;
        }
        // The escrow, and then the new half, has the write id of its split.
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
        // Also covers a split whose first response was lost, and which was then repeated.
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

/// Creates the new half of `parent`, and removes the escrow. If both were done before, another
/// process has finished the split.
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

/// Logs a half that existed before the split, which only a manual write can cause. It has its own
/// tokens, so its escrow is dropped.
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

/// Sends a repeatable write until it is decided. The partition of a hot shard throttles many
/// writes, but may accept the next one.
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
    // Large enough for the amounts of all limits of a bucket.
    let (what, why) = (shorten(&what, 4 * SHOWN), why.to_string());
    let why = shorten(&why, SHOWN);
    if budget.allows(&pk, &[&what, &why]) {
        // An alarm looks for this text.
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
