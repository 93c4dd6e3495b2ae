//! Taken tokens, and what happens to them: adjust, renew, release, roll back.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::{EpochMillis, MilliTokens};

use crate::decide::BucketGrant;
use crate::decision::{self, Denied, LimitStatus};
use crate::hold::Hold;
use crate::unavailable::LocalHold;
use crate::{Degraded, Error, acquire};

/// Tokens that were taken, of a bucket and of those it cascades to.
///
/// Rate tokens are used up unless they are rolled back. A durable lease, which slots always have,
/// ends with [`release`](Self::release), [`roll_back`](Self::roll_back), or its expiry; dropping the
/// grant releases it in the background.
///
/// A Lambda function is frozen as soon as its handler has returned, and its background stands
/// still: the slots of a grant that is dropped there are released with the next invocation, or when
/// the lease expires. So await `release` before returning.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grant {
    /// Of each bucket, the one that was asked for first.
    holds: Vec<Hold>,
    /// Of buckets in this process, while DynamoDB was away.
    local: Vec<LocalHold>,
    would_deny: Option<Denied>,
    degraded: Option<Degraded>,
    /// Nothing is counted of some limits, as they are not enforced.
    has_unlimited: bool,
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lease that has ended settles nothing"]
pub enum Settlement {
    /// It counts, once.
    Applied,
    /// The lease had ended before: it was released, or it expired and its tokens went back. Nothing
    /// was changed.
    LeaseGone,
}

impl Settlement {
    /// What became of several: all must count.
    pub(crate) fn all(
        settled: impl IntoIterator<Item = Result<Self, Error>>,
    ) -> Result<Self, Error> {
        // None of them keeps the others; the worst is told.
        settled
            .into_iter()
            .reduce(|one, other| match (one, other) {
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                (Ok(Self::LeaseGone), _) | (_, Ok(Self::LeaseGone)) => Ok(Self::LeaseGone),
                _ => Ok(Self::Applied),
            })
            .unwrap_or(Ok(Self::Applied))
    }
}

impl Grant {
    /// What the buckets of one request gave.
    pub(crate) fn of(
        given: impl IntoIterator<Item = BucketGrant>,
        degraded: Option<Degraded>,
        is_free: bool,
    ) -> Self {
        let mut grant = Self {
            holds: vec![],
            local: vec![],
            would_deny: None,
            degraded,
            has_unlimited: is_free,
        };
        for BucketGrant {
            hold,
            local,
            would_deny,
        } in given
        {
            grant.holds.extend(hold);
            grant.local.extend(local);
            grant.would_deny = decision::merge_two(grant.would_deny, would_deny);
        }
        grant
    }

    /// Why DynamoDB was not asked: it was away, and the limiter is set to [answer without
    /// it](crate::OnUnavailable).
    #[must_use]
    pub const fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }

    /// What would have been denied, were it not for shadow mode. Of the limits in the way nothing
    /// was taken.
    #[must_use]
    pub const fn would_deny(&self) -> Option<&Denied> {
        self.would_deny.as_ref()
    }

    /// Id of the durable lease in the bucket that was asked for; where several shards gave, the
    /// first one's.
    #[must_use]
    pub fn lease_id(&self) -> Option<&str> {
        self.holds.first()?.lease().map(|(id, _)| id.as_str())
    }

    /// When the durable lease expires.
    #[must_use]
    pub fn expires_at(&self) -> Option<EpochMillis> {
        self.holds
            .iter()
            .filter_map(|hold| hold.lease().map(|(_, expires)| expires))
            .min()
    }

    /// What was taken of a limit, as adjusted.
    #[must_use]
    pub fn amount(&self, limit: &str) -> MilliTokens {
        let held = self
            .holds
            .iter()
            .find(|hold| hold.has(limit))
            .map(|hold| hold.amount(limit));
        held.or_else(|| self.local.iter().map(|local| local.amount(limit)).next())
            .unwrap_or_default()
    }

    /// Every limit of the buckets as it was right after the take. Of a bucket of several shards,
    /// those that gave something; they hold a part of what the bucket does.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.holds.iter().flat_map(Hold::limits).collect()
    }

    /// The limit that has least left of its capacity.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<LimitStatus> {
        decision::most_restrictive(&self.limits()).cloned()
    }

    /// Corrects an estimate: `tokens` of `limit` were used in truth. More than taken goes into debt
    /// if need be; less gives back. Costs nothing if the estimate was right.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `limit` was not taken, or `tokens` is negative or above 10^12.
    /// [`Error::Store`] if it could not be decided; an outcome that stays unknown without a lease
    /// is not repeated, and what was to be given back counts as used.
    pub async fn adjust(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        self.adjust_milli(limit, acquire::parse_amount(limit, tokens, 0)?)
            .await
    }

    /// [`adjust`](Self::adjust) to the millitoken.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn adjust_milli(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        for local in &mut self.local {
            local.adjust(limit, actual);
        }
        let mut holds: Vec<_> = self
            .holds
            .iter_mut()
            .filter(|hold| hold.has(limit))
            .collect();
        let is_overlooked = || {
            self.would_deny
                .iter()
                .flat_map(Denied::short)
                .any(|short| short.limit == limit)
        };
        if holds.is_empty() && !self.has_unlimited && !is_overlooked() {
            return Err(Error::Invalid(format!(
                "limit {limit:?} was not taken by this grant: adjust one that was"
            )));
        }
        Settlement::all(join_all(holds.iter_mut().map(|hold| hold.adjust(limit, actual))).await)
    }

    /// Makes the durable lease last for `lasts` from now, or as long as it does already if that is
    /// longer. Without a lease there is nothing to renew.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a lease, [`Error::Store`] if it could not be decided.
    pub async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        if self.lease_id().is_none() && !self.has_unlimited && self.would_deny.is_none() {
            return Err(Error::Invalid(
                "this grant holds no lease: ask for one with lease()".to_owned(),
            ));
        }
        acquire::check_lease(lasts)?;
        Settlement::all(join_all(self.holds.iter_mut().map(|hold| hold.renew(lasts))).await)
    }

    /// Ends the grant: its slots go back, its rate tokens were used. Without a lease there is
    /// nothing to do.
    ///
    /// # Errors
    /// [`Error::Store`] if it could not be decided; the lease then expires by itself.
    pub async fn release(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.holds.into_iter().map(Hold::release)).await)
    }

    /// Ends the grant as if it had not been: everything goes back.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn roll_back(self) -> Result<Settlement, Error> {
        self.local.into_iter().for_each(LocalHold::roll_back);
        Settlement::all(join_all(self.holds.into_iter().map(Hold::roll_back)).await)
    }
}
