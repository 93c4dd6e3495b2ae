//! Handles one event: from its text to the response.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_runtime::{LogBudget, SHOWN, shorten};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::Table;

use crate::config::Config;
use crate::execute::{self, Throttles};
use crate::parse::{self, Batch, Undecodable};
use crate::plan;
use crate::report::{self, Response, Summary};

/// The time of an invocation, read from the clock once.
#[derive(Debug, Clone, Copy)]
pub struct Invocation {
    /// Current time.
    pub now: EpochMillis,
    /// Instant at which Lambda ends the invocation.
    pub deadline: Instant,
}

/// The result of one invocation.
#[derive(Debug)]
pub struct Handled {
    /// Summary of its effects.
    pub summary: Summary,
    /// Response, or the reason why the whole batch must be redelivered.
    pub response: Result<Response, report::BatchError>,
}

/// Handles one event of the table's stream, as a new process does.
///
/// # Errors
/// [`parse::NotAnEvent`] if it is not one.
pub async fn handle(
    event: &str,
    table: &Table,
    config: &Config,
    invocation: Invocation,
) -> Result<Handled, parse::NotAnEvent> {
    let (throttles, budget) = (Throttles::default(), LogBudget::default());
    handle_next(event, table, config, &throttles, invocation, budget).await
}

/// Handles one event of the table's stream. `throttles` is what the process knows from its earlier
/// events. What `budget` leaves out of the log is nowhere but in the stream. Undecodable records have
/// the default one at most, because the next readable record copies the usage since then.
///
/// # Errors
/// [`parse::NotAnEvent`] if it is not one.
pub async fn handle_next(
    event: &str,
    table: &Table,
    config: &Config,
    throttles: &Throttles,
    invocation: Invocation,
    budget: LogBudget,
) -> Result<Handled, parse::NotAnEvent> {
    let started = Instant::now();
    let mut batch = parse::records(event)?;
    let texts = if batch.undecodable.is_empty() { vec![] } else { parse::texts(event) };
    let old = plan::old_records(&batch.records, invocation.now);
    let age = age(&batch, invocation.now);
    let shards = plan::shards(std::mem::take(&mut batch.records));
    let writes = plan::writes(&shards, config, invocation.now);
    let stop = stop(started, invocation.deadline);
    let limits = execute::Limits {
        concurrency: config.write_concurrency,
        planned: (invocation.now, started),
        stop,
        old: &old,
        throttles,
    };
    let results = execute::execute(table, &writes, limits, &budget).await;
    // After the refusals: a throttled copy fails its record if the log has no room for it.
    let budgets = [LogBudget::default(), budget];
    for record in &batch.undecodable {
        log(record, texts.get(record.index).copied().unwrap_or_default(), &budgets);
    }
    let (summary, response) = report::report(&batch, results);
    let summary = Summary {
        acquires: plan::acquires(&shards),
        batch_age_ms: age.map(|age| age.0),
        ..summary
    };
    Ok(Handled { summary, response })
}

/// Returns the age of the oldest record of a shard. Records are dated in whole seconds, so a new one
/// may seem to be of the future.
fn age(batch: &Batch<'_>, now: EpochMillis) -> Option<Millis> {
    let oldest = batch.records.iter().map(|record| record.at).min()?;
    Some(now.since(oldest).max(Millis(0)))
}

/// Maximum bytes of a record in a log line. A larger one is cut to its first kilobyte.
const RECORD: usize = 8 * 1024;

/// Logs at ERROR, in the text that an alarm looks for, that a record cannot be read, if the budgets
/// allow it. The line has the record, because the stream drops it after a day.
fn log(record: &Undecodable, text: &str, budgets: &[LogBudget]) {
    let whole = shorten(text, RECORD);
    let text = if whole.len() == text.len() { whole } else { shorten(text, SHOWN) };
    let why = shorten(&record.why, SHOWN);
    let texts = [&*why, &*text];
    if budgets.iter().all(|budget| budget.allows(&record.pk, &texts)) {
        tracing::error!(index = record.index, %why, record = %text, "undecodable record");
    }
}

/// Returns when writing ends: early enough to respond before the deadline.
fn stop(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - (left / 10).min(Duration::from_secs(1))
}
