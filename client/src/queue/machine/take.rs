//! The writes of an attempt, and what follows from the responses.
//!
//! After an unconfirmed write the machine sends another, which fails if the first was the item's last
//! write; the response then shows which. If another process has written since, the tokens count as
//! taken.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{Effect, EpochMillis, Shard};
use weirgate_store::{ErrorKind, StoreError};

use super::{Asked, Command, Look, Machine, Next, PATIENCE, Written, is_key_range_throttle};
use crate::queue::pace::{ContentionBackoff, FRESH_VIEW, ThrottleHistory};
use crate::queue::part::{HoldPart, Portion};
use crate::queue::shard_state::ShardView;
use crate::queue::waiter::{Attempt, Reason, Waiter};
use crate::session::{Env, Sent, backoff};
use crate::values::{
    Error, Outcome, check_bucket_debt, check_bucket_limits, check_next_windows, count,
};

impl Machine {
    /// Returns the next write of an attempt, or what must come before it; `None` to look again.
    pub(super) fn continue_attempt(&mut self, env: &Env, mut attempt: Attempt) -> Option<Command> {
        let view = self.shard.view();
        if attempt.is_unconfirmed()
            && let Some(view) = &view
            && attempt.has_taken_from(&view.shard)
        {
            // Whatever brought the view: a read, a settlement, a write of the operator.
            self.found(env, attempt, &view.shard);
            return None;
        }
        let now = attempt.replan(env, self.last_id);
        // The write's own id is included, so a request that the network repeats does not take twice.
        attempt.write_ids.push(weirgate_store::random_id());
        let is_confirmed = env.is_time_confirmed();
        let age = view.as_ref().map(|view| self.shard.age(view));
        attempt.age = age.unwrap_or_default();
        let mut take = attempt.planned_take(env, &self.shard, now);
        // A clock that was set ahead assumes refill that was not there.
        let is_doubtful = |view: &ShardView| view.predates_clock_jump || !is_confirmed;
        let is_safe = |view: &ShardView| {
            !is_doubtful(view)
                || (is_confirmed || take.leases.is_empty() && !env.ages.may_be_slow())
                    && take.needs_no_time(&view.shard, now)
        };
        let view = view.filter(is_safe);
        if view.is_none() && !(attempt.is_missing && is_confirmed) {
            // No view is left that a write could be planned on.
            attempt.write_ids.pop();
            self.shard.clear_view();
            if attempt.is_unconfirmed() {
                self.attempt = Some(attempt);
                return Some(self.ask_read(env, Look::InDoubt));
            }
            self.retry(attempt.waiters, attempt.races);
            return None;
        }
        let is_doubted = view.as_ref().is_some_and(is_doubtful);
        let seen = view.map(|view| view.shard);
        let checked = seen.as_ref().map_or(Ok(()), |shard| {
            check_bucket_limits(shard, &attempt.waiters[0].request.limits)?;
            check_next_windows(shard, attempt.asks.debits().map(|ask| &ask.limit), now)?;
            check_bucket_debt(shard, attempt.asks.with(Effect::IntoDebt))
        });
        if let Err(error) = checked {
            // The next request reads again, because an operator may have deleted the item as the error
            // advises.
            self.shard.clear_view();
            self.fail_attempt(env, attempt, error);
            return None;
        }
        let is_hot = seen.as_ref().is_some_and(|seen| Attempt::wants_split(&self.shard, seen, now));
        take.request_split = is_hot;
        let update = match &seen {
            Some(seen) => take.plan(seen, now),
            None => take.create(now),
        };
        (attempt.seen, attempt.is_hot) = (seen, is_hot);
        attempt.is_doubted |= is_doubted;
        self.attempt = Some(attempt);
        self.note_request(env, Asked::Take);
        Some(Command::Write(update))
    }

    /// Takes the response to the write of an attempt.
    pub(super) fn taken(
        &mut self,
        env: &Env,
        mut attempt: Attempt,
        sent: Sent,
        outcome: Result<Written, Error>,
    ) {
        self.shard.record_outcome(&outcome);
        if outcome.is_ok() {
            self.shard.with_throttles(ThrottleHistory::record_pass);
        }
        match outcome {
            Ok(Written::Applied(Some(shard))) => {
                if attempt.is_hot {
                    // The write has requested the split.
                    self.shard.with_throttles(|throttles, _| throttles.clear());
                }
                self.applied(env, attempt, sent, shard);
            }
            Ok(Written::ConditionFailed(Some(shard))) => self.refused(env, attempt, sent, shard),
            // A write that does not show the item found none.
            Ok(_) if !self.shard.is_only() => {
                self.shard_missing(env, attempt);
            }
            Ok(_) => {
                self.shard.clear_view();
                if let Err(error) = attempt.refusals.record(&self.shard.key, None) {
                    return self.fail_attempt(env, attempt, error);
                }
                attempt.is_missing = true;
                self.attempt = Some(attempt);
            }
            Err(Error::Store(error)) if error.kind == ErrorKind::Unconfirmed => {
                tracing::debug!(%error, "unconfirmed write");
                count(&env.counters.unconfirmed, 1);
                let writes = attempt.note_unconfirmed(env, error);
                self.wait = Some(Instant::now() + backoff(writes));
                self.attempt = Some(attempt);
            }
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&env.counters.refused, 1);
                tracing::debug!(%error, "write rejected for now");
                if is_key_range_throttle(&error) {
                    self.shard.with_throttles(ThrottleHistory::record);
                }
                if attempt.is_unconfirmed() {
                    // An earlier write is still unconfirmed: its outcome comes first.
                    self.wait = Some(Instant::now() + backoff(1));
                    self.attempt = Some(attempt);
                } else {
                    self.rejected(attempt.waiters, error);
                }
            }
            Err(error) => self.fail_attempt(env, attempt, error),
        }
    }

    /// Grants all waiters after an applied write.
    fn applied(&mut self, env: &Env, attempt: Attempt, sent: Sent, shard: Shard) {
        self.shard.with_backoff(ContentionBackoff::won_race);
        attempt.count_unconfirmed_tokens(env, 0, Some(shard.write_seq - 1));
        if let Some(seen) = &attempt.seen {
            self.record_others(env, &attempt, sent, shard.write_seq - seen.write_seq - 1);
        }
        let shard = self.record_view(&attempt, sent, shard);
        self.grant_and_deny(env, attempt, &shard);
    }

    /// Grants all waiters if the shard shows that an earlier write was applied; otherwise they are in
    /// line again, unless the next write would be refused too.
    fn refused(&mut self, env: &Env, attempt: Attempt, sent: Sent, shard: Shard) {
        if attempt.has_taken_from(&shard) {
            // One unconfirmed write is then known, unless the last write arrived twice.
            let known = i64::from(shard.last_write_id.as_ref() != attempt.write_ids.last());
            attempt.count_unconfirmed_tokens(env, known, Some(shard.write_seq - 1));
            let shard = self.record_view(&attempt, sent, shard);
            return self.grant_and_deny(env, attempt, &shard);
        }
        // If the item equals the view, the state itself failed the condition, not a race.
        let changed = attempt.seen.as_deref().filter(|seen| **seen != shard);
        let was_race = changed.is_some() && !attempt.is_doubted;
        if let Some(seen) = changed {
            count(&env.counters.lost_races, 1);
            self.shard.with_backoff(ContentionBackoff::lost_race);
            // At least one, also if the item was created again.
            let writes = (shard.write_seq - seen.write_seq).max(1);
            self.record_others(env, &attempt, sent, writes);
            if attempt.age >= FRESH_VIEW {
                let was_full = attempt.has_full_limit(&shard, attempt.last_plan.at);
                self.shard.record_others(|others| others.record_failed_guess(was_full));
            }
        } else if attempt.seen.is_some() {
            self.record_others(env, &attempt, sent, 0);
        }
        attempt.count_unconfirmed_tokens(env, 0, Some(shard.write_seq));
        self.record_view(&attempt, sent, shard);
        let plan = attempt.last_plan;
        match self.record_refusal() {
            Ok(()) => self.retry(attempt.waiters, attempt.races + 1),
            Err(error) => self.fail(attempt.waiters, &error),
        }
        if was_race && self.races >= PATIENCE {
            self.deny_as_of(env, plan);
        }
    }

    /// Takes back the waiters of a write that DynamoDB rejected for now.
    fn rejected(&mut self, waiters: Vec<Waiter>, error: Arc<StoreError>) {
        if self.can_reroute(&error) {
            for waiter in waiters {
                let reason = Reason::Throttled(Arc::clone(&error));
                self.reply_to(&waiter, Ok(Outcome::Elsewhere(reason)));
            }
            return;
        }
        self.requeue(waiters);
        if is_key_range_throttle(&error) {
            self.failures += 1;
            self.next = Next::Recheck;
        } else {
            self.pause();
        }
    }

    /// Records how many writes of others came between the view and the response.
    fn record_others(&self, env: &Env, attempt: &Attempt, sent: Sent, writes: i64) {
        let since_view = attempt.age + env.ages.now().since(sent.at);
        self.shard.record_others(|others| others.record(writes, since_view));
    }

    /// Records the shard of a response. An item with a lower write sequence than the view was
    /// created again.
    fn record_view(&self, attempt: &Attempt, sent: Sent, shard: Shard) -> Arc<Shard> {
        let seen = attempt.seen.as_ref();
        if seen.is_some_and(|seen| seen.write_seq > shard.write_seq) {
            self.shard.clear_view();
        }
        self.shard.record_response(shard, sent)
    }

    /// Grants all waiters, also those that have gone: what was taken for them returns.
    fn grant(&mut self, env: &Env, attempt: Attempt, taken_at: EpochMillis, shard: &Arc<Shard>) {
        let (windows, starts) = (attempt.windows(shard), attempt.starts(env, shard));
        let waiters = attempt.waiters.into_iter().zip(attempt.leases);
        for ((waiter, lease), starts_at) in waiters.zip(starts) {
            let (state, shard) = (Arc::clone(&self.shard), Arc::clone(shard));
            let part = HoldPart {
                is_bypass: waiter.request.is_bypass(),
                windows: windows.clone(),
                lease: lease.map(|(id, lease)| (id, lease.expires_at)),
                ..HoldPart::of(state, shard, waiter.amounts())
            };
            let portion = Portion {
                part,
                limits: waiter.request.limits,
                taken_at,
                acquires: waiter.request.acquires,
                starts_at,
            };
            self.reply(waiter.id, Ok(Outcome::Granted(portion)));
        }
        self.failures = 0;
    }

    /// Grants all waiters by the response to the last write, which also shows what is left for others.
    fn grant_and_deny(&mut self, env: &Env, attempt: Attempt, shard: &Arc<Shard>) {
        let (plan, is_doubted) = (attempt.last_plan, attempt.is_doubted);
        self.grant(env, attempt, plan.at, shard);
        if !is_doubted {
            self.deny_as_of(env, plan);
        }
    }

    /// Ends an attempt that has expired, by the item that a read showed. If an unconfirmed write was
    /// applied, its waiters are granted. Otherwise it counts as taken, and waiters with time left are
    /// for another attempt.
    pub(super) fn give_up(
        &mut self,
        env: &Env,
        mut attempt: Attempt,
        sent: Sent,
        found: Option<Shard>,
    ) {
        if let Some(shard) = found.filter(|shard| attempt.has_taken_from(shard)) {
            let shard = self.record_view(&attempt, sent, shard);
            return self.found(env, attempt, &shard);
        }
        attempt.count_unconfirmed_tokens(env, 0, None);
        let doubt = attempt.end_doubt();
        let now = Instant::now();
        let late = attempt.waiters.extract_if(.., |waiter| !waiter.has_time(now));
        for waiter in late {
            let after = waiter.deadline - waiter.enqueued_at;
            let error = Error::timeout(&self.shard.key, after, doubt.clone());
            self.reply_to(&waiter, Err(error));
        }
        self.retry(attempt.waiters, attempt.races);
    }

    /// Grants all waiters of an unconfirmed write that the shard shows.
    fn found(&mut self, env: &Env, attempt: Attempt, shard: &Arc<Shard>) {
        attempt.count_unconfirmed_tokens(env, 1, Some(shard.write_seq - 1));
        let planned_at = attempt.planned;
        self.grant(env, attempt, planned_at, shard);
    }

    /// Sends the waiters elsewhere, because this shard is missing and may not be created.
    pub(super) fn shard_missing(&mut self, env: &Env, attempt: Attempt) {
        self.shard.mark_missing();
        attempt.count_unconfirmed_tokens(env, 0, None);
        self.requeue(attempt.waiters);
        self.send_elsewhere(&Reason::ShardMissing);
    }

    /// Puts waiters back in line after nothing was taken, and so many races that they have lost in a
    /// row.
    fn retry(&mut self, waiters: Vec<Waiter>, races: u32) {
        (self.failures, self.races) = (0, races);
        self.requeue(waiters);
    }

    /// Fails all waiters. Unconfirmed writes stay unconfirmed, and their error takes precedence.
    pub(super) fn fail_attempt(&mut self, env: &Env, attempt: Attempt, error: Error) {
        attempt.count_unconfirmed_tokens(env, 0, None);
        let error = attempt.doubt().map_or(error, Error::Store);
        self.failures = 0;
        for waiter in attempt.waiters {
            self.reply_to(&waiter, Err(error.clone()));
        }
    }
}
