//! Classifies SDK errors by what they mean for a write: once, here.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemError;
use aws_sdk_dynamodb::operation::get_item::GetItemError;
use aws_sdk_dynamodb::operation::query::QueryError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{CancellationReason, ThrottlingReason};
use hyper_util::client::legacy::Error as HttpError;

use super::kind::ErrorKind;
use crate::throttles::ThrottleReason;

/// Returns what an SDK error means for its request.
pub(super) fn kind<E>(error: &SdkError<E>) -> ErrorKind
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
        | "LimitExceededException" => {
            throttled(reasons(service.err()).iter().filter_map(ThrottlingReason::reason))
        }
        "TransactionConflictException" | "ReplicatedWriteConflictException" => ErrorKind::Conflict,
        "TransactionCanceledException" => cancelled(service.err()),
        // The first request with this token is still in progress; repeating it returns the outcome.
        "TransactionInProgressException" => ErrorKind::Unconfirmed,
        "ResourceNotFoundException" => ErrorKind::TableNotFound,
        "RequestExpired" | "RequestTimeTooSkewed" | "RequestInTheFuture" => ErrorKind::ClockSkew,
        "InvalidSignatureException" if is_untimely(service.err().meta().message()) => {
            ErrorKind::ClockSkew
        }
        "AccessDeniedException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException" => ErrorKind::AccessDenied,
        "UnrecognizedClientException" | "ExpiredTokenException" => {
            ErrorKind::CredentialsUnavailable
        }
        "ValidationException"
        | "ItemCollectionSizeLimitExceededException"
        | "IdempotentParameterMismatchException" => ErrorKind::Invalid,
        _ if service.raw().status().is_server_error() => ErrorKind::Unconfirmed,
        _ => ErrorKind::Rejected,
    }
}

/// Returns the quota that a throttled request exceeded, the first one of several; `None` for any
/// other error.
pub(crate) fn throttle_reason<E>(error: &SdkError<E>) -> Option<ThrottleReason>
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let kind = kind(error);
    let named = || {
        let first = reasons(error.as_service_error()?).first()?;
        first.reason().map(ThrottleReason::of)
    };
    // A cancelled transaction has the key range in a message at most.
    let unnamed = match kind {
        ErrorKind::Throttled { key_range: true } => ThrottleReason::KeyRange,
        _ => ThrottleReason::Unnamed,
    };
    kind.is_throttle().then(|| named().unwrap_or(unnamed))
}

/// Returns whether a signature failed for its time. DynamoDB has one code for all signature errors,
/// so only the message distinguishes a wrong time from a wrong key.
fn is_untimely(message: Option<&str>) -> bool {
    message.is_some_and(|text| {
        text.contains("Signature expired") || text.contains("Signature not yet current")
    })
}

/// Classifies a request without a response. Most failures to load credentials are failed
/// connections themselves, so credentials are checked first.
fn unanswered(error: &(dyn Error + 'static)) -> ErrorKind {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    if let Some(error) = causes.clone().find_map(|cause| cause.downcast_ref::<CredentialsError>()) {
        // Not loaded means that no source has credentials; other failures are temporary.
        match error {
            CredentialsError::CredentialsNotLoaded(_)
            | CredentialsError::InvalidConfiguration(_) => ErrorKind::MissingCredentials,
            _ => ErrorKind::CredentialsUnavailable,
        }
    } else if causes
        .any(|cause| cause.downcast_ref::<HttpError>().is_some_and(HttpError::is_connect))
    {
        ErrorKind::Unreachable
    } else {
        ErrorKind::Unconfirmed
    }
}

/// Cancellation code of a part whose own condition failed.
pub(crate) const CONDITION_FAILED: &str = "ConditionalCheckFailed";
/// Throttling reason of a write whose own partition is over its throughput.
const KEY_RANGE: &str = "TableWriteKeyRangeThroughputExceeded";
/// Throttling reason of a read whose own partition is over its throughput.
const READ_KEY_RANGE: &str = "TableReadKeyRangeThroughputExceeded";
/// Suffix of both reasons, for the table or an index.
const ANY_KEY_RANGE: &str = "KeyRangeThroughputExceeded";

/// Returns the kind of a throttle by its reasons. A reason names the resource (`Table`, `Index`),
/// the direction (`Read`, `Write`), and the exceeded quota (`KeyRangeThroughputExceeded`,
/// `AccountLimitExceeded`, `ProvisionedThroughputExceeded`, `MaxOnDemandThroughputExceeded`).
fn throttled<'a>(reasons: impl Iterator<Item = &'a str> + Clone) -> ErrorKind {
    let is_local = |reason: &str| reason.ends_with(ANY_KEY_RANGE) || reason.starts_with("Index");
    if reasons.clone().any(|reason| [KEY_RANGE, READ_KEY_RANGE].contains(&reason)) {
        ErrorKind::Throttled { key_range: true }
    } else if reasons.clone().next().is_some() && reasons.clone().all(is_local) {
        ErrorKind::IndexThrottled
    } else {
        ErrorKind::Throttled { key_range: false }
    }
}

/// Returns the reasons that DynamoDB names for a throttle.
fn reasons<E: Error + 'static>(error: &E) -> &[ThrottlingReason] {
    let error: &(dyn Error + 'static) = error;
    macro_rules! of {
        ($($operation:ident),*) => {$(
            match error.downcast_ref::<$operation>() {
                Some($operation::ThrottlingException(throttle)) => return throttle.throttling_reasons(),
                Some($operation::ProvisionedThroughputExceededException(throttle)) => {
                    return throttle.throttling_reasons();
                }
                _ => {}
            }
        )*};
    }
    of!(UpdateItemError, TransactWriteItemsError, BatchGetItemError, GetItemError, QueryError);
    &[]
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

/// Returns the kind of a cancelled transaction without a failed condition. A conflict takes
/// precedence over a throttle, because it passes as soon as the other transaction ends.
fn cancelled_by(reasons: &[CancellationReason]) -> ErrorKind {
    let any = |codes: &[&str]| {
        reasons.iter().any(|reason| reason.code().is_some_and(|code| codes.contains(&code)))
    };
    if any(&["TransactionConflict"]) {
        ErrorKind::Conflict
    } else if any(&["ThrottlingError", "ProvisionedThroughputExceeded"]) {
        // A cancellation reason has no field for the exceeded quota, and its documented text says
        // "your table or index". One hot bucket causes it too, so it says nothing about other
        // buckets.
        let key_range = reasons
            .iter()
            .any(|reason| reason.message().is_some_and(|text| text.contains(KEY_RANGE)));
        if key_range { ErrorKind::Throttled { key_range } } else { ErrorKind::IndexThrottled }
    } else if any(&["ValidationError", "ItemCollectionSizeLimitExceeded"]) {
        ErrorKind::Invalid
    } else {
        ErrorKind::Rejected
    }
}

#[cfg(test)]
mod tests;
