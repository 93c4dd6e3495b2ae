//! What is answered while DynamoDB is away.

mod breaker;
mod local;

use std::time::Duration;

use weirgate_store::ErrorKind;

use crate::Error;
use crate::decide::{Given, GivenBy, Target};
use crate::decision::{Decision, Denied};
use crate::inner::Inner;
use crate::stats::count;

pub use breaker::Breaker;
pub(crate) use breaker::{Circuit, Open, Permit};
pub(crate) use local::{LocalBuckets, LocalHold};

/// What an acquire answers while DynamoDB is away: it gives no answer, server errors, or is over
/// its throughput, or the process cannot load its credentials for now.
///
/// Everything else it says is no reason: missing permission, a table that is not there and requests
/// that are refused stay errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenAway {
    /// An error: the caller decides.
    #[default]
    Fail,
    /// Denied.
    Deny,
    /// Granted, and nothing is counted.
    Allow,
    /// By a bucket in this process, with its own part of every limit. Of N processes with a part of
    /// 100/N each, all together admit what the limits do.
    Local {
        /// The part, 1 to 100 percent of the capacity and of the rate.
        percent: u8,
    },
}

/// Why an answer was given without DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The error that would have been the answer, or that was met last.
    pub reason: String,
}

/// That a part is one.
pub(crate) fn check(when_away: WhenAway) -> Result<(), Error> {
    match when_away {
        WhenAway::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("a local part of {percent} percent is asked, it takes 1 to 100"),
        )),
        _ => Ok(()),
    }
}

/// Whether `error` says that DynamoDB is away.
fn is_away(error: &Error) -> bool {
    // One bucket that is too hot says nothing about DynamoDB, nor does an index.
    let is_busy = |kind| {
        matches!(
            kind,
            ErrorKind::Conflict | ErrorKind::Crowded | ErrorKind::Throttled { key_range: true }
        )
    };
    let is_away = |kind| !is_busy(kind) && ErrorKind::is_transient(kind);
    match error {
        Error::Away { .. } => true,
        Error::Store(error) => is_away(error.kind),
        // Without one, it was competition that took so long.
        Error::Timeout { last, .. } => last.as_ref().is_some_and(|error| is_away(error.kind)),
        _ => false,
    }
}

/// The answer in place of `error`, if that says that DynamoDB is away and another is wanted. Of
/// `targets` nothing is known if not even the limits could be read.
pub(crate) fn answer(
    inner: &Inner,
    when_away: WhenAway,
    targets: Option<&[Target]>,
    error: Error,
) -> Result<Decision<Given>, Error> {
    if !is_away(&error) {
        return Err(error);
    }
    let degraded = Degraded {
        reason: error.to_string(),
    };
    let denied = |denied: Denied| {
        Ok(Decision::Denied(Denied {
            degraded: Some(degraded.clone()),
            ..denied
        }))
    };
    let answer = match (when_away, targets) {
        (WhenAway::Fail, _) => return Err(error),
        (WhenAway::Deny, _) => {
            let left = if let Error::Away { retry_after, .. } = &error {
                *retry_after
            } else {
                inner.breaker.pause()
            };
            denied(Denied {
                retry_after: Some(left),
                limits: vec![],
                degraded: None,
            })
        }
        (WhenAway::Allow, _) => Ok(Decision::Granted(Given {
            all: vec![],
            degraded: Some(degraded),
            is_free: true,
        })),
        (WhenAway::Local { .. }, None) => return Err(error),
        (WhenAway::Local { percent }, Some(targets)) => {
            match inner.local.take(targets, percent, inner.ages.time()) {
                Ok(holds) => {
                    let one = |local| GivenBy {
                        local: Some(local),
                        ..GivenBy::default()
                    };
                    Ok(Decision::Granted(Given {
                        all: holds.into_iter().map(one).collect(),
                        degraded: Some(degraded),
                        is_free: true,
                    }))
                }
                Err(short) => denied(short),
            }
        }
    };
    count(&inner.counters.degraded, 1);
    tracing::debug!(%error, "answered without DynamoDB");
    answer
}

impl From<Open> for Error {
    fn from(Open { why, left }: Open) -> Self {
        Self::Away {
            retry_after: left.max(Duration::from_millis(1)),
            last: why,
        }
    }
}
