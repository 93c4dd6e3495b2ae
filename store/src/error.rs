//! What an SDK error means for the write that met it: classified once, here.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::CancellationReason;
use hyper_util::client::legacy::Error as HttpError;

/// A request that could not be decided.
#[derive(Debug, thiserror::Error)]
#[error("{request} on table {table:?}: {kind}: {reason}")]
pub struct StoreError {
    /// What it means.
    pub kind: ErrorKind,
    /// Which request, and of which item.
    pub request: String,
    /// The table's name.
    pub table: String,
    /// What DynamoDB or the connection said.
    pub reason: String,
    /// The SDK's error.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// What an error means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not applied: the table, an index or the account is over its throughput.
    Throttled {
        /// The item's own partition is: its bucket is hotter than one partition takes.
        key_range: bool,
    },
    /// Not applied: a transaction was under way on the item, or a write in another region.
    Conflict,
    /// Not applied: no connection could be made, so nothing was sent.
    Unreachable,
    /// Not applied: signed at a time too far from DynamoDB's. The answer has corrected the clock by which it was signed
    /// and planned, so it is to be planned anew.
    Skewed,
    /// Perhaps applied: no answer came, or one that does not say.
    Unknown,
    /// Not applied: no permission. Ask for the actions in the deployed policy.
    Forbidden,
    /// Not applied: there are no credentials to sign with, so nothing was sent.
    NoCredentials,
    /// Not applied: there is no such table.
    NoTable,
    /// Not applied, and never will be: the request is not well formed, or what the item holds does not allow it.
    Invalid,
    /// Not applied, for a reason of another kind, which the error's text names.
    Rejected,
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Throttled { .. } => "throttled",
            Self::Conflict => "in conflict with another write",
            Self::Unreachable => "no connection, nothing was sent; check the region, the endpoint and the network",
            Self::Skewed => "signed by a clock that is off and now corrected; if this repeats, set the machine's clock",
            Self::Unknown => "no answer, it may have been applied",
            Self::Forbidden => "not permitted; the caller's role needs this action on this table",
            Self::NoCredentials => {
                "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the process a profile or a role"
            }
            Self::NoTable => "no such table in this region and account; deploy the stack, or correct the name",
            Self::Invalid => "refused as invalid",
            Self::Rejected => "refused, for the reason that follows",
        })
    }
}

impl ErrorKind {
    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Conflict | Self::Unreachable | Self::Skewed | Self::Unknown)
    }

    /// Whether the request certainly changed nothing.
    #[must_use]
    pub const fn is_refused(self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

impl StoreError {
    /// The same, without the SDK's error, for those who meet it later.
    #[must_use]
    pub fn without_source(&self) -> Self {
        let Self { kind, request, table, reason, .. } = self;
        Self { kind: *kind, request: request.clone(), table: table.clone(), reason: reason.clone(), source: None }
    }

    pub(crate) fn new<E>(table: &str, request: String, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let kind = kind(&error);
        let reason = match &error {
            SdkError::ServiceError(service) => {
                let meta = service.err().meta();
                format!("{}: {}", meta.code().unwrap_or("error"), meta.message().unwrap_or("no message"))
            }
            SdkError::TimeoutError(_) => "timed out".to_owned(),
            other => chain(other),
        };
        Self { kind, request, table: table.to_owned(), reason, source: Some(Box::new(error)) }
    }
}

/// The messages of an error and its sources, outermost first.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn kind<E>(error: &SdkError<E>) -> ErrorKind
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let service = match error {
        SdkError::ServiceError(service) => service,
        SdkError::ConstructionFailure(_) => return ErrorKind::Rejected,
        lost => return unanswered(lost),
    };
    match service.err().meta().code().unwrap_or_default() {
        "ThrottlingException"
        | "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "LimitExceededException" => ErrorKind::Throttled { key_range: is_key_range(service.err()) },
        "TransactionConflictException" | "ReplicatedWriteConflictException" => ErrorKind::Conflict,
        "TransactionCanceledException" => cancelled(service.err()),
        // The first request under its token has not ended; asking once more tells what became of it.
        "TransactionInProgressException" => ErrorKind::Unknown,
        "ResourceNotFoundException" => ErrorKind::NoTable,
        "RequestExpired" | "RequestTimeTooSkewed" | "RequestInTheFuture" => ErrorKind::Skewed,
        "InvalidSignatureException" if is_untimely(service.err().meta().message()) => ErrorKind::Skewed,
        "AccessDeniedException"
        | "UnrecognizedClientException"
        | "ExpiredTokenException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException" => ErrorKind::Forbidden,
        "ValidationException" | "ItemCollectionSizeLimitExceededException" | "IdempotentParameterMismatchException" => {
            ErrorKind::Invalid
        }
        _ if service.raw().status().is_server_error() => ErrorKind::Unknown,
        _ => ErrorKind::Rejected,
    }
}

/// DynamoDB has one code for all that is wrong with a signature; what it says tells a wrong time from a wrong key.
fn is_untimely(message: Option<&str>) -> bool {
    message.is_some_and(|text| text.contains("Signature expired") || text.contains("Signature not yet current"))
}

/// A request without an answer. Most failures to load credentials are failed connections themselves, so they come first.
fn unanswered(error: &(dyn Error + 'static)) -> ErrorKind {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    if causes.clone().any(|cause| cause.is::<CredentialsError>()) {
        ErrorKind::NoCredentials
    } else if causes.any(|cause| cause.downcast_ref::<HttpError>().is_some_and(HttpError::is_connect)) {
        ErrorKind::Unreachable
    } else {
        ErrorKind::Unknown
    }
}

/// Why a part of a transaction did not happen: a condition of its own.
pub(crate) const CONDITION_FAILED: &str = "ConditionalCheckFailed";
/// Why a write was throttled: its own partition is over its throughput.
const KEY_RANGE: &str = "TableWriteKeyRangeThroughputExceeded";
/// The same of a read.
const READ_KEY_RANGE: &str = "TableReadKeyRangeThroughputExceeded";

/// DynamoDB names the resource and reason of a throttle; only these say that a single key is too hot.
fn is_key_range<E: Error + 'static>(error: &E) -> bool {
    let error: &(dyn Error + 'static) = error;
    let reasons = match error.downcast_ref::<UpdateItemError>() {
        Some(UpdateItemError::ThrottlingException(throttle)) => throttle.throttling_reasons(),
        Some(UpdateItemError::ProvisionedThroughputExceededException(throttle)) => throttle.throttling_reasons(),
        Some(_) => return false,
        None => match error.downcast_ref::<TransactWriteItemsError>() {
            Some(TransactWriteItemsError::ThrottlingException(throttle)) => throttle.throttling_reasons(),
            Some(TransactWriteItemsError::ProvisionedThroughputExceededException(throttle)) => {
                throttle.throttling_reasons()
            }
            Some(_) => return false,
            None => match error.downcast_ref::<BatchGetItemError>() {
                Some(BatchGetItemError::ThrottlingException(throttle)) => throttle.throttling_reasons(),
                Some(BatchGetItemError::ProvisionedThroughputExceededException(throttle)) => {
                    throttle.throttling_reasons()
                }
                _ => return false,
            },
        },
    };
    reasons.iter().any(|reason| reason.reason().is_some_and(|reason| [KEY_RANGE, READ_KEY_RANGE].contains(&reason)))
}

fn cancelled<E: Error + 'static>(error: &E) -> ErrorKind {
    let error: &(dyn Error + 'static) = error;
    match error.downcast_ref::<TransactWriteItemsError>() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            cancelled_by(cancelled.cancellation_reasons())
        }
        _ => ErrorKind::Rejected,
    }
}

/// What cancelled a transaction none of whose conditions failed. A conflict tells more than a throttle beside it: it
/// passes as soon as the other transaction ends.
fn cancelled_by(reasons: &[CancellationReason]) -> ErrorKind {
    let any = |codes: &[&str]| reasons.iter().any(|reason| reason.code().is_some_and(|code| codes.contains(&code)));
    if any(&["TransactionConflict"]) {
        ErrorKind::Conflict
    } else if any(&["ThrottlingError", "ProvisionedThroughputExceeded"]) {
        // A reason of a cancellation has no field for what was exceeded: only its text could tell, and the one that is
        // documented speaks of "your table or index".
        let key_range = reasons.iter().any(|reason| reason.message().is_some_and(|text| text.contains(KEY_RANGE)));
        ErrorKind::Throttled { key_range }
    } else if any(&["ValidationError", "ItemCollectionSizeLimitExceeded"]) {
        ErrorKind::Invalid
    } else {
        ErrorKind::Rejected
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::config::http::HttpResponse;
    use aws_sdk_dynamodb::error::ErrorMetadata;
    use aws_sdk_dynamodb::types::error::TransactionInProgressException;

    use super::*;

    #[test]
    fn a_transaction_in_progress_may_yet_be_applied() {
        let code = ErrorMetadata::builder().code("TransactionInProgressException").build();
        let error = TransactionInProgressException::builder().meta(code).build();
        let answer = HttpResponse::new(400_u16.try_into().unwrap(), "".into());
        let error = TransactWriteItemsError::TransactionInProgressException(error);
        assert_eq!(kind(&SdkError::service_error(error, answer)), ErrorKind::Unknown);
    }

    #[test]
    fn a_signature_of_another_time_is_told_from_one_by_a_wrong_key() {
        let late =
            "Signature expired: 20251224T120000Z is now earlier than 20251224T121000Z (20251224T121500Z - 5 min.)";
        let early = "Signature not yet current: 20251224T130000Z is still later than 20251224T120500Z";
        let wrong = "The request signature we calculated does not match the signature you provided.";
        for (code, message, expected) in [
            ("InvalidSignatureException", late, ErrorKind::Skewed),
            ("InvalidSignatureException", early, ErrorKind::Skewed),
            ("RequestExpired", "", ErrorKind::Skewed),
            ("InvalidSignatureException", wrong, ErrorKind::Forbidden),
            ("ExpiredTokenException", "The security token included in the request is expired", ErrorKind::Forbidden),
        ] {
            let error = UpdateItemError::generic(ErrorMetadata::builder().code(code).message(message).build());
            let answer = HttpResponse::new(400_u16.try_into().unwrap(), "".into());
            assert_eq!(kind(&SdkError::service_error(error, answer)), expected, "{code} {message}");
        }
        assert!(ErrorKind::Skewed.is_transient() && ErrorKind::Skewed.is_refused());
    }

    /// Only what the item holds, or the request says, is invalid for good: a count that is goes past its snapshot.
    #[test]
    fn an_answer_that_is_not_known_is_not_taken_for_one_about_the_item() {
        let of = |code: Option<&str>, status: u16| {
            let mut meta = ErrorMetadata::builder();
            if let Some(code) = code {
                meta = meta.code(code);
            }
            let answer = HttpResponse::new(status.try_into().unwrap(), "".into());
            kind(&SdkError::service_error(UpdateItemError::generic(meta.build()), answer))
        };
        for (code, status, expected) in [
            (Some("ValidationException"), 400, ErrorKind::Invalid),
            (Some("ItemCollectionSizeLimitExceededException"), 400, ErrorKind::Invalid),
            (Some("ReplicatedWriteConflictException"), 400, ErrorKind::Conflict),
            (Some("InvalidEndpointException"), 421, ErrorKind::Rejected),
            (Some("SomethingNew"), 400, ErrorKind::Rejected),
            (None, 413, ErrorKind::Rejected),
            (Some("SomethingNew"), 500, ErrorKind::Unknown),
        ] {
            assert_eq!(of(code, status), expected, "{code:?} {status}");
        }
        assert!(ErrorKind::Rejected.is_refused() && !ErrorKind::Rejected.is_transient());
    }

    fn kind_of(reasons: &[(&str, &str)]) -> ErrorKind {
        let reason = |(code, text): &(&str, &str)| CancellationReason::builder().code(*code).message(*text).build();
        cancelled_by(&reasons.iter().map(reason).collect::<Vec<_>>())
    }

    #[test]
    fn a_cancelled_transaction_is_what_its_reasons_say() {
        let none = ("None", "");
        let (conflict, throttle) = (("TransactionConflict", "ongoing"), ("ThrottlingError", "exceeds"));
        let provisioned = ("ProvisionedThroughputExceeded", "exceeded");
        let invalid = ("ValidationError", "Type mismatch");
        assert_eq!(kind_of(&[none, conflict]), ErrorKind::Conflict);
        assert_eq!(kind_of(&[throttle, conflict]), ErrorKind::Conflict);
        assert_eq!(kind_of(&[invalid, throttle]), ErrorKind::Throttled { key_range: false });
        assert_eq!(kind_of(&[none, provisioned]), ErrorKind::Throttled { key_range: false });
        assert_eq!(kind_of(&[none, invalid]), ErrorKind::Invalid);
        assert_eq!(kind_of(&[("ItemCollectionSizeLimitExceeded", "")]), ErrorKind::Invalid);
        assert_eq!(kind_of(&[none, ("SomethingNew", "")]), ErrorKind::Rejected);
        assert_eq!(kind_of(&[]), ErrorKind::Rejected);
        let named = ("ThrottlingError", "TableWriteKeyRangeThroughputExceeded");
        assert_eq!(kind_of(&[throttle, named]), ErrorKind::Throttled { key_range: true });
    }
}
