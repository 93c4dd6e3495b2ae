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
        | "LimitExceededException" => throttled(
            reasons(service.err())
                .iter()
                .filter_map(ThrottlingReason::reason),
        ),
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
    if let Some(error) = causes
        .clone()
        .find_map(|cause| cause.downcast_ref::<CredentialsError>())
    {
        // Not loaded means that no source has credentials; other failures are temporary.
        match error {
            CredentialsError::CredentialsNotLoaded(_)
            | CredentialsError::InvalidConfiguration(_) => ErrorKind::MissingCredentials,
            _ => ErrorKind::CredentialsUnavailable,
        }
    } else if causes.any(|cause| {
        cause
            .downcast_ref::<HttpError>()
            .is_some_and(HttpError::is_connect)
    }) {
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
    if reasons
        .clone()
        .any(|reason| [KEY_RANGE, READ_KEY_RANGE].contains(&reason))
    {
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
    of!(
        UpdateItemError,
        TransactWriteItemsError,
        BatchGetItemError,
        GetItemError,
        QueryError
    );
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
        reasons
            .iter()
            .any(|reason| reason.code().is_some_and(|code| codes.contains(&code)))
    };
    if any(&["TransactionConflict"]) {
        ErrorKind::Conflict
    } else if any(&["ThrottlingError", "ProvisionedThroughputExceeded"]) {
        // A cancellation reason has no field for the exceeded quota, and its documented text says
        // "your table or index". One hot bucket causes it too, so it says nothing about other
        // buckets.
        let key_range = reasons.iter().any(|reason| {
            reason
                .message()
                .is_some_and(|text| text.contains(KEY_RANGE))
        });
        if key_range {
            ErrorKind::Throttled { key_range }
        } else {
            ErrorKind::IndexThrottled
        }
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
        let code = ErrorMetadata::builder()
            .code("TransactionInProgressException")
            .build();
        let error = TransactionInProgressException::builder().meta(code).build();
        let answer = HttpResponse::new(400_u16.try_into().unwrap(), "".into());
        let error = TransactWriteItemsError::TransactionInProgressException(error);
        assert_eq!(
            kind(&SdkError::service_error(error, answer)),
            ErrorKind::Unconfirmed
        );
    }

    #[test]
    fn a_signature_of_another_time_is_told_from_one_by_a_wrong_key() {
        let late = "Signature expired: 20251224T120000Z is now earlier than 20251224T121000Z (20251224T121500Z - 5 min.)";
        let early =
            "Signature not yet current: 20251224T130000Z is still later than 20251224T120500Z";
        let wrong =
            "The request signature we calculated does not match the signature you provided.";
        for (code, message, expected) in [
            ("InvalidSignatureException", late, ErrorKind::ClockSkew),
            ("InvalidSignatureException", early, ErrorKind::ClockSkew),
            ("RequestExpired", "", ErrorKind::ClockSkew),
            ("InvalidSignatureException", wrong, ErrorKind::AccessDenied),
            (
                "ExpiredTokenException",
                "The security token included in the request is expired",
                ErrorKind::CredentialsUnavailable,
            ),
            (
                "UnrecognizedClientException",
                "The security token included in the request is invalid.",
                ErrorKind::CredentialsUnavailable,
            ),
            (
                "MissingAuthenticationTokenException",
                "Request is missing Authentication Token",
                ErrorKind::AccessDenied,
            ),
        ] {
            let error = UpdateItemError::generic(
                ErrorMetadata::builder().code(code).message(message).build(),
            );
            let answer = HttpResponse::new(400_u16.try_into().unwrap(), "".into());
            assert_eq!(
                kind(&SdkError::service_error(error, answer)),
                expected,
                "{code} {message}"
            );
        }
        assert!(ErrorKind::ClockSkew.is_transient() && ErrorKind::ClockSkew.was_not_applied());
    }

    /// Only what the item holds, or the request says, is invalid for good: a count that is goes
    /// past its snapshot.
    #[test]
    fn an_answer_that_is_not_known_is_not_taken_for_one_about_the_item() {
        let of = |code: Option<&str>, status: u16| {
            let mut meta = ErrorMetadata::builder();
            if let Some(code) = code {
                meta = meta.code(code);
            }
            let answer = HttpResponse::new(status.try_into().unwrap(), "".into());
            kind(&SdkError::service_error(
                UpdateItemError::generic(meta.build()),
                answer,
            ))
        };
        for (code, status, expected) in [
            (Some("ValidationException"), 400, ErrorKind::Invalid),
            (
                Some("ItemCollectionSizeLimitExceededException"),
                400,
                ErrorKind::Invalid,
            ),
            (
                Some("ReplicatedWriteConflictException"),
                400,
                ErrorKind::Conflict,
            ),
            (Some("InvalidEndpointException"), 421, ErrorKind::Rejected),
            (Some("SomethingNew"), 400, ErrorKind::Rejected),
            (None, 413, ErrorKind::Rejected),
            (Some("SomethingNew"), 500, ErrorKind::Unconfirmed),
        ] {
            assert_eq!(of(code, status), expected, "{code:?} {status}");
        }
        assert!(ErrorKind::Rejected.was_not_applied() && !ErrorKind::Rejected.is_transient());
    }

    /// The shape that AWS documents: resource, operation, and limit in one word.
    #[test]
    fn a_throttle_is_what_its_reasons_say_of_the_table_an_index_or_the_account() {
        use aws_sdk_dynamodb::types::error::{
            ProvisionedThroughputExceededException, ThrottlingException,
        };

        let (write, place) = (
            ErrorKind::Throttled { key_range: true },
            ErrorKind::IndexThrottled,
        );
        let all = ErrorKind::Throttled { key_range: false };
        for (named, expected) in [
            (vec!["TableWriteKeyRangeThroughputExceeded"], write),
            (
                vec![
                    "IndexWriteKeyRangeThroughputExceeded",
                    "TableWriteKeyRangeThroughputExceeded",
                ],
                write,
            ),
            (vec!["TableReadKeyRangeThroughputExceeded"], write),
            (vec!["IndexWriteKeyRangeThroughputExceeded"], place),
            (vec!["IndexReadKeyRangeThroughputExceeded"], place),
            (vec!["IndexWriteProvisionedThroughputExceeded"], place),
            (vec!["IndexWriteMaxOnDemandThroughputExceeded"], place),
            (
                vec![
                    "IndexWriteKeyRangeThroughputExceeded",
                    "TableWriteAccountLimitExceeded",
                ],
                all,
            ),
            (vec!["TableWriteAccountLimitExceeded"], all),
            (vec!["TableReadAccountLimitExceeded"], all),
            (vec!["TableWriteProvisionedThroughputExceeded"], all),
            (vec!["TableWriteMaxOnDemandThroughputExceeded"], all),
            (vec!["SomethingNew"], all),
            (vec![], all),
        ] {
            let reason = |name: &&str| {
                let resource = "arn:aws:dynamodb:us-east-1:123456789012:table/weirgate";
                ThrottlingReason::builder()
                    .reason(*name)
                    .resource(resource)
                    .build()
            };
            let reasons: Vec<_> = named.iter().map(reason).collect();
            let code = |code| {
                ErrorMetadata::builder()
                    .code(code)
                    .message("Throughput exceeds the current capacity")
                    .build()
            };
            let throttling = ThrottlingException::builder()
                .set_throttling_reasons(Some(reasons.clone()))
                .meta(code("ThrottlingException"))
                .build();
            let provisioned = ProvisionedThroughputExceededException::builder()
                .set_throttling_reasons(Some(reasons))
                .meta(code("ProvisionedThroughputExceededException"))
                .build();
            let answer = || HttpResponse::new(400_u16.try_into().unwrap(), "".into());
            let kinds = [
                kind(&SdkError::service_error(
                    UpdateItemError::ThrottlingException(throttling.clone()),
                    answer(),
                )),
                kind(&SdkError::service_error(
                    GetItemError::ThrottlingException(throttling.clone()),
                    answer(),
                )),
                kind(&SdkError::service_error(
                    QueryError::ThrottlingException(throttling.clone()),
                    answer(),
                )),
                kind(&SdkError::service_error(
                    BatchGetItemError::ThrottlingException(throttling),
                    answer(),
                )),
                kind(&SdkError::service_error(
                    BatchGetItemError::ProvisionedThroughputExceededException(provisioned.clone()),
                    answer(),
                )),
                kind(&SdkError::service_error(
                    TransactWriteItemsError::ProvisionedThroughputExceededException(provisioned),
                    answer(),
                )),
            ];
            assert!(
                kinds.iter().all(|kind| *kind == expected),
                "{named:?}: {kinds:?}"
            );
        }
        assert!(place.is_transient() && place.was_not_applied() && place.is_throttle());
    }

    #[test]
    fn credentials_that_cannot_be_loaded_now_are_told_from_none_at_all() {
        for (error, expected) in [
            (
                CredentialsError::not_loaded("no provider has any"),
                ErrorKind::MissingCredentials,
            ),
            (
                CredentialsError::invalid_configuration("a profile without a role"),
                ErrorKind::MissingCredentials,
            ),
            (
                CredentialsError::provider_error("throttled"),
                ErrorKind::CredentialsUnavailable,
            ),
            (
                CredentialsError::provider_timed_out(std::time::Duration::from_secs(5)),
                ErrorKind::CredentialsUnavailable,
            ),
            (
                CredentialsError::unhandled("connection reset"),
                ErrorKind::CredentialsUnavailable,
            ),
        ] {
            assert_eq!(unanswered(&error), expected, "{error}");
        }
        let later = ErrorKind::CredentialsUnavailable;
        assert!(later.is_transient() && later.was_not_applied());
    }

    fn kind_of(reasons: &[(&str, &str)]) -> ErrorKind {
        let reason = |(code, text): &(&str, &str)| {
            CancellationReason::builder()
                .code(*code)
                .message(*text)
                .build()
        };
        cancelled_by(&reasons.iter().map(reason).collect::<Vec<_>>())
    }

    #[test]
    fn a_cancelled_transaction_is_what_its_reasons_say() {
        let none = ("None", "");
        let (conflict, throttle) = (
            ("TransactionConflict", "ongoing"),
            ("ThrottlingError", "exceeds"),
        );
        let provisioned = ("ProvisionedThroughputExceeded", "exceeded");
        let invalid = ("ValidationError", "Type mismatch");
        assert_eq!(kind_of(&[none, conflict]), ErrorKind::Conflict);
        assert_eq!(kind_of(&[throttle, conflict]), ErrorKind::Conflict);
        assert_eq!(kind_of(&[invalid, throttle]), ErrorKind::IndexThrottled);
        assert_eq!(kind_of(&[none, provisioned]), ErrorKind::IndexThrottled);
        assert_eq!(kind_of(&[none, invalid]), ErrorKind::Invalid);
        assert_eq!(
            kind_of(&[("ItemCollectionSizeLimitExceeded", "")]),
            ErrorKind::Invalid
        );
        assert_eq!(kind_of(&[none, ("SomethingNew", "")]), ErrorKind::Rejected);
        assert_eq!(kind_of(&[]), ErrorKind::Rejected);
        let named = ("ThrottlingError", "TableWriteKeyRangeThroughputExceeded");
        assert_eq!(
            kind_of(&[throttle, named]),
            ErrorKind::Throttled { key_range: true }
        );
    }
}
