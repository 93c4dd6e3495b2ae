//! Writes that change a hold and do not end it.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_shared::write::LeaseChange;
use weirgate_shared::{EpochMillis, MilliTokens};
use weirgate_store::ErrorKind;

use super::Hold;
use crate::queue::SettleOutcome;
use crate::values::{Amounts, Error, Settlement};

impl Hold {
    /// Adjusts `limit` to the `actual` amount used. A limit that was not taken is taken by the first
    /// part.
    pub(crate) async fn adjust(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        for part in &mut self.parts {
            if !part.end_doubt(&self.session).await? {
                return Ok(Settlement::LeaseGone);
            }
        }
        let mut more = actual - self.amount(limit);
        if more > MilliTokens::ZERO && self.take_from_pool(limit, more) {
            return Ok(Settlement::Applied);
        }
        let (is_taken, mut is_begun) = (self.has(limit), false);
        for at in 0..self.parts.len() {
            let taken = match self.parts[at].amounts.get(limit) {
                Some(taken) => *taken,
                None if at == 0 && !is_taken => MilliTokens::ZERO,
                None => continue,
            };
            // The first part takes all that is missing; each part returns at most what it took.
            let change = more.max(-taken);
            if change == MilliTokens::ZERO {
                continue;
            }
            let adjusted = self.adjust_part(at, limit, taken + change).await;
            match adjusted.map_err(|error| error.halfway(is_begun))? {
                SettleOutcome::Done(Settlement::Applied) => {}
                SettleOutcome::Done(gone) => return Ok(gone),
                // Another adjustment of the lease was applied: by a token, or later than thought.
                SettleOutcome::LeaseDiffers(amounts) => {
                    self.parts[at].amounts = amounts;
                    return Box::pin(self.adjust(limit, actual)).await;
                }
            }
            is_begun = true;
            more -= change;
        }
        Ok(Settlement::Applied)
    }

    async fn adjust_part(
        &mut self,
        at: usize,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<SettleOutcome, Error> {
        const APPLIED: SettleOutcome = SettleOutcome::Done(Settlement::Applied);
        let part = &self.parts[at];
        let Some((limit, _)) = part.shard.limits.get_key_value(limit) else {
            return Ok(APPLIED);
        };
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
        let deltas = BTreeMap::from([(limit.clone(), settled)]);
        let done = self.settle_part(at, change, deltas).await;
        let part = &mut self.parts[at];
        let known = match &done {
            Ok(SettleOutcome::Done(Settlement::Applied)) => Some(actual),
            Err(error) if error.is_unknown() => return done,
            Ok(_) | Err(_) => before,
        };
        part.is_in_doubt = false;
        let _ = match known {
            Some(amount) => part.amounts.insert(limit, amount),
            None => part.amounts.remove(&limit),
        };
        done
    }

    /// Renews the durable lease, if there is one, to expire `lasts` from now.
    pub(crate) async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        let untils = self
            .parts
            .iter()
            .filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires));
        let Some(until) = untils.max() else {
            return Ok(Settlement::Applied);
        };
        let planned = self.session.plan_time();
        // Never earlier than before, because a shard's `due` is a lower bound of every expiry.
        let mut expires = planned.now.plus(lasts.into()).max(until);
        let mut renewed = self.renew_until(expires).await;
        let is_skewed = |error: &Error| matches!(error, Error::Store(error) if error.kind == ErrorKind::ClockSkew);
        // The clock was wrong, and a response has corrected it.
        if renewed.as_ref().is_err_and(is_skewed)
            || renewed.is_ok() && planned.clock_was_slow(&self.session)
        {
            expires = self.session.now().plus(lasts.into()).max(until);
            renewed = self.renew_until(expires).await;
        }
        renewed
    }

    async fn renew_until(&mut self, expires: EpochMillis) -> Result<Settlement, Error> {
        for at in 0..self.parts.len() {
            let renewed = self
                .settle_part(at, LeaseChange::Renew(expires), BTreeMap::new())
                .await
                .map_err(|error| error.halfway(at > 0))?;
            if matches!(renewed, SettleOutcome::Done(Settlement::LeaseGone)) {
                return Ok(Settlement::LeaseGone);
            }
            if let Some((_, until)) = &mut self.parts[at].lease {
                *until = expires;
            }
        }
        Ok(Settlement::Applied)
    }
}
