//! What is answered while DynamoDB is away.

mod circuit_breaker;
mod local;

use std::time::Duration;

use weirgate_store::ErrorKind;

use crate::Error;
use crate::decide::{BucketGrant, BucketTarget, Granted};
use crate::decision::{Decision, Denied};
use crate::inner::Inner;
use crate::stats::count;

pub use circuit_breaker::CircuitBreakerConfig;
pub(crate) use circuit_breaker::{CircuitBreaker, Open, Permit};
pub(crate) use local::{LocalBuckets, LocalHold};

/// What an acquire answers while DynamoDB is away: it gives no answer, server errors, or is over
/// its throughput, or the process cannot load its credentials for now.
///
/// Everything else it says is no reason: missing permission, a table that is not there and requests
/// that are refused stay errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// An error: the caller decides.
    #[default]
    Error,
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
pub(crate) fn check(on_unavailable: OnUnavailable) -> Result<(), Error> {
    match on_unavailable {
        OnUnavailable::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("a local part of {percent} percent is asked, it takes 1 to 100"),
        )),
        _ => Ok(()),
    }
}

/// Whether `error` says that DynamoDB is away.
fn is_unavailable(error: &Error) -> bool {
    // One bucket that is too hot says nothing about DynamoDB, nor does an index.
    let is_busy = |kind| {
        matches!(
            kind,
            ErrorKind::Conflict
                | ErrorKind::IndexThrottled
                | ErrorKind::Throttled { key_range: true }
        )
    };
    let is_away = |kind| !is_busy(kind) && ErrorKind::is_transient(kind);
    match error {
        Error::Unavailable { .. } => true,
        Error::Store(error) => is_away(error.kind),
        // Without one, it was competition that took so long.
        Error::Timeout { last, .. } => last.as_ref().is_some_and(|error| is_away(error.kind)),
        _ => false,
    }
}

/// The answer in place of `error`, if that says that DynamoDB is away and another is wanted. Of
/// `targets` nothing is known if not even the limits could be read.
pub(crate) fn fall_back(
    inner: &Inner,
    on_unavailable: OnUnavailable,
    targets: Option<&[BucketTarget]>,
    error: Error,
) -> Result<Decision<Granted>, Error> {
    if !is_unavailable(&error) {
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
    let answer = match (on_unavailable, targets) {
        (OnUnavailable::Error, _) => return Err(error),
        (OnUnavailable::Deny, _) => {
            let left = if let Error::Unavailable { retry_after, .. } = &error {
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
        (OnUnavailable::Allow, _) => Ok(Decision::Granted(Granted {
            by_bucket: vec![],
            degraded: Some(degraded),
            has_unlimited: true,
        })),
        (OnUnavailable::Local { .. }, None) => return Err(error),
        (OnUnavailable::Local { percent }, Some(targets)) => {
            match inner
                .local_buckets
                .take(targets, percent, inner.ages.time())
            {
                Ok(holds) => {
                    let one = |local| BucketGrant {
                        local: Some(local),
                        ..BucketGrant::default()
                    };
                    Ok(Decision::Granted(Granted {
                        by_bucket: holds.into_iter().map(one).collect(),
                        degraded: Some(degraded),
                        has_unlimited: true,
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
    fn from(
        Open {
            cause: why,
            retry_after: left,
        }: Open,
    ) -> Self {
        Self::Unavailable {
            retry_after: left.max(Duration::from_millis(1)),
            last: why,
        }
    }
}
