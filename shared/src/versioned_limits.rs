//! The limits that an acquire has for a bucket, and their version.

use std::cmp::Ordering;

use crate::Limit;

/// A version of limits, by the place that counts it: the number of changes in the table, or the
/// complement of a release's number in the code, which is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsVersion(pub i64);

impl LimitsVersion {
    /// Returns the version of limits in the code, from 0.
    #[must_use]
    pub const fn of_release(number: i64) -> Self {
        Self(!number)
    }

    /// Returns the number of changes, of limits in the table.
    #[must_use]
    pub fn changes(self) -> Option<i64> {
        (self.0 >= 0).then_some(self.0)
    }
}

/// The limits that an acquire brings to a bucket.
///
/// Limits with a version yield to a newer version of the same place, so a process with old limits
/// does not undo a change. Limits of another place, or without a version, overrule, at most once in
/// [`RULES_STAND`](crate::RULES_STAND).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionedLimits<'a> {
    /// The limits.
    pub limits: &'a [Limit],
    /// Version of the configuration, or of the release, that they are from.
    pub version: Option<LimitsVersion>,
    /// Whether they are configured for exactly this entity and resource, so that the bucket is
    /// kept. Other buckets end when they are unused.
    pub is_own: bool,
}

impl VersionedLimits<'_> {
    /// Compares their version with that of a bucket. `None` if not the same place counts both.
    #[must_use]
    pub fn order(self, known: Option<LimitsVersion>) -> Option<Ordering> {
        let (ours, known) = (self.version?.0, known?.0);
        let is_same_place = ours.is_negative() == known.is_negative();
        is_same_place.then(|| ours.unsigned_abs().cmp(&known.unsigned_abs()))
    }
}

impl<'a, L: AsRef<[Limit]> + ?Sized> From<&'a L> for VersionedLimits<'a> {
    fn from(limits: &'a L) -> Self {
        Self {
            limits: limits.as_ref(),
            ..Self::default()
        }
    }
}
