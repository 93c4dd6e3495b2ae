//! The machine of one shard: decides what the waiters of one process get, and which request comes
//! next. It makes no request itself.
//!
//! [`poll`](Machine::poll) returns the next request or wait. The response goes to
//! [`read_done`](Machine::read_done) or [`written`](Machine::written); at most one request is under
//! way. Meanwhile requests [arrive](Machine::arrive), [leave](Machine::leave), and reach
//! [deadlines](Machine::deadline_passed). Each gets one reply.
//!
//! What drives it owes it three things: it delivers the [replies](Machine::take_replies) after each
//! call, it waits as long as it is told, and the answer to a request has confirmed the time
//! ([`AgeClock::confirm`](crate::session::AgeClock::confirm)) before the machine gets it.
//!
//! The waiters share the writes: while a take is under way, new ones wait in line, and the next write
//! takes for all of them.

mod denial;
mod look;
mod take;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Take, Update, expire};
use weirgate_shared::{Effect, EpochMillis, LimitName, MilliTokens, Shard};
use weirgate_store::{Consistency, ErrorKind, StoreError, WriteOutcome};

pub(crate) use self::denial::SLOTS_UNREAD_TTL;
use super::shard_state::{ShardState, ShardView};
use super::waiter::{Attempt, Reason, Reply, Waiter, select_batch};
use crate::session::{Env, HANGS_AFTER, Refusals, Sent, backoff, quarter_left};
use crate::values::{Denied, Error, LimitStatus, Outcome};

/// Balance, in multiples of the request, from which a shard counts as ample: its last tokens are
/// far, so there is no contention for them.
pub(crate) const AMPLE_FACTOR: i64 = 8;
/// Lost races in a row after which waiters are denied that were short at the last one, 3.
const PATIENCE: u32 = 3;
/// Wait before a contended write, 100 ms, that is not shortened where a shard fills sooner.
const MIN_LONGEST_WAIT: Duration = Duration::from_millis(100);

/// What a machine wants next.
#[derive(Debug)]
pub(crate) enum Command {
    /// Reads the shard's item.
    Read(Consistency),
    /// Reads the shard's item, to see what became of a write.
    LookUp,
    Write(Update),
    /// Waits until then. Nothing that the machine is told meanwhile ends the wait.
    Wait(Instant),
    /// Nothing waits.
    Stop,
}

/// Response to a write, with the shard after it or as it is; a condition can fail because there is no item.
pub(crate) type Written = WriteOutcome<Shard>;

/// Request under way.
#[derive(Debug)]
enum Asked {
    Read(Look),
    /// The take of the attempt.
    Take,
    /// A write that lets the first waiter fit.
    MakeRoom,
}

/// Why the shard is read.
#[derive(Debug, Clone)]
enum Look {
    /// There is no view, or it is outgrown.
    First(Known),
    /// The view is short.
    Short(Known, Consistency),
    /// There is no view while an earlier write is unconfirmed.
    InDoubt,
    /// An unconfirmed write has taken too long.
    Outcome,
}

/// What was known of the bucket before a read.
#[derive(Debug, Clone)]
struct Known {
    view: Option<Arc<Shard>>,
    was_only: bool,
}

/// What follows a wait, or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Waits if the shard is contended, then selects.
    Start,
    /// Reads the shard if there is no view or it is outgrown, then selects the waiters of the next write.
    Select,
    /// Selects them by the view as a read left it.
    SelectRead,
    /// Selects them by the view as a write left it that could not make room.
    SelectAsIs,
    /// Reads the shard, because by now it may be short, or split.
    Recheck,
    /// Reads it as the last write left it.
    RecheckStrongly,
}

#[derive(Debug)]
pub(crate) struct Machine {
    shard: Arc<ShardState>,
    /// Waiters in the order of their ids, without those of the attempt.
    line: VecDeque<Waiter>,
    /// The waiters of a write until its outcome is known.
    attempt: Option<Attempt>,
    asked: Option<(Asked, Sent, Instant)>,
    next: Next,
    /// Nothing is asked before.
    wait: Option<Instant>,
    /// Failed requests in a row.
    failures: u32,
    /// Races lost in a row, up to the last write.
    races: u32,
    refusals: Refusals,
    /// Replies that are not sent yet.
    replies: Vec<(u64, Reply)>,
    pub(super) last_id: u64,
    /// Reads in a row during each of which the wall clock jumped, and the one under way.
    reads: u32,
}

impl Machine {
    /// Returns the machine of a shard, whose waiters are numbered from after `last_id`.
    pub(super) fn new(shard: Arc<ShardState>, last_id: u64) -> Self {
        Self {
            shard,
            line: VecDeque::new(),
            attempt: None,
            asked: None,
            next: Next::Start,
            wait: None,
            failures: 0,
            races: 0,
            refusals: Refusals::default(),
            replies: vec![],
            last_id,
            reads: 1,
        }
    }

    #[cfg(test)]
    pub(super) const fn shard(&self) -> &Arc<ShardState> {
        &self.shard
    }

    /// Adds a waiter to the line. Returns its id.
    pub(crate) fn arrive(&mut self, waiter: Waiter) -> u64 {
        self.last_id += 1;
        self.line.push_back(Waiter { id: self.last_id, ..waiter });
        self.last_id
    }

    /// Forgets a waiter. What a write under way takes for it is granted nevertheless, so that it can
    /// be returned.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Ok(place) = self.line.binary_search_by_key(&id, |waiter| waiter.id) {
            self.line.remove(place);
        } else if let Some(waiter) = self.attempted(id) {
            waiter.is_gone = true;
        }
    }

    /// Replies to a waiter whose deadline has passed, unless that was done.
    pub(crate) fn deadline_passed(&mut self, env: &Env, id: u64) {
        if let Ok(place) = self.line.binary_search_by_key(&id, |waiter| waiter.id) {
            let waiter = self.line.remove(place);
            waiter.into_iter().for_each(|waiter| self.reply_too_late(env, &waiter));
        } else if let Some(waiter) = self.attempted(id).filter(|waiter| !waiter.is_gone) {
            waiter.is_gone = true;
            let (enqueued_at, deadline) = (waiter.enqueued_at, waiter.deadline);
            let error = self.timeout(env, enqueued_at, deadline);
            self.reply(id, Err(error));
        }
    }

    /// Returns and removes the replies, with the ids of their waiters.
    pub(crate) fn take_replies(&mut self) -> Vec<(u64, Reply)> {
        std::mem::take(&mut self.replies)
    }

    /// Returns what to do next. No request may be under way.
    pub(crate) fn poll(&mut self, env: &Env) -> Command {
        loop {
            self.expire(env);
            if self.attempt.as_ref().is_some_and(Attempt::is_doubt_over) {
                self.wait = None;
                return self.ask_read(env, Look::Outcome);
            }
            if self.rests() {
                self.rest();
                return Command::Stop;
            }
            let now = Instant::now();
            if let Some(until) = self.wait.filter(|until| now < *until) {
                return Command::Wait(self.last_deadline().map_or(until, |last| until.min(last)));
            }
            self.wait = None;
            let command = match self.attempt.take() {
                Some(attempt) => self.continue_attempt(env, attempt),
                None => match std::mem::replace(&mut self.next, Next::Start) {
                    Next::Start => {
                        self.next = Next::Select;
                        self.wait = self.contended_wait(env);
                        None
                    }
                    Next::Select if self.needs_view() => {
                        let known = self.known();
                        Some(self.ask_read(env, Look::First(known)))
                    }
                    Next::Select | Next::SelectRead => self.select(env, true),
                    Next::SelectAsIs => self.select(env, false),
                    Next::Recheck => self.recheck(env, false),
                    Next::RecheckStrongly => self.recheck(env, true),
                },
            };
            if let Some(command) = command {
                return command;
            }
        }
    }

    /// Returns whether nothing waits.
    pub(super) fn rests(&self) -> bool {
        self.line.is_empty() && self.attempt.is_none()
    }

    /// Forgets what only waiters of one time have in common.
    fn rest(&mut self) {
        (self.next, self.wait) = (Next::Start, None);
        (self.failures, self.races, self.reads) = (0, 0, 1);
        self.refusals = Refusals::default();
    }

    /// Takes the response to a write.
    pub(crate) fn written(&mut self, env: &Env, outcome: Result<Written, Error>) {
        let Some((asked, sent, _)) = self.asked.take() else {
            return;
        };
        match (asked, self.attempt.take()) {
            (Asked::Take, Some(attempt)) => self.taken(env, attempt, sent, outcome),
            (Asked::MakeRoom, _) => self.made_room(sent, outcome),
            (_, attempt) => self.attempt = attempt,
        }
    }

    fn attempted(&mut self, id: u64) -> Option<&mut Waiter> {
        let waiters = &mut self.attempt.as_mut()?.waiters;
        let place = waiters.binary_search_by_key(&id, |waiter| waiter.id);
        Some(&mut waiters[place.ok()?])
    }

    /// Returns the last deadline of the attempt's waiters, or of those in line without one.
    fn last_deadline(&self) -> Option<Instant> {
        let deadline = |waiter: &Waiter| waiter.deadline;
        match &self.attempt {
            Some(attempt) => attempt.waiters.iter().map(deadline).max(),
            None => self.line.iter().map(deadline).max(),
        }
    }

    fn note_request(&mut self, env: &Env, asked: Asked) {
        self.asked = Some((asked, env.ages.sent(), Instant::now()));
    }

    fn needs_view(&self) -> bool {
        !self.shard.is_known() || self.shard.is_outgrown()
    }

    /// Selects the waiters of the next write, and denies those for which the view is short. Returns
    /// `None` to look at the waiters again.
    fn select(&mut self, env: &Env, may_make_room: bool) -> Option<Command> {
        let races = std::mem::take(&mut self.races);
        let now = env.now();
        let view = self.shard.view();
        let shard = view.as_ref().map(|view| &*view.shard);
        shard.inspect(|shard| self.refuse_limits(shard));
        let mut batch = select_batch(shard, &mut self.line, now);
        if self.line.is_empty() {
            // Of a line that was long, only the room for the next waiter.
            self.line.shrink_to(4);
        }
        if let Some(view) = &view {
            if batch.is_empty()
                && may_make_room
                && let Some(update) = self.plan_room(env, view, now)
            {
                self.note_request(env, Asked::MakeRoom);
                return Some(Command::Write(update));
            }
            // The batch's write cannot reclaim all: the next one has what is left.
            if batch.is_empty() || !view.shard.has_unreclaimable(now) {
                self.deny_insufficient(env, view);
            }
            if batch.is_empty() {
                // No waiter fits into an old view, so read the current state.
                self.next = Next::Recheck;
                return None;
            }
        }
        if batch.is_empty() {
            batch.extend(self.line.pop_front());
        }
        if batch.is_empty() {
            return None;
        }
        let paused = self.shard.with_throttles(|known, ages| known.paused_until(ages));
        if let Some(until) = paused {
            self.requeue(batch);
            (self.next, self.wait) = (Next::Recheck, Some(until));
            return None;
        }
        let attempt = Attempt::new(env, &self.shard, batch, races);
        self.continue_attempt(env, attempt)
    }

    /// Returns the write that may let the first waiter fit, for which the shard is short: it brings
    /// changed limits, or returns more expired leases than one take can.
    fn plan_room(&self, env: &Env, view: &ShardView, now: EpochMillis) -> Option<Update> {
        let first = self.line.front().filter(|_| !view.predates_clock_jump)?;
        let shard = &view.shard;
        if shard.has_unreclaimable(now) {
            return expire(shard, now).map(|(update, _)| update);
        }
        if shard.matches_rules(&first.request.limits, now) {
            return None;
        }
        let op = weirgate_store::random_id();
        let nothing = Take {
            roll: self.shard.roll(env, now),
            unconfirmed: std::slice::from_ref(&op),
            ..Take::nothing(&self.shard.key, &first.request.limits, op.clone(), now)
        };
        Some(nothing.plan(shard, now))
    }

    /// Takes the response to such a write. A failure fails no waiter: the usual write or denial
    /// follows.
    fn made_room(&mut self, sent: Sent, outcome: Result<Written, Error>) {
        let is_new = match outcome {
            Ok(Written::Applied(shard) | Written::ConditionFailed(shard)) => {
                match shard {
                    Some(shard) => drop(self.shard.record_response(shard, sent)),
                    None => self.shard.clear_view(),
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "write that makes room failed");
                false
            }
        };
        if !is_new {
            self.next = Next::SelectAsIs;
            return;
        }
        if let Err(error) = self.record_refusal() {
            let first = self.line.pop_front().into_iter().collect();
            self.fail(first, &error);
        }
    }

    /// Counts a refused write, by the item that is the view now. An applied one changes it.
    fn record_refusal(&mut self) -> Result<(), Error> {
        self.shard.view().map_or(Ok(()), |view| {
            let version = Some(view.shard.write_seq);
            self.refusals.record(&self.shard.key, version)
        })
    }

    /// Returns the end of a random wait where processes compete for the last tokens.
    fn contended_wait(&self, env: &Env) -> Option<Instant> {
        // After one lost race the view is current, and a wait would make it old. After a second one
        // in a row this process may be in step with another that always wins, so it waits.
        if self.races % 2 == 1 {
            return None;
        }
        let longest = self.shard.with_backoff(|pace| pace.longest())?;
        // In a line the order of the writes counts, and almost all of them pass.
        if self.line.iter().any(Waiter::queues) {
            return None;
        }
        let (view, first) = (self.shard.view(), self.line.front()?);
        let now = env.now();
        let needs = first.request.asks.with(Effect::Enforce);
        let shard = view.as_ref().map(|view| &view.shard);
        let state =
            |name: &LimitName| shard.and_then(|shard| Some((shard, shard.limits.get(name)?)));
        let is_ample = |(name, need): (&LimitName, MilliTokens)| {
            let balance = state(name).map(|(shard, state)| shard.balance(state, now));
            balance.is_some_and(|balance| balance / AMPLE_FACTOR >= need)
        };
        if needs.clone().all(is_ample) {
            return None;
        }
        // A full shard wastes what flows in, and a waiter needs time to be decided.
        let fills = needs.filter_map(|(name, _)| Some(state(name)?.1.rule.time_to_fill()? / 2));
        let fills = fills.map(|half| half.max(MIN_LONGEST_WAIT)).min();
        let left = self.line.iter().map(|waiter| waiter.deadline).min();
        let most = [Some(longest), fills, left.map(quarter_left)].into_iter();
        let most = most.flatten().min().unwrap_or_default();
        // If the wait brings no waiter what it lacks, a denial or a read comes next.
        let comes_later = |status: &LimitStatus| {
            let is_late = status.retry_after.is_some_and(|after| after > most);
            is_late && !status.may_return()
        };
        let is_in_vain = |waiter: &Waiter| {
            let short = shard.and_then(|shard| waiter.shortage(shard, now));
            short.iter().flat_map(Denied::short).any(comes_later)
        };
        if self.line.iter().all(is_in_vain) {
            return None;
        }
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Some(Instant::now() + Duration::from_micros(fastrand::u64(0..=micros)))
    }

    /// Returns whether DynamoDB throttles this shard alone, and the bucket has others.
    fn can_reroute(&self, error: &StoreError) -> bool {
        is_key_range_throttle(error) && self.shard.summary.max_shards_seen() > 1
    }

    /// Begins again after failures in a row, with a pause.
    fn pause(&mut self) {
        self.failures += 1;
        (self.next, self.wait) = (Next::Start, Some(Instant::now() + backoff(self.failures)));
    }

    /// Puts waiters of a write back in line.
    fn requeue(&mut self, waiters: Vec<Waiter>) {
        self.line.extend(waiters.into_iter().filter(|waiter| !waiter.is_gone));
        self.line.make_contiguous().sort_by_key(|waiter| waiter.id);
    }

    /// Fails waiters by what the item shows. The next request reads it again, because an operator may
    /// have deleted the item as the error advises.
    fn fail(&mut self, waiters: Vec<Waiter>, error: &Error) {
        self.shard.clear_view();
        for waiter in waiters {
            self.reply_to(&waiter, Err(error.clone()));
        }
    }

    fn fail_line(&mut self, error: &Error) {
        for waiter in std::mem::take(&mut self.line) {
            self.reply_to(&waiter, Err(error.clone()));
        }
    }

    fn send_elsewhere(&mut self, reason: &Reason) {
        for waiter in std::mem::take(&mut self.line) {
            self.reply_to(&waiter, Ok(Outcome::Elsewhere(reason.clone())));
        }
    }

    fn reply_to(&mut self, waiter: &Waiter, reply: Reply) {
        if !waiter.is_gone {
            self.reply(waiter.id, reply);
        }
    }

    fn reply(&mut self, id: u64, reply: Reply) {
        self.replies.push((id, reply));
    }

    /// Returns the error of a request that was not decided by its deadline: what hangs, or failed
    /// last.
    fn timeout(&self, env: &Env, enqueued_at: Instant, deadline: Instant) -> Error {
        let after = deadline - enqueued_at;
        let hangs = self
            .asked
            .as_ref()
            .filter(|(_, _, since)| since.elapsed() >= HANGS_AFTER.min(after / 2));
        let doubt = self.attempt.as_ref().and_then(Attempt::doubt);
        let hanging = hangs.map(|(asked, _, _)| {
            let operation = match asked {
                Asked::Read(_) => "BatchGetItem",
                Asked::Take | Asked::MakeRoom => "UpdateItem",
            };
            let request = format!("{operation} of {}", self.shard.key.item_key().pk);
            Arc::new(env.no_answer(&request, after))
        });
        let last = doubt.or(hanging).or_else(|| self.shard.last_error());
        Error::timeout(&self.shard.key, after, last)
    }
}

/// Returns whether the throttle is of the item's own key range.
pub(crate) fn is_key_range_throttle(error: &StoreError) -> bool {
    error.kind == (ErrorKind::Throttled { key_range: true })
}
