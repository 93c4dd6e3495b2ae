//! What an application requests, and what of it is requested of one bucket.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{
    Ask, Asks, ClassName, Effect, EntityId, EpochMillis, Limit, LimitKind, LimitMode, LimitName,
    MilliTokens, Millis, OnUnavailable, PoolChoice, Resource, Shard, ShardIndex, exact_span,
    refill_between,
};

use super::error::{Error, invalid};
use super::limits::{Limits, check_amount, check_whole, parse_amount};

/// Default duration of a lease, 60 s.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// Longest duration of a lease, one day. A longer hold renews it.
const MAX_LEASE: Duration = Duration::from_secs(86_400);

/// A request as the application made it, unchecked.
#[derive(Debug, Clone)]
pub(crate) struct RequestSpec {
    pub(crate) entity: String,
    pub(crate) resource: String,
    /// Limits given with the call; `None` for the configured ones.
    pub(crate) limits: Option<Limits>,
    /// Whether a request with given limits takes from the entity's ancestors too.
    pub(crate) cascades: bool,
    /// Version of the given limits.
    pub(crate) version: Option<i64>,
    pub(crate) amounts: Vec<(String, Amount)>,
    /// Class of the caller, unless the configuration of the entity says it.
    pub(crate) class: Option<String>,
    pub(crate) options: AcquireOptions,
    pub(crate) timeout: Duration,
    pub(crate) lease: Option<Duration>,
    /// Whether the amounts are taken even into debt.
    pub(crate) is_into_debt: bool,
    /// Longest wait until it starts, if it queues.
    pub(crate) queue: Option<Duration>,
    /// End of that wait, which begins as the request is sent.
    pub(crate) start_by: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Tokens(i64),
    Milli(MilliTokens),
    /// At least, and at most.
    UpTo(i64, i64),
}

/// Options of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireOptions {
    /// Longest wait for tokens.
    pub(crate) wait: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    /// Whether only the table can do what is requested, of all of several: then nothing decides in
    /// its place.
    pub(crate) needs_table: bool,
    /// Whether the request bypasses the limits, or all of several do.
    pub(crate) is_bypass: bool,
    /// Whether a denial of the request is only reported, or all of several are in shadow mode.
    pub(crate) is_shadow: bool,
    /// Whether a grant that starts later is returned at once.
    pub(crate) is_now: bool,
}

impl Amount {
    /// Returns the amount of a limit: at least, and at most.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is out of range.
    pub(crate) fn range(self, limit: &str) -> Result<(MilliTokens, MilliTokens), Error> {
        let (least, most) = match self {
            Self::Tokens(tokens) => {
                let amount = parse_amount(limit, tokens)?;
                (amount, amount)
            }
            Self::Milli(amount) => {
                check_amount(limit, amount)?;
                (amount, amount)
            }
            Self::UpTo(least, most) => (parse_amount(limit, least)?, parse_amount(limit, most)?),
        };
        if least > most {
            return invalid(format!(
                "limit {limit:?}: at least {least} tokens are requested, and at most {most}: swap them"
            ));
        }
        Ok((least, most))
    }
}

impl AcquireOptions {
    /// Returns the options of a request that neither waits nor bypasses the limits.
    pub(crate) const fn of(on_unavailable: OnUnavailable) -> Self {
        Self {
            wait: Duration::ZERO,
            on_unavailable,
            needs_table: false,
            is_bypass: false,
            is_shadow: false,
            is_now: false,
        }
    }
}

impl RequestSpec {
    /// Checks the request without sending anything.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let (_, _) = (EntityId::new(&*self.entity)?, Resource::new(&*self.resource)?);
        if self.amounts.is_empty() {
            return invalid("empty request: take tokens of at least one limit".to_owned());
        }
        self.check()
    }

    /// Checks the amounts and the options, without looking at limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(lasts) = self.lease {
            check_lease(lasts)?;
            if self.options.is_bypass {
                return invalid(format!(
                    "a lease of {} is requested with bypass, which takes nothing that a lease could hold: leave out the lease or bypass",
                    exact_span(lasts)
                ));
            }
        }
        if self.is_into_debt && self.options.is_bypass {
            return invalid(
                "into_debt is requested with bypass, which debits nothing: leave out into_debt or bypass"
                    .to_owned(),
            );
        }
        self.check_queue()?;
        check_on_unavailable(self.options.on_unavailable)?;
        for (at, (name, amount)) in self.amounts.iter().enumerate() {
            check_whole(name)?;
            amount.range(name)?;
            if self.amounts[..at].iter().any(|(known, _)| known == name) {
                return invalid(format!("limit {name:?} is taken twice: take the sum at once"));
            }
        }
        Ok(())
    }

    /// Checks that a request that queues asks for nothing else that makes it wait, or that grants it
    /// in another way.
    fn check_queue(&self) -> Result<(), Error> {
        let Some(wait) = self.queue else {
            return Ok(());
        };
        check_queue(wait)?;
        let is_up_to = |(_, amount): &(String, Amount)| matches!(amount, Amount::UpTo(..));
        let other = match self.options {
            AcquireOptions { is_bypass: true, .. } => "bypass, which waits for nothing",
            _ if !self.options.wait.is_zero() => "wait_up_to, which has no place in the line",
            _ if self.is_into_debt => "into_debt, which waits for nothing",
            _ if self.amounts.iter().any(is_up_to) => {
                "a range (take_up_to), whose amount is what there is"
            }
            _ => return Ok(()),
        };
        invalid(format!(
            "a queue of {} is requested with {other}: leave one of them out",
            exact_span(wait)
        ))
    }
}

/// What one acquire requests of one bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketRequest {
    pub(crate) asks: Asks,
    /// The same amounts of other pools of the limits, where these have too little.
    pub(crate) others: Vec<Asks>,
    pub(crate) limits: Limits,
    /// Class of the caller, for what is taken later within the grant.
    pub(crate) class: Option<ClassName>,
    /// Duration of a durable lease, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// Time allowed for the decision.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, those that were granted from prefetched tokens, or 0 for
    /// all but the first part of a request.
    pub(crate) acquires: i64,
    /// Latest start of a request that queues; `None` if it does not.
    pub(crate) start_by: Option<Instant>,
}

impl BucketRequest {
    /// Returns the request of an acquire that asks nothing of these limits yet, by no class and without
    /// a lease.
    pub(crate) fn of(limits: Limits) -> Self {
        Self {
            asks: Asks::default(),
            others: vec![],
            limits,
            class: None,
            lease: None,
            timeout: Duration::MAX,
            acquires: 1,
            start_by: None,
        }
    }

    /// Adds what its class asks of a limit; of a limit without that class, what others ask. What is not
    /// denied takes from one pool.
    pub(crate) fn add(&mut self, limit: &Limit, ask: Ask) {
        // Almost all limits.
        if limit.classes().is_empty() {
            self.others.iter_mut().for_each(|asks| asks.add(ask.clone()));
            self.asks.add(ask);
            return;
        }
        let is_covered = ask.effect.must_be_covered();
        // An amount of 0 takes nothing that others could.
        let has_floor = is_covered && ask.most > MilliTokens::ZERO;
        let choices = limit.choices(self.class.as_ref());
        let choices = choices.or_else(|| limit.choices(None));
        let choices = choices.into_iter().flatten();
        let pools = choices.map(|PoolChoice { pool, floor }| Ask {
            limit: pool,
            floor: if has_floor { floor } else { MilliTokens::ZERO },
            ..ask.clone()
        });
        let pools: Vec<_> = pools.take(if is_covered { usize::MAX } else { 1 }).collect();
        // A limit with fewer pools takes its last one.
        while self.others.len() + 1 < pools.len() {
            let last = self.others.last().unwrap_or(&self.asks).clone();
            self.others.push(last);
        }
        let last = pools.len().saturating_sub(1);
        let all = std::iter::once(&mut self.asks).chain(&mut self.others);
        for (at, asks) in all.enumerate() {
            asks.add(pools[at.min(last)].clone());
        }
    }

    /// Returns whether the request bypasses the limits: all its amounts only count then.
    pub(crate) fn is_bypass(&self) -> bool {
        self.asks.has(Effect::Count)
    }

    /// Returns the requests of one choice of pools each, the preferred one first.
    pub(crate) fn choices(&self) -> impl Iterator<Item = Self> {
        let all = std::iter::once(&self.asks).chain(&self.others);
        all.map(|asks| self.choosing(asks))
    }

    pub(crate) fn choosing(&self, asks: &Asks) -> Self {
        Self {
            asks: asks.clone(),
            others: vec![],
            limits: self.limits.clone(),
            class: self.class.clone(),
            lease: self.lease.clone(),
            ..*self
        }
    }

    /// Returns whether it exceeds the share of the largest of so many shards.
    pub(crate) fn exceeds_one_shard(&self, count: u32) -> bool {
        let largest = ShardIndex { index: 0, count };
        let is_above = |(name, need): (&LimitName, MilliTokens)| {
            let mut limits = self.limits.iter();
            let limit = limits.find(|limit| limit.name() == name);
            limit.is_some_and(|limit| need > largest.share(limit.rule().capacity))
        };
        count > 1 && self.asks.required(largest).any(is_above)
    }

    /// Keeps the amounts for which `keeps` holds, of every choice.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&Ask) -> bool) {
        let all = std::iter::once(&mut self.asks).chain(&mut self.others);
        all.for_each(|asks| asks.retain(|ask| keeps(ask)));
    }

    /// Returns the shard without what the request must leave there.
    pub(crate) fn above_floors(&self, mut shard: Shard) -> Shard {
        let index = shard.shard();
        for ask in self.asks.debits().filter(|ask| ask.floor > MilliTokens::ZERO) {
            if let Some(state) = shard.limits.get_mut(&ask.limit) {
                let before = index.share(state.rule.capacity);
                state.rule.capacity -= ask.floor;
                // Not less than what a write leaves: shares are rounded.
                let left = before - index.share(state.rule.capacity);
                state.available -= left.max(index.share(ask.floor));
            }
        }
        shard
    }

    /// Returns the latest start of a request that queues, by the clock that shows `now`.
    pub(crate) fn start_by(&self, now: EpochMillis) -> Option<EpochMillis> {
        let left = self.start_by?.saturating_duration_since(Instant::now());
        // Whole milliseconds, so that it starts no later.
        let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
        Some(now.plus(Millis(left)))
    }

    /// Returns whether it queues for a limit: an enforced rate that the shard has, of which it asks for
    /// no more than the share. Of others it needs enough at once.
    pub(crate) fn queues_for(&self, limit: &LimitName, shard: &Shard) -> bool {
        let Some(limit) = self.limits.iter().find(|known| known.name() == limit) else {
            return false;
        };
        let need = self.asks.enforced(limit.name().as_str());
        let is_rate = |kind| kind == LimitKind::Rate;
        let known = shard.limits.get(limit.name());
        self.start_by.is_some()
            && limit.mode() == LimitMode::Enforced
            && is_rate(limit.rule().kind())
            && known.is_some_and(|state| {
                is_rate(state.rule.kind()) && need.is_some_and(|need| need <= shard.share(state))
            })
    }

    /// Returns the refill of a limit that comes by the request's latest start, at most the shard's
    /// share; zero if it does not queue for it. The shard is as it is seen, and with the request's
    /// limits.
    pub(crate) fn refill_ahead(
        &self,
        (view, next): (&Shard, &Shard),
        limit: &LimitName,
        start_by: EpochMillis,
    ) -> MilliTokens {
        let need = self.asks.enforced(limit.as_str());
        let state = next.limits.get(limit);
        let state = state.filter(|state| need <= Some(next.share(state)));
        let queued = state.filter(|_| self.queues_for(limit, view));
        queued.map_or(MilliTokens::ZERO, |state| {
            let refill = refill_between(&state.rule, next.shard(), next.refilled_at, start_by);
            refill.min(next.share(state))
        })
    }

    /// Returns whether it takes slots.
    pub(crate) fn takes_slots(&self) -> bool {
        let mut enforced = self.asks.with(Effect::Enforce);
        enforced.any(|(name, _)| self.limits.is_held(name))
    }
}

/// Returns what a request does with its amount of a limit in this mode.
pub(crate) const fn effect(mode: LimitMode, is_bypass: bool, is_into_debt: bool) -> Effect {
    match mode {
        _ if is_bypass => Effect::Count,
        LimitMode::Soft => Effect::IntoDebt,
        LimitMode::Enforced | LimitMode::Shadow if is_into_debt => Effect::IntoDebt,
        LimitMode::Enforced | LimitMode::Shadow => Effect::Enforce,
    }
}

/// Requires that a lease lasts 1 ms to a day.
pub(crate) fn check_lease(lasts: Duration) -> Result<(), Error> {
    if lasts > MAX_LEASE || Millis::from(lasts) < Millis(1) {
        return Err(Error::Invalid(format!(
            "a lease must last 1ms to 1d, got {}: renew it to hold longer",
            exact_span(lasts)
        )));
    }
    Ok(())
}

/// Longest queue, 1 h.
const MAX_QUEUE: Duration = Duration::from_secs(3_600);

/// Requires that a queue lasts 1 ms to an hour.
fn check_queue(wait: Duration) -> Result<(), Error> {
    if wait > MAX_QUEUE || wait < Duration::from_millis(1) {
        return Err(Error::Invalid(format!(
            "a queue must last 1ms to 1h, got {}: leave it out for an answer at once",
            exact_span(wait)
        )));
    }
    Ok(())
}

/// Requires that a local percentage is 1 to 100.
pub(crate) fn check_on_unavailable(policy: OnUnavailable) -> Result<(), Error> {
    match policy {
        OnUnavailable::Local { percent } if !(1..=100).contains(&percent) => Err(Error::Invalid(
            format!("OnUnavailable::Local: percent must be 1 to 100, got {percent}"),
        )),
        _ => Ok(()),
    }
}
