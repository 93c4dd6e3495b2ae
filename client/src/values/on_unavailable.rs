//! What to decide while DynamoDB is unavailable.

use super::error::Error;

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

impl OnUnavailable {
    /// Requires that a local percentage is 1 to 100.
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Self::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
                format!("OnUnavailable::Local: percent must be 1 to 100, got {percent}"),
            )),
            _ => Ok(()),
        }
    }
}
