//! Tokens that one write took from one shard, and the writes that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Shard, WriteId};

use super::settle::{SettleAttempt, SettleOutcome};
use super::shard_state::ShardState;
use crate::session::{Moment, Session};
use crate::values::{Amounts, Error, Limits, Settlement};

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
    /// Time of the take, if the tokens were prefetched.
    pub(crate) prefetched_at: Option<Moment>,
    /// Id of the durable lease in this shard, and its expiry. Either all parts of a hold have a
    /// lease or none.
    pub(crate) lease: Option<(WriteId, EpochMillis)>,
}

/// How a hold ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Slots return, rate tokens stay consumed.
    Release,
    /// All tokens return.
    RollBack,
}

impl HoldPart {
    /// Returns the change that returns `amount` of a rate to the shard.
    pub(crate) fn rate_return(&self, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        let ceiling = self
            .shard
            .limits
            .get(limit)
            .map(|state| self.shard.share(state));
        LimitDelta {
            available: amount,
            consumed: -amount,
            ceiling,
        }
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
        let returned = if limits.is_concurrent(limit) {
            LimitDelta {
                available: amount,
                consumed: MilliTokens::ZERO,
                ceiling: None,
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

    /// Ends the part, and adds `acquires` to the counters.
    pub(crate) async fn end(
        &mut self,
        session: &Session,
        limits: &Limits,
        ending: Ending,
        acquires: i64,
    ) -> Result<Settlement, Error> {
        loop {
            let returned = self
                .amounts
                .iter()
                .filter(|(limit, _)| ending == Ending::RollBack || limits.is_concurrent(limit))
                .map(|(limit, amount)| (limit.clone(), self.returned_delta(limits, limit, *amount)))
                .collect();
            let attempt = self.settle_attempt(session, LeaseChange::End, returned, acquires);
            match attempt.run().await? {
                SettleOutcome::Done(settlement) => return Ok(settlement),
                // An unconfirmed adjustment was applied, or was not: the lease has the real
                // amounts.
                SettleOutcome::LeaseDiffers(amounts) => self.amounts = amounts,
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
    ) -> Result<Settlement, Error> {
        let attempt = self.settle_attempt(session, change, deltas, acquires);
        match attempt.run().await? {
            SettleOutcome::Done(settlement) => Ok(settlement),
            SettleOutcome::LeaseDiffers(_) => Ok(Settlement::LeaseGone),
        }
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
