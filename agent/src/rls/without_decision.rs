//! When a call must be answered, and the statuses of calls without a decision until then.

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Status};
use weirgate::Error;

use super::messages::MAX_MESSAGE_BYTES;
use crate::gated::Full;
use crate::log;
use crate::net::stream::{ARRIVAL, Unread};

/// Time for the call and its answer on their way, 5 ms, or a quarter of a short time.
const MARGIN: Duration = Duration::from_millis(5);
/// Time that the limiter waits beyond its timeout for a request that hangs, 20 ms.
const LIMITER_GRACE: Duration = Duration::from_millis(20);

/// When a call arrived, before its message was decoded: an extension of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival(pub(super) Instant);

/// Times of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    /// When the answer must leave.
    pub(super) at: Instant,
}

impl Deadline {
    /// Returns the deadline of a call: by the caller's `grpc-timeout`, less the time
    /// of the answer, or by `longest` if that is earlier.
    pub(super) fn new<M>(request: &Request<M>, longest: Duration) -> Self {
        let arrival = request.extensions().get::<Arrival>();
        let begun = arrival.map_or_else(Instant::now, |arrival| arrival.0);
        let given = request
            .metadata()
            .get("grpc-timeout")
            .and_then(|value| parse(value.to_str().ok()?))
            .map(|timeout| timeout - MARGIN.min(timeout / 4));
        let left = given.map_or(longest, |given| given.min(longest));
        Self { at: begun + left }
    }

    /// Returns the time for a decision from now on: the limiter takes a quarter more for the switches
    /// and 20 ms for a request that hangs, and then decides without DynamoDB. Less than 60 ms is too
    /// little for that.
    pub(super) fn decision(&self) -> Duration {
        let left = self.left();
        let is_long = left >= LIMITER_GRACE * 3;
        let grace = if is_long { LIMITER_GRACE } else { Duration::ZERO };
        (left - grace) / 5 * 3
    }

    /// Returns half of the time from now on, for what comes before a decision.
    pub(super) fn half(&self) -> Duration {
        self.left() / 2
    }

    fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

/// Reads a `grpc-timeout`: up to eight digits and a unit.
fn parse(value: &str) -> Option<Duration> {
    let unit = value.chars().last()?;
    let number = &value[..value.len().checked_sub(unit.len_utf8())?];
    let is_number = (1..=8).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        'H' => Duration::from_secs(number * 3_600),
        'M' => Duration::from_secs(number * 60),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Metadata of the answer to a call too many.
pub(super) const OVERLOADED: &str = "weirgate-overloaded";

/// Returns the status for a call too many.
pub(super) fn overloaded(full: Full) -> Status {
    too_many(format!("{full}: try again, or raise --max-in-flight and --max-connections"))
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
        Unread::Broken(error) => {
            Status::internal(format!("the message did not arrive whole: {error}; send it again"))
        }
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
    if matches!(error, Error::Invalid(_)) {
        // It may be of one call, whose descriptors it shows.
        tracing::warn!(%error, "no decision until a repair");
    } else {
        log::until_repaired(error);
    }
    match error {
        Error::Invalid(_) | Error::NotConfigured { .. } => {
            Status::failed_precondition(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_a_grpc_timeout_is_read_and_nothing_else() {
        let ms = |value| parse(value).map(|time| time.as_millis());
        assert_eq!(ms("20m"), Some(20));
        assert_eq!(ms("1S"), Some(1_000));
        assert_eq!(ms("2M"), Some(120_000));
        assert_eq!(ms("1H"), Some(3_600_000));
        assert_eq!(ms("20000u"), Some(20));
        assert_eq!(ms("99999999n"), Some(99));
        for bad in ["", "m", "20", "123456789m", "-1m", "+1m", "1ms", "1é"] {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_answer_leaves_before_the_callers_deadline() {
        let ms = Duration::from_millis;
        let deadline = |timeout: Option<&'static str>| {
            let mut request = Request::new(());
            if let Some(timeout) = timeout {
                let metadata = request.metadata_mut();
                metadata.insert("grpc-timeout", timeout.parse().unwrap());
            }
            let arrival = Instant::now();
            request.extensions_mut().insert(Arrival(arrival));
            let deadline = Deadline::new(&request, Duration::from_secs(1));
            let most = deadline.decision() / 4 * 5;
            let is_long = deadline.at - arrival > ms(60);
            assert!(most + ms(if is_long { 20 } else { 0 }) < deadline.at - arrival);
            deadline.at - arrival
        };
        assert_eq!(deadline(Some("250m")), ms(245));
        assert_eq!(deadline(Some("20m")), ms(15));
        assert_eq!(deadline(Some("8m")), ms(6));
        for longest in [None, Some("5S"), Some("no")] {
            assert_eq!(deadline(longest), ms(1_000));
        }
    }
}
