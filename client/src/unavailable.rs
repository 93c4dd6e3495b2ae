//! Decisions while DynamoDB is unavailable.

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

/// Decision of an acquire while DynamoDB is unavailable: it does not respond, returns server
/// errors, throttles the whole table, or the process cannot load its credentials for now.
///
/// Other failures stay errors: missing permission, a missing table, and rejected requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// An error: the caller decides.
    #[default]
    Error,
    /// Denied.
    Deny,
    /// Granted, and not counted.
    Allow,
    /// Decided by a local bucket, with a percentage of every limit. N processes with 100/N percent
    /// each together admit what the limits allow.
    Local {
        /// Percentage of the capacity and of the refill, 1 to 100.
        percent: u8,
    },
}

/// Reason for a decision without DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The error of this request, or the last error before it.
    pub reason: String,
}

/// Requires that a local percentage is 1 to 100.
pub(crate) fn check(on_unavailable: OnUnavailable) -> Result<(), Error> {
    match on_unavailable {
        OnUnavailable::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("a local part of {percent} percent is asked, it takes 1 to 100"),
        )),
        _ => Ok(()),
    }
}

/// Returns whether `error` shows that DynamoDB is unavailable.
fn is_unavailable(error: &Error) -> bool {
    // One throttled bucket or index does not make DynamoDB unavailable.
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
        // Without an error, contention took the time.
        Error::Timeout { last, .. } => last.as_ref().is_some_and(|error| is_away(error.kind)),
        _ => false,
    }
}

/// Returns the decision in place of `error`, if DynamoDB is unavailable and a fallback is set.
/// `targets` is `None` if not even the limits could be read.
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
