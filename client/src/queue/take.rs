//! One take for a batch of waiters, until its outcome is known.

mod response;
mod unconfirmed;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::Take;
use weirgate_shared::{Asks, Effect, EpochMillis, Lease, Millis, Shard, WriteId};
use weirgate_store::{ErrorKind, StoreError, WriteOutcome};

use super::clock_jump;
use super::shard_state::ShardState;
use super::view::ShardView;
use super::waiter::Waiter;
use crate::session::{PlanTime, Refusals, Sent, Session, backoff};
use crate::values::{Error, check_bucket_debt, check_bucket_limits, count};

/// Outcome of a batch.
pub(super) enum TakeOutcome {
    /// Every waiter has its reply.
    Replied,
    /// Every waiter was granted, by a write that was planned at this time.
    Granted(EpochMillis),
    /// Nothing was taken, and the state's view shows why: select again.
    Retry(Vec<Waiter>),
    /// Nothing was taken: others have written since the view, so the condition failed that was
    /// planned at this time.
    LostRace(Vec<Waiter>, EpochMillis),
    /// Nothing was taken: the shard has no item, and a take may not create it.
    ShardMissing(Vec<Waiter>),
    /// Nothing was taken: DynamoDB rejected the write for now.
    Rejected(Vec<Waiter>, Arc<StoreError>),
}

/// Time after a split in which no other is requested, 1 s: about as long as all processes need to
/// see it.
const SPLIT_COOLDOWN: Millis = Millis(1_000);

/// Takes for the whole batch in one write.
///
/// After an unconfirmed write it sends another, which fails if the first was the item's last write;
/// the response then shows which. If another process has written since, the tokens count as taken.
pub(super) async fn take(
    session: &Arc<Session>,
    state: &Arc<ShardState>,
    waiters: Vec<Waiter>,
) -> TakeOutcome {
    TakeAttempt::new(session, state, waiters).run().await
}

struct TakeAttempt<'a> {
    session: &'a Arc<Session>,
    state: &'a Arc<ShardState>,
    waiters: Vec<Waiter>,
    /// Time of the first plan that may have been applied.
    planned: PlanTime,
    /// Leases in the order of the waiters.
    leases: Vec<Option<(WriteId, Lease)>>,
    /// Amounts of all waiters.
    asks: Asks,
    /// Ids of the writes sent so far.
    write_ids: Vec<WriteId>,
    /// When the last write was sent.
    sent: Sent,
    /// Shard that the last write was planned on.
    seen: Option<Arc<Shard>>,
    /// Age of that view.
    age: Duration,
    /// Whether the wall clock has jumped ahead since.
    is_doubted: bool,
    unconfirmed: Option<Unconfirmed>,
    missing: bool,
    refusals: Refusals,
}

/// Unconfirmed writes of an attempt.
struct Unconfirmed {
    writes: i64,
    /// Write sequence before the first of them, if it was seen.
    v_before: Option<i64>,
    error: Arc<StoreError>,
    /// End of the doubt: by then a write that was sent has failed.
    until: Instant,
}

impl<'a> TakeAttempt<'a> {
    fn new(session: &'a Arc<Session>, state: &'a Arc<ShardState>, waiters: Vec<Waiter>) -> Self {
        let mut asks = Asks::default();
        for ask in waiters.iter().flat_map(Waiter::asks) {
            asks.add(ask.clone());
        }
        Self {
            session,
            state,
            waiters,
            planned: session.plan_time(),
            leases: vec![],
            asks,
            write_ids: vec![],
            sent: session.ages.sent(),
            seen: None,
            age: Duration::ZERO,
            is_doubted: false,
            unconfirmed: None,
            missing: state.may_be_created(),
            refusals: Refusals::default(),
        }
    }

    async fn run(mut self) -> TakeOutcome {
        loop {
            let now = self.replan();
            let roll = self.state.roll(self.session, now);
            let is_confirmed = self.session.is_time_confirmed();
            let has_leases = self.leases.iter().any(Option::is_some);
            let limits = &self.waiters[0].request.limits;
            let is_doubtful = |view: &ShardView| view.predates_clock_jump || !is_confirmed;
            let is_safe = |view: &ShardView| {
                !is_doubtful(view)
                    || (is_confirmed || !has_leases && !self.session.ages.may_be_slow())
                        && clock_jump::is_safe(&view.shard, limits, roll, now)
            };
            let view = self.state.view().filter(is_safe);
            if view.is_none() && !(self.missing && is_confirmed) {
                // No view is left that a write could be planned on.
                self.state.clear_view();
                if self.unconfirmed.is_none() {
                    return TakeOutcome::Retry(self.waiters);
                }
                if let Err(error) = self.read_after_unconfirmed().await {
                    return self.fail(error);
                }
                if self.has_expired() {
                    return self.give_up().await;
                }
                if self.state.was_merged_away() {
                    return self.shard_missing();
                }
                continue;
            }
            let is_doubted = view.as_ref().is_some_and(is_doubtful);
            self.is_doubted |= is_doubted;
            self.age = view
                .as_ref()
                .map(|view| self.state.age(view))
                .unwrap_or_default();
            self.seen = view.map(|view| view.shard);
            let shard = self.seen.as_deref();
            let checked = shard.map_or(Ok(()), |shard| {
                check_bucket_limits(shard, &self.waiters[0].request.limits)?;
                check_bucket_debt(shard, self.asks.with(Effect::Debit))
            });
            if let Err(error) = checked {
                // The next batch reads again, because an operator may have deleted the item as the
                // error advises.
                self.state.clear_view();
                return self.fail(error);
            }
            let op = weirgate_store::random_id();
            let hot = self.wants_split(shard, now);
            // The write's own id is included, so a request that the network repeats does not take
            // twice.
            self.write_ids.push(op.clone());
            let take = Take {
                key: &self.state.key,
                limits: (&self.waiters[0].request.limits).into(),
                asks: self.asks.clone(),
                acquires: self
                    .waiters
                    .iter()
                    .map(|waiter| waiter.request.acquires)
                    .sum(),
                leases: self.leases.iter().flatten().cloned().collect(),
                roll,
                write_id: op,
                request_split: hot,
                contention: self.state.contention(self.age),
                unconfirmed: &self.write_ids,
            };
            let mut update = shard.map_or_else(|| take.create(now), |shard| take.plan(shard, now));
            if let Some(seen) = shard.filter(|_| is_doubted) {
                clock_jump::require_unchanged(&mut update, &take, seen, now);
            }
            self.sent = self.session.ages.sent();
            self.state.request_started("UpdateItem");
            let outcome = self.session.update(&update).await;
            self.state.request_finished(&outcome);
            if outcome.is_ok() {
                self.state.record_unthrottled_write();
            }
            match outcome {
                Ok(WriteOutcome::Applied(item)) => {
                    if hot {
                        self.state.clear_throttle();
                    }
                    return self.applied(item, now).await;
                }
                Ok(WriteOutcome::ConditionFailed(None)) if !self.state.is_only() => {
                    return self.shard_missing();
                }
                Ok(WriteOutcome::ConditionFailed(None)) => {
                    if let Err(error) = self.refusals.record(&self.state.key, None) {
                        return self.fail(error);
                    }
                    self.state.clear_view();
                    self.missing = true;
                }
                Ok(WriteOutcome::ConditionFailed(Some(item))) => {
                    return self.condition_failed(&item, now).await;
                }
                Err(error) if error.kind == ErrorKind::Unconfirmed => {
                    tracing::debug!(%error, "unconfirmed write");
                    count(&self.session.counters.unconfirmed, 1);
                    let writes = self.note_unconfirmed(error);
                    if self.has_expired() {
                        return self.give_up().await;
                    }
                    pause(writes, &self.waiters).await;
                }
                Err(error) if error.kind.is_transient() => {
                    count(&self.session.counters.refused, 1);
                    tracing::debug!(%error, "write rejected for now");
                    if error.kind == (ErrorKind::Throttled { key_range: true }) {
                        self.state.record_throttle();
                    }
                    if self.unconfirmed.is_none() {
                        return TakeOutcome::Rejected(self.waiters, Arc::new(error));
                    }
                    // An earlier write is still unconfirmed: its outcome comes first.
                    if self.has_expired() {
                        return self.give_up().await;
                    }
                    pause(1, &self.waiters).await;
                }
                Err(error) => return self.fail(Error::from(error)),
            }
        }
    }

    /// Returns the time for the next plan. An unconfirmed write keeps its leases.
    fn replan(&mut self) -> EpochMillis {
        let planned = self.session.plan_time();
        if self.unconfirmed.is_none() {
            self.planned = planned;
            self.leases = self
                .waiters
                .iter()
                .map(|waiter| waiter.new_lease(planned.now))
                .collect();
        }
        planned.now
    }

    /// Returns whether the write should request a split: the shard was throttled repeatedly. Not
    /// just after a split, when every process pays for a write or two to see it, and not twice.
    fn wants_split(&self, seen: Option<&Shard>, now: EpochMillis) -> bool {
        let Some(seen) = seen.filter(|seen| !seen.scaling.is_hot) else {
            return false;
        };
        let settled_at = seen
            .scaling
            .sample
            .map_or(EpochMillis::default(), |look| look.at.plus(SPLIT_COOLDOWN));
        let is_settled = |age: Duration| now.since(settled_at) > Millis::from(age);
        let throttled_for = self.state.repeatedly_throttled_for();
        throttled_for.is_some_and(is_settled)
    }
}

/// Waits after failures in a row, at most until the latest deadline of the waiters.
pub(super) async fn pause<'a>(failures: u32, waiters: impl IntoIterator<Item = &'a Waiter>) {
    let until = Instant::now() + backoff(failures);
    let last = waiters.into_iter().map(|waiter| waiter.deadline).max();
    tokio::time::sleep_until(last.map_or(until, |last| until.min(last))).await;
}
