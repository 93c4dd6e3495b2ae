//! Why a call is denied.

use std::time::Duration;

use weirgate::{
    Denied, Disabled, EntityId, LimitMode, LimitStatus, MilliTokens, NeverFits, Resource,
};

use crate::rules::Bucket;

/// Why a call is denied.
#[derive(Debug)]
pub(super) enum Refusal {
    Denied(Denied),
    NeverFits(NeverFits),
    Disabled(Disabled),
}

impl Refusal {
    /// Returns whether a bucket is the reason, and its limits among those of the refusal.
    pub(super) fn about(&self, bucket: &Bucket) -> (bool, Vec<LimitStatus>) {
        let is_of = |entity: &EntityId, resource: &Resource| {
            *entity.as_str() == *bucket.entity && *resource.as_str() == *bucket.resource
        };
        match self {
            Self::Denied(denied) => {
                let own = denied.limits.iter();
                let own = own.filter(|status| is_of(&status.entity, &status.resource));
                let own: Vec<_> = own.cloned().collect();
                (own.iter().any(denies), own)
            }
            Self::NeverFits(never) => (is_of(&never.entity, &never.resource), vec![]),
            Self::Disabled(disabled) => (is_of(&disabled.entity, &disabled.resource), vec![]),
        }
    }

    /// Returns the limits of a denial.
    pub(super) fn limits(&self) -> &[LimitStatus] {
        match self {
            Self::Denied(denied) => &denied.limits,
            Self::NeverFits(_) | Self::Disabled(_) => &[],
        }
    }
}

/// Returns whether a limit denies a request.
pub(super) fn denies(status: &LimitStatus) -> bool {
    status.is_short() && status.mode == LimitMode::Enforced
}

/// Returns the status of the limit of a bucket whose rule has a rate of 0: a rate that holds nothing
/// and refills nothing. `None` if its names are invalid.
pub(super) fn blocked(bucket: &Bucket, hits: i64) -> Option<LimitStatus> {
    let limit = bucket.terms.takes.first().map(|take| &*take.limit);
    Some(LimitStatus {
        entity: EntityId::new(&*bucket.entity).ok()?,
        resource: Resource::new(&*bucket.resource).ok()?,
        limit: limit.unwrap_or_default().to_owned(),
        mode: LimitMode::Enforced,
        capacity: MilliTokens::ZERO,
        refill_amount: MilliTokens::ZERO,
        refill_period: bucket.terms.period,
        available: MilliTokens::ZERO,
        requested: MilliTokens::from_tokens(hits),
        is_requested: true,
        retry_after: None,
    })
}

/// Adds a denial to the refusal.
pub(super) fn merge(
    refusal: &mut Option<Refusal>,
    retry_after: Option<Duration>,
    limits: Vec<LimitStatus>,
) {
    if let Some(Refusal::Denied(denied)) = refusal {
        let both = denied.retry_after.zip(retry_after);
        denied.retry_after = both.map(|(one, other)| one.max(other));
        denied.limits.extend(limits);
    } else {
        *refusal = Some(Refusal::Denied(Denied {
            retry_after,
            limits,
            degraded: None,
        }));
    }
}
