//! A request for tokens, as any protocol asks it.

use std::sync::Arc;
use std::time::Duration;

use weirgate::{Acquire, Limit, MilliTokens, OnUnavailable, RateLimiter};

/// A request for tokens of one or several buckets, all or nothing.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Buckets, 1 to 100.
    pub buckets: Vec<BucketRequest>,
    /// Longest wait for the tokens. Default: none.
    pub wait: Duration,
    /// Duration of the lease. Default: none, or 60 s for slots.
    pub lease: Option<Duration>,
    /// Time allowed for the decision. Default: the limiter's.
    pub timeout: Option<Duration>,
    /// Decision while DynamoDB is unavailable. Default: the limiter's.
    pub on_unavailable: Option<OnUnavailable>,
    /// Whether it is granted whatever the balances are, and only counted.
    pub is_bypass: bool,
}

/// What a request takes from one bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketRequest {
    /// The entity.
    pub entity: String,
    /// The resource.
    pub resource: String,
    /// Amounts per limit.
    pub takes: Vec<(String, Take)>,
    /// Limits of the bucket. Default: those that are configured.
    pub limits: Option<Arc<[Limit]>>,
    /// Version of these limits.
    pub limits_version: Option<i64>,
    /// Whether the entity's parents are asked too, although the request brings limits.
    pub is_cascading: bool,
}

/// An amount of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Exactly so much.
    Exactly(MilliTokens),
    /// As much as there is, in whole tokens.
    UpTo {
        /// Fewest tokens.
        at_least: i64,
        /// Most tokens.
        at_most: i64,
    },
}

impl Request {
    /// Returns the request of one bucket.
    #[must_use]
    pub fn of(bucket: BucketRequest) -> Self {
        Self {
            buckets: vec![bucket],
            ..Self::default()
        }
    }

    /// Returns the limiter's request for one of the buckets.
    pub(super) fn acquire<'a>(
        &self,
        limiter: &'a RateLimiter,
        bucket: &BucketRequest,
    ) -> Acquire<'a> {
        let mut acquire = limiter.acquire(&bucket.entity, &bucket.resource);
        for (limit, take) in &bucket.takes {
            acquire = match *take {
                Take::Exactly(amount) => acquire.take_milli(limit, amount),
                Take::UpTo { at_least, at_most } => acquire.take_up_to(limit, at_least, at_most),
            };
        }
        if let Some(limits) = &bucket.limits {
            acquire = acquire.shared_limits(limits);
        }
        if let Some(version) = bucket.limits_version {
            acquire = acquire.limits_version(version);
        }
        if bucket.is_cascading {
            acquire = acquire.cascading();
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        if let Some(timeout) = self.timeout {
            acquire = acquire.timeout(timeout);
        }
        if let Some(on_unavailable) = self.on_unavailable {
            acquire = acquire.on_unavailable(on_unavailable);
        }
        if self.is_bypass {
            acquire = acquire.bypass();
        }
        acquire
    }
}
