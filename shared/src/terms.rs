//! The limits of a bucket as a caller knows them, and how new that is.

use crate::{EpochMillis, Limit, Millis, Shard};

/// How long a bucket keeps its rules after a call without a version has changed them, against other
/// such calls.
///
/// Two releases that bring different limits side by side would otherwise overrule each other with
/// every take.
pub const RULES_STAND: Millis = Millis(30_000);

/// The limits that a caller brings to a bucket.
///
/// Limits with a version give way to those of a newer version: a caller that has not heard of a
/// change yet does not undo it. Limits without one overrule, at most once in [`RULES_STAND`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionedLimits<'a> {
    /// The limits.
    pub limits: &'a [Limit],
    /// Version of the configuration, or of the release, they are from.
    pub version: Option<i64>,
    /// They are configured for this very entity and resource, so the bucket is kept. Others end
    /// when nobody uses them.
    pub is_own: bool,
}

impl<'a> VersionedLimits<'a> {
    /// Whether these limits overrule those of `bucket` at `now`.
    #[must_use]
    pub fn overrule(self, shard: &Shard, now: EpochMillis) -> bool {
        match self.version {
            Some(_) => shard.config_version < self.version,
            // Of a fast clock, or of another writer, may be an instant that is long to come.
            None => shard
                .limits_changed_at
                .is_none_or(|at| now.0.abs_diff(at.0) >= RULES_STAND.0.unsigned_abs()),
        }
    }

    /// Those limits whose rules overrule the ones of `bucket` at `now`: all, or none.
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
