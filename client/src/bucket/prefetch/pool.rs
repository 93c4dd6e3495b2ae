//! The prefetched tokens of one bucket. Nothing here waits or sends.

mod block_size;
mod returns;
mod serve;

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use weirgate_shared::{Ask, Effect, LimitMode, LimitName, MilliTokens, Resource};
use weirgate_store::StoreError;

use super::state::State;
use crate::queue::HoldPart;
use crate::session::{AgeClock, Moment, Session};
use crate::values::{
    Amounts, BucketRequest, Counters, Denied, Error, LimitStatus, Limits, Locked, OutstandingGauge,
    Prefetch,
};

pub(super) use returns::NextReturn;

/// Prefetched tokens of one bucket.
#[derive(Debug)]
pub(crate) struct Pool {
    prefetch: Prefetch,
    ages: AgeClock,
    state: Locked<State>,
    /// Error of the last fetch, if it failed.
    last_error: Locked<Option<Arc<StoreError>>>,
    /// Notification that a write in flight has ended.
    write_ended: Notify,
    /// Gauge of the outstanding tokens. Changed after the state, without its lock.
    gauge: OutstandingGauge,
    counters: Arc<Counters>,
}

/// Result of serving a request from the pool.
#[derive(Debug)]
pub(super) enum PoolResult {
    /// Parts that cover the request.
    Served(Vec<HoldPart>),
    /// Not enough, but a block is in flight.
    Wait(OwnedNotified),
    /// Not enough: the table must decide.
    Miss,
}

/// Tokens to prefetch with one write.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) limits: Limits,
    pub(super) amounts: Amounts,
    /// Acquires that the write counts.
    pub(super) acquires: i64,
    /// Time of the request for it. The tokens are taken later, so they are never older than this.
    pub(super) requested_at: Moment,
}

impl Pool {
    /// Returns an empty pool for a bucket of `resource`, if it has prefetch.
    pub(crate) fn of(session: &Session, resource: &Resource) -> Option<Self> {
        let settings = &session.settings;
        let label = settings.has_resource_metrics.then(|| resource.clone());
        Some(Self::new(
            *settings.prefetch.get(resource)?,
            session.env.ages.clone(),
            OutstandingGauge::new(label),
            Arc::clone(&session.env.counters),
        ))
    }

    fn new(
        prefetch: Prefetch,
        ages: AgeClock,
        gauge: OutstandingGauge,
        counters: Arc<Counters>,
    ) -> Self {
        let state = State::new(ages.now());
        Self {
            prefetch,
            ages,
            state: Locked::new(state),
            last_error: Locked::default(),
            write_ended: Notify::new(),
            gauge,
            counters,
        }
    }

    /// Returns the outstanding tokens of all limits.
    pub(crate) fn outstanding(&self) -> Amounts {
        self.state().all_outstanding()
    }

    /// Returns whether a pool can serve the request: enforced rates only, without a lease. It does
    /// not know whether a limit is in debt, as an amount of 0 asks.
    pub(crate) fn supports(request: &BucketRequest) -> bool {
        let is_prefetched = |ask: &Ask| {
            let mut limits = request.limits.iter();
            let limit = limits.find(|limit| *limit.name() == ask.limit);
            ask.effect == Effect::Enforce
                && ask.amount > MilliTokens::ZERO
                && ask.amount == ask.most
                && limit.is_some_and(|limit| {
                    limit.mode() == LimitMode::Enforced && limit.rule().kind().refills()
                })
        };
        request.lease.is_none() && request.asks.iter().all(is_prefetched)
    }

    /// Returns whether the pool covers the request.
    pub(crate) fn covers(&self, request: &BucketRequest) -> bool {
        if !Self::supports(request) {
            return false;
        }
        let (state, oldest) = (self.state(), self.cutoff(self.ages.now()));
        let has = |ask: &Ask| state.left(&ask.limit, oldest) >= ask.amount;
        state.limits == request.limits && request.asks.iter().all(has)
    }

    /// Takes all `amounts` for a grant that needs more. Returns no parts if the pool has too
    /// little.
    pub(crate) fn take_extra(&self, amounts: &Amounts, limits: &Limits) -> Vec<HoldPart> {
        let oldest = self.cutoff(self.ages.now());
        let mut state = self.state();
        if state.limits != *limits || !state.has(amounts, oldest) {
            return vec![];
        }
        state.demand.count(amounts);
        let parts = state.draw(amounts, oldest);
        drop(state);
        self.gauge.lower(amounts);
        parts
    }

    /// Takes what the table lacked for a denied request. Returns no parts if both together have too
    /// little.
    pub(super) fn cover_shortfall(
        &self,
        denied: &Denied,
        request: &BucketRequest,
    ) -> Vec<HoldPart> {
        let oldest = self.cutoff(self.ages.now());
        let mut state = self.state();
        let lack = |short: &LimitStatus| {
            let ask = request.asks.debit(&short.limit)?;
            let lack = ask.amount - short.available.max(MilliTokens::ZERO);
            Some((ask.limit.clone(), lack))
        };
        let is_there = |short: &LimitStatus| {
            let ask = request.asks.debit(&short.limit);
            ask.is_some_and(|ask| {
                state.left(&ask.limit, oldest) + short.available >= short.requested
            })
        };
        if state.is_closed || state.limits != request.limits || !denied.short().all(is_there) {
            return vec![];
        }
        let lack = denied.short().filter_map(lack).collect();
        let parts = state.draw(&lack, oldest);
        drop(state);
        for part in &parts {
            self.gauge.lower(&part.amounts);
        }
        parts
    }

    /// Puts unused tokens back into the pool. Returns `false` if they must go to the table.
    pub(crate) fn put_back(&self, part: HoldPart, limits: &Limits) -> bool {
        let mut state = self.state();
        let oldest = self.cutoff(self.ages.now());
        let has_room = |(name, amount): (&LimitName, &MilliTokens)| {
            let limit = limits.iter().find(|limit| limit.name() == name);
            limit.is_some_and(|limit| {
                state.outstanding(name) + *amount
                    <= self.prefetch.max_outstanding(limit.rule().capacity)
            })
        };
        let is_young = part.prefetched_at.is_some_and(|taken| taken > oldest);
        if state.is_closed
            || state.limits != *limits
            || !is_young
            || !part.amounts.iter().all(has_room)
        {
            return false;
        }
        let amounts = part.amounts.clone();
        state.add_block_part(part);
        drop(state);
        self.gauge.raise(&amounts);
        true
    }

    /// Ends the fetch of a block with these `amounts`: its parts have arrived, or none have.
    pub(super) fn end_block(&self, amounts: &Amounts, parts: Vec<HoldPart>) {
        let is_lost = parts.is_empty();
        let mut state = self.state();
        state.end_in_flight(amounts);
        for part in parts {
            state.last = Some((Arc::clone(&part.state), Arc::clone(&part.shard)));
            state.add_block_part(part);
        }
        if let Some(block_arrival) = state.block_arrival.take() {
            block_arrival.notify_waiters();
        }
        drop(state);
        if is_lost {
            self.gauge.lower(amounts);
        }
        self.write_ended.notify_waiters();
    }

    /// Adds granted acquires that no write has counted. Subtracts what was not granted after all.
    pub(crate) fn add_unreported(&self, acquires: i64) {
        self.state().count(acquires, self.ages.now());
    }

    /// Stores the error of a fetch, for requests that wait for the block.
    pub(super) fn set_last_error(&self, error: Option<&Error>) {
        let why = match error {
            Some(Error::Store(error)) => Some(Arc::clone(error)),
            Some(Error::Timeout { last, .. }) => last.clone(),
            _ => None,
        };
        *self.last_error.lock() = why;
    }

    /// Adds the last fetch error to a timeout that has none.
    pub(super) fn attach_last_error(&self, error: Error) -> Error {
        match error {
            Error::Timeout {
                bucket,
                after,
                last: None,
            } => {
                let last = self.last_error.lock().clone();
                Error::Timeout {
                    bucket,
                    after,
                    last,
                }
            }
            other => other,
        }
    }

    /// Fetches nothing for `span`.
    pub(super) fn pause(&self, span: Duration) {
        self.state().paused_until = self.ages.now() + span;
    }

    /// Returns how long before it is needed a block is fetched.
    pub(super) fn refetch_lead(&self) -> Duration {
        self.prefetch.refetch_lead().into()
    }

    /// Waits until nothing is in flight.
    pub(super) async fn wait_idle(&self) {
        loop {
            let ended = self.write_ended.notified();
            if self.state().writes_in_flight == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Returns the instant up to which prefetched tokens have expired at `now`.
    fn cutoff(&self, now: Moment) -> Moment {
        now.before(self.prefetch.max_age)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
