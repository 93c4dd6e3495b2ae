//! What one acquire requests of one bucket.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::Millis;

use super::amounts::{Amounts, merge_amounts};
use super::error::Error;
use super::limits::Limits;

/// Default duration of a lease, 60 s.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// Longest duration of a lease, one day. A longer hold renews it.
const MAX_LEASE: Duration = Duration::from_secs(86_400);

/// What one acquire requests of one bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketRequest {
    pub(crate) amounts: Amounts,
    /// Maximum amounts of limits of which `amounts` has the minimum: as much is taken as there is.
    pub(crate) up_to: Amounts,
    /// Amounts that are taken even into debt.
    pub(crate) soft_amounts: Amounts,
    /// Amounts that are only counted, because the request bypasses the limits; it then has no
    /// others.
    pub(crate) counted_amounts: Amounts,
    pub(crate) limits: Limits,
    /// Duration of a durable lease, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Time allowed for the decision.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, or those that were granted from prefetched tokens.
    pub(crate) acquires: i64,
}

impl BucketRequest {
    /// Returns whether the request has any amount.
    pub(crate) fn has_amounts(&self) -> bool {
        !self.amounts.is_empty() || !self.soft_amounts.is_empty() || self.is_bypass()
    }

    /// Returns whether the request bypasses the limits.
    pub(crate) fn is_bypass(&self) -> bool {
        !self.counted_amounts.is_empty()
    }

    /// Leaves out all amounts.
    pub(crate) fn waive_all(&mut self) {
        self.amounts.clear();
        self.up_to.clear();
        self.soft_amounts.clear();
        self.counted_amounts.clear();
    }

    /// Returns the amounts that are taken of all limits, soft ones included.
    pub(crate) fn all_amounts(&self) -> Amounts {
        merge_amounts(&self.amounts, &self.soft_amounts)
    }
}

/// Requires that a lease lasts 1 ms to a day.
pub(crate) fn check_lease(lasts: Duration) -> Result<(), Error> {
    if lasts > MAX_LEASE || Millis::from(lasts) < Millis(1) {
        return Err(Error::Invalid(format!(
            "a lease must last 1 ms to 24 h, got {lasts:?}: renew it to hold longer"
        )));
    }
    Ok(())
}
