//! Tokens that one write took from one shard, on their way to the caller and in a hold, and the
//! writes that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Shard, WriteId};

use super::settle::{SettleAttempt, SettleOutcome};
use super::shard_state::ShardState;
use crate::session::{Moment, Session, decode_shard};
use crate::values::{Amounts, Error, HoldSettlement, Limits};

/// Ends of the windows of quotas, by limit.
pub(crate) type Windows = BTreeMap<LimitName, EpochMillis>;

/// Returns the ends of the windows of a shard.
pub(crate) fn windows_in(shard: &Shard) -> Windows {
    let quotas = shard.limits.iter();
    let quotas = quotas.filter(|(_, state)| state.rule.kind().has_window());
    quotas
        .map(|(name, state)| (name.clone(), state.window_end))
        .collect()
}

/// Tokens taken from one shard, or counted there.
#[derive(Debug, Clone)]
pub(crate) struct HoldPart {
    pub(crate) state: Arc<ShardState>,
    pub(crate) amounts: Amounts,
    /// Whether the amounts bypassed the limits: they only count as consumed, so no balance gets
    /// them back.
    pub(crate) is_bypass: bool,
    /// The shard after the take.
    pub(crate) shard: Arc<Shard>,
    /// Windows that the tokens of quotas are from: they return to no other.
    pub(crate) windows: Windows,
    /// Time of the take, if the tokens were prefetched.
    pub(crate) prefetched_at: Option<Moment>,
    /// Id of the durable lease in this shard, and its expiry. Either all parts of a hold have a
    /// lease or none.
    pub(crate) lease: Option<(WriteId, EpochMillis)>,
    /// Whether it is unknown what an adjustment did to the lease, which alone has the amounts then.
    pub(crate) is_in_doubt: bool,
}

/// How a part ends.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    /// Slots return, rate tokens stay consumed. Of these limits so much was used.
    Release(Amounts),
    /// All tokens return.
    RollBack,
}

impl HoldPart {
    /// Returns the change that returns `amount` of a rate or a quota to the shard.
    pub(crate) fn rate_return(&self, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        let window = self.windows.get(limit).copied();
        // What was topped up beyond the capacity stays beyond it.
        let ceiling = match window {
            Some(_) => None,
            None => self.share(limit),
        };
        LimitDelta {
            available: amount,
            consumed: -amount,
            ceiling,
            window,
        }
    }

    /// Returns the shard's share of a limit.
    pub(crate) fn share(&self, limit: &LimitName) -> Option<MilliTokens> {
        let state = self.shard.limits.get(limit)?;
        Some(self.shard.share(state))
    }

    /// Returns the same part with other amounts.
    pub(crate) fn with_amounts(&self, amounts: Amounts) -> Self {
        Self {
            amounts,
            ..self.clone()
        }
    }

    /// Returns the change that returns `amount` of a limit. A slot stays counted as consumed.
    pub(crate) fn returned_delta(
        &self,
        limits: &Limits,
        limit: &LimitName,
        amount: MilliTokens,
    ) -> LimitDelta {
        let returned = if limits.is_held(limit) {
            LimitDelta {
                available: amount,
                ..LimitDelta::default()
            }
        } else {
            self.rate_return(limit, amount)
        };
        if !self.is_bypass {
            return returned;
        }
        LimitDelta {
            available: MilliTokens::ZERO,
            ceiling: None,
            ..returned
        }
    }

    /// Returns the changes of an end, by limit.
    fn end_deltas(&self, limits: &Limits, ending: &Ending) -> BTreeMap<LimitName, LimitDelta> {
        let used = match ending {
            Ending::Release(used) => Some(used),
            Ending::RollBack => None,
        };
        let delta = |limit: &LimitName| {
            let taken = self.amounts.get(limit).copied().unwrap_or_default();
            let corrected = used.map(|used| used.get(limit).copied());
            let back = match corrected {
                None => taken,
                Some(_) if limits.is_held(limit) => taken,
                Some(corrected) => taken - corrected?,
            };
            let mut delta = self.returned_delta(limits, limit, back);
            let more = corrected
                .flatten()
                .map_or(MilliTokens::ZERO, |used| used - taken);
            if more > MilliTokens::ZERO {
                delta.consumed = more;
            }
            Some((limit.clone(), delta))
        };
        let names = self
            .amounts
            .keys()
            .chain(used.into_iter().flatten().map(|(limit, _)| limit));
        names.filter_map(delta).collect()
    }

    /// Ends the part, and adds `acquires` to the counters.
    pub(crate) async fn end(
        &mut self,
        session: &Session,
        limits: &Limits,
        ending: &Ending,
        acquires: i64,
    ) -> Result<HoldSettlement, Error> {
        let mut settled = HoldSettlement::Applied;
        loop {
            let returned = self.end_deltas(limits, ending);
            let attempt = self.settle_attempt(session, LeaseChange::End, returned, acquires);
            match attempt.run().await? {
                SettleOutcome::Done(done) => return Ok(settled.max(done.into())),
                SettleOutcome::LeaseDiffers(lease) => {
                    // An unconfirmed adjustment was applied, or was not: the lease has the real amounts.
                    if !std::mem::take(&mut self.is_in_doubt) {
                        settled = HoldSettlement::Outdated;
                    }
                    self.amounts = lease.tokens;
                }
            }
        }
    }

    /// Changes the part's lease and the limits by `deltas`, and adds `acquires` to the counters.
    pub(crate) async fn settle(
        &self,
        session: &Session,
        change: LeaseChange,
        deltas: BTreeMap<LimitName, LimitDelta>,
        acquires: i64,
    ) -> Result<SettleOutcome, Error> {
        let attempt = self.settle_attempt(session, change, deltas, acquires);
        attempt.run().await
    }

    /// Reads the amounts of a lease in doubt. Returns whether the lease is there.
    ///
    /// A copy of the adjustment that arrives later changes nothing but these amounts.
    pub(crate) async fn end_doubt(&mut self, session: &Session) -> Result<bool, Error> {
        if !self.is_in_doubt {
            return Ok(true);
        }
        let key = self.state.key.item_key();
        let item = session.look_up(&key).await?;
        let shard = item.as_ref().map(decode_shard).transpose()?;
        let leases = shard.and_then(|shard| shard.leases);
        let lease = self.lease.as_ref().zip(leases);
        let Some(lease) = lease.and_then(|((id, _), mut leases)| leases.remove(id)) else {
            return Ok(false);
        };
        (self.amounts, self.is_in_doubt) = (lease.tokens, false);
        Ok(true)
    }

    fn settle_attempt<'a>(
        &'a self,
        session: &'a Session,
        change: LeaseChange,
        deltas: BTreeMap<LimitName, LimitDelta>,
        acquires: i64,
    ) -> SettleAttempt<'a> {
        SettleAttempt {
            session,
            state: Arc::clone(&self.state),
            write_id: weirgate_store::random_id(),
            lease: self
                .lease
                .as_ref()
                .map(|(id, expires)| (id, *expires, change)),
            amounts: deltas,
            acquires,
            held_amounts: &self.amounts,
        }
    }
}

/// What one write took for one waiter, before the caller has it.
#[derive(Debug)]
pub(crate) struct Portion {
    pub(crate) part: HoldPart,
    pub(crate) limits: Limits,
    /// Time of the take's plan.
    pub(crate) taken_at: EpochMillis,
    /// Acquires that the take counted: a rollback subtracts them.
    pub(crate) acquires: i64,
    /// Start of a request that queued; `None` if it did not.
    pub(crate) starts_at: Option<EpochMillis>,
}

impl Portion {
    async fn roll_back(mut self, session: &Session) -> Result<HoldSettlement, Error> {
        let (part, acquires) = (&mut self.part, -self.acquires);
        part.end(session, &self.limits, &Ending::RollBack, acquires)
            .await
    }
}

/// A portion on its way to the caller. Dropping it rolls the take back, so the tokens of a dropped
/// request return.
#[derive(Debug)]
pub(crate) struct Taken {
    session: Arc<Session>,
    /// `None` once it was claimed or rolled back.
    portion: Option<Portion>,
}

impl Taken {
    pub(super) const fn new(session: Arc<Session>, portion: Portion) -> Self {
        Self {
            session,
            portion: Some(portion),
        }
    }

    /// Returns the portion for a hold, which is then responsible for it.
    pub(crate) fn claim(mut self) -> Portion {
        self.portion.take().expect("a portion is claimed once")
    }

    /// Returns all that was taken.
    pub(crate) async fn roll_back(mut self) -> Result<HoldSettlement, Error> {
        let portion = self.portion.take().expect("a portion is claimed once");
        portion.roll_back(&self.session).await
    }
}

impl AsRef<Portion> for Taken {
    fn as_ref(&self) -> &Portion {
        self.portion
            .as_ref()
            .expect("it is neither claimed nor rolled back")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(portion) = self.portion.take() else {
            return;
        };
        let session = Arc::clone(&self.session);
        self.session.spawn(async move {
            if let Err(error) = portion.roll_back(&session).await {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        });
    }
}
