//! Settles one part of a hold: one write, repeated until its outcome is known if that is safe.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{
    Condition, LeaseChange, LimitDelta, Path, Settle, Update, Value, clear_due,
};
use weirgate_shared::{EpochMillis, Lease, LimitName, MilliTokens, Millis, Shard, WriteId, attr};
use weirgate_store::{ErrorKind, StoreError, WriteOutcome};

use super::pace::OtherWriters;
use super::shard_state::ShardState;
use crate::session::{Refusals, Sent, Session, backoff, deadline, decode_shard};
use crate::values::{Amounts, Error, Settlement, check_bucket_debt, count};

/// Largest difference between the clocks of two processes, 2 s, once DynamoDB's responses have
/// corrected them.
pub(super) const MAX_CLOCK_SKEW: Millis = Millis(2_000);

/// One settlement, until its outcome is known.
pub(crate) struct SettleAttempt<'a> {
    pub(crate) session: &'a Session,
    pub(crate) state: Arc<ShardState>,
    /// Id of the write.
    pub(crate) write_id: WriteId,
    /// Durable lease, its expiry, and its change.
    pub(crate) lease: Option<(&'a WriteId, EpochMillis, LeaseChange)>,
    pub(crate) amounts: BTreeMap<LimitName, LimitDelta>,
    /// Acquires that the write adds to the counters: prefetched ones granted since the last write,
    /// or a negative number for acquires that were counted but not granted.
    pub(crate) acquires: i64,
    /// Amounts in the lease, as far as this hold has seen.
    pub(crate) held_amounts: &'a Amounts,
}

/// Outcome of a settlement, for the hold.
#[derive(Debug)]
pub(crate) enum SettleOutcome {
    Done(Settlement),
    /// The lease has other amounts than the hold, or lasts longer than it was to be renewed, and was not
    /// changed.
    LeaseDiffers(Lease),
}

impl SettleAttempt<'_> {
    pub(crate) async fn run(mut self) -> Result<SettleOutcome, Error> {
        let deadline = deadline(self.session.settings.timeout);
        let mut update = self.full_update();
        let (mut failures, mut races, mut doubt) = (0, 0, None::<StoreError>);
        let mut refusals = Refusals::default();
        loop {
            let sent = self.session.env.ages.sent();
            match self.session.update(&update).await {
                Ok(WriteOutcome::Applied(item)) => {
                    let shard = item.as_ref().map(decode_shard).transpose()?;
                    return Ok(self.applied(shard, sent));
                }
                Ok(WriteOutcome::ConditionFailed(None)) => {
                    // The shard was merged into the one it was split off, with its tokens. Shards
                    // with leases are not merged.
                    let Some(parent) = self.state.parent().filter(|_| self.lease.is_none()) else {
                        return Ok(SettleOutcome::Done(Settlement::LeaseGone));
                    };
                    self.state = Arc::clone(parent);
                    update = self.full_update();
                }
                Ok(WriteOutcome::ConditionFailed(Some(item))) => {
                    let shard = decode_shard(&item)?;
                    let shard = self.state.record_response(shard, sent);
                    if let Some(answered) = self.outcome_in(&shard, &mut doubt) {
                        self.state.summary.tokens_returned.notify_waiters();
                        return answered;
                    }
                    if !self.settle().has_limits(&shard) {
                        return Ok(SettleOutcome::Done(Settlement::LeaseGone));
                    }
                    let taken = self.amounts.iter();
                    let taken = taken.map(|(limit, delta)| (limit, -delta.available));
                    check_bucket_debt(&shard, taken)?;
                    if let Err(error) = refusals.record(&shard.key, Some(shard.write_seq)) {
                        return Err(doubt.map_or(error, Error::from));
                    }
                    count(&self.session.env.counters.lost_races, 1);
                    self.state.record_others(OtherWriters::record_lost_race);
                    if Instant::now() >= deadline {
                        let after = self.session.settings.timeout;
                        return Err(Error::timeout(&self.state.key, after, doubt.map(Arc::new)));
                    }
                    // After the first race the response is enough to plan again; repeated races
                    // mean contention.
                    races += 1;
                    if races > 1 {
                        tokio::time::sleep(backoff(races - 1)).await;
                    }
                    // The clock may have been set meanwhile; then the next response corrects it.
                    update = match self.session.is_time_confirmed() {
                        true => self.require_held_amounts(self.settle().capped(&shard)),
                        false => self.full_update(),
                    };
                }
                Err(error) if error.kind == ErrorKind::Unconfirmed => {
                    count(&self.session.env.counters.unconfirmed, 1);
                    // Also after the deadline, which ends only repetitions.
                    if self.lease.is_none() {
                        return self.look_up(error).await;
                    }
                    if Instant::now() >= deadline {
                        return Err(error.into());
                    }
                    // The write is tried again, and the lease then shows whether the first was
                    // applied.
                    (doubt, failures) = (Some(error), failures + 1);
                    tokio::time::sleep(backoff(failures)).await;
                }
                Err(error) if error.kind.is_transient() && Instant::now() < deadline => {
                    count(&self.session.env.counters.refused, 1);
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
                // An earlier unconfirmed write stays unconfirmed.
                Err(error) => return Err(doubt.unwrap_or(error).into()),
            }
        }
    }

    /// Records an applied write, and the shard that its response or a read shows.
    fn applied(&self, shard: Option<Shard>, sent: Sent) -> SettleOutcome {
        if let Some(shard) = shard {
            self.state.record_response(shard, sent);
        }
        let returns = |settled: &LimitDelta| {
            let is_used_up = settled.ceiling.is_some() || settled.window.is_some();
            is_used_up && settled.available > MilliTokens::ZERO
        };
        if self.amounts.values().any(returns) {
            self.state.summary.record_return(self.session.now());
        }
        self.state.summary.tokens_returned.notify_waiters();
        SettleOutcome::Done(Settlement::Applied)
    }

    fn settle(&self) -> Settle<'_> {
        let lease = self
            .lease
            .as_ref()
            .map(|(id, _, change)| (*id, change.clone()));
        let roll = self.state.roll(&self.session.env, self.session.now());
        let (op, amounts, takes) = (self.write_id.clone(), self.amounts.clone(), self.acquires);
        Settle {
            key: &self.state.key,
            write_id: op,
            lease,
            amounts,
            acquires: takes,
            roll,
        }
    }

    fn full_update(&self) -> Update {
        let seen = self.state.view_since_clock_jump().map(|view| view.shard);
        let mut update = self.require_held_amounts(self.settle().full(seen.as_deref()));
        if let (Some((id, _, LeaseChange::End)), Some(seen)) = (&self.lease, &seen)
            && self.state.ends_rare_lease(seen)
        {
            clear_due(&mut update, seen, id);
        }
        update
    }

    /// Requires that an ending lease has the amounts of the hold, because these return.
    fn require_held_amounts(&self, mut update: Update) -> Update {
        if let Some((id, _, LeaseChange::End)) = &self.lease {
            let held = self
                .held_amounts
                .iter()
                .map(|(limit, amount)| (limit.to_string(), Value::Int(amount.0)))
                .collect();
            let path = Path::lease(id).then(attr::LEASE_TOKENS);
            update
                .conditions
                .push(Condition::Equals(path, Value::Map(held)));
        }
        update
    }

    /// Returns the outcome that the shard's lease shows, if it is certain.
    fn outcome_in(
        &self,
        shard: &Shard,
        doubt: &mut Option<StoreError>,
    ) -> Option<Result<SettleOutcome, Error>> {
        let settled = |is_done| {
            let settlement = if is_done {
                Settlement::Applied
            } else {
                Settlement::LeaseGone
            };
            Some(Ok(SettleOutcome::Done(settlement)))
        };
        if shard.last_write_id.as_ref() == Some(&self.write_id) {
            return settled(true);
        }
        let (id, expires, change) = self.lease.as_ref()?;
        let Some(held) = shard.leases.as_ref().and_then(|leases| leases.get(*id)) else {
            return match doubt.take() {
                // The unconfirmed write ended the lease, or another process found it expired,
                // perhaps by a clock ahead of this one: the outcome stays unknown.
                Some(doubt)
                    if *change == LeaseChange::End
                        && *expires <= self.session.now().plus(MAX_CLOCK_SKEW) =>
                {
                    Some(Err(doubt.into()))
                }
                // The unconfirmed write ended it if it was to; otherwise it ended before.
                doubt => settled(doubt.is_some() && *change == LeaseChange::End),
            };
        };
        let differs = Some(Ok(SettleOutcome::LeaseDiffers(held.clone())));
        let amounts = match change {
            LeaseChange::End if held.tokens != *self.held_amounts => return differs,
            LeaseChange::Renew(until) if held.expires_at > *until => return differs,
            LeaseChange::End | LeaseChange::Renew(_) => return None,
            LeaseChange::SetAmounts(amounts) => amounts,
        };
        let holds = |limit: &LimitName, amount: &MilliTokens| {
            held.tokens.get(limit).copied().unwrap_or_default() == *amount
        };
        if amounts
            .iter()
            .all(|(limit, (before, _))| holds(limit, before))
        {
            return None;
        }
        let is_done = amounts
            .iter()
            .all(|(limit, (_, after))| holds(limit, after));
        match doubt.is_some() && is_done {
            true => settled(true),
            false => differs,
        }
    }

    /// Returns the outcome of an unconfirmed write without a lease: applied, if the item shows it as
    /// its last write. Otherwise it stays unknown, because it may still arrive.
    async fn look_up(&self, error: StoreError) -> Result<SettleOutcome, Error> {
        let (key, sent) = (self.state.key.item_key(), self.session.env.ages.sent());
        let item = self.session.look_up(&key).await;
        let shard = item.ok().flatten().as_ref().map(decode_shard);
        match shard {
            Some(Ok(shard)) if shard.last_write_id.as_ref() == Some(&self.write_id) => {
                Ok(self.applied(Some(shard), sent))
            }
            _ => Err(self.forfeit(error.into())),
        }
    }

    /// Counts the tokens to be returned as consumed, because a second write could return them
    /// twice. What bypassed the limits is only subtracted from the consumption.
    fn forfeit(&self, error: Error) -> Error {
        let given: MilliTokens = self
            .amounts
            .values()
            .map(|settled| settled.available.max(-settled.consumed))
            .map(|given| given.max(MilliTokens::ZERO))
            .sum();
        count(
            &self.session.env.counters.unconfirmed_millitokens,
            u64::try_from(given.0).unwrap_or_default(),
        );
        error
    }
}
