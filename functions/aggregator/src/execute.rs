//! Runs planned writes concurrently until the time is up. Each one is safe to repeat.

mod copy;
mod effect;
mod failure;
mod limits;
mod split;
mod throttles;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate_runtime::LogBudget;
use weirgate_shared::SnapshotKey;
use weirgate_store::{RetryPolicy, ReturnValues, Table, WriteOutcome};

use crate::plan::{Write, WriteKind};
use effect::{Refusals, put_off, split_made};
use split::split_shard;

pub use copy::run_copy;
pub use effect::Effect;
pub use failure::{Failure, FailureReason};
pub use limits::Limits;
pub use throttles::{ENOUGH, Throttles};

/// Time for which a required copy with a throttled item is retried after all other writes.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Time for which throttled writes of all splits of a batch are retried. The next batch waits in the
/// meantime.
const SPLIT_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum pause between two of these retries.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs all writes with this concurrency, and none past the end: writes in progress are then
/// dropped, and others fail at once. Copies of a shard run in sequence, because those of an earlier
/// life must come first, and those of hours before those of days. Only a required copy fails a
/// record, because later records repeat all other writes.
///
/// A required copy whose own item is throttled waits for all other writes. If the item stays throttled
/// for [`PATIENCE`] after that, the record is redelivered. The copy of an old record is refused
/// instead, if the item stayed throttled in [`ENOUGH`] invocations in a row: a tenant can keep its
/// snapshot throttled indefinitely. Refusals are logged in the order of the records. So throttled copies
/// that the log has no room for have it when Lambda resumes at the first one.
///
/// Splits come after all other writes, so that no copy waits for a throttled split.
pub async fn execute(
    table: &Table,
    writes: &[Write<'_>],
    limits: Limits<'_>,
    budget: &LogBudget,
) -> Vec<Result<Effect, Failure>> {
    let (mut results, mut refused, mut patience) = (vec![], vec![], None);
    let is_split = |write: &&Write<'_>| matches!(write.kind, WriteKind::Split(_));
    let mut waiting = sequences(writes.iter().filter(|write| !is_split(write)));
    while !waiting.is_empty() {
        let is_over = patience.is_some_and(|until| Instant::now() >= until);
        let run_one =
            async |sequence: Vec<_>| run_sequence(table, sequence, limits, is_over, budget).await;
        let mut all = futures_util::stream::iter(std::mem::take(&mut waiting))
            .map(run_one)
            .buffer_unordered(limits.concurrency);
        while let Some(done) = all.next().await {
            results.extend(done.results);
            refused.extend(done.refused);
            waiting.extend((!done.throttled.is_empty()).then_some(done.throttled));
        }
        patience.get_or_insert_with(|| Instant::now() + PATIENCE);
        if !waiting.is_empty() {
            sleep_until((Instant::now() + PAUSE.mul_f64(fastrand::f64())).min(limits.stop)).await;
        }
    }
    refused.sort_by_key(|(write, _)| write.record);
    let mut refusals = Refusals::new(budget);
    let mut refuse = |(write, reason)| refusals.refuse(write, reason);
    results.extend(refused.into_iter().map(&mut refuse));
    let limits = Limits { stop: limits.stop.min(Instant::now() + SPLIT_PATIENCE), ..limits };
    let run_one = async |sequence| run_sequence(table, sequence, limits, true, budget).await;
    let mut splits = futures_util::stream::iter(sequences(writes.iter().filter(is_split)))
        .map(run_one)
        .buffer_unordered(limits.concurrency);
    while let Some(done) = splits.next().await {
        results.extend(done.results);
        results.extend(done.refused.into_iter().map(&mut refuse));
    }
    refusals.log_left_out();
    results
}

/// What became of the writes of a sequence.
#[derive(Default)]
struct Done<'a, 'w> {
    results: Vec<Result<Effect, Failure>>,
    /// Writes to refuse, each with the reason.
    refused: Vec<(&'a Write<'w>, FailureReason)>,
    /// The writes from the first one whose own item is throttled.
    throttled: Vec<&'a Write<'w>>,
}

/// Runs the writes of one sequence until one fails.
async fn run_sequence<'a, 'w>(
    table: &Table,
    sequence: Vec<&'a Write<'w>>,
    limits: Limits<'_>,
    is_over: bool,
    budget: &LogBudget,
) -> Done<'a, 'w> {
    let (mut done, mut made) = (Done::default(), 0);
    for (at, write) in sequence.iter().enumerate() {
        let reason = match run_in_time(table, write, limits, budget).await {
            Ok(effect) => {
                done.results.push(Ok(effect));
                made += 1;
                continue;
            }
            Err(reason) => reason,
        };
        match handling(write, &reason, is_over, limits) {
            Handling::PutOff => {
                done.results.push(Ok(put_off(&write.kind, &reason, budget)));
                // What later records repeat is not counted.
                made += 1;
            }
            Handling::Refuse => done.refused.push((write, reason)),
            Handling::RunAgain => {
                done.throttled = sequence[at..].to_vec();
                break;
            }
            Handling::Fail => {
                // The writes that follow are not run either.
                let records = sequence[at..].iter().map(|write| write.record);
                let record = records.min().unwrap_or(write.record);
                done.results.push(Err(Failure { record, reason }));
                break;
            }
        }
    }
    // Each window has an item of its own, so one copy says nothing of the others.
    if let [Write { kind: WriteKind::Copy(copy), .. }, ..] = *sequence
        && made == sequence.len()
    {
        limits.throttles.forget(copy);
    }
    done
}

/// Runs a write, but not past the end of the invocation.
async fn run_in_time(
    table: &Table,
    write: &Write<'_>,
    limits: Limits<'_>,
    budget: &LogBudget,
) -> Result<Effect, FailureReason> {
    if Instant::now() >= limits.stop {
        return Err(FailureReason::OutOfTime);
    }
    timeout_at(limits.stop, run(table, write, limits, budget))
        .await
        .unwrap_or(Err(FailureReason::OutOfTime))
}

/// What is done about a failed write.
enum Handling {
    /// A later batch makes the write, or one that includes it.
    PutOff,
    /// The write is logged and dropped.
    Refuse,
    /// The write is run again after all others.
    RunAgain,
    /// The record is redelivered.
    Fail,
}

fn handling(
    write: &Write<'_>,
    reason: &FailureReason,
    is_over: bool,
    limits: Limits<'_>,
) -> Handling {
    // One corrupt item must not block the stream shard: a retry would redeliver the records of all
    // tenants.
    if reason.is_lasting() {
        return Handling::Refuse;
    }
    match &write.kind {
        WriteKind::Copy(copy) if copy.is_required => match (reason.is_of_item(), is_over) {
            (true, false) => Handling::RunAgain,
            (true, true) => {
                let is_for_good = limits.throttles.count(copy);
                if is_for_good && limits.old.contains(&write.record) {
                    Handling::Refuse
                } else {
                    Handling::Fail
                }
            }
            _ => Handling::Fail,
        },
        _ if reason.may_pass() => Handling::PutOff,
        _ => Handling::Refuse,
    }
}

/// Returns sequences of writes, in which each waits for the one before it. Writes of a namespace
/// keep their order. Namespaces alternate, so that one with many writes does not delay the first
/// writes of the others.
fn sequences<'a, 'w>(writes: impl Iterator<Item = &'a Write<'w>>) -> Vec<Vec<&'a Write<'w>>>
where
    'w: 'a,
{
    let mut places = HashMap::new();
    let mut sequences: Vec<Vec<_>> = vec![];
    for write in writes {
        let place = match &write.kind {
            WriteKind::Copy(copy) => {
                let SnapshotKey { namespace, entity, resource, .. } = &copy.key;
                *places.entry((namespace, entity, resource, copy.shard)).or_insert(sequences.len())
            }
            WriteKind::Refill(_) | WriteKind::Split(_) => sequences.len(),
        };
        match sequences.get_mut(place) {
            Some(sequence) => sequence.push(write),
            None => sequences.push(vec![write]),
        }
    }
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let ranked = sequences.into_iter().map(|sequence| {
        let rank = counts.entry(sequence[0].kind.namespace()).or_default();
        *rank += 1;
        (*rank, sequence)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, sequence)| sequence).collect()
}

impl WriteKind<'_> {
    fn namespace(&self) -> &str {
        match self {
            Self::Copy(copy) => copy.key.namespace.as_str(),
            Self::Refill(update) => update.key.pk.split('/').next().unwrap_or_default(),
            Self::Split(split) => split.image.key.namespace.as_str(),
        }
    }
}

async fn run(
    table: &Table,
    write: &Write<'_>,
    limits: Limits<'_>,
    budget: &LogBudget,
) -> Result<Effect, FailureReason> {
    match &write.kind {
        WriteKind::Copy(copy) => run_copy(table, copy, RetryPolicy::Elsewhere).await,
        // Requires `rf`, so a second time has no effect.
        WriteKind::Refill(update) => match table
            .update_with(update, ReturnValues::None, RetryPolicy::AlsoUnconfirmed)
            .await?
        {
            WriteOutcome::Applied(_) => Ok(Effect::Refilled),
            WriteOutcome::ConditionFailed(_) => Ok(Effect::RefillLost),
        },
        WriteKind::Split(split) => {
            let effect = split_shard(table, split, limits, budget).await?;
            if effect == Effect::Split {
                split_made(split, budget);
            }
            Ok(effect)
        }
    }
}
