//! Statuses of calls without a decision.

use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Status};
use weirgate::Error;

use crate::decide::Full;

/// Metadata of the answer to a call too many.
pub(super) const OVERLOADED: &str = "weirgate-overloaded";

/// Returns the status for a call too many.
pub(super) fn overloaded(full: Full) -> Status {
    let mut status = Status::unavailable(format!("{full}: try again, or raise --max-in-flight"));
    let metadata = status.metadata_mut();
    metadata.insert(OVERLOADED, AsciiMetadataValue::from_static("true"));
    status
}

/// Returns the status for a call of which reports are written, or may be: one that is not retried,
/// because a repeated call would count them twice.
pub(super) fn reported(status: Status) -> Status {
    if status.code() != Code::Unavailable {
        return status;
    }
    Status::aborted(format!(
        "{}; reports of this call may be written: do not repeat it",
        status.message()
    ))
}

/// Returns the status for a call without a decision. Never a code that a proxy takes for a decision.
pub(super) fn status_of(error: &Error) -> Status {
    if error.is_transient() {
        return Status::unavailable(error.to_string());
    }
    tracing::warn!(%error, "no decision until a repair");
    match error {
        Error::Invalid(_) | Error::NotConfigured { .. } => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}
