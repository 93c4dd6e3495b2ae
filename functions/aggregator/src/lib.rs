//! The aggregator: stream records in, usage snapshots, refills and splits out.
//!
//! # Layout
//!
//! - `config`: [`Config`] from the environment
//! - [`parse`]: an event to records, with `json` and `timestamp` below it
//! - [`plan`]: records to planned writes, with `split` for hot shards
//! - [`execute`]: planned writes to what became of them
//! - [`report`]: what became of them to a partial-batch response and one line for the log

use std::time::Duration;

use tokio::time::Instant;
use weirgate_runtime::{LogBudget, shorten};
use weirgate_shared::EpochMillis;
use weirgate_store::Table;

mod config;
pub mod execute;
mod json;
pub mod parse;
pub mod plan;
pub mod report;
mod split;
mod timestamp;

pub use config::{Config, DEFAULT_TTL_DAYS, REFILL_WRITES, TTL_DAYS};
pub use report::{Response, Summary};
pub use split::Split;

use execute::Throttles;
use parse::Undecodable;

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
    handle_next(event, table, config, &Throttles::default(), invocation).await
}

/// Handles one event of the table's stream. `throttles` is what the process knows from its earlier
/// events.
///
/// # Errors
/// [`parse::NotAnEvent`] if it is not one.
pub async fn handle_next(
    event: &str,
    table: &Table,
    config: &Config,
    throttles: &Throttles,
    invocation: Invocation,
) -> Result<Handled, parse::NotAnEvent> {
    let started = Instant::now();
    let mut batch = parse::records(event)?;
    let texts = if batch.undecodable.is_empty() {
        vec![]
    } else {
        parse::texts(event)
    };
    let budget = LogBudget::default();
    for record in &batch.undecodable {
        log(
            record,
            texts.get(record.index).copied().unwrap_or_default(),
            &budget,
        );
    }
    let old = plan::old_records(&batch.records, invocation.now);
    let shards = plan::shards(std::mem::take(&mut batch.records));
    let writes = plan::writes(&shards, config, invocation.now);
    let stop = stop(started, invocation.deadline);
    let limits = execute::Limits {
        concurrency: config.write_concurrency,
        stop,
        old: &old,
        throttles,
    };
    let results = execute::execute(table, &writes, limits, &budget).await;
    let (summary, response) = report::report(&batch, results);
    summary.log(started.elapsed());
    Ok(Handled { summary, response })
}

/// Maximum bytes of a record in a log line. A larger one is cut to its first kilobyte.
const RECORD: usize = 8 * 1024;
/// Maximum bytes of any other text in a log line.
const SHOWN: usize = 1024;

/// Logs at ERROR, in the text that an alarm looks for, that a record cannot be read, if the budget
/// allows it. The line has the record, because the stream drops it after a day.
fn log(record: &Undecodable, text: &str, budget: &LogBudget) {
    let whole = shorten(text, RECORD);
    let text = if whole.len() == text.len() {
        whole
    } else {
        shorten(text, SHOWN)
    };
    let why = shorten(&record.why, SHOWN);
    if budget.allows(&record.pk, &[&why, &text]) {
        tracing::error!(index = record.index, %why, record = %text, "undecodable record");
    }
}

/// Returns when writing ends: early enough to respond before the deadline.
fn stop(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - (left / 10).min(Duration::from_secs(1))
}
