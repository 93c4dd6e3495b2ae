//! The archiver: audit events that the table has deleted as expired in, one object of the archive
//! bucket for each out.
//!
//! # Layout
//!
//! - `config`: [`Config`] from the environment
//! - [`parse`]: an event to the expired audit events in it
//! - [`plan`]: an expired event to its object; the name follows from the event's key
//! - `bucket`: [`Bucket`]: one signed request that writes an object, unless there is one of its name
//! - [`execute`]: objects to what became of them
//! - [`report`]: what became of them to a partial-batch response and one line for the log

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

mod bucket;
mod config;
pub mod execute;
pub mod parse;
pub mod plan;
pub mod report;

pub use bucket::{Bucket, PutError, Written};
pub use config::Config;
pub use report::{Response, Summary};

/// The time of an invocation, read from the clock once.
#[derive(Debug, Clone, Copy)]
pub struct Invocation {
    /// Current time, which dates signatures.
    pub time: SystemTime,
    /// Instant at which Lambda ends the invocation.
    pub deadline: Instant,
}

/// The result of one invocation.
#[derive(Debug)]
pub struct Handled {
    /// Summary of its effects.
    pub summary: Summary,
    /// Response.
    pub response: Response,
}

/// Handles one event of the table's stream, or an object of the failure bucket with one.
///
/// # Errors
/// [`parse::NotAnEvent`] if it is neither.
pub async fn handle(
    event: &str,
    bucket: &Bucket,
    invocation: Invocation,
) -> Result<Handled, parse::NotAnEvent> {
    let started = Instant::now();
    let batch = parse::records(event)?;
    let objects: Vec<_> = batch.expired.iter().map(plan::object).collect();
    let stop = stop(started, invocation.deadline);
    let results = execute::execute(bucket, &objects, invocation.time, stop).await;
    let (summary, response) = report::report(&batch, &objects, results);
    summary.log(started.elapsed());
    Ok(Handled { summary, response })
}

/// Returns when writing ends: early enough to respond before the deadline.
fn stop(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - (left / 10).min(Duration::from_secs(1))
}
