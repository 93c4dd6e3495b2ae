//! Counts throttled requests by the reason that DynamoDB gives: for the functions' metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The quota that a throttled request exceeded.
///
/// DynamoDB's own reasons name a resource, a direction and a quota, such as
/// `TableWriteKeyRangeThroughputExceeded`.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_ThrottlingReason.html>
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThrottleReason {
    /// A partition of the table: 1,000 write units or 3,000 read units a second.
    KeyRange,
    /// An index, whatever its quota.
    Index,
    /// The account's quota for one table.
    Account,
    /// A maximum that was set on the table, or its provisioned capacity.
    Maximum,
    /// No reason was given, as in a cancelled transaction.
    Unnamed,
}

impl ThrottleReason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::KeyRange, Self::Index, Self::Account, Self::Maximum, Self::Unnamed];

    /// Returns the meaning of DynamoDB's text.
    pub(crate) fn of(reason: &str) -> Self {
        if reason.starts_with("Index") {
            Self::Index
        } else if reason.ends_with("KeyRangeThroughputExceeded") {
            Self::KeyRange
        } else if reason.ends_with("AccountLimitExceeded") {
            Self::Account
        } else if reason.ends_with("MaxOnDemandThroughputExceeded")
            || reason.ends_with("ProvisionedThroughputExceeded")
        {
            Self::Maximum
        } else {
            Self::Unnamed
        }
    }
}

/// Counts throttled requests, each retry as well; clones share the count.
#[derive(Debug, Clone, Default)]
pub struct ThrottleMeter(Arc<Mutex<BTreeMap<ThrottleReason, u64>>>);

impl ThrottleMeter {
    /// Returns the counts since the last call. A reason without a throttle is missing.
    #[must_use]
    pub fn take(&self) -> BTreeMap<ThrottleReason, u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count(&self, reason: ThrottleReason) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(reason).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of AWS's API reference, `ThrottlingReason`.
    #[test]
    fn every_documented_reason_has_a_meaning_and_an_unknown_one_is_unnamed() {
        for direction in ["Read", "Write"] {
            for (quota, of_table) in [
                ("KeyRangeThroughputExceeded", ThrottleReason::KeyRange),
                ("AccountLimitExceeded", ThrottleReason::Account),
                ("MaxOnDemandThroughputExceeded", ThrottleReason::Maximum),
                ("ProvisionedThroughputExceeded", ThrottleReason::Maximum),
            ] {
                let of =
                    |resource: &str| ThrottleReason::of(&format!("{resource}{direction}{quota}"));
                assert_eq!(of("Table"), of_table, "{direction}{quota}");
                assert_eq!(of("Index"), ThrottleReason::Index, "{direction}{quota}");
            }
        }
        assert_eq!(ThrottleReason::of("SomethingNew"), ThrottleReason::Unnamed);
    }

    #[test]
    fn a_count_is_taken_once() {
        let meter = ThrottleMeter::default();
        let clone = meter.clone();
        clone.count(ThrottleReason::Index);
        clone.count(ThrottleReason::Index);
        assert_eq!(meter.take(), [(ThrottleReason::Index, 2)].into());
        assert!(meter.take().is_empty());
    }
}
