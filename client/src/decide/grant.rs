//! What a decision grants, and its settlements: adjust, renew, release, roll back.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::{EntityId, EpochMillis, LimitName, MilliTokens, PlanName, Resource};

use super::local::LocalHold;
use crate::bucket::{Adjustment, BucketTarget, Hold};
use crate::session::Session;
use crate::values::{
    Degraded, Denied, Error, HoldSettlement, LimitStatus, Settlement, VendorReport, check_amount,
    check_lease, check_whole, merge_two, most_restrictive, parse_amount,
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
    local: Vec<LocalHold>,
    would_deny: Option<Denied>,
    /// Limits that shadow mode waived for a grant that was restored.
    waived: Box<[LimitName]>,
    degraded: Option<Degraded>,
    /// Limits of which nothing is counted.
    uncounted: Uncounted,
    missing_plan: Option<PlanName>,
}

impl Grant {
    /// Builds the grant of one request.
    pub(crate) fn of(granted: Granted) -> Self {
        let mut grant = Self {
            holds: vec![],
            local: vec![],
            would_deny: None,
            waived: Box::default(),
            degraded: granted.degraded,
            uncounted: granted.uncounted,
            missing_plan: granted.missing_plan,
        };
        for BucketGrant {
            hold,
            local,
            would_deny,
            uncounted,
        } in granted.by_bucket
        {
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
    ) -> Self {
        Self {
            holds,
            local: vec![],
            would_deny: None,
            waived,
            degraded,
            uncounted,
            missing_plan: None,
        }
    }

    /// Returns what a bucket gave of these limits above what another one gave that enforces them: the caller
    /// uses no more than that.
    pub(crate) async fn leveled(
        mut self,
        ranges: impl Iterator<Item = &str>,
    ) -> Result<Self, Error> {
        for limit in ranges {
            let enforcing = self.holds.iter().filter(|hold| hold.enforces(limit));
            let least = enforcing.map(|hold| hold.amount(limit)).min();
            let Some(least) = least.filter(|least| *least < self.amount(limit)) else {
                continue;
            };
            let places = self.places(limit)?;
            if let Err(error) = self.change(&places, limit, Adjustment::AtMost(least)).await {
                // A rollback goes on by itself.
                drop(self.roll_back().await);
                return Err(error);
            }
        }
        Ok(self)
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
    fn is_waived(&self, limit: &str) -> bool {
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

    /// Returns the id of the durable lease in the requested bucket, in the first shard of the hold.
    #[must_use]
    pub fn lease_id(&self) -> Option<&str> {
        self.holds.first()?.lease().map(|(id, _)| id.as_str())
    }

    /// Returns the earliest expiry of the durable leases.
    #[must_use]
    pub fn expires_at(&self) -> Option<EpochMillis> {
        self.holds
            .iter()
            .filter_map(|hold| hold.lease().map(|(_, expires)| expires))
            .min()
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
        starts.map_or(Duration::ZERO, |(session, at)| {
            at.since(session.now()).into()
        })
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

    /// Returns the entity and the resource of the requested bucket. `None` if nothing was taken from
    /// the table.
    #[must_use]
    pub fn bucket(&self) -> Option<(&EntityId, &Resource)> {
        let key = self.holds.first()?.key();
        Some((&key.entity, &key.resource))
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
        held.chain(local)
            .map(|pool| (pool.whole(), self.amount(pool.base())))
            .collect()
    }

    /// Returns whether a limit of the request counts slots, which are held until the grant ends.
    #[must_use]
    pub fn has_slots(&self, limit: &str) -> bool {
        self.holds.iter().any(|hold| hold.has_slots(limit))
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

    /// Corrects an estimate: `tokens` of `limit` were really used. The difference is taken, into
    /// debt if needed, or returned. A correct estimate costs nothing. A limit of the buckets that
    /// was not taken counts as estimated at 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant's buckets have no such limit, if it counts slots that were
    /// not taken and the grant has no lease, or if `tokens` is negative, or above what the grant holds
    /// and what may go into debt: the refill of 30 days or twice the capacity, 10^12 at most.
    /// [`Error::Store`] if the outcome is not known. Without a lease, an unconfirmed write is not
    /// repeated, and tokens to be returned count as consumed. [`Error::Halfway`] if one of several
    /// parts failed: the grant has the amounts of the others, so the same call goes on from there.
    pub async fn adjust(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        self.adjust_milli(limit, parse_amount(limit, tokens)?).await
    }

    /// Adjusts as [`adjust`](Self::adjust) does, in millitokens.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn adjust_milli(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        let places = self.adjustable(limit, actual)?;
        let settled = self.change(&places, limit, Adjustment::To(actual)).await?;
        Ok(settled.into())
    }

    /// Returns `tokens` of a limit that were taken and are not needed: slots, or tokens of a rate.
    /// The grant keeps the rest. A bucket in which shadow mode waived more than that returns nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant holds fewer; the others as [`adjust`](Self::adjust).
    pub async fn give_back(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        self.give_back_milli(limit, parse_amount(limit, tokens)?)
            .await
    }

    /// Returns tokens as [`give_back`](Self::give_back) does, in millitokens.
    ///
    /// # Errors
    /// As [`give_back`](Self::give_back).
    pub async fn give_back_milli(
        &mut self,
        limit: &str,
        back: MilliTokens,
    ) -> Result<Settlement, Error> {
        let rest = self.rest(limit, self.amount(limit), back)?;
        let places = self.places(limit)?;
        let settled = self.change(&places, limit, Adjustment::AtMost(rest));
        Ok(settled.await?.into())
    }

    /// Returns what the grant keeps of a limit.
    fn rest(
        &self,
        limit: &str,
        held: MilliTokens,
        back: MilliTokens,
    ) -> Result<MilliTokens, Error> {
        check_amount(limit, back)?;
        self.places(limit)?;
        match back <= held {
            true => Ok(held - back),
            false => Err(Error::Invalid(format!(
                "grant holds {held} of {limit:?}, {back} were to be given back: give back at most {held}"
            ))),
        }
    }

    /// Changes the amount of a limit in the holds at these places, and in the local ones.
    async fn change(
        &mut self,
        places: &[usize],
        limit: &str,
        adjustment: Adjustment,
    ) -> Result<HoldSettlement, Error> {
        let mut settled = self.lease_beside(places).await?;
        if settled == HoldSettlement::Applied {
            for local in &mut self.local {
                local.adjust(limit, adjustment.of(local.amount(limit)));
            }
            let session = self.session();
            let holds = self.holds.iter_mut().enumerate();
            let holds = holds.filter(|(at, _)| places.contains(at));
            let holds = holds.map(|(_, hold)| hold);
            settled =
                settle_all(session, holds, |hold| hold.adjust(limit, adjustment), drop).await?;
        }
        if settled == HoldSettlement::Outdated {
            self.leave_unleased();
        }
        Ok(settled)
    }

    /// Returns what a lease of the grant shows if none is among the holds at these places: a change of
    /// these alone would not show that it is gone, or has other amounts.
    async fn lease_beside(&mut self, places: &[usize]) -> Result<HoldSettlement, Error> {
        let Some(session) = self.session() else {
            return Ok(HoldSettlement::Applied);
        };
        if places.is_empty() || places.iter().any(|at| self.holds[*at].has_lease()) {
            return Ok(HoldSettlement::Applied);
        }
        match self.holds.iter_mut().find(|hold| hold.has_lease()) {
            Some(hold) => session.at_home(hold.read_lease()).await,
            None => Ok(HoldSettlement::Applied),
        }
    }

    /// Leaves the buckets without a lease as they are, because their amounts are not known any more.
    fn leave_unleased(&mut self) {
        let (leased, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.holds)
            .into_iter()
            .partition(Hold::has_lease);
        self.holds = leased;
        let limits = others.iter().flat_map(Hold::limit_names);
        self.uncounted.extend(limits.cloned());
    }

    /// Checks that [`adjust`](Self::adjust) can change a limit. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant's buckets have no such limit, or if it counts slots that were
    /// not taken and the grant has no lease.
    pub fn check_adjust(&self, limit: &str) -> Result<(), Error> {
        self.places(limit).map(drop)
    }

    /// Checks that [`adjust_milli`](Self::adjust_milli) can set a limit to `actual`. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`adjust`](Self::adjust).
    pub fn check_adjust_milli(&self, limit: &str, actual: MilliTokens) -> Result<(), Error> {
        self.adjustable(limit, actual).map(drop)
    }

    /// Returns the places of the holds that an adjustment to `actual` changes.
    fn adjustable(&self, limit: &str, actual: MilliTokens) -> Result<Vec<usize>, Error> {
        check_amount(limit, actual)?;
        let places = self.places(limit)?;
        for at in &places {
            self.holds[*at].check_adjust(limit, actual)?;
        }
        Ok(places)
    }

    /// Returns the places of the holds that have a limit, or could take it; none if nothing is
    /// counted for it.
    pub(super) fn places(&self, limit: &str) -> Result<Vec<usize>, Error> {
        check_whole(limit)?;
        let is_taken = self.is_taken(limit);
        // As a limiter that denies: it takes nothing later either.
        if !is_taken && self.is_waived(limit) {
            return Ok(vec![]);
        }
        let holds = self.holds.iter().enumerate();
        let holds = holds.filter(|(_, hold)| hold.is_meant(limit, is_taken));
        let places: Vec<_> = holds.map(|(at, _)| at).collect();
        // A hold that has the limit and cannot take it has no lease for its slots.
        let is_uncounted =
            || !self.holds.iter().any(|hold| hold.knows(limit)) && self.uncounted.has(limit);
        if places.is_empty() && !is_uncounted() {
            return Err(Error::Invalid(format!(
                "limit {limit:?} is not among this grant's limits, or counts slots and the grant has no lease: take it with the acquire"
            )));
        }
        Ok(places)
    }

    /// Returns whether a hold has taken a limit.
    fn is_taken(&self, limit: &str) -> bool {
        self.holds.iter().any(|hold| hold.has(limit))
    }

    /// Adds what was taken later to the hold at `at`.
    pub(super) fn merge_hold(&mut self, at: usize, more: Option<Hold>) {
        if let Some(more) = more {
            let hold = self.holds.remove(at);
            self.holds.insert(at, hold.merge(more));
        }
    }

    /// Adds a denial that shadow mode waived later.
    pub(super) fn add_would_deny(&mut self, denied: Option<Denied>) {
        self.would_deny = merge_two(self.would_deny.take(), denied);
    }

    /// Renews the durable lease to expire `lasts` from now; never earlier than before, also if another
    /// process has renewed it from a [token](Self::into_token).
    ///
    /// # Errors
    /// [`Error::Invalid`] without a lease, [`Error::Store`] if the outcome is not known, or if the clock
    /// was set and no response has confirmed the time since.
    pub async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        self.check_renew(lasts)?;
        let (session, holds) = (self.session(), self.holds.iter_mut());
        let renewed = settle_all(session, holds, |hold| hold.renew(lasts), drop);
        Ok(renewed.await?.into())
    }

    /// Checks that [`renew`](Self::renew) can renew the lease. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a lease, or if `lasts` is out of range.
    pub fn check_renew(&self, lasts: Duration) -> Result<(), Error> {
        if self.lease_id().is_none() && self.uncounted.is_empty() && self.would_deny.is_none() {
            return Err(Error::Invalid(
                "this grant has no lease: take it with a lease to renew it".to_owned(),
            ));
        }
        check_lease(lasts)
    }

    /// Ends the grant: its slots return, its rate tokens stay consumed. Without a lease it writes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Store`] if the outcome is not known; the lease then expires by itself.
    pub async fn release(self) -> Result<Settlement, Error> {
        let session = self.session();
        let released = settle_all(session, self.holds, Hold::release, drop);
        Ok(released.await?.into())
    }

    /// Adjusts, then gives back, then releases, as [`adjust_milli`](Self::adjust_milli),
    /// [`give_back_milli`](Self::give_back_milli) and [`release`](Self::release) do. The end of a lease is
    /// one write with these amounts, and the buckets without a lease change after it. So under a lease it
    /// counts once, however often a [token](Self::into_token) repeats it.
    ///
    /// # Errors
    /// Those of the three. [`Error::Invalid`] before anything is written.
    pub async fn release_with(
        mut self,
        adjust: &[(&str, MilliTokens)],
        give_back: &[(&str, MilliTokens)],
    ) -> Result<Settlement, Error> {
        let mut changes = vec![];
        for (limit, actual) in adjust {
            self.adjustable(limit, *actual)?;
            changes.push((*limit, Adjustment::To(*actual)));
        }
        for (limit, back) in give_back {
            let adjusted = adjust.iter().find(|(name, _)| name == limit);
            let held = adjusted.map_or_else(|| self.amount(limit), |(_, actual)| *actual);
            let rest = self.rest(limit, held, *back)?;
            changes.retain(|(name, _)| name != limit);
            changes.push((
                *limit,
                match adjusted {
                    Some(_) => Adjustment::To(rest),
                    None => Adjustment::AtMost(rest),
                },
            ));
        }
        for local in &mut self.local {
            for (limit, adjustment) in &changes {
                local.adjust(limit, adjustment.of(local.amount(limit)));
            }
        }
        let taken: Vec<_> = changes
            .iter()
            .map(|(limit, _)| self.is_taken(limit))
            .collect();
        let session = self.session();
        let release = |hold: Hold| {
            let meant = changes.iter().zip(&taken);
            let meant = meant.filter(|((limit, _), is_taken)| hold.is_meant(limit, **is_taken));
            let meant = meant.map(|(change, _)| *change).collect();
            hold.release_with(meant)
        };
        let released = settle_all(session, self.holds, release, drop);
        Ok(released.await?.into())
    }

    /// Ends the grant and returns all tokens.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn roll_back(self) -> Result<Settlement, Error> {
        let session = self.session();
        self.local.into_iter().for_each(LocalHold::roll_back);
        // A rollback that cannot be awaited here is made when the holds are dropped.
        let holds = self.holds.into_iter().map(Hold::unclaim);
        let back = settle_all(session, holds, Hold::roll_back, |left| drop(left.claim()));
        Ok(back.await?.into())
    }

    /// Tells all callers what the vendor's answer says: a bucket is paused if it denied the call (status
    /// 429, 503 or 529), until the instant that its fields name. Then nothing is granted in any process but
    /// what no limit denies: usage that has happened, soft and shadow limits, bypasses. What
    /// [queued](crate::Acquire::queue_up_to) before keeps its start. `fields` are the names and values of
    /// the header. With parents, the bucket is the last one of the chain, which all callers of the vendor
    /// share.
    ///
    /// Returns when the pause ends, `None` if there is none. It counts up to an hour; without
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
        self.report_vendor(&VendorReport::read(status, fields))
            .await
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
        let last = self.holds.last();
        let said = last.map(|last| last.vendor_said(report.clone()));
        async move {
            match said {
                Some(said) => said.await,
                None => Ok(None),
            }
        }
    }

    /// Returns the session of the holds; `None` without any.
    fn session(&self) -> Option<Arc<Session>> {
        self.holds.first().map(|hold| Arc::clone(hold.session()))
    }
}

/// Settles holds on the limiter's runtime, first those with a lease: only a lease remembers that the
/// grant was settled before. If one is gone or has other amounts, `leave` gets the others, and if one could
/// not be settled, they are dropped: so a repeated settlement counts once in their buckets too.
async fn settle_all<H: Borrow<Hold>, S: Future<Output = Result<HoldSettlement, Error>>>(
    session: Option<Arc<Session>>,
    holds: impl IntoIterator<Item = H>,
    settle: impl Fn(H) -> S,
    leave: impl Fn(H),
) -> Result<HoldSettlement, Error> {
    let Some(session) = session else {
        return Ok(HoldSettlement::Applied);
    };
    let has_lease = |hold: &H| hold.borrow().has_lease();
    let (leased, others): (Vec<_>, Vec<_>) = holds.into_iter().partition(has_lease);
    let settled = async {
        let mut settled = join_all(leased.into_iter().map(&settle)).await;
        let is_old = |one: &Result<_, _>| {
            one.as_ref()
                .is_ok_and(|one| *one != HoldSettlement::Applied)
        };
        if settled.iter().any(is_old) {
            others.into_iter().for_each(leave);
        } else if settled.iter().all(Result::is_ok) {
            settled.extend(join_all(others.into_iter().map(&settle)).await);
        }
        HoldSettlement::all(settled)
    };
    session.at_home(settled).await
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
