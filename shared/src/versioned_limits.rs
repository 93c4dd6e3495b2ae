//! The limits that an acquire has for a bucket, and their version.

use crate::Limit;

/// The limits that an acquire brings to a bucket.
///
/// Limits with a version yield to a newer version, so a process with old limits does not undo a
/// change. Limits without a version overrule, at most once in [`RULES_STAND`](crate::RULES_STAND).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionedLimits<'a> {
    /// The limits.
    pub limits: &'a [Limit],
    /// Version of the configuration, or of the release, that they are from.
    pub version: Option<i64>,
    /// Whether they are configured for exactly this entity and resource, so that the bucket is
    /// kept. Other buckets end when they are unused.
    pub is_own: bool,
}

impl<'a> From<&'a [Limit]> for VersionedLimits<'a> {
    fn from(limits: &'a [Limit]) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}

impl<'a, const N: usize> From<&'a [Limit; N]> for VersionedLimits<'a> {
    fn from(limits: &'a [Limit; N]) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}

impl<'a> From<&'a Vec<Limit>> for VersionedLimits<'a> {
    fn from(limits: &'a Vec<Limit>) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}
