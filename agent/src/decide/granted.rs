//! What a request was given.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate::{Degraded, Denied, EpochMillis, Grant, LimitName, LimitStatus, MilliTokens};

use super::grant_token;

/// The grants of one request, one per bucket in their order. Dropping them releases their slots;
/// their rate tokens stay consumed.
#[derive(Debug)]
#[must_use = "dropping grants releases their slots"]
pub struct Granted(pub Vec<Grant>);

impl Granted {
    /// Returns the amounts taken from each bucket.
    #[must_use]
    pub fn amounts(&self) -> Vec<BTreeMap<LimitName, MilliTokens>> {
        self.0.iter().map(Grant::amounts).collect()
    }

    /// Returns every limit of the buckets, right after the take.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.0.iter().flat_map(Grant::limits).collect()
    }

    /// Returns the earliest expiry of the leases.
    #[must_use]
    pub fn expires_at(&self) -> Option<EpochMillis> {
        self.0.iter().filter_map(Grant::expires_at).min()
    }

    /// Returns the denial that shadow mode waived, of all buckets together.
    #[must_use]
    pub fn would_deny(&self) -> Option<Denied> {
        let waived: Vec<_> = self.0.iter().filter_map(Grant::would_deny).collect();
        if waived.is_empty() {
            return None;
        }
        let waits: Option<Vec<Duration>> = waived.iter().map(|denied| denied.retry_after).collect();
        Some(Denied {
            retry_after: waits.and_then(|waits| waits.into_iter().max()),
            limits: waived
                .iter()
                .flat_map(|denied| denied.limits.iter().cloned())
                .collect(),
            degraded: waived.iter().find_map(|denied| denied.degraded.clone()),
        })
    }

    /// Returns why the decision was made without DynamoDB.
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.0.iter().find_map(Grant::degraded)
    }

    /// Turns the grants into one token, which alone can settle them from now on.
    #[must_use = "only the token can still settle the grants"]
    pub fn into_token(self) -> String {
        grant_token::join(self.0)
    }
}
