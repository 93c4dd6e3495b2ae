//! What a decision grants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::Either;
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, PlanName};

use super::local::LocalHold;
use crate::bucket::{BucketState, BucketTarget, Hold};
use crate::session::Session;
use crate::values::{
    Degraded, Denied, Error, LimitStatus, VendorReport, merge_two, most_restrictive,
};

/// Tokens taken from a bucket, and from the buckets it cascades to.
///
/// Rate tokens are consumed unless they are rolled back. A durable lease, which slots always have,
/// ends with [`release`](Self::release), [`roll_back`](Self::roll_back), or its expiry. Dropping
/// the grant releases it in the background.
///
/// A Lambda function is frozen once its handler has returned, with its background tasks. The slots
/// of a grant dropped there are released in the next invocation, or when the lease expires. So
/// await `release` before returning.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grant {
    /// Holds of the buckets, the requested one first.
    pub(super) holds: Vec<Hold>,
    /// Holds of local buckets, taken while DynamoDB was unavailable.
    pub(super) local: Vec<LocalHold>,
    pub(super) would_deny: Option<Denied>,
    /// Limits that shadow mode waived for a grant that was restored.
    waived: Box<[LimitName]>,
    degraded: Option<Degraded>,
    /// Limits of which nothing is counted.
    pub(super) uncounted: Uncounted,
    missing_plan: Option<PlanName>,
    /// The last bucket of the request, if there is no hold of it any more or shadow mode waived what it lacks.
    pub(super) vendor: Option<Vendor>,
    /// Settlements that have begun and not succeeded: they may be applied, and their work is done.
    in_doubt: AtomicU32,
}

impl Grant {
    /// Builds the grant of one request.
    pub(crate) fn of(granted: Granted, session: &Arc<Session>) -> Self {
        let mut grant = Self {
            holds: vec![],
            local: vec![],
            would_deny: None,
            waived: Box::default(),
            degraded: granted.degraded,
            uncounted: granted.uncounted,
            missing_plan: granted.missing_plan,
            vendor: None,
            in_doubt: AtomicU32::new(0),
        };
        for BucketGrant { hold, local, would_deny, uncounted, bucket } in granted.by_bucket {
            if hold.is_some() || would_deny.is_some() {
                grant.vendor = bucket.map(|bucket| Vendor { session: Arc::clone(session), bucket });
            }
            grant.uncounted.extend(uncounted);
            grant.holds.extend(hold);
            grant.local.extend(local);
            grant.would_deny = merge_two(grant.would_deny, would_deny);
        }
        grant
    }

    /// Builds a grant of restored holds.
    pub(super) const fn restored(
        holds: Vec<Hold>,
        uncounted: Uncounted,
        waived: Box<[LimitName]>,
        degraded: Option<Degraded>,
        vendor: Option<Vendor>,
    ) -> Self {
        Self {
            holds,
            local: vec![],
            would_deny: None,
            waived,
            degraded,
            uncounted,
            missing_plan: None,
            vendor,
            in_doubt: AtomicU32::new(0),
        }
    }

    /// Splits the grant into its holds, the limits of which nothing is counted, and those of them that
    /// shadow mode waived.
    pub(super) fn into_holds(mut self) -> (Vec<Hold>, Uncounted, Vec<LimitName>) {
        let short = self.would_deny.iter().flat_map(Denied::short);
        let short = short.filter_map(|short| LimitName::new(short.limit.as_str()).ok());
        let waived: Vec<_> = self.waived.into_iter().chain(short).collect();
        self.uncounted.extend(waived.iter().cloned());
        (self.holds, self.uncounted, waived)
    }

    /// Returns whether shadow mode waived a limit.
    pub(super) fn is_waived(&self, limit: &str) -> bool {
        let mut short = self.would_deny.iter().flat_map(Denied::short);
        let mut waived = self.waived.iter();
        short.any(|short| short.limit == limit) || waived.any(|name| name.as_str() == limit)
    }

    /// Returns why the decision was made without DynamoDB: it was unavailable, and the limiter is
    /// set to [decide without it](crate::OnUnavailable).
    #[must_use]
    pub const fn degraded(&self) -> Option<&Degraded> {
        self.degraded.as_ref()
    }

    /// Returns the plan of the entity, or else of an ancestor that it cascades to, although no level of it
    /// has a configuration: the next level that has one holds instead. `None` also for a
    /// [restored](crate::RateLimiter::restore_grant) grant, and if it could not be read whether the plan
    /// exists.
    #[must_use]
    pub const fn missing_plan(&self) -> Option<&PlanName> {
        self.missing_plan.as_ref()
    }

    /// Returns the denial that shadow mode waived. Nothing was taken of the limits that were short.
    #[must_use]
    pub const fn would_deny(&self) -> Option<&Denied> {
        self.would_deny.as_ref()
    }

    /// Returns the id of the durable lease in the first bucket that has one, in its first shard.
    #[must_use]
    pub fn lease_id(&self) -> Option<&str> {
        self.holds.iter().find_map(|hold| hold.lease().map(|(id, _)| id.as_str()))
    }

    /// Returns whether every bucket has a durable lease. Without one, a settlement that may have been
    /// applied must not be repeated.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.holds.iter().all(Hold::has_lease)
    }

    /// Returns the earliest expiry of the durable leases.
    #[must_use]
    pub fn expires_at(&self) -> Option<EpochMillis> {
        self.holds.iter().filter_map(|hold| hold.lease().map(|(_, expires)| expires)).min()
    }

    /// Returns when a request starts that [queued](crate::Acquire::queue_up_to), by DynamoDB's clock:
    /// when its amounts and those before it have refilled in all its buckets. The instant may have
    /// passed. `None` if the request did not queue, if it was decided without DynamoDB, or for a
    /// [restored](crate::RateLimiter::restore_grant) grant: it has started.
    ///
    /// It does not move. [`roll_back`](Self::roll_back) before it leaves the line, and later requests
    /// start earlier.
    #[must_use]
    pub fn starts_at(&self) -> Option<EpochMillis> {
        self.holds.iter().filter_map(Hold::starts_at).max()
    }

    /// Returns the time until [`starts_at`](Self::starts_at); zero if the grant has started.
    #[must_use]
    pub fn starts_in(&self) -> Duration {
        let starts = self.session().zip(self.starts_at());
        starts.map_or(Duration::ZERO, |(session, at)| at.since(session.now()).into())
    }

    /// Returns whether a durable lease has expired, by DynamoDB's clock.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        let has_expired = |hold: &Hold| {
            let lease = hold.lease();
            lease.is_some_and(|(_, expires)| expires <= hold.session().now())
        };
        self.holds.iter().any(has_expired)
    }

    /// Returns the amount taken of a limit, as adjusted. Of a limit that several buckets of a cascade
    /// have, it is the largest: shadow mode may have waived a part of it in the others.
    #[must_use]
    pub fn amount(&self, limit: &str) -> MilliTokens {
        let holds = self.holds.iter().map(|hold| hold.amount(limit));
        let local = self.local.iter().map(|local| local.amount(limit));
        holds.chain(local).max().unwrap_or_default()
    }

    /// Returns the amounts taken of all limits, as adjusted, each as [`amount`](Self::amount).
    #[must_use]
    pub fn amounts(&self) -> BTreeMap<LimitName, MilliTokens> {
        let held = self.holds.iter().flat_map(Hold::limits_taken);
        let local = self.local.iter().flat_map(LocalHold::limits_taken);
        held.chain(local).map(|pool| (pool.whole(), self.amount(pool.base()))).collect()
    }

    /// Returns the number of the grant's parts. A settlement changes each by a write of its own.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.holds.iter().map(Hold::part_count).sum()
    }

    /// Returns every limit of the buckets as it was right after the take. In a split bucket, only
    /// the shards of this grant count, with their shares. Empty for a grant that was
    /// [restored](crate::RateLimiter::restore_grant).
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        self.holds.iter().flat_map(Hold::limits).collect()
    }

    /// Returns the limit with the smallest part of its capacity left.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<LimitStatus> {
        most_restrictive(&self.limits()).cloned()
    }

    /// Tells all callers what the vendor's answer says: a bucket is paused if it denied the call (status
    /// 429, 503 or 529), until the instant that its fields name. Then nothing is granted in any process but
    /// what no limit denies: usage that has happened, soft and shadow limits, bypasses. What
    /// [queued](crate::Acquire::queue_up_to) before keeps its start. `fields` are the names and values of
    /// the header. With parents, the bucket is the last one of the chain that the request takes from, which
    /// all callers of the vendor share.
    ///
    /// Returns when the pause ends; `None` if there is none, as after a decision without the table, or if
    /// nothing of the bucket is limited. It counts up to an hour; without
    /// `retry-after` it is 1 s, and doubles while the next calls are denied, up to 60 s. The end is later
    /// by up to 5 %, so that not all come back at once. If the pause is known already, nothing is
    /// written. Adjust and release the grant as usual.
    ///
    /// What the vendor has left lowers the balance if the limiter
    /// [follows](crate::Builder::follow_vendor) it.
    ///
    /// ```no_run
    /// # async fn example(grant: weirgate::Grant) -> Result<(), weirgate::Error> {
    /// // After the call: `let response = client.post(..).send().await?;`
    /// let (status, header) = (429, [("retry-after", "20")]);
    /// grant.vendor_said(status, header).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if a shard could not be paused: others may be.
    pub async fn vendor_said(
        &self,
        status: u16,
        fields: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
    ) -> Result<Option<EpochMillis>, Error> {
        self.begin();
        let said = self.report_vendor(&VendorReport::read(status, fields)).await;
        self.ended(said)
    }

    /// Tells all callers what the vendor said, as [`vendor_said`](Self::vendor_said) does. The future
    /// does not borrow the grant, so it can run beside a settlement.
    ///
    /// # Errors
    /// As [`vendor_said`](Self::vendor_said).
    pub fn report_vendor(
        &self,
        report: &VendorReport,
    ) -> impl Future<Output = Result<Option<EpochMillis>, Error>> + Send + use<> {
        let report = report.clone();
        let said = match (&self.vendor, self.holds.last()) {
            (Some(vendor), _) => Some(Either::Left(vendor.clone().said(report))),
            (None, last) => last.map(|last| Either::Right(last.vendor_said(report))),
        };
        async move {
            match said {
                Some(said) => said.await,
                None => Ok(None),
            }
        }
    }

    /// Returns whether a settlement failed or was dropped. A scope then does not roll back.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed) > 0
    }

    /// Makes a settlement, and keeps in mind whether it failed or was dropped.
    pub(super) async fn settling<T>(
        &mut self,
        settle: impl AsyncFnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.begin();
        let settled = settle(self).await;
        self.ended(settled)
    }

    /// Begins what is in doubt until it has succeeded.
    pub(super) fn begin(&self) {
        self.in_doubt.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if result.is_ok() {
            self.in_doubt.fetch_sub(1, Ordering::Relaxed);
        }
        result
    }

    /// Returns the session of the holds; `None` without any.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.holds.first().map(|hold| Arc::clone(hold.session()))
    }
}

/// The bucket of a vendor's account, of which a grant has no hold.
#[derive(Debug, Clone)]
pub(super) struct Vendor {
    pub(super) session: Arc<Session>,
    pub(super) bucket: Arc<BucketState>,
}

impl Vendor {
    pub(super) fn of(hold: &Hold) -> Self {
        Self { session: Arc::clone(hold.session()), bucket: Arc::clone(hold.bucket()) }
    }

    async fn said(self, report: VendorReport) -> Result<Option<EpochMillis>, Error> {
        self.bucket.vendor_said(&self.session, &report, None, &BTreeMap::new()).await
    }
}

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
        let holds = self.by_bucket.iter().filter_map(|grant| grant.hold.as_ref());
        holds.filter_map(Hold::starts_at).max()
    }

    /// Hands the tokens to the caller: until then, dropping them returns them.
    pub(super) fn claim(self) -> Self {
        let claim = |grant: BucketGrant| BucketGrant { hold: grant.hold.map(Hold::claim), ..grant };
        Self { by_bucket: self.by_bucket.into_iter().map(claim).collect(), ..self }
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
    /// The bucket, if there is no hold.
    pub(crate) bucket: Option<Arc<BucketState>>,
}

impl BucketGrant {
    /// Returns the grant of a bucket from which nothing was taken.
    pub(crate) fn uncounted(target: &BucketTarget) -> Self {
        let limits = target.request.limits.named().iter();
        Self {
            uncounted: limits.map(|limit| limit.name().clone()).collect(),
            bucket: Some(Arc::clone(&target.bucket)),
            ..Self::default()
        }
    }
}
