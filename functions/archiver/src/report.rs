//! Turns what became of the objects into the function's response, which tells Lambda where to
//! resume, and into the metrics of the invocation.

use aws_lambda_events::event::streams::DynamoDbBatchItemFailure;
/// The partial-batch response: each event that is not archived. Lambda resumes at the lowest
/// sequence number in it; an empty response means success.
pub use aws_lambda_events::event::streams::DynamoDbEventResponse as Response;

use weirgate_runtime::MetricsLine;

use crate::bucket::{PutError, Written};
use crate::parse::Batch;
use crate::plan::Object;

/// The effects of one invocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of records in the event.
    pub records: usize,
    /// Records that are of no expired audit event.
    pub skipped: usize,
    /// Audit events archived.
    pub archived: usize,
    /// Audit events whose object existed already.
    pub already_there: usize,
    /// Audit events that this version could not read; they are archived as they are.
    pub unreadable: usize,
    /// Audit events that are not archived, and come again.
    pub failed: usize,
}

impl Summary {
    /// Returns the summary as the metrics of the invocation.
    #[must_use]
    pub fn metrics_line(&self) -> MetricsLine {
        MetricsLine::new("audit events archived")
            .count("records", self.records)
            .count("skipped", self.skipped)
            .count("archived", self.archived)
            .count("already_there", self.already_there)
            .count("unreadable", self.unreadable)
            .count("failed", self.failed)
    }
}

/// Adds up what became of the objects, and names the events that must be delivered again.
pub fn report(
    batch: &Batch,
    objects: &[Object],
    results: Vec<Result<Written, PutError>>,
) -> (Summary, Response) {
    let mut summary = Summary {
        records: batch.records,
        skipped: batch.skipped,
        unreadable: objects.iter().filter(|object| !object.is_readable).count(),
        ..Summary::default()
    };
    let mut response = Response::default();
    let mut first = None;
    for ((expired, object), result) in batch.expired.iter().zip(objects).zip(results) {
        match result {
            Ok(Written::Now) => summary.archived += 1,
            Ok(Written::Before) => summary.already_there += 1,
            Err(error) => {
                summary.failed += 1;
                first.get_or_insert((object, error));
                let mut failure = DynamoDbBatchItemFailure::default();
                failure.item_identifier = Some(expired.sequence_number.clone());
                response.batch_item_failures.push(failure);
            }
        }
    }
    // The first of them: what S3 refuses, it refuses hundreds of times for the same reason.
    if let Some((object, error)) = first {
        let (failed, object) = (summary.failed, &object.name);
        tracing::warn!(failed, %object, "an audit event is not archived, it will be redelivered: {error}");
    }
    (summary, response)
}
