//! Statuses of calls without a decision.

use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Status};
use weirgate::Error;

use super::messages::MAX_MESSAGE_BYTES;
use crate::decide::Full;
use crate::net::body::{ARRIVAL, Unread};

/// Metadata of the answer to a call too many.
pub(super) const OVERLOADED: &str = "weirgate-overloaded";

/// Returns the status for a call too many.
pub(super) fn overloaded(full: Full) -> Status {
    too_many(format!("{full}: try again, or raise --max-in-flight"))
}

/// Returns the status for a call that arrived so slowly that others took its room.
pub(super) fn gave_way() -> Status {
    too_many("too many calls are arriving at once: try again, or run more agents".to_owned())
}

/// Returns the status for a call whose message was not read.
pub(super) fn unread(unread: Unread) -> Status {
    match unread {
        Unread::TooLarge(length) => Status::out_of_range(format!(
            "the message is above its limit of {MAX_MESSAGE_BYTES} bytes, got {length}: send fewer descriptors"
        )),
        Unread::Late => Status::deadline_exceeded(format!(
            "the message must arrive within {ARRIVAL:?}: send it at once"
        )),
        Unread::GaveWay => gave_way(),
        Unread::Broken(error) => Status::internal(format!(
            "the message did not arrive whole: {error}; send it again"
        )),
    }
}

fn too_many(text: String) -> Status {
    let mut status = Status::unavailable(text);
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
