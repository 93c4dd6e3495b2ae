//! Writes that change a hold and do not end it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use weirgate_shared::write::LeaseChange;
use weirgate_shared::{EpochMillis, MilliTokens};

use super::{Adjusting, Hold};
use crate::queue::{HoldPart, SettleOutcome};
use crate::values::{Amounts, Error, Settlement};

impl Hold {
    /// Adjusts `limit` to the `actual` amount used. A limit that was not taken is taken by the first
    /// part.
    pub(crate) async fn adjust(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        // Of a caller that is gone: only what the hold has then matters.
        let _ = self.end_adjusting().await;
        for part in &mut self.parts {
            if !part.end_doubt(&self.session).await? {
                return Ok(Settlement::LeaseGone);
            }
        }
        let mut more = actual - self.amount(limit);
        if more > MilliTokens::ZERO && self.take_from_pool(limit, more) {
            return Ok(Settlement::Applied);
        }
        let of_part = |(at, part): (usize, &HoldPart)| {
            let pools = part.amounts.iter().filter(|(pool, _)| pool.base() == limit);
            let pools = pools.map(|(pool, taken)| (at, pool.to_string(), *taken));
            pools.collect::<Vec<_>>()
        };
        let mut taken: Vec<_> = self.parts.iter().enumerate().flat_map(of_part).collect();
        if taken.is_empty() && !self.parts.is_empty() {
            taken.push((0, limit.to_owned(), MilliTokens::ZERO));
        }
        let mut is_begun = false;
        for (at, pool, taken) in taken {
            // The first part takes all that is missing; each part returns at most what it took.
            let change = more.max(-taken);
            if change == MilliTokens::ZERO {
                continue;
            }
            let adjusted = self.adjust_part(at, &pool, taken + change).await;
            match adjusted.map_err(|error| error.halfway(is_begun))? {
                SettleOutcome::Done(Settlement::Applied) => {}
                SettleOutcome::Done(gone) => return Ok(gone),
                // Another adjustment of the lease was applied: by a token, or later than thought.
                SettleOutcome::LeaseDiffers(lease) => {
                    self.parts[at].amounts = lease.tokens;
                    return Box::pin(self.adjust(limit, actual)).await;
                }
            }
            is_begun = true;
            more -= change;
        }
        Ok(Settlement::Applied)
    }

    /// Reads whether the lease is there, with the amounts that it has now.
    pub(crate) async fn finds_lease(&mut self) -> Result<bool, Error> {
        // Of a caller that is gone: only what the hold has then matters.
        let _ = self.end_adjusting().await;
        let Some(first) = self.parts.first_mut() else {
            return Ok(false);
        };
        first.is_in_doubt = true;
        first.end_doubt(&self.session).await
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
        let (send, done) = oneshot::channel();
        let (session, part) = (Arc::clone(&self.session), part.clone());
        let (deltas, acquires) = (
            BTreeMap::from([(limit.clone(), settled)]),
            -self.counted_acquires,
        );
        self.session.spawn(async move {
            let settled = part.settle(&session, change, deltas, acquires).await;
            // Without a caller, the hold's next settlement looks.
            let _ = send.send(settled);
        });
        self.adjusting = Some(Adjusting {
            at,
            limit,
            before,
            after: actual,
            done,
        });
        self.end_adjusting().await
    }

    /// Awaits the adjustment under way, if there is one, and records what the hold has then.
    pub(super) async fn end_adjusting(&mut self) -> Result<SettleOutcome, Error> {
        let Some(adjusting) = &mut self.adjusting else {
            return Ok(SettleOutcome::Done(Settlement::Applied));
        };
        let done = (&mut adjusting.done).await;
        let (Ok(done), Some(adjusting)) = (done, self.adjusting.take()) else {
            return Err(Hold::ended());
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
    pub(crate) async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        let untils = self
            .parts
            .iter()
            .filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires));
        let Some(until) = untils.max() else {
            return Ok(Settlement::Applied);
        };
        let key = self.bucket.key.item_key();
        let now = self.session.confirmed_now(&key).await?;
        // Never earlier than before, by this hold or, as the write requires, by another one.
        self.renew_until(now.plus(lasts.into()).max(until)).await
    }

    async fn renew_until(&mut self, expires: EpochMillis) -> Result<Settlement, Error> {
        for at in 0..self.parts.len() {
            let renewed = self
                .settle_part(at, LeaseChange::Renew(expires), BTreeMap::new())
                .await
                .map_err(|error| error.halfway(at > 0))?;
            let lasts_until = match renewed {
                SettleOutcome::Done(Settlement::LeaseGone) => return Ok(Settlement::LeaseGone),
                SettleOutcome::Done(Settlement::Applied) => expires,
                SettleOutcome::LeaseDiffers(lease) => lease.expires_at,
            };
            if let Some((_, until)) = &mut self.parts[at].lease {
                *until = lasts_until;
            }
        }
        Ok(Settlement::Applied)
    }
}
