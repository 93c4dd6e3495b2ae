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
#[error("{request} on table {table:?}: {}: {reason}", self.text_of_kind())]
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
        let Self { kind, request, table, reason, .. } = self;
        Self {
            kind: *kind,
            request: request.clone(),
            table: table.clone(),
            reason: reason.clone(),
            source: None,
        }
    }

    /// Returns what the error means, without a remedy.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        match self.kind {
            // Nothing to apply.
            ErrorKind::Unconfirmed if self.is_read() => "no usable answer",
            kind => kind.meaning(),
        }
    }

    /// Returns whether the request writes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        let reads =
            ["GetItem", "BatchGetItem", "Query", "Scan", "Describe", "HGETALL", "XINFO", "ZRANGE"];
        reads.iter().any(|name| self.request.starts_with(name))
    }

    /// Returns whether the request is a command of Redis, which is in capitals. The reason then has the remedy.
    #[must_use]
    pub fn is_of_redis(&self) -> bool {
        let mut letters = self.request.chars().take(2);
        self.request.len() > 1 && letters.all(char::is_uppercase)
    }

    fn text_of_kind(&self) -> String {
        match self.meaning() {
            // The remedies of kinds are DynamoDB's.
            meaning if self.is_of_redis() => meaning.to_owned(),
            meaning if meaning == self.kind.meaning() => self.kind.to_string(),
            meaning => meaning.to_owned(),
        }
    }

    /// `endpoint` is the one that requests are sent to, or empty.
    pub(crate) fn new<E>(table: &str, endpoint: &str, request: String, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let kind = classify::kind(&error);
        let endpoint = match endpoint {
            "" => "the endpoint",
            endpoint => endpoint,
        };
        let reason = match &error {
            lost if kind == ErrorKind::MissingCredentials => unsigned(lost),
            lost if kind == ErrorKind::Unreachable => unreachable(endpoint, lost),
            lost if kind == ErrorKind::CredentialsUnavailable
                && !matches!(lost, SdkError::ServiceError(_)) =>
            {
                cause(lost)
            }
            SdkError::ServiceError(service) => {
                let meta = service.err().meta();
                match (meta.code(), meta.message()) {
                    (Some(code), Some(message)) => format!("{code}: {message}"),
                    (Some(code), None) => code.to_owned(),
                    (None, _) => foreign(endpoint, service.raw().status().as_u16()),
                }
            }
            SdkError::ResponseError(response) => {
                foreign(endpoint, response.raw().status().as_u16())
            }
            SdkError::TimeoutError(_) => format!("{endpoint} timed out"),
            lost => format!("the connection to {endpoint} failed ({})", cause(lost)),
        };
        Self { kind, request, table: table.to_owned(), reason, source: Some(Box::new(error)) }
    }
}

/// Returns what is wrong with an answer that no DynamoDB gives.
fn foreign(endpoint: &str, status: u16) -> String {
    format!(
        "{endpoint} answered HTTP {status} and not as DynamoDB does: correct the endpoint's URL"
    )
}

/// Returns why a request cannot be signed, and what to do.
fn unsigned(error: &(dyn Error + 'static)) -> String {
    let mut causes = causes(error);
    if let Some(unusable) = causes.find_map(|cause| cause.downcast_ref::<Unusable>()) {
        return unusable.to_string();
    }
    let text = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the process \
                a profile or a role";
    match cause(error) {
        // It adds nothing.
        cause if cause.contains("no providers in chain") => text.to_owned(),
        cause => format!("{text} ({cause})"),
    }
}

/// Returns why no connection could be made.
fn unreachable(endpoint: &str, error: &(dyn Error + 'static)) -> String {
    let io = causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    let kinds: Vec<_> = io.map(std::io::Error::kind).collect();
    let cause = cause(error);
    if kinds.contains(&std::io::ErrorKind::ConnectionRefused) {
        format!("{endpoint} refuses connections")
    } else if cause.contains("lookup address") || cause.contains("dns error") {
        format!("the host of {endpoint} has no address (DNS)")
    } else if cause.contains("InvalidContentType") || cause.contains("handshake eof") {
        format!("{endpoint} does not speak TLS, or ends its handshake: without TLS, give http://")
    } else if cause.contains("certificate") {
        format!("the TLS certificate of {endpoint} is not accepted ({cause})")
    } else if kinds.contains(&std::io::ErrorKind::TimedOut) || cause.contains("timed out") {
        format!("{endpoint} accepts no connection in time")
    } else {
        format!("{endpoint} cannot be reached ({cause})")
    }
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the messages of an error and its sources that say more than where it was passed on.
fn cause(error: &(dyn Error + 'static)) -> String {
    const PASSED_ON: [&str; 8] = [
        "dispatch failure",
        "other",
        "io error",
        "client error (Connect)",
        "client error (SendRequest)",
        "tcp connect error",
        "failed to construct request",
        "an error occurred while loading credentials",
    ];
    let mut texts: Vec<_> = causes(error).map(ToString::to_string).collect();
    texts.dedup();
    texts.retain(|text| !PASSED_ON.contains(&text.as_str()));
    match texts.is_empty() {
        true => "of an unknown cause".to_owned(),
        false => texts.join(": "),
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
