//! What a decision grants.

use super::local::LocalHold;
use crate::bucket::Hold;
use crate::values::{Degraded, Denied};

/// Tokens taken for a request.
#[derive(Debug)]
pub(crate) struct Granted {
    /// One per bucket, in order; empty if nothing is counted.
    pub(crate) by_bucket: Vec<BucketGrant>,
    /// Reason for a decision without DynamoDB.
    pub(crate) degraded: Option<Degraded>,
    /// Whether some limits are not enforced, so that nothing is counted for them.
    pub(crate) has_unlimited: bool,
}

impl Granted {
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
    /// `None` if shadow mode waived all amounts.
    pub(crate) hold: Option<Hold>,
    /// Tokens taken from a local bucket instead.
    pub(crate) local: Option<LocalHold>,
    /// Denial that shadow mode waived.
    pub(crate) would_deny: Option<Denied>,
}
