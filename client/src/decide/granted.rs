//! What a decision grants.

use weirgate_shared::{EpochMillis, LimitName, PlanName};

use super::local::LocalHold;
use crate::bucket::{BucketTarget, Hold};
use crate::values::{Degraded, Denied};

/// Tokens taken for a request.
#[derive(Debug)]
pub(crate) struct Granted {
    /// One per bucket, in order; empty if nothing is counted.
    pub(crate) by_bucket: Vec<BucketGrant>,
    /// Reason for a decision without DynamoDB.
    pub(crate) degraded: Option<Degraded>,
    /// Limits of which nothing is counted, besides those of the buckets.
    pub(crate) uncounted: Uncounted,
    /// Plan of the entity or of an ancestor that does not exist.
    pub(crate) missing_plan: Option<PlanName>,
}

/// Limits of which nothing is counted for a grant: they are not enforced, shadow mode waived them, or
/// the decision was made without DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Uncounted {
    /// These.
    Limits(Vec<LimitName>),
    /// Any: the limits of the request are not known.
    Any,
}

impl Default for Uncounted {
    fn default() -> Self {
        Self::Limits(vec![])
    }
}

impl Uncounted {
    /// Returns whether a limit is among them.
    pub(crate) fn has(&self, limit: &str) -> bool {
        match self {
            Self::Limits(names) => names.iter().any(|name| name.as_str() == limit),
            Self::Any => true,
        }
    }

    /// Returns whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        matches!(self, Self::Limits(names) if names.is_empty())
    }

    /// Adds others.
    pub(crate) fn extend(&mut self, others: impl IntoIterator<Item = LimitName>) {
        if let Self::Limits(names) = self {
            for name in others {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
}

impl Granted {
    /// Returns when the request starts, if it queued: the latest start of its buckets.
    pub(super) fn starts_at(&self) -> Option<EpochMillis> {
        let holds = self
            .by_bucket
            .iter()
            .filter_map(|grant| grant.hold.as_ref());
        holds.filter_map(Hold::starts_at).max()
    }

    /// Hands the tokens to the caller: until then, dropping them returns them.
    pub(super) fn claim(self) -> Self {
        let claim = |grant: BucketGrant| BucketGrant {
            hold: grant.hold.map(Hold::claim),
            ..grant
        };
        Self {
            by_bucket: self.by_bucket.into_iter().map(claim).collect(),
            ..self
        }
    }
}

/// Tokens taken from one bucket.
#[derive(Debug, Default)]
pub(crate) struct BucketGrant {
    /// `None` if nothing of the bucket was taken from the table.
    pub(crate) hold: Option<Hold>,
    /// Tokens taken from a local bucket instead.
    pub(crate) local: Option<LocalHold>,
    /// Denial that shadow mode waived.
    pub(crate) would_deny: Option<Denied>,
    /// Limits of the bucket, if nothing of them is counted.
    pub(crate) uncounted: Vec<LimitName>,
}

impl BucketGrant {
    /// Returns the grant of a bucket from which nothing was taken.
    pub(crate) fn uncounted(target: &BucketTarget) -> Self {
        let limits = target.request.limits.named().iter();
        Self {
            uncounted: limits.map(|limit| limit.name().clone()).collect(),
            ..Self::default()
        }
    }
}
