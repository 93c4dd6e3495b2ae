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
    assert_eq!(kind(&SdkError::service_error(error, answer)), ErrorKind::Unconfirmed);
}

#[test]
fn a_signature_of_another_time_is_told_from_one_by_a_wrong_key() {
    let late = "Signature expired: 20251224T120000Z is now earlier than 20251224T121000Z (20251224T121500Z - 5 min.)";
    let early = "Signature not yet current: 20251224T130000Z is still later than 20251224T120500Z";
    let wrong = "The request signature we calculated does not match the signature you provided.";
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
        let error =
            UpdateItemError::generic(ErrorMetadata::builder().code(code).message(message).build());
        let answer = HttpResponse::new(400_u16.try_into().unwrap(), "".into());
        assert_eq!(kind(&SdkError::service_error(error, answer)), expected, "{code} {message}");
    }
    assert!(ErrorKind::ClockSkew.is_transient() && ErrorKind::ClockSkew.was_not_applied());
}

/// Only the item's content or the request is invalid permanently: a count that is invalid goes
/// past its snapshot.
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

    let (write, place) = (ErrorKind::Throttled { key_range: true }, ErrorKind::IndexThrottled);
    let all = ErrorKind::Throttled { key_range: false };
    for (named, expected) in [
        (vec!["TableWriteKeyRangeThroughputExceeded"], write),
        (
            vec!["IndexWriteKeyRangeThroughputExceeded", "TableWriteKeyRangeThroughputExceeded"],
            write,
        ),
        (vec!["TableReadKeyRangeThroughputExceeded"], write),
        (vec!["IndexWriteKeyRangeThroughputExceeded"], place),
        (vec!["IndexReadKeyRangeThroughputExceeded"], place),
        (vec!["IndexWriteProvisionedThroughputExceeded"], place),
        (vec!["IndexWriteMaxOnDemandThroughputExceeded"], place),
        (vec!["IndexWriteKeyRangeThroughputExceeded", "TableWriteAccountLimitExceeded"], all),
        (vec!["TableWriteAccountLimitExceeded"], all),
        (vec!["TableReadAccountLimitExceeded"], all),
        (vec!["TableWriteProvisionedThroughputExceeded"], all),
        (vec!["TableWriteMaxOnDemandThroughputExceeded"], all),
        (vec!["SomethingNew"], all),
        (vec![], all),
    ] {
        let reason = |name: &&str| {
            let resource = "arn:aws:dynamodb:us-east-1:123456789012:table/weirgate";
            ThrottlingReason::builder().reason(*name).resource(resource).build()
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
        assert!(kinds.iter().all(|kind| *kind == expected), "{named:?}: {kinds:?}");
    }
    assert!(place.is_transient() && place.was_not_applied() && place.is_throttle());
}

#[test]
fn credentials_that_cannot_be_loaded_now_are_told_from_none_at_all() {
    for (error, expected) in [
        (CredentialsError::not_loaded("no provider has any"), ErrorKind::MissingCredentials),
        (
            CredentialsError::invalid_configuration("a profile without a role"),
            ErrorKind::MissingCredentials,
        ),
        (CredentialsError::provider_error("throttled"), ErrorKind::CredentialsUnavailable),
        (
            CredentialsError::provider_timed_out(std::time::Duration::from_secs(5)),
            ErrorKind::CredentialsUnavailable,
        ),
        (CredentialsError::unhandled("connection reset"), ErrorKind::CredentialsUnavailable),
    ] {
        assert_eq!(unanswered(&error), expected, "{error}");
    }
    let later = ErrorKind::CredentialsUnavailable;
    assert!(later.is_transient() && later.was_not_applied());
}

fn kind_of(reasons: &[(&str, &str)]) -> ErrorKind {
    let reason = |(code, text): &(&str, &str)| {
        CancellationReason::builder().code(*code).message(*text).build()
    };
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
    assert_eq!(kind_of(&[invalid, throttle]), ErrorKind::IndexThrottled);
    assert_eq!(kind_of(&[none, provisioned]), ErrorKind::IndexThrottled);
    assert_eq!(kind_of(&[none, invalid]), ErrorKind::Invalid);
    assert_eq!(kind_of(&[("ItemCollectionSizeLimitExceeded", "")]), ErrorKind::Invalid);
    assert_eq!(kind_of(&[none, ("SomethingNew", "")]), ErrorKind::Rejected);
    assert_eq!(kind_of(&[]), ErrorKind::Rejected);
    let named = ("ThrottlingError", "TableWriteKeyRangeThroughputExceeded");
    assert_eq!(kind_of(&[throttle, named]), ErrorKind::Throttled { key_range: true });
}
