//! Checks what to decide while DynamoDB is unavailable.

use weirgate_shared::OnUnavailable;

use super::error::Error;

/// Requires that a local percentage is 1 to 100.
pub(crate) fn check_on_unavailable(policy: OnUnavailable) -> Result<(), Error> {
    match policy {
        OnUnavailable::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("OnUnavailable::Local: percent must be 1 to 100, got {percent}"),
        )),
        _ => Ok(()),
    }
}
