//! How a grant is settled: adjust, give back, renew, release, roll back.

use std::borrow::Borrow;
use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::MilliTokens;

use super::grant::{Grant, Vendor};
use super::local::LocalHold;
use crate::bucket::{Adjustment, Ending, Hold};
use crate::values::{
    Denied, Error, HoldSettlement, Settlement, check_amount, check_lease, check_whole, merge_two,
    parse_amount,
};

impl Grant {
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
        let adjust =
            async |grant: &mut Self| grant.adjust_milli(limit, parse_amount(limit, tokens)?).await;
        self.settling(adjust).await
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
        let adjust = async |grant: &mut Self| {
            let places = grant.adjustable(limit, actual)?;
            grant.change(&places, limit, Adjustment::To(actual)).await
        };
        Ok(self.settling(adjust).await?.into())
    }

    /// Returns `tokens` of a limit that were taken and are not needed: slots, or tokens of a rate.
    /// The grant keeps the rest. A bucket in which shadow mode waived more than that returns nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant holds fewer; the others as [`adjust`](Self::adjust).
    pub async fn give_back(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        let give_back = async |grant: &mut Self| {
            grant.give_back_milli(limit, parse_amount(limit, tokens)?).await
        };
        self.settling(give_back).await
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
        let give_back = async |grant: &mut Self| {
            let rest = grant.rest(limit, grant.amount(limit), back)?;
            let places = grant.places(limit)?;
            grant.change(&places, limit, Adjustment::AtMost(rest)).await
        };
        Ok(self.settling(give_back).await?.into())
    }

    /// Returns what the grant keeps of a limit.
    fn rest(
        &self,
        limit: &str,
        held: MilliTokens,
        back: MilliTokens,
    ) -> Result<MilliTokens, Error> {
        check_amount(limit, back)?;
        // Of what is not counted, nothing returns.
        let is_counted = !self.places(limit)?.is_empty() || held > MilliTokens::ZERO;
        match back <= held || !is_counted {
            true => Ok((held - back).max(MilliTokens::ZERO)),
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
            let adjusted = settle_all(
                holds.map(|(_, hold)| hold),
                |hold| hold.adjust(limit, adjustment),
                drop,
            );
            if let Some(session) = session {
                settled = session.at_home(adjusted).await?;
            }
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
        let last = self.holds.last().filter(|last| !last.has_lease()).map(Vendor::of);
        self.vendor = self.vendor.take().or(last);
        let (leased, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holds).into_iter().partition(Hold::has_lease);
        self.holds = leased;
        let limits = others.iter().flat_map(Hold::limit_names);
        self.uncounted.extend(limits.cloned());
    }

    /// Checks that [`adjust`](Self::adjust) can change a limit. Sends nothing. Returns whether it would:
    /// nothing may be counted of the limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grant's buckets have no such limit, or if it counts slots that were
    /// not taken and the grant has no lease.
    pub fn check_adjust(&self, limit: &str) -> Result<bool, Error> {
        self.places(limit).map(|places| !places.is_empty())
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
        let renew = async |grant: &mut Self| {
            grant.check_renew(lasts)?;
            let Some(session) = grant.session() else {
                return Ok(Settlement::Applied);
            };
            let renewed = settle_all(grant.holds.iter_mut(), |hold| hold.renew(lasts), drop);
            Ok(session.at_home(renewed).await?.into())
        };
        self.settling(renew).await
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
        self.end(|_| Ending::Release(vec![])).await
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
        let taken: Vec<_> = changes.iter().map(|(limit, _)| self.is_taken(limit)).collect();
        self.end(|hold| {
            let meant = changes.iter().zip(&taken);
            let meant = meant.filter(|((limit, _), is_taken)| hold.is_meant(limit, **is_taken));
            let meant = meant.map(|((limit, change), _)| ((*limit).to_owned(), *change));
            Ending::Release(meant.collect())
        })
        .await
    }

    /// Ends the grant and returns all tokens.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn roll_back(mut self) -> Result<Settlement, Error> {
        let local = std::mem::take(&mut self.local);
        local.into_iter().for_each(LocalHold::roll_back);
        // A rollback that cannot be awaited here is made when the holds are dropped.
        let holds = std::mem::take(&mut self.holds);
        self.holds = holds.into_iter().map(Hold::unclaim).collect();
        self.end(|_| Ending::RollBack).await
    }

    /// Ends the holds, in a task that goes on if the caller goes away.
    async fn end(self, ending: impl Fn(&Hold) -> Ending) -> Result<Settlement, Error> {
        let session = self.session();
        let endings = self.holds.into_iter().map(|hold| Leaving { ending: ending(&hold), hold });
        let endings: Vec<_> = endings.collect();
        let Some(session) = session.filter(|_| endings.iter().any(Leaving::has_work)) else {
            return Ok(Settlement::Applied);
        };
        let ended = settle_all(
            endings,
            |leaving| leaving.hold.end(leaving.ending),
            |left| drop(left.hold.claim()),
        );
        let ended = session.at_home(async { session.in_task(ended).await });
        Ok(ended.await?.into())
    }
}

/// A hold and how it is to end.
struct Leaving {
    hold: Hold,
    ending: Ending,
}

impl Leaving {
    /// Returns whether anything is to be written.
    fn has_work(&self) -> bool {
        match &self.ending {
            Ending::Release(changes) => self.hold.has_lease() || !changes.is_empty(),
            Ending::RollBack => true,
        }
    }
}

impl Borrow<Hold> for Leaving {
    fn borrow(&self) -> &Hold {
        &self.hold
    }
}

/// Settles holds, first those with a lease: only a lease remembers that the grant was settled before. If one
/// is gone or has other amounts, `leave` gets the others, and if one could not be settled, they are dropped:
/// so a repeated settlement counts once in their buckets too.
async fn settle_all<H: Borrow<Hold>, S: Future<Output = Result<HoldSettlement, Error>>>(
    holds: impl IntoIterator<Item = H>,
    settle: impl Fn(H) -> S,
    leave: impl Fn(H),
) -> Result<HoldSettlement, Error> {
    let has_lease = |hold: &H| hold.borrow().has_lease();
    let (leased, others): (Vec<_>, Vec<_>) = holds.into_iter().partition(has_lease);
    let mut settled = join_all(leased.into_iter().map(&settle)).await;
    let is_old = |one: &Result<_, _>| one.as_ref().is_ok_and(|one| *one != HoldSettlement::Applied);
    if settled.iter().any(is_old) {
        others.into_iter().for_each(leave);
    } else if settled.iter().all(Result::is_ok) {
        settled.extend(join_all(others.into_iter().map(&settle)).await);
    }
    HoldSettlement::all(settled)
}
