//! Writes that change a hold and do not end it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use weirgate_shared::write::LeaseChange;
use weirgate_shared::{LimitName, MilliTokens};

use super::{Adjusting, Hold};
use crate::queue::{HoldPart, SettleOutcome};
use crate::values::{Amounts, Error, HoldSettlement, Settlement};

/// A change of the amount that a hold has of a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Adjustment {
    /// So much was used.
    To(MilliTokens),
    /// No more than this is kept. A hold that has less, because shadow mode waived a part of what others
    /// took, keeps that.
    AtMost(MilliTokens),
}

impl Adjustment {
    /// Returns the amount after the change.
    pub(crate) fn of(self, held: MilliTokens) -> MilliTokens {
        match self {
            Self::To(actual) => actual,
            Self::AtMost(most) => held.min(most),
        }
    }
}

impl Hold {
    /// Adjusts the amount of `limit`. A limit that was not taken is taken by the first part.
    pub(crate) async fn adjust(
        &mut self,
        limit: &str,
        adjustment: Adjustment,
    ) -> Result<HoldSettlement, Error> {
        // Of a caller that is gone: only what the hold has then matters.
        let _ = self.end_adjusting().await;
        if !self.end_doubts().await? {
            return Ok(HoldSettlement::LeaseGone);
        }
        let held = self.amount(limit);
        let more = adjustment.of(held) - held;
        if more > MilliTokens::ZERO && self.take_from_pool(limit, more) {
            return Ok(HoldSettlement::Applied);
        }
        let mut is_begun = false;
        for (at, pool, amount) in self.adjusted_parts(limit, adjustment, 0) {
            let adjusted = self.adjust_part(at, &pool, amount).await;
            match adjusted.map_err(|error| error.halfway(is_begun))? {
                SettleOutcome::Done(Settlement::Applied) => {}
                SettleOutcome::Done(gone) => return Ok(gone.into()),
                // Another adjustment of the lease was applied: by a token, or later than thought.
                SettleOutcome::LeaseDiffers(lease) => {
                    self.parts[at].record_lease(lease);
                    let again = Box::pin(self.adjust(limit, adjustment)).await?;
                    return Ok(again.max(HoldSettlement::Outdated));
                }
            }
            is_begun = true;
        }
        Ok(HoldSettlement::Applied)
    }

    /// Returns the parts that change by an adjustment, from the one at `from` on, because those before have
    /// ended: their places, the pool, and the amount after.
    pub(super) fn adjusted_parts(
        &self,
        limit: &str,
        adjustment: Adjustment,
        from: usize,
    ) -> Vec<(usize, LimitName, MilliTokens)> {
        let held = self.amount(limit);
        let mut more = adjustment.of(held) - held;
        let of_part = |(at, part): (usize, &HoldPart)| {
            let pools = part.amounts.iter().filter(|(pool, _)| pool.base() == limit);
            let pools = pools.map(|(pool, taken)| (at, pool.clone(), *taken));
            pools.collect::<Vec<_>>()
        };
        let parts = self.parts.iter().enumerate().skip(from);
        let mut taken: Vec<_> = parts.flat_map(of_part).collect();
        if let Some(first) = self.parts.get(from)
            && taken.is_empty()
            && let Some((pool, _)) = first.shard.limits.get_key_value(&*self.first_pool(limit))
        {
            taken.push((from, pool.clone(), MilliTokens::ZERO));
        }
        // What was taken last is not used, and a quota's window may have ended since the first take.
        if more < MilliTokens::ZERO {
            taken.reverse();
        }
        // The first part takes all that is missing; each part returns at most what it took.
        let adjusted = taken.into_iter().map(|(at, pool, taken)| {
            let change = more.max(-taken);
            more -= change;
            (change != MilliTokens::ZERO).then_some((at, pool, taken + change))
        });
        adjusted.flatten().collect()
    }

    /// Reads the amounts of the leases in doubt. Returns whether these leases are there.
    pub(super) async fn end_doubts(&mut self) -> Result<bool, Error> {
        let session = &*self.session;
        let doubts = self.parts.iter_mut().map(|part| part.end_doubt(session));
        let known = join_all(doubts).await.into_iter();
        known.collect::<Result<Vec<_>, _>>().map(|known| !known.contains(&false))
    }

    /// Reads whether the lease is there, and whether it has the amounts of the hold.
    pub(crate) async fn read_lease(&mut self) -> Result<HoldSettlement, Error> {
        // Of a caller that is gone: only what the hold has then matters.
        let _ = self.end_adjusting().await;
        let Some(first) = self.parts.first_mut() else {
            return Ok(HoldSettlement::LeaseGone);
        };
        let known = (!first.is_in_doubt).then(|| first.amounts.clone());
        first.is_in_doubt = true;
        if !first.end_doubt(&self.session).await? {
            return Ok(HoldSettlement::LeaseGone);
        }
        match known.is_none_or(|known| known == first.amounts) {
            true => Ok(HoldSettlement::Applied),
            false => Ok(HoldSettlement::Outdated),
        }
    }

    async fn adjust_part(
        &mut self,
        at: usize,
        limit: &LimitName,
        actual: MilliTokens,
    ) -> Result<SettleOutcome, Error> {
        const APPLIED: SettleOutcome = SettleOutcome::Done(Settlement::Applied);
        let part = &self.parts[at];
        if !part.shard.limits.contains_key(limit) {
            return Ok(APPLIED);
        }
        let limit = limit.clone();
        let before = part.amounts.get(&limit).copied();
        let taken = before.unwrap_or_default();
        let more = actual - taken;
        if more < MilliTokens::ZERO
            && self.return_to_pool(at, Amounts::from([(limit.clone(), -more)]))
        {
            self.parts[at].amounts.insert(limit, actual);
            return Ok(APPLIED);
        }
        let mut settled = self.parts[at].returned_delta(&self.limits, &limit, -more);
        // A slot that is taken in addition counts; one that returns stays counted.
        if more > MilliTokens::ZERO {
            settled.consumed = more;
        }
        let change = LeaseChange::SetAmounts(BTreeMap::from([(limit.clone(), (taken, actual))]));
        // Until the outcome is known, only the smaller amount is held for certain. A lease tells later.
        let part = &mut self.parts[at];
        part.is_in_doubt = part.lease.is_some();
        part.amounts.insert(limit.clone(), taken.min(actual));
        let (send, done) = oneshot::channel();
        let (session, part) = (Arc::clone(&self.session), part.clone());
        let deltas = BTreeMap::from([(limit.clone(), settled)]);
        self.session.spawn(async move {
            let settled = part.settle(&session, change, deltas, 0).await;
            // Without a caller, the hold's next settlement looks.
            let _ = send.send(settled);
        });
        self.adjusting = Some(Adjusting { at, limit, before, after: actual, done });
        self.end_adjusting().await
    }

    /// Awaits the adjustment under way, if there is one, and records what the hold has then.
    pub(super) async fn end_adjusting(&mut self) -> Result<SettleOutcome, Error> {
        let Some(adjusting) = &mut self.adjusting else {
            return Ok(SettleOutcome::Done(Settlement::Applied));
        };
        let done = (&mut adjusting.done).await;
        let (Ok(done), Some(adjusting)) = (done, self.adjusting.take()) else {
            return Err(self.session.ended());
        };
        let part = &mut self.parts[adjusting.at];
        let known = match &done {
            Ok(SettleOutcome::Done(Settlement::Applied)) => Some(adjusting.after),
            Err(error) if error.is_unknown() => return done,
            Ok(_) | Err(_) => adjusting.before,
        };
        part.is_in_doubt = false;
        let _ = match known {
            Some(amount) => part.amounts.insert(adjusting.limit, amount),
            None => part.amounts.remove(&adjusting.limit),
        };
        done
    }

    /// Renews the durable lease, if there is one, to expire `lasts` from now.
    pub(crate) async fn renew(&mut self, lasts: Duration) -> Result<HoldSettlement, Error> {
        let untils =
            self.parts.iter().filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires));
        let Some(until) = untils.max() else {
            return Ok(HoldSettlement::Applied);
        };
        let key = self.bucket.key.item_key();
        let now = self.session.confirmed_now(&key).await?;
        // Never earlier than before, by this hold or, as the write requires, by another one.
        let until = now.plus(lasts.into()).max(until);
        // All at once, so a throttled shard lets no lease in another one expire.
        let session = &*self.session;
        let renewals = self.parts.iter_mut().map(|part| part.renew(session, until));
        HoldSettlement::all(join_all(renewals).await)
    }
}
