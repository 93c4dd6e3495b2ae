//! The waiters of a shard: in line, in the batch of the next write, and until the outcome of that write is
//! known. Pure but for the clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Place, Take, max_leases};
use weirgate_shared::{
    Asks, Effect, EpochMillis, Lease, LimitName, MilliTokens, Millis, Shard, ShardIndex, WriteId,
};
use weirgate_store::StoreError;

use super::part::{MAX_CLOCK_SKEW, Portion, Windows, windows_in};
use super::shard_state::ShardState;
use crate::session::{Env, Refusals, deadline};
use crate::values::{Amounts, BucketRequest, Denied, Error, Outcome, count, shortage};

/// Time after a split in which no other is requested, 1 s: about as long as all processes need to
/// see it.
const SPLIT_COOLDOWN: Millis = Millis(1_000);

/// Reason to try other shards, which is no denial.
#[derive(Debug, Clone)]
pub(crate) enum Reason {
    /// The shard has no item.
    ShardMissing,
    /// This shard has too few tokens; others may have enough.
    Insufficient,
    /// DynamoDB throttles the shard's partition.
    Throttled(Arc<StoreError>),
    /// The bucket has several shards, which the router did not expect: waiters spread over all of
    /// them.
    BucketWasSplit,
}

/// Reply of a machine to one waiter.
pub(crate) type Reply = Result<Outcome<Portion, Reason>, Error>;

/// A request in line.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    /// Its number in the order of arrival, which the machine gives.
    pub(super) id: u64,
    pub(super) request: BucketRequest,
    /// The amounts with what the batch has room for, if any asks for more than its least.
    pub(super) raised: Option<Asks>,
    pub(super) enqueued_at: Instant,
    pub(super) deadline: Instant,
    /// Whether no caller waits for the reply any more.
    pub(super) is_gone: bool,
}

impl Waiter {
    pub(crate) const fn new(
        request: BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Self {
        Self { id: 0, request, raised: None, enqueued_at, deadline, is_gone: false }
    }

    /// Returns whether a caller waits for the reply, and has time left.
    pub(super) fn has_time(&self, now: Instant) -> bool {
        now < self.deadline && !self.is_gone
    }

    /// Returns a new lease for the request, if it wants one.
    pub(super) fn new_lease(&self, now: EpochMillis) -> Option<(WriteId, Lease)> {
        let (lasts, owner) = self.request.lease.as_ref()?;
        // A request that queues holds the lease from its start on.
        let start = self.request.start_by(now).unwrap_or(now);
        let expires = start.plus((*lasts).into());
        let lease = Lease {
            expires_at: expires,
            tokens: self.amounts(),
            windows: BTreeMap::new(),
            owner: owner.to_string(),
        };
        Some((weirgate_store::random_id(), lease))
    }

    /// Returns the denial by a shard that is short at `now`; `None` if it is not.
    pub(super) fn shortage(&self, shard: &Shard, now: EpochMillis) -> Option<Denied> {
        shortage(shard, &self.request, self.request.start_by(now), now)
    }

    /// Returns whether the request queues.
    pub(super) const fn queues(&self) -> bool {
        self.request.start_by.is_some()
    }

    /// Returns what the batch's write takes or counts for this waiter.
    pub(super) fn asks(&self) -> &Asks {
        self.raised.as_ref().unwrap_or(&self.request.asks)
    }

    /// Returns these amounts.
    pub(super) fn amounts(&self) -> Amounts {
        let asks = self.asks().iter();
        asks.map(|ask| (ask.limit.clone(), ask.amount)).collect()
    }
}

/// Takes those waiters out of the line whose sum fits into the balances, for the batch of the next write:
/// first come, first served, but a smaller waiter may pass a larger one that does not queue. Both stay in
/// order.
///
/// Without a view, the limits' capacities count as the balances. Waiters with other limits than the
/// first wait for a write of their own, and so do those that take a limit into debt which others do
/// not, or the other way round. Their tokens stay for them, and if they queue, all later waiters stay
/// behind them.
pub(super) fn select_batch(
    view: Option<&Shard>,
    line: &mut VecDeque<Waiter>,
    now: EpochMillis,
) -> Vec<Waiter> {
    let Some(first) = line.front() else {
        return vec![];
    };
    let limits = first.request.limits.clone();
    let projected = view.map(|shard| shard.projected(&limits, now));
    let mut left: Amounts = match &projected {
        Some(shard) => {
            let states = shard.limits.iter();
            states.map(|(name, state)| (name.clone(), state.available)).collect()
        }
        None => limits.iter().map(|limit| (limit.name().clone(), limit.rule().capacity)).collect(),
    };
    // Of each limit that the batch takes, whether into debt: a write has one condition for all of it.
    let mut effects = BTreeMap::new();
    let goes_into_debt = line.iter().any(|waiter| waiter.request.asks.has(Effect::IntoDebt));
    let limit_count = view.map_or(limits.len(), |shard| shard.limit_count_with(&limits));
    let (mut leases, max_leases) = (0, max_leases(limit_count));
    let (mut chosen, mut is_held_up) = (vec![], false);
    let index = view.map_or(ShardIndex::at_creation(0), Shard::shard);
    let is_paused = view.is_some_and(|shard| shard.paused_until(now).is_some());
    for _ in 0..line.len() {
        let Some(waiter) = line.pop_front() else {
            break;
        };
        let asks = &waiter.request.asks;
        let lacks = |(limit, need): (&LimitName, MilliTokens)| {
            let views = view.zip(projected.as_ref());
            let queued = views.zip(waiter.request.start_by(now));
            let later = queued.map(|(views, by)| waiter.request.refill_ahead(views, limit, by));
            let later = later.unwrap_or_default();
            left.get(limit).is_none_or(|left| *left + later < need)
        };
        if asks.has(Effect::Enforce) && is_paused || asks.required(index).any(lacks) {
            line.push_back(waiter);
            continue;
        }
        // Also where it has to wait for the next write: no later waiter takes its tokens.
        for (limit, need) in asks.with(Effect::Enforce) {
            if let Some(left) = left.get_mut(limit) {
                *left -= need;
            }
        }
        if is_held_up
            || waiter.request.limits != limits
            || (waiter.request.lease.is_some() && leases == max_leases)
            || goes_into_debt
                && !asks
                    .debits()
                    .all(|ask| effects.get(&ask.limit).is_none_or(|known| *known == ask.effect))
        {
            is_held_up |= waiter.queues();
            line.push_back(waiter);
            continue;
        }
        leases += usize::from(waiter.request.lease.is_some());
        if goes_into_debt {
            effects.extend(asks.debits().map(|ask| (ask.limit.clone(), ask.effect)));
        }
        chosen.push(waiter);
    }
    chosen.iter_mut().for_each(|waiter| raise(waiter, &mut left, index));
    chosen
}

/// Raises the amounts of a waiter by what is `left` after all least amounts, up to the most it asks.
fn raise(waiter: &mut Waiter, left: &mut Amounts, shard: ShardIndex) {
    waiter.raised = None;
    if waiter.request.asks.iter().all(|ask| ask.amount == ask.most) {
        return;
    }
    let mut raised = Asks::default();
    for ask in &waiter.request.asks {
        let mut ask = ask.clone();
        if let Some(left) = left.get_mut(&ask.limit) {
            let floor = waiter.request.asks.floor(ask.limit.as_str(), shard);
            let more = (ask.most - ask.amount).min(*left - floor).max(MilliTokens::ZERO);
            *left -= more;
            ask.amount += more;
        }
        raised.add(ask);
    }
    waiter.raised = Some(raised);
}

/// The waiters of one write until its outcome is known, and its writes so far.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) waiters: Vec<Waiter>,
    /// Time of the first plan that may have been applied.
    pub(super) planned: EpochMillis,
    pub(super) last_plan: Plan,
    /// Leases in the order of the waiters.
    pub(super) leases: Vec<Option<(WriteId, Lease)>>,
    /// Amounts of all waiters.
    pub(super) asks: Asks,
    /// Ids of the writes sent so far.
    pub(super) write_ids: Vec<WriteId>,
    /// Shard that the last write was planned on.
    pub(super) seen: Option<Arc<Shard>>,
    /// Age of that view.
    pub(super) age: Duration,
    /// Whether the last write requests a split.
    pub(super) is_hot: bool,
    /// Whether the wall clock has jumped ahead since a view that a write was planned on.
    pub(super) is_doubted: bool,
    unconfirmed: Option<Unconfirmed>,
    /// Whether the shard has no item, which the write may create.
    pub(super) is_missing: bool,
    pub(super) refusals: Refusals,
    /// Races that these waiters have lost in a row.
    pub(super) races: u32,
}

/// What was known when a write was planned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plan {
    pub(super) at: EpochMillis,
    /// Last waiter that had arrived.
    pub(super) last_arrived: u64,
}

/// Unconfirmed writes of an attempt: their responses were lost, so they may have been applied.
#[derive(Debug)]
struct Unconfirmed {
    writes: i64,
    /// Write sequence before the first of them, if it was seen.
    v_before: Option<i64>,
    error: Arc<StoreError>,
    /// End of the doubt: by then a write that was sent has failed.
    until: Instant,
}

impl Attempt {
    pub(super) fn new(env: &Env, shard: &ShardState, waiters: Vec<Waiter>, races: u32) -> Self {
        let mut asks = Asks::default();
        for ask in waiters.iter().flat_map(Waiter::asks) {
            asks.add(ask.clone());
        }
        Self {
            waiters,
            planned: env.now(),
            last_plan: Plan::default(),
            leases: vec![],
            asks,
            write_ids: vec![],
            seen: None,
            age: Duration::ZERO,
            is_hot: false,
            is_doubted: false,
            unconfirmed: None,
            is_missing: shard.may_be_created(),
            refusals: Refusals::default(),
            races,
        }
    }

    pub(super) const fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// Returns the error of the last write whose outcome is unknown.
    pub(super) fn doubt(&self) -> Option<Arc<StoreError>> {
        let doubt = self.unconfirmed.as_ref()?;
        Some(Arc::clone(&doubt.error))
    }

    /// Ends the doubt: what its writes may have taken was counted.
    pub(super) fn end_doubt(&mut self) -> Option<Arc<StoreError>> {
        self.unconfirmed.take().map(|doubt| doubt.error)
    }

    /// Returns whether a doubt lasts too long, or no waiter has time left for it.
    pub(super) fn is_doubt_over(&self) -> bool {
        let now = Instant::now();
        self.unconfirmed.as_ref().is_some_and(|doubt| {
            now >= doubt.until || !self.waiters.iter().any(|waiter| waiter.has_time(now))
        })
    }

    /// Sets the next plan, by which the waiter `last_arrived` had arrived. An unconfirmed write keeps
    /// its leases.
    pub(super) fn replan(&mut self, env: &Env, last_arrived: u64) -> EpochMillis {
        let at = env.now();
        if self.unconfirmed.is_none() {
            self.planned = at;
            let waiters = self.waiters.iter();
            self.leases = waiters.map(|waiter| waiter.new_lease(at)).collect();
        }
        self.last_plan = Plan { at, last_arrived };
        at
    }

    /// Returns the take of all waiters, by a write with the last of the ids.
    pub(super) fn planned_take<'a>(
        &'a self,
        env: &Env,
        shard: &'a ShardState,
        now: EpochMillis,
    ) -> Take<'a> {
        let waiters = self.waiters.iter();
        Take {
            key: &shard.key,
            limits: (&self.waiters[0].request.limits).into(),
            asks: self.asks.clone(),
            line: self.line(now),
            acquires: waiters.map(|waiter| waiter.request.acquires).sum(),
            leases: self.leases.iter().flatten().cloned().collect(),
            roll: shard.roll(env, now),
            write_id: self.write_ids[self.write_ids.len() - 1].clone(),
            request_split: false,
            contention: shard.contention(self.age),
            windows_begun: self.has_quota() && shard.windows_begun(now),
            unconfirmed: &self.write_ids,
        }
    }

    /// Returns whether a waiter queues; almost none does.
    fn queues(&self) -> bool {
        self.waiters.iter().any(Waiter::queues)
    }

    /// Returns the places of the waiters, if any of them queues or leaves something.
    fn line(&self, now: EpochMillis) -> Vec<Place> {
        if !self.queues() && !self.asks.has_floor() {
            return vec![];
        }
        let place = |waiter: &Waiter| Place {
            asks: waiter.asks().clone(),
            wait: waiter.request.start_by(now).unwrap_or(now).since(now),
        };
        self.waiters.iter().map(place).collect()
    }

    /// Returns when the waiters start that queue, by the shard after their write. If others have
    /// written since, that shows a later start, which counts up to the end of the wait.
    pub(super) fn starts(&self, env: &Env, shard: &Shard) -> Vec<Option<EpochMillis>> {
        if !self.queues() {
            return vec![None; self.waiters.len()];
        }
        let is_last = self.wrote_last(shard);
        let (now, mut later) = (env.now(), Amounts::new());
        let mut starts = vec![];
        for waiter in self.waiters.iter().rev() {
            let request = &waiter.request;
            // A write requires no balance for an amount of 0, so it starts by the others.
            let debits = waiter.asks().debits();
            let queued = debits.filter(|ask| ask.amount > MilliTokens::ZERO);
            let queued =
                queued.map(|ask| &ask.limit).filter(|name| request.queues_for(name, shard));
            let behind = |name: &LimitName| later.get(name).copied().unwrap_or_default();
            let repaid = queued.filter_map(|name| shard.repaid_at(name, behind(name)));
            let start = repaid.fold(self.last_plan.at, EpochMillis::max);
            let latest = request.start_by(now);
            starts.push(latest.map(|latest| if is_last { start } else { start.min(latest) }));
            for ask in waiter.asks().debits() {
                *later.entry(ask.limit.clone()).or_default() += ask.amount;
            }
        }
        starts.reverse();
        starts
    }

    /// Returns whether the last write to the shard is of this attempt.
    fn wrote_last(&self, shard: &Shard) -> bool {
        let last = shard.last_write_id.as_ref();
        last.is_some_and(|op| self.write_ids.contains(op))
    }

    fn has_quota(&self) -> bool {
        let mut limits = self.waiters[0].request.limits.iter();
        limits.any(|limit| limit.rule().kind().has_window())
    }

    /// Returns whether the write should request a split: the shard was throttled repeatedly. Not
    /// just after a split, when every process pays for a write or two to see it, and not while a request counts.
    pub(super) fn wants_split(shard: &ShardState, seen: &Shard, now: EpochMillis) -> bool {
        if seen.scaling.is_hot(now) {
            return false;
        }
        let settled_at =
            seen.scaling.sample.map_or(EpochMillis::default(), |look| look.at.plus(SPLIT_COOLDOWN));
        let is_settled = |age: Duration| now.since(settled_at) > Millis::from(age);
        let throttled = shard.with_throttles(|throttles, ages| throttles.repeated_for(ages));
        throttled.is_some_and(is_settled)
    }

    /// Records one more unconfirmed write. Returns how many there are.
    pub(super) fn note_unconfirmed(&mut self, env: &Env, error: Arc<StoreError>) -> u32 {
        let first = Unconfirmed {
            writes: 0,
            v_before: self.seen.as_ref().map(|shard| shard.write_seq),
            error: Arc::clone(&error),
            until: deadline(env.timeout),
        };
        let doubt = self.unconfirmed.get_or_insert(first);
        doubt.writes += 1;
        doubt.error = error;
        u32::try_from(doubt.writes).unwrap_or(u32::MAX)
    }

    /// Counts tokens that unconfirmed writes may have taken. `known` of these writes are accounted
    /// for, and the write sequence `v` may show that fewer were applied. Until its lease may have
    /// expired, a take is certain: a repeated one fails if one of its leases is in the item.
    pub(super) fn count_unconfirmed_tokens(&self, env: &Env, known: i64, v: Option<i64>) {
        let Some(doubt) = &self.unconfirmed else {
            return;
        };
        let made = doubt.v_before.zip(v).map_or(i64::MAX, |(before, v)| v.saturating_sub(before));
        let by = env.now().plus(MAX_CLOCK_SKEW);
        let mut leases = self.leases.iter().flatten();
        let is_certain = v.is_some() && leases.any(|(_, lease)| lease.expires_at > by);
        let writes = if is_certain { 0 } else { (doubt.writes - known).min(made).max(0) };
        if writes == 0 {
            return;
        }
        let needs: MilliTokens = self.asks.iter().map(|ask| ask.amount).sum();
        let milli = u64::try_from(needs.0.saturating_mul(writes)).unwrap_or_default();
        count(&env.counters.unconfirmed_millitokens, milli);
        tracing::warn!(milli, "unconfirmed writes count as taken");
    }

    /// Returns whether the shard shows that a write of this attempt was applied.
    pub(super) fn has_taken_from(&self, shard: &Shard) -> bool {
        let leases = shard.leases.as_ref();
        let holds = |(id, _): &(WriteId, Lease)| leases.is_some_and(|all| all.contains_key(id));
        self.wrote_last(shard) || self.leases.iter().flatten().any(holds)
    }

    /// Returns the windows of quotas that the batch took from, as the shard shows after its write: by
    /// the shard itself, if no other write came since, otherwise by the batch's leases.
    pub(super) fn windows(&self, shard: &Shard) -> Windows {
        if self.wrote_last(shard) {
            return windows_in(shard);
        }
        let leases = self.leases.iter().flatten();
        let found = leases.filter_map(|(id, _)| shard.leases.as_ref()?.get(id));
        found.flat_map(|lease| lease.windows.clone()).collect()
    }

    /// Returns whether a limit that the batch takes of was full.
    pub(super) fn has_full_limit(&self, shard: &Shard, now: EpochMillis) -> bool {
        let debits = self.asks.debits();
        debits.filter_map(|ask| shard.limits.get(&ask.limit)).any(|state| shard.is_full(state, now))
    }
}
