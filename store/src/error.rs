//! Errors of requests, by what they mean for a write.

mod classify;
mod kind;

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

pub(crate) use classify::{CONDITION_FAILED, throttle_reason};
pub use kind::ErrorKind;

use crate::connect::Unusable;

/// A request without a decision.
#[derive(Debug, thiserror::Error)]
#[error("{request} on table {table:?}: {kind}: {reason}")]
pub struct StoreError {
    /// Meaning for the request.
    pub kind: ErrorKind,
    /// Request and its item.
    pub request: String,
    /// Name of the table.
    pub table: String,
    /// Message of DynamoDB or the connection.
    pub reason: String,
    /// Error of the SDK.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Returns a copy without its source, for errors that are stored and shared.
    #[must_use]
    pub fn without_source(&self) -> Self {
        let Self {
            kind,
            request,
            table,
            reason,
            ..
        } = self;
        Self {
            kind: *kind,
            request: request.clone(),
            table: table.clone(),
            reason: reason.clone(),
            source: None,
        }
    }

    pub(crate) fn new<E>(table: &str, request: String, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let kind = classify::kind(&error);
        let reason = match &error {
            lost if kind == ErrorKind::MissingCredentials => unsigned(lost),
            SdkError::ServiceError(service) => {
                let meta = service.err().meta();
                format!(
                    "{}: {}",
                    meta.code().unwrap_or("error"),
                    meta.message().unwrap_or("no message")
                )
            }
            SdkError::TimeoutError(_) => "timed out".to_owned(),
            other => chain(other),
        };
        Self {
            kind,
            request,
            table: table.to_owned(),
            reason,
            source: Some(Box::new(error)),
        }
    }
}

/// Returns why a request cannot be signed, and what to do.
fn unsigned(error: &(dyn Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    match causes.find_map(|cause| cause.downcast_ref::<Unusable>()) {
        Some(unusable) => unusable.to_string(),
        None => format!(
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the process \
             a profile or a role ({})",
            chain(error)
        ),
    }
}

/// Returns the messages of an error and its sources in one line, outermost first. Of equal ones that
/// follow each other, one.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let errors = std::iter::successors(Some(error), |&error| error.source());
    let mut texts: Vec<_> = errors.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}
