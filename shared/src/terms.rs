//! The limits that an acquire has for a bucket, and their version.

use crate::{EpochMillis, Limit, Millis, Shard};

/// Time for which a bucket keeps rules that an acquire without a version has changed, against other
/// such acquires.
///
/// Otherwise two releases with different limits would overrule each other with every take.
pub const RULES_STAND: Millis = Millis(30_000);

/// The limits that an acquire brings to a bucket.
///
/// Limits with a version yield to a newer version, so a process with old limits does not undo a
/// change. Limits without a version overrule, at most once in [`RULES_STAND`].
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

impl<'a> VersionedLimits<'a> {
    /// Returns whether these limits overrule those of `shard` at `now`.
    #[must_use]
    pub fn overrule(self, shard: &Shard, now: EpochMillis) -> bool {
        match self.version {
            Some(_) => shard.config_version < self.version,
            // A fast clock or another writer may have stored an instant far in the future.
            None => shard
                .limits_changed_at
                .is_none_or(|at| now.0.abs_diff(at.0) >= RULES_STAND.0.unsigned_abs()),
        }
    }

    /// Returns the limits whose rules overrule those of `shard` at `now`: all, or none.
    pub fn overruling(self, shard: &Shard, now: EpochMillis) -> impl Iterator<Item = &'a Limit> {
        let overrules = self.overrule(shard, now);
        self.limits.iter().filter(move |_| overrules)
    }
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
