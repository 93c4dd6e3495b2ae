//! The waiters of one take, until its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Place, Take};
use weirgate_shared::{Asks, EpochMillis, Lease, LimitName, MilliTokens, Millis, Shard, WriteId};
use weirgate_store::StoreError;

use crate::queue::part::{MAX_CLOCK_SKEW, Windows, windows_in};
use crate::queue::shard_state::ShardState;
use crate::queue::waiter::Waiter;
use crate::session::{Env, PlanTime, Refusals, deadline};
use crate::values::{Amounts, count};

/// Time after a split in which no other is requested, 1 s: about as long as all processes need to
/// see it.
const SPLIT_COOLDOWN: Millis = Millis(1_000);

/// The waiters of one write until its outcome is known, and its writes so far.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) waiters: Vec<Waiter>,
    /// Time of the first plan that may have been applied.
    pub(super) planned: PlanTime,
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
            planned: env.plan_time(),
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
        let planned = env.plan_time();
        if self.unconfirmed.is_none() {
            self.planned = planned;
            let waiters = self.waiters.iter();
            self.leases = waiters
                .map(|waiter| waiter.new_lease(planned.now))
                .collect();
        }
        let at = planned.now;
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
            let queued = queued
                .map(|ask| &ask.limit)
                .filter(|name| request.queues_for(name, shard));
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
        let settled_at = seen
            .scaling
            .sample
            .map_or(EpochMillis::default(), |look| look.at.plus(SPLIT_COOLDOWN));
        let is_settled = |age: Duration| now.since(settled_at) > Millis::from(age);
        shard.repeatedly_throttled_for().is_some_and(is_settled)
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
        let made = doubt
            .v_before
            .zip(v)
            .map_or(i64::MAX, |(before, v)| v.saturating_sub(before));
        let by = env.now().plus(MAX_CLOCK_SKEW);
        let mut leases = self.leases.iter().flatten();
        let is_certain = v.is_some() && leases.any(|(_, lease)| lease.expires_at > by);
        let writes = if is_certain {
            0
        } else {
            (doubt.writes - known).min(made).max(0)
        };
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
        debits
            .filter_map(|ask| shard.limits.get(&ask.limit))
            .any(|state| shard.is_full(state, now))
    }
}
