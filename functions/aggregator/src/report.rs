//! Turns effects of writes into the function's response, which tells Lambda where to resume, and
//! into the invocation's metrics.

use std::borrow::Cow;
use std::collections::BTreeSet;

use aws_lambda_events::event::streams::DynamoDbBatchItemFailure;
use weirgate_runtime::MetricsLine;
use weirgate_store::ErrorKind;

use crate::execute::{Effect, Failure, FailureReason};
use crate::parse::Batch;

/// The partial-batch response: the first record of each failed write. Lambda resumes at the lowest
/// sequence number in it; an empty response means success. No identifier is ever null, because a
/// null fails the whole batch.
pub use aws_lambda_events::event::streams::DynamoDbEventResponse as Response;

/// The effects of one invocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of records in the event.
    pub records: usize,
    /// Records that are not of our shards.
    pub skipped: usize,
    /// Records of shards that cannot be read.
    pub undecodable: usize,
    /// Acquires that the records' writes granted. Records that come again count again.
    pub acquires: u64,
    /// Age of the oldest record of a shard, in ms.
    pub batch_age_ms: Option<i64>,
    /// Copies of usage made.
    pub copied: usize,
    /// Copies that the snapshot had already, or newer ones.
    pub superseded: usize,
    /// Copies that found an earlier life of their shard without its final copy: its last usage is
    /// missing.
    pub gaps: usize,
    /// Interim copies put off: a later one includes them.
    pub copies_put_off: usize,
    /// Shards credited.
    pub refilled: usize,
    /// Refills that another process had made, or that are no longer needed.
    pub refills_lost: usize,
    /// Refills put off: clients compute refill themselves.
    pub refills_put_off: usize,
    /// Hot shards split.
    pub splits: usize,
    /// Splits that another process had made, or that are no longer needed.
    pub splits_lost: usize,
    /// Splits put off: the next batch of the shard tries again.
    pub splits_put_off: usize,
    /// Writes that the item's content does not allow; each has an ERROR line.
    pub refused: usize,
    /// Writes that failed.
    pub failed: usize,
}

impl Summary {
    /// Returns the summary as the metrics of the invocation.
    #[must_use]
    pub fn metrics_line(&self) -> MetricsLine {
        MetricsLine::new("batch done")
            .count("records", self.records)
            .count("skipped", self.skipped)
            .count("undecodable", self.undecodable)
            .count("acquires", self.acquires)
            .count("copied", self.copied)
            .count("superseded", self.superseded)
            .count("gaps", self.gaps)
            .count("copies_put_off", self.copies_put_off)
            .count("refilled", self.refilled)
            .count("refills_lost", self.refills_lost)
            .count("refills_put_off", self.refills_put_off)
            .count("splits", self.splits)
            .count("splits_lost", self.splits_lost)
            .count("splits_put_off", self.splits_put_off)
            .count("refused", self.refused)
            .count("failed", self.failed)
            .millis("batch_age_ms", self.batch_age_ms)
    }
}

/// An invocation that fails as a whole; all of its records are redelivered.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// No write was possible, and none will be until an operator fixes the cause.
    #[error("no write was possible: {0}")]
    NothingWritten(FailureReason),
    /// A write failed, and its first record has no sequence number.
    #[error(
        "record {record} has no SequenceNumber, so the whole batch must be redelivered: {reason}"
    )]
    NoSequenceNumber {
        /// Its index in the event.
        record: usize,
        /// Reason of the failure.
        reason: FailureReason,
    },
}

/// Adds up the effects, and names the records that must be redelivered.
///
/// # Errors
/// [`BatchError`] if that cannot be said record by record.
pub fn report(
    batch: &Batch<'_>,
    results: Vec<Result<Effect, Failure>>,
) -> (Summary, Result<Response, BatchError>) {
    let mut summary = Summary {
        records: batch.sequence_numbers.len(),
        skipped: batch.skipped,
        undecodable: batch.undecodable.len(),
        ..Summary::default()
    };
    let mut failures = vec![];
    for result in results {
        match result {
            Ok(Effect::Copied) => summary.copied += 1,
            Ok(Effect::CopiedAfterGap) => {
                summary.copied += 1;
                summary.gaps += 1;
            }
            Ok(Effect::Superseded) => summary.superseded += 1,
            Ok(Effect::CopyPutOff) => summary.copies_put_off += 1,
            Ok(Effect::Refilled) => summary.refilled += 1,
            Ok(Effect::RefillLost) => summary.refills_lost += 1,
            Ok(Effect::RefillPutOff) => summary.refills_put_off += 1,
            Ok(Effect::Split) => summary.splits += 1,
            Ok(Effect::SplitLost) => summary.splits_lost += 1,
            Ok(Effect::SplitPutOff) => summary.splits_put_off += 1,
            Ok(Effect::Refused) => summary.refused += 1,
            Err(failure) => {
                summary.failed += 1;
                failures.push(failure);
            }
        }
    }
    let Summary { copied, superseded, refilled, refills_lost, splits, splits_lost, .. } = summary;
    let all_failed = copied + superseded + refilled + refills_lost + splits + splits_lost == 0;
    let response = answer(&batch.sequence_numbers, failures, all_failed);
    (summary, response)
}

fn answer(
    sequence_numbers: &[Option<Cow<'_, str>>],
    mut failures: Vec<Failure>,
    all_failed: bool,
) -> Result<Response, BatchError> {
    log(&failures);
    if all_failed && failures.iter().all(|failure| is_permanent(&failure.reason)) {
        return failures.pop().map_or_else(
            || Ok(Response::default()),
            |failure| Err(BatchError::NothingWritten(failure.reason)),
        );
    }
    let mut records = BTreeSet::new();
    for Failure { record, reason } in failures {
        // Lambda treats an empty or null identifier the same way, but this error also reaches the
        // log.
        if sequence_numbers
            .get(record)
            .and_then(Option::as_ref)
            .is_none_or(|number| number.is_empty())
        {
            return Err(BatchError::NoSequenceNumber { record, reason });
        }
        records.insert(record);
    }
    let numbers = records.into_iter().filter_map(|record| sequence_numbers[record].as_deref());
    let mut response = Response::default();
    response.batch_item_failures = numbers.map(failure).collect();
    Ok(response)
}

/// Returns how many records at the beginning of a batch need not come again: those before the first one that the
/// response names, or none if it names another one, as Lambda takes it.
pub fn finished<'a>(
    mut numbers: impl ExactSizeIterator<Item = &'a str>,
    response: &Response,
) -> usize {
    let failed = &response.batch_item_failures;
    if failed.is_empty() {
        return numbers.len();
    }
    let is_named = |number| {
        let mut names = failed.iter().map(|failure| failure.item_identifier.as_deref());
        names.any(|name| name == Some(number))
    };
    numbers.position(is_named).unwrap_or_default()
}

fn failure(number: &str) -> DynamoDbBatchItemFailure {
    let mut failure = DynamoDbBatchItemFailure::default();
    failure.item_identifier = Some(number.to_owned());
    failure
}

/// Logs the first failure of each kind: a throttled table fails hundreds of writes for the same
/// reason.
fn log(failures: &[Failure]) {
    let mut seen = vec![];
    for Failure { record, reason } in failures {
        let kind = (
            std::mem::discriminant(reason),
            if let FailureReason::Store(error) = reason { Some(error.kind) } else { None },
        );
        if !seen.contains(&kind) {
            seen.push(kind);
            tracing::warn!(
                record,
                failed = failures.len(),
                "a write failed, its records will be redelivered: {reason}"
            );
        }
    }
}

fn is_permanent(reason: &FailureReason) -> bool {
    matches!(reason, FailureReason::Store(error) if matches!(error.kind, ErrorKind::TableNotFound | ErrorKind::AccessDenied))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(record: usize) -> Failure {
        Failure { record, reason: FailureReason::OutOfTime }
    }

    /// Returns how many of four records are finished by a response that names `named`.
    fn finished_of(named: &[Option<&str>]) -> usize {
        let mut response = Response::default();
        let of = |number: &Option<&str>| {
            let mut failure = DynamoDbBatchItemFailure::default();
            failure.item_identifier = number.map(str::to_owned);
            failure
        };
        response.batch_item_failures = named.iter().map(of).collect();
        finished(["10", "11", "12", "13"].into_iter(), &response)
    }

    #[test]
    fn the_first_named_record_and_all_after_it_come_again() {
        assert_eq!(finished_of(&[]), 4);
        assert_eq!(finished_of(&[Some("13"), Some("11")]), 1);
        assert_eq!(finished_of(&[Some("10")]), 0);
        // Lambda treats what it cannot find as a failure of the whole batch.
        assert_eq!(finished_of(&[None]), 0);
        assert_eq!(finished_of(&[Some("14")]), 0);
    }

    #[test]
    fn each_failed_record_is_named_once_and_in_the_order_of_the_event() {
        let numbers = [Some("300".into()), None, Some("100".into())];
        let response = answer(&numbers, vec![late(2), late(0), late(2)], false).unwrap();
        let json = serde_json::to_string(&response).unwrap();
        assert_eq!(
            json,
            r#"{"batchItemFailures":[{"itemIdentifier":"300"},{"itemIdentifier":"100"}]}"#
        );
        let empty = serde_json::to_string(&answer(&numbers, vec![], false).unwrap()).unwrap();
        assert_eq!(empty, r#"{"batchItemFailures":[]}"#);
    }

    #[test]
    fn a_failed_record_without_a_number_fails_the_batch_and_is_never_a_null() {
        for number in [None, Some("".into())] {
            let error =
                answer(&[Some("1".into()), number], vec![late(0), late(1)], false).unwrap_err();
            assert!(error.to_string().contains("record 1 has no SequenceNumber"), "{error}");
        }
    }
}
