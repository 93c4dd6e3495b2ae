//! The prefetched tokens of one bucket. Nothing here waits or sends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::task::AbortHandle;
use weirgate_shared::{Ask, BucketKey, Effect, Limit, LimitMode, LimitName, MilliTokens, Resource};

use super::state::{State, TokenReturn};
use crate::queue::HoldPart;
use crate::session::{AgeClock, Moment, Session};
use crate::values::{
    Amounts, BucketRequest, Counters, Denied, LimitStatus, Limits, Locked, OutstandingGauge,
    Prefetch, count, debited,
};

/// Requests like the current one that a block must serve to be worth its write, 3. With two,
/// prefetch would cost as many writes if the second request does not come and its tokens return.
const MIN_REQUESTS_PER_BLOCK: i64 = 3;

/// Prefetched tokens of one bucket.
#[derive(Debug)]
pub(crate) struct Pool {
    prefetch: Prefetch,
    ages: AgeClock,
    state: Locked<State>,
    /// Notification that a write in flight has ended.
    write_ended: Notify,
    /// Gauge of the outstanding tokens. Changed after the state, without its lock.
    gauge: OutstandingGauge,
    counters: Arc<Counters>,
    /// Whether the log says that a quota is not prefetched.
    has_warned: AtomicBool,
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

/// What to do about expired tokens.
pub(super) enum NextReturn {
    Now(Vec<TokenReturn>),
    In(Duration),
    /// The pool is empty.
    Never,
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
            write_ended: Notify::new(),
            gauge,
            counters,
            has_warned: AtomicBool::default(),
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
        let has_choice = !request.others.is_empty() || request.asks.has_floor();
        !has_choice && request.lease.is_none() && request.asks.iter().all(is_prefetched)
    }

    /// Says once why a request that the pool does not support goes to the table, if it takes of a quota:
    /// prefetched tokens would return after the end of their window, to none.
    pub(crate) fn warn_of_quota(&self, bucket: &BucketKey, request: &BucketRequest) {
        if self.has_warned.load(Ordering::Relaxed) {
            return;
        }
        let mut limits = request.limits.iter();
        let is_asked = |limit: &&Limit| {
            let is_quota = limit.rule().kind().has_window();
            is_quota && request.asks.iter().any(|ask| ask.limit == *limit.name())
        };
        let Some(quota) = limits.find(is_asked) else {
            return;
        };
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let (bucket, limit) = (bucket.item_key().pk, quota.name());
            tracing::warn!(
                bucket,
                %limit,
                "a quota is not prefetched, because tokens that return after the end of their window return to \
                 none: each acquire with it writes to the table; leave out prefetch of this resource, or take \
                 the quota by requests of its own"
            );
        }
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

    /// Serves a request on a bucket whose shards have at most `max_balance`. Returns the result, and a
    /// block to fetch if one is needed. `is_new` if the request is served for the first time.
    pub(super) fn serve(
        &self,
        max_balance: impl Fn(&Limit) -> MilliTokens,
        request: &BucketRequest,
        is_new: bool,
    ) -> (PoolResult, Option<Block>) {
        let (at, amounts) = (self.ages.now(), debited(&request.asks));
        let mut state = self.state();
        if state.is_closed || !state.adopt_limits(&request.limits) {
            return (PoolResult::Miss, None);
        }
        state.demand.advance(at);
        let (result, block) = self.serve_from(&mut state, &max_balance, (request, &amounts), at);
        if is_new {
            state.demand.count(&amounts);
        }
        drop(state);
        if matches!(result, PoolResult::Served(_)) {
            self.gauge.lower(&amounts);
        }
        if let Some(block) = &block {
            self.gauge.raise(&block.amounts);
        }
        (result, block)
    }

    fn serve_from(
        &self,
        state: &mut State,
        max_balance: &impl Fn(&Limit) -> MilliTokens,
        (request, amounts): (&BucketRequest, &Amounts),
        at: Moment,
    ) -> (PoolResult, Option<Block>) {
        let is_paused = at < state.paused_until;
        let oldest = self.cutoff(at);
        if state.has(amounts, oldest) {
            let parts = state.draw(amounts, oldest);
            state.count(request.acquires, at);
            let mut block = None;
            if state.block_arrival.is_none() && !is_paused && self.is_low(state, amounts, oldest) {
                block = self.block(state, max_balance, amounts, false, at);
                if block.is_none() {
                    state.paused_until = at + self.refetch_lead();
                }
            }
            return (PoolResult::Served(parts), block);
        }
        if let Some(arrival) = &state.block_arrival {
            return (PoolResult::Wait(Arc::clone(arrival).notified_owned()), None);
        }
        if is_paused {
            return (PoolResult::Miss, None);
        }
        match self.block(state, max_balance, amounts, true, at) {
            Some(block) => {
                let block_arrival = state
                    .block_arrival
                    .as_ref()
                    .map(|arrival| Arc::clone(arrival).notified_owned());
                (block_arrival.map_or(PoolResult::Miss, PoolResult::Wait), Some(block))
            }
            None => (PoolResult::Miss, None),
        }
    }

    /// Returns whether the remaining tokens will be spent before a block that is fetched now
    /// arrives.
    fn is_low(&self, state: &State, amounts: &Amounts, oldest: Moment) -> bool {
        let is_low = |limit: &Limit| {
            let low = state.demand.within(limit.name(), self.prefetch.refetch_lead());
            let low = low.min(self.prefetch.max_outstanding(limit.rule().capacity) / 4);
            amounts.contains_key(limit.name()) && state.left(limit.name(), oldest) < low
        };
        state.limits.iter().any(is_low)
    }

    /// Returns what to do about expired tokens, and about acquires that have been uncounted for as
    /// long.
    pub(super) fn due(&self) -> NextReturn {
        let mut state = self.state();
        let now = self.ages.now();
        let oldest = self.cutoff(now);
        let old = state.give_back(|taken| taken <= oldest);
        if !old.is_empty() {
            return NextReturn::Now(old);
        }
        if let Some(taken) = state.blocks.front().and_then(|block| block.prefetched_at) {
            return NextReturn::In((taken + self.prefetch.max_age).since(now));
        }
        if state.unreported == 0 {
            state.expiry_task = None;
            return NextReturn::Never;
        }
        let at = state.last_granted_at + self.prefetch.max_age;
        if at > now { NextReturn::In(at.since(now)) } else { NextReturn::Now(state.report()) }
    }

    /// Returns the tokens to return early: all if the request has other limits, and those that
    /// expired while the expiry task was frozen.
    pub(super) fn outdated(&self, limits: &Limits) -> Vec<TokenReturn> {
        let mut state = self.state();
        let oldest = self.cutoff(self.ages.now());
        let is_same = state.limits == *limits;
        if state.blocks.is_empty() {
            vec![]
        } else {
            state.give_back(|taken| !is_same || taken <= oldest)
        }
    }

    /// Ends the pool. Returns all tokens and uncounted acquires.
    pub(super) fn close(&self) -> Vec<TokenReturn> {
        let mut state = self.state();
        state.is_closed = true;
        state.give_back_all()
    }

    /// Ends the return of `amounts`, which the bucket has back, or never gets.
    pub(super) fn end_return(&self, amounts: &Amounts, is_back: bool) {
        self.state().end_in_flight(amounts);
        self.gauge.lower(amounts);
        let counter = if is_back {
            &self.counters.prefetch_returned_millitokens
        } else {
            &self.counters.prefetch_forfeited_millitokens
        };
        count(counter, milli(amounts));
        self.write_ended.notify_waiters();
    }

    /// Starts the expiry task with `start` if the pool needs one and has none.
    pub(super) fn ensure_expiry_task(&self, start: impl FnOnce() -> AbortHandle) {
        let mut state = self.state();
        let is_kept = state.expiry_task.as_ref().is_some_and(|task| !task.is_finished());
        if !is_kept && (!state.blocks.is_empty() || state.unreported != 0) {
            state.expiry_task = Some(start());
        }
    }

    /// Returns the block to fetch, if it is worth its write: the amounts `asked` by a waiting
    /// request, and the expected demand.
    ///
    /// Never more than may be outstanding. Of the bucket's balance, as far as it was seen, half is
    /// left for other processes.
    fn block(
        &self,
        state: &mut State,
        max_balance: &impl Fn(&Limit) -> MilliTokens,
        asked: &Amounts,
        waits: bool,
        at: Moment,
    ) -> Option<Block> {
        let oldest = self.cutoff(at);
        let mut amounts = Amounts::new();
        for limit in state.limits.iter().filter(|limit| limit.rule().kind().refills()) {
            let (name, capacity) = (limit.name(), limit.rule().capacity);
            let need = asked.get(name).copied().unwrap_or_default();
            let waiting = if waits { need } else { MilliTokens::ZERO };
            let expected = state.demand.within(name, self.prefetch.horizon());
            let wanted = (waiting + expected).min(self.prefetch.max_outstanding(capacity))
                - state.outstanding(name);
            let room = (max_balance(limit) - waiting).max(MilliTokens::ZERO) / 2;
            let amount = wanted.min(waiting + room).max(MilliTokens::ZERO);
            if state.left(name, oldest) + amount
                < MilliTokens(need.0.saturating_mul(MIN_REQUESTS_PER_BLOCK))
            {
                return None;
            }
            if amount > MilliTokens::ZERO {
                amounts.insert(name.clone(), amount);
            }
        }
        if amounts.is_empty() {
            return None;
        }
        state.begin_in_flight(&amounts);
        state.block_arrival = Some(Arc::default());
        let acquires = state.unreported.max(0);
        state.unreported -= acquires;
        Some(Block { limits: state.limits.clone(), amounts, acquires, requested_at: at })
    }
}

/// Forfeits the remaining tokens.
impl Drop for Pool {
    fn drop(&mut self) {
        let left = self.outstanding();
        if !left.is_empty() {
            self.gauge.lower(&left);
            count(&self.counters.prefetch_forfeited_millitokens, milli(&left));
        }
    }
}

/// Returns the sum in millitokens.
fn milli(amounts: &Amounts) -> u64 {
    let sum: MilliTokens = amounts.values().copied().sum();
    u64::try_from(sum.0).unwrap_or_default()
}
