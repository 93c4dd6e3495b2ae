//! Tokens that one write took from one shard, on their way to the caller and in a hold, and the
//! writes that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use weirgate_shared::write::{
    Condition, LeaseChange, LimitDelta, Path, Settle, Update, Value, clear_due,
};
use weirgate_shared::{EpochMillis, Lease, LimitName, MilliTokens, Millis, Shard, WriteId, attr};
use weirgate_store::{ErrorKind, StoreError, WriteOutcome};

use super::pace::OtherWriters;
use super::shard_state::ShardState;
use crate::session::{Moment, Refusals, Sent, Session, backoff, deadline, decode_shard};
use crate::values::{Amounts, Error, HoldSettlement, Limits, Settlement, check_bucket_debt, count};

/// Ends of the windows of quotas, by limit.
pub(crate) type Windows = BTreeMap<LimitName, EpochMillis>;

/// Returns the ends of the windows of a shard.
pub(crate) fn windows_in(shard: &Shard) -> Windows {
    let quotas = shard.limits.iter();
    let quotas = quotas.filter(|(_, state)| state.rule.kind().has_window());
    quotas.map(|(name, state)| (name.clone(), state.window_end)).collect()
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

impl HoldPart {
    /// Returns a part of the shard after the take, without a lease and of no window.
    pub(crate) const fn of(state: Arc<ShardState>, shard: Arc<Shard>, amounts: Amounts) -> Self {
        Self {
            state,
            amounts,
            is_bypass: false,
            shard,
            windows: Windows::new(),
            prefetched_at: None,
            lease: None,
            is_in_doubt: false,
        }
    }

    /// Returns the change that returns `amount` of a rate or a quota to the shard.
    pub(crate) fn rate_return(&self, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        let window = self.windows.get(limit).copied();
        // What was topped up beyond the capacity stays beyond it.
        let ceiling = match window {
            Some(_) => None,
            None => self.share(limit),
        };
        LimitDelta { available: amount, consumed: -amount, ceiling, window }
    }

    /// Returns the shard's share of a limit.
    pub(crate) fn share(&self, limit: &LimitName) -> Option<MilliTokens> {
        let state = self.shard.limits.get(limit)?;
        Some(self.shard.share(state))
    }

    /// Returns the same part with other amounts.
    pub(crate) fn with_amounts(&self, amounts: Amounts) -> Self {
        Self { amounts, ..self.clone() }
    }

    /// Returns the change that returns `amount` of a limit. A slot stays counted as consumed.
    pub(crate) fn returned_delta(
        &self,
        limits: &Limits,
        limit: &LimitName,
        amount: MilliTokens,
    ) -> LimitDelta {
        let returned = if limits.is_held(limit) {
            LimitDelta { available: amount, ..LimitDelta::default() }
        } else {
            self.rate_return(limit, amount)
        };
        if !self.is_bypass {
            return returned;
        }
        LimitDelta { available: MilliTokens::ZERO, ceiling: None, ..returned }
    }

    /// Returns the changes of an end, by limit.
    fn end_deltas(
        &self,
        limits: &Limits,
        used: Option<&Amounts>,
    ) -> BTreeMap<LimitName, LimitDelta> {
        let delta = |limit: &LimitName| {
            let taken = self.amounts.get(limit).copied().unwrap_or_default();
            let corrected = used.map(|used| used.get(limit).copied());
            let back = match corrected {
                None => taken,
                Some(_) if limits.is_held(limit) => taken,
                Some(corrected) => taken - corrected?,
            };
            let mut delta = self.returned_delta(limits, limit, back);
            let more = corrected.flatten().map_or(MilliTokens::ZERO, |used| used - taken);
            if more > MilliTokens::ZERO {
                delta.consumed = more;
            }
            Some((limit.clone(), delta))
        };
        let used = used.into_iter().flatten();
        let names = self.amounts.keys().chain(used.map(|(limit, _)| limit));
        names.filter_map(delta).collect()
    }

    /// Ends the part by one write, and adds `acquires` to the counters. Of the limits in `used` so much was
    /// used, slots return and other tokens stay consumed; without it all tokens return.
    pub(crate) async fn end(
        &self,
        session: &Session,
        limits: &Limits,
        used: Option<&Amounts>,
        acquires: i64,
    ) -> Result<SettleOutcome, Error> {
        let returned = self.end_deltas(limits, used);
        let attempt = self.settle_attempt(session, LeaseChange::End, returned, acquires);
        attempt.run().await
    }

    /// Takes over the amounts of the lease. Returns whether it was in doubt which these are: an adjustment
    /// was applied, or was not.
    pub(crate) fn record_lease(&mut self, lease: Lease) -> bool {
        self.amounts = lease.tokens;
        std::mem::take(&mut self.is_in_doubt)
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

    /// Renews the part's lease to expire at `expires`.
    pub(crate) async fn renew(
        &mut self,
        session: &Session,
        expires: EpochMillis,
    ) -> Result<HoldSettlement, Error> {
        let renewal = LeaseChange::Renew(expires);
        let lasts_until = match self.settle(session, renewal, BTreeMap::new(), 0).await? {
            SettleOutcome::Done(Settlement::LeaseGone) => return Ok(HoldSettlement::LeaseGone),
            SettleOutcome::Done(Settlement::Applied) => expires,
            SettleOutcome::LeaseDiffers(lease) => lease.expires_at,
        };
        if let Some((_, until)) = &mut self.lease {
            *until = lasts_until;
        }
        Ok(HoldSettlement::Applied)
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
        Ok(self.record_lease(lease))
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
            part: self,
            state: Arc::clone(&self.state),
            write_id: weirgate_store::random_id(),
            change,
            amounts: deltas,
            acquires,
        }
    }
}

/// Largest difference between the clocks of two processes, 2 s, once DynamoDB's responses have
/// corrected them.
pub(super) const MAX_CLOCK_SKEW: Millis = Millis(2_000);

/// One settlement of a part: one write, repeated until its outcome is known if that is safe.
struct SettleAttempt<'a> {
    session: &'a Session,
    part: &'a HoldPart,
    /// The part's shard, or the one that it was merged into.
    state: Arc<ShardState>,
    /// Id of the write.
    write_id: WriteId,
    /// Change of the part's lease, if it has one.
    change: LeaseChange,
    amounts: BTreeMap<LimitName, LimitDelta>,
    /// Acquires that the write adds to the counters: prefetched ones granted since the last write,
    /// or a negative number for acquires that were counted but not granted.
    acquires: i64,
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
    async fn run(mut self) -> Result<SettleOutcome, Error> {
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
                    let is_leased = self.part.lease.is_some();
                    let Some(parent) = self.state.parent().filter(|_| !is_leased) else {
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
                    if self.part.lease.is_none() {
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
        let lease = self.part.lease.as_ref();
        let lease = lease.map(|(id, _)| (id, self.change.clone()));
        let roll = self.state.roll(&self.session.env, self.session.now());
        let (op, amounts, takes) = (self.write_id.clone(), self.amounts.clone(), self.acquires);
        Settle { key: &self.state.key, write_id: op, lease, amounts, acquires: takes, roll }
    }

    fn full_update(&self) -> Update {
        let seen = self.state.view_since_clock_jump().map(|view| view.shard);
        let mut update = self.require_held_amounts(self.settle().full(seen.as_deref()));
        if let (Some((id, _)), Some(seen)) = (&self.part.lease, &seen)
            && self.change == LeaseChange::End
            && self.state.ends_rare_lease(seen)
        {
            clear_due(&mut update, seen, id);
        }
        update
    }

    /// Requires that an ending lease has the amounts of the hold, because these return.
    fn require_held_amounts(&self, mut update: Update) -> Update {
        if let (Some((id, _)), LeaseChange::End) = (&self.part.lease, &self.change) {
            let held = self
                .part
                .amounts
                .iter()
                .map(|(limit, amount)| (limit.to_string(), Value::Int(amount.0)))
                .collect();
            let path = Path::lease(id).then(attr::LEASE_TOKENS);
            update.conditions.push(Condition::Equals(path, Value::Map(held)));
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
            let settlement = if is_done { Settlement::Applied } else { Settlement::LeaseGone };
            Some(Ok(SettleOutcome::Done(settlement)))
        };
        if shard.last_write_id.as_ref() == Some(&self.write_id) {
            return settled(true);
        }
        let (id, expires) = self.part.lease.as_ref()?;
        let change = &self.change;
        let Some(held) = shard.leases.as_ref().and_then(|leases| leases.get(id)) else {
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
            LeaseChange::End if held.tokens != self.part.amounts => return differs,
            LeaseChange::Renew(until) if held.expires_at > *until => return differs,
            LeaseChange::End | LeaseChange::Renew(_) => return None,
            LeaseChange::SetAmounts(amounts) => amounts,
        };
        let holds = |limit: &LimitName, amount: &MilliTokens| {
            held.tokens.get(limit).copied().unwrap_or_default() == *amount
        };
        if amounts.iter().all(|(limit, (before, _))| holds(limit, before)) {
            return None;
        }
        let is_done = amounts.iter().all(|(limit, (_, after))| holds(limit, after));
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
        loop {
            let ended = self.part.end(session, &self.limits, None, -self.acquires);
            match ended.await? {
                SettleOutcome::Done(done) => return Ok(done.into()),
                SettleOutcome::LeaseDiffers(lease) => drop(self.part.record_lease(lease)),
            };
        }
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
        Self { session, portion: Some(portion) }
    }

    /// Returns the portion for a hold, which is then responsible for it.
    pub(crate) fn claim(mut self) -> Portion {
        self.portion.take().expect("a portion is claimed once")
    }

    /// Returns all that was taken, in a task that goes on if nothing awaits it.
    pub(crate) fn roll_back(mut self) -> Option<JoinHandle<()>> {
        self.begin_roll_back()
    }

    fn begin_roll_back(&mut self) -> Option<JoinHandle<()>> {
        let (portion, session) = (self.portion.take()?, Arc::clone(&self.session));
        Some(self.session.spawn(async move {
            if let Err(error) = portion.roll_back(&session).await {
                // It counts as consumed; its lease, if any, expires.
                tracing::warn!(%error, "tokens of a dropped or denied request could not be returned");
            }
        }))
    }
}

impl AsRef<Portion> for Taken {
    fn as_ref(&self) -> &Portion {
        self.portion.as_ref().expect("it is neither claimed nor rolled back")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.begin_roll_back();
    }
}
