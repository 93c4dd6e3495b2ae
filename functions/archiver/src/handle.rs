//! Handles one event: parse, plan, execute, report.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::execute::execute;
use crate::parse::{NotAnEvent, records};
use crate::plan::object;
use crate::report::{Response, Summary, report};

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
/// [`NotAnEvent`] if it is neither.
pub async fn handle(
    event: &str,
    bucket: &Bucket,
    invocation: Invocation,
) -> Result<Handled, NotAnEvent> {
    let batch = records(event)?;
    let objects: Vec<_> = batch.expired.iter().map(object).collect();
    let stop = stop(Instant::now(), invocation.deadline);
    let results = execute(bucket, &objects, invocation.time, stop).await;
    let (summary, response) = report(&batch, &objects, results);
    Ok(Handled { summary, response })
}

/// Returns when writing ends: early enough to respond before the deadline.
fn stop(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline - (left / 10).min(Duration::from_secs(1))
}
