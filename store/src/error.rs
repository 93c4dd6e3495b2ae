//! What an SDK error means for the write that met it: classified once, here.

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;

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
    /// Not applied: a transaction was under way on the item.
    Conflict,
    /// Perhaps applied: no answer came, or one that does not say.
    Unknown,
    /// Not applied: no permission. Ask for the actions in the deployed policy.
    Forbidden,
    /// Not applied: there is no such table.
    NoTable,
    /// Not applied, and never will be.
    Invalid,
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Throttled { .. } => "throttled",
            Self::Conflict => "in conflict with a transaction",
            Self::Unknown => "no answer, it may have been applied",
            Self::Forbidden => "not permitted; the caller's role needs this action on this table",
            Self::NoTable => "no such table in this region and account; deploy the stack, or correct the name",
            Self::Invalid => "refused as invalid",
        })
    }
}

impl ErrorKind {
    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Conflict | Self::Unknown)
    }

    /// Whether the request certainly changed nothing.
    #[must_use]
    pub const fn is_refused(self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

impl StoreError {
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
        SdkError::ConstructionFailure(_) => return ErrorKind::Invalid,
        // A credentials failure is a dispatch failure before anything was sent; it looks like a lost connection here,
        // and "unknown" is the safe reading of both.
        _ => return ErrorKind::Unknown,
    };
    match service.err().meta().code().unwrap_or_default() {
        "ThrottlingException"
        | "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "LimitExceededException" => ErrorKind::Throttled { key_range: is_key_range(service.err()) },
        "TransactionConflictException" => ErrorKind::Conflict,
        "ResourceNotFoundException" => ErrorKind::NoTable,
        "AccessDeniedException"
        | "UnrecognizedClientException"
        | "ExpiredTokenException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException" => ErrorKind::Forbidden,
        _ if service.raw().status().is_server_error() => ErrorKind::Unknown,
        _ => ErrorKind::Invalid,
    }
}

/// DynamoDB names the resource and reason of a throttle; only this one says that a single key is too hot.
fn is_key_range<E: Error + 'static>(error: &E) -> bool {
    let error: &(dyn Error + 'static) = error;
    let reasons = match error.downcast_ref::<UpdateItemError>() {
        Some(UpdateItemError::ThrottlingException(throttle)) => throttle.throttling_reasons(),
        Some(UpdateItemError::ProvisionedThroughputExceededException(throttle)) => throttle.throttling_reasons(),
        _ => return false,
    };
    reasons.iter().any(|reason| reason.reason() == Some("TableWriteKeyRangeThroughputExceeded"))
}
