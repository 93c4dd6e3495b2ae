//! The router of one request on a bucket: decides which shards are asked, read, and asked again,
//! until they decide. It makes no request itself.
//!
//! [`poll`](Router::poll) returns the next command. The response goes to
//! [`replied`](Router::replied), [`parts_replied`](Router::parts_replied),
//! [`stamp_read`](Router::stamp_read) or [`all_read`](Router::all_read); what has no response is
//! done before the next poll.
//!
//! With one shard its reply decides. With several: the stamp, the shard that
//! [`BucketState`] picks, two more, then all together: one of them, a part from each
//! of several, or a denial.

mod drive;
mod spread;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{
    Bucket, Effect, EpochMillis, Limit, LimitName, MilliTokens, Millis, Shard, Stamp,
};
use weirgate_store::{Consistency, StoreError};

use super::cached_denial::{cached_denial, denies, draw};
use super::evaluate::{Allocation, above_floors, evaluate};
use super::state::BucketState;
use crate::queue::{
    Portion, Reason, SLOTS_UNREAD_TTL, ShardQueue, ShardView, is_key_range_throttle,
};
use crate::session::{Env, Moment, backoff};
use crate::values::{Amounts, BucketRequest, Error, Outcome, count};

pub(crate) use drive::acquire_from_table;

/// Longest wait for the stamp of another process before reading all shards, per shard: 1 ms.
const MAX_WAIT_PER_SHARD: Duration = Duration::from_millis(1);
/// Age below which a stamp that no longer denies is renewed by this process without a wait, 60 s:
/// other processes renewed it until a moment ago.
const RENEWED: Millis = Millis(60_000);
/// Shards that are tried one by one before all are read, 3.
const MAX_SHARDS_TRIED: usize = 3;
/// Attempts to read all shards before existing ones decide, 2: one may see shards at different
/// times. If they are still incomplete, items were deleted manually.
const MAX_READS: u32 = 2;

/// What a router wants next. `T` is what a shard gives.
#[derive(Debug)]
pub(super) enum Command<T> {
    /// Asks a shard for the request.
    Ask(Arc<ShardQueue>),
    /// Asks shards for a part each, concurrently.
    AskForParts(Vec<(u32, BucketRequest)>),
    /// Returns the parts of a request, and waits for that until the deadline.
    Return(Vec<T>),
    ReadStamp,
    WriteStamp(Stamp),
    /// Reads all shards, unless that was done since the moment, if there is one.
    ReadAll(Option<Moment>, Consistency),
    Wait(Instant),
    Done(Result<Outcome<Vec<T>>, Error>),
}

/// Reply of a shard to the request, or to a part of it.
pub(super) type Reply<T> = Result<Outcome<T, Reason>, Error>;

/// What follows a wait, or a response.
#[derive(Debug)]
enum Next<T> {
    /// Denies by what is known without a request, or tries a shard.
    Begin,
    /// Nothing, before a response.
    Awaits,
    /// Asks the shard that promises most.
    Choose,
    Ask(Arc<ShardQueue>),
    /// Evaluates all shards together, unless a stamp denies.
    Together,
    /// Reads the stamp that another process may have written.
    Stamp {
        is_second: bool,
    },
    /// Evaluates all shards, once they are read.
    All(Look),
    /// Takes the rest of the parts.
    Parts(Box<Spread<T>>),
    /// All parts have returned.
    Returned,
    Done(Result<Outcome<Vec<T>>, Error>),
}

/// The reads of all shards for one evaluation.
#[derive(Debug, Default)]
struct Look {
    /// Attempts so far.
    reads: u32,
    /// Time of the last successful one.
    looked_at: Option<EpochMillis>,
    /// Whether the last one failed.
    is_unread: bool,
}

/// Parts of a request that is not granted yet. Dropping it returns them in the background.
#[derive(Debug)]
struct Spread<T> {
    planned: Vec<(u32, Amounts)>,
    left: Amounts,
    parts: Vec<T>,
    /// Whether one part counts the acquire and has the soft amounts.
    has_first: bool,
    rounds: usize,
}

impl<T> Spread<T> {
    fn new(request: &BucketRequest, planned: Vec<(u32, Amounts)>) -> Self {
        let enforced = request.asks.with(Effect::Enforce);
        Self {
            planned,
            left: enforced.map(|(limit, need)| (limit.clone(), need)).collect(),
            parts: vec![],
            has_first: false,
            rounds: 0,
        }
    }
}

/// One request on one bucket, until a decision is made.
#[derive(Debug)]
pub(super) struct Router<'a, T> {
    bucket: &'a BucketState,
    request: &'a BucketRequest,
    enqueued_at: Instant,
    deadline: Instant,
    next: Next<T>,
    /// Nothing is asked before.
    wait: Option<Instant>,
    /// Shards that were short.
    tried: Vec<u32>,
    /// Whether any shard was short since it was enqueued.
    was_short: bool,
    failures: u32,
    /// Times that its parts returned, because together they were too little.
    failed_spreads: u32,
    /// Whether shards had changed when the request was spread over them, so that all must be read
    /// again.
    must_refresh: bool,
    /// Error of the last shard that could not be used.
    last_error: Option<Arc<StoreError>>,
}

impl<'a, T: AsRef<Portion>> Router<'a, T> {
    pub(super) const fn new(
        bucket: &'a BucketState,
        request: &'a BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            bucket,
            request,
            enqueued_at,
            deadline,
            next: Next::Begin,
            wait: None,
            tried: vec![],
            was_short: false,
            failures: 0,
            failed_spreads: 0,
            must_refresh: false,
            last_error: None,
        }
    }

    /// Returns what to do next. After [`Command::Done`] it is not polled.
    pub(super) fn poll(&mut self, env: &Env) -> Command<T> {
        loop {
            if let Some(until) = self.wait.take() {
                return Command::Wait(until.min(self.deadline));
            }
            let next = match std::mem::replace(&mut self.next, Next::Awaits) {
                Next::Begin => match self.begin(env) {
                    Next::Done(outcome) => return Command::Done(outcome),
                    first => first,
                },
                Next::Done(outcome) => return Command::Done(outcome),
                _ if self.deadline <= Instant::now() => return Command::Done(Err(self.timeout())),
                next => next,
            };
            let command = match next {
                Next::Choose => Some(Command::Ask(self.choose(env))),
                Next::Ask(queue) => Some(Command::Ask(queue)),
                Next::Together if !self.must_refresh && self.may_be_stamped() => {
                    self.next = Next::Stamp { is_second: false };
                    Some(Command::ReadStamp)
                }
                Next::Stamp { .. } => {
                    self.next = next;
                    Some(Command::ReadStamp)
                }
                Next::Together => self.look_at_all(env, Look::default()),
                Next::All(look) => self.look_at_all(env, look),
                Next::Parts(spread) => Some(self.ask_for_parts(env, spread)),
                Next::Returned => {
                    self.must_refresh = true;
                    self.pause();
                    self.next = Next::Together;
                    None
                }
                // Polled again without a response, it ends rather than take twice.
                Next::Begin | Next::Awaits | Next::Done(_) => {
                    Some(Command::Done(Err(self.timeout())))
                }
            };
            if let Some(command) = command {
                return command;
            }
        }
    }

    /// Returns the first step.
    fn begin(&self, env: &Env) -> Next<T> {
        // With one shard, its queue decides, first come, first served.
        if self.bucket.summary().max_shards_seen() > 1
            && let Some(denied) = cached_denial(env, self.bucket, self.request)
        {
            count(&env.counters.local_denied, 1);
            return Next::Done(Ok(Outcome::Denied(denied)));
        }
        self.first(env)
    }

    /// Takes the reply of a shard. Returns what it granted, which ends the request.
    pub(super) fn replied(&mut self, env: &Env, queue: &ShardQueue, reply: Reply<T>) -> Option<T> {
        match reply {
            Ok(Outcome::Granted(taken)) => return Some(taken),
            Ok(Outcome::Denied(denied)) => self.done(Outcome::Denied(denied)),
            Ok(Outcome::Elsewhere(Reason::ShardMissing)) => {
                self.next = self.replacement_for(queue);
            }
            Ok(Outcome::Elsewhere(Reason::BucketWasSplit)) => self.next = self.first(env),
            Ok(Outcome::Elsewhere(Reason::Insufficient)) => {
                self.tried.push(queue.index());
                self.was_short = true;
                self.next = self.next_candidate(env);
            }
            Ok(Outcome::Elsewhere(Reason::Throttled(error))) => {
                self.last_error = Some(error);
                self.pause();
                self.next = Next::Choose;
            }
            Err(error) => self.next = Next::Done(Err(error)),
        }
        None
    }

    /// Returns the step without a shard in mind: the shard that promises most, or all together.
    fn first(&self, env: &Env) -> Next<T> {
        match self.request.exceeds_one_shard(self.bucket.summary().max_shards_seen())
            || self.is_stamped_short(env)
        {
            true => Next::Together,
            false => Next::Choose,
        }
    }

    /// Returns whether the request queues: only the lines of the shards decide then.
    const fn queues(&self) -> bool {
        self.request.start_by.is_some()
    }

    fn choose(&self, env: &Env) -> Arc<ShardQueue> {
        self.bucket.pick(self.request, env.now(), &self.tried)
    }

    /// Returns the step after a short shard: the one with the most room by its view, or all
    /// together.
    fn next_candidate(&self, env: &Env) -> Next<T> {
        if self.tried.len() >= MAX_SHARDS_TRIED {
            return Next::Together;
        }
        let now = env.now();
        let has_enough = |queue: &Arc<ShardQueue>| {
            let view = queue.shard.view().filter(|_| !self.tried.contains(&queue.index()))?;
            let needs = self.request.asks.required(view.shard.shard());
            let start_by = self.request.start_by(now);
            let next = start_by.map(|_| view.shard.projected(&self.request.limits, now));
            let ahead = |limit: &LimitName| match start_by.zip(next.as_ref()) {
                Some((by, next)) => self.request.refill_ahead((&view.shard, next), limit, by),
                None => MilliTokens::ZERO,
            };
            let holds = needs
                .map(|(limit, need)| view.shard.balance_at(limit, now) + ahead(limit) - need)
                .min()?;
            (holds.0 >= 0).then_some(holds)
        };
        let queues = self.bucket.all_queues().into_iter();
        queues
            .filter_map(|queue| Some((has_enough(&queue)?, queue)))
            .max_by_key(|(room, _)| *room)
            .map_or(Next::Together, |(_, queue)| Next::Ask(queue))
    }

    /// Returns the step after a missing shard: after shard 0, any with a view, or all together,
    /// because the bucket may have no items left.
    fn replacement_for(&self, missing: &ShardQueue) -> Next<T> {
        if missing.index() > 0 {
            return Next::Choose;
        }
        let mut queues = self.bucket.all_queues().into_iter();
        let known = queues.find(|queue| queue.shard.view().is_some());
        known.map_or(Next::Together, Next::Ask)
    }

    fn pause(&mut self) {
        self.failures += 1;
        self.wait = Some(Instant::now() + backoff(self.failures));
    }

    fn done(&mut self, outcome: Outcome<Vec<T>>) {
        self.next = Next::Done(Ok(outcome));
    }

    fn timeout(&self) -> Error {
        Error::timeout(&self.bucket.key, self.request.timeout, self.last_error.clone())
    }
}

impl<T: AsRef<Portion>> Router<'_, T> {
    /// Evaluates all shards, or reads them first if the views are older than the request.
    fn look_at_all(&mut self, env: &Env, look: Look) -> Option<Command<T>> {
        let request = self.request;
        let enqueued_at = env.ages.of(self.enqueued_at);
        let mut bucket = match (look.reads, std::mem::take(&mut self.must_refresh)) {
            (0, true) => Bucket::default(),
            (0, false) => self.shown_since(env, enqueued_at),
            // Of slots others may have returned any number since an older view.
            _ if look.is_unread && request.takes_slots() => {
                let moment = env.ages.now();
                let is_recent = |view: &ShardView| moment.since(view.seen_at) < SLOTS_UNREAD_TTL;
                let limits = &request.limits;
                self.bucket.seen_bucket(limits, env.now(), is_recent)
            }
            _ => self.bucket.cached_bucket(&request.limits, env.now()),
        };
        if !bucket.is_complete() && look.reads < MAX_READS {
            // A balance of a rate may be half a second old; a count of free slots may not.
            let is_first = look.reads == 0;
            let consistency = match is_first && !request.takes_slots() {
                true => Consistency::Eventual,
                false => Consistency::Strong,
            };
            let since = (is_first && self.failures == 0).then_some(enqueued_at);
            self.next = Next::All(look);
            return Some(Command::ReadAll(since, consistency));
        }
        if !bucket.is_complete() && look.is_unread {
            // The shards that could not be read may have the missing tokens.
            self.next = Next::Together;
            return None;
        }
        if !bucket.is_complete() {
            // Tokens in the escrow of a split count as present; they can be taken a little later.
            bucket = self.bucket.seen_with_escrows(&request.limits, env.now());
        }
        self.decide_together(env, &bucket, look.looked_at)
    }

    /// Returns the shards as requests since this one show them.
    fn shown_since(&self, env: &Env, enqueued_at: Moment) -> Bucket {
        let (limits, now) = (&self.request.limits, env.now());
        let is_since = |view: &ShardView| view.seen_at >= enqueued_at;
        let bucket = self.bucket.seen_bucket(limits, now, is_since);
        // Others compete for what a shard was refilled with since it was short for this request: it
        // would go from shard to shard for that until its deadline.
        if self.was_short && !self.queues() && evaluate(&bucket, self.request, now).is_ok() {
            return self.bucket.bucket_as_shown(limits, enqueued_at, now);
        }
        bucket
    }

    /// Takes the outcome of a read of all shards.
    pub(super) fn all_read(&mut self, env: &Env, outcome: Result<(), Error>) {
        let Next::All(look) = &mut self.next else {
            return;
        };
        look.reads += 1;
        look.is_unread = outcome.is_err();
        match outcome {
            Ok(()) => look.looked_at = Some(env.now()),
            Err(Error::Store(error))
                if is_key_range_throttle(&error) || self.deadline <= Instant::now() =>
            {
                self.last_error = Some(error);
                self.pause();
            }
            Err(error) => self.next = Next::Done(Err(error)),
        }
    }

    fn decide_together(
        &mut self,
        env: &Env,
        bucket: &Bucket,
        looked_at: Option<EpochMillis>,
    ) -> Option<Command<T>> {
        let now = looked_at.unwrap_or_else(|| env.now());
        let is_unmade = |shard: u32| self.bucket.shard(shard).view().is_none();
        self.tried.clear();
        if bucket.shards().is_empty() {
            let is_outdated = self.bucket.views().next().is_some();
            // All views are from before a jump of the wall clock.
            self.next = match is_outdated {
                true => Next::Together,
                false => Next::Choose,
            };
            if !is_outdated {
                self.bucket.reset_shards();
            }
            return None;
        }
        match evaluate(bucket, self.request, now) {
            Err(denied) => {
                self.bucket.record_denial();
                let summary = self.bucket.summary();
                summary.record_retry_time(now, denied.retry_after);
                self.done(Outcome::Denied(denied));
                let stamp = looked_at.and_then(|_| self.bucket.new_stamp(bucket, now));
                return stamp.map(Command::WriteStamp);
            }
            Ok(Allocation::Single(shard)) if !is_unmade(shard) => {
                self.next = Next::Ask(self.bucket.queue(shard));
            }
            Ok(Allocation::Spread(parts)) if !parts.iter().any(|(shard, _)| is_unmade(*shard)) => {
                self.next = Next::Parts(Box::new(Spread::new(self.request, parts)));
            }
            Ok(_) => {
                self.pause();
                self.next = Next::Together;
            }
        }
        None
    }
}

/// The denial stamp.
impl<T: AsRef<Portion>> Router<'_, T> {
    /// Returns whether the cached stamp, at any age, shows that the bucket is short. Then no shard
    /// is tried alone.
    fn is_stamped_short(&self, env: &Env) -> bool {
        let may_deny = self.bucket.is_stamped() && !self.queues();
        let stamp = self.bucket.stamp().clone().filter(|_| may_deny);
        let (most, now) = (self.bucket.summary().max_shards_seen(), env.now());
        stamp.is_some_and(|stamp| {
            denies(&stamp, &self.bucket.key, self.request, most, now).is_some()
        })
    }

    /// Returns whether another process may have written a stamp that denies the request.
    fn may_be_stamped(&self) -> bool {
        let asks_rate = |limit: &Limit| {
            let need = self.request.asks.enforced(limit.name().as_str());
            limit.rule().kind().refills() && need.is_some()
        };
        self.bucket.is_stamped() && !self.queues() && self.request.limits.iter().any(asks_rate)
    }

    /// Takes the stamp of another process, if it could be read.
    pub(super) fn stamp_read(&mut self, env: &Env, read: Result<Option<Stamp>, Error>) {
        let is_second = matches!(self.next, Next::Stamp { is_second: true });
        self.next = Next::All(Look::default());
        let stamp = match read {
            Ok(stamp) => stamp,
            Err(error) => {
                if let Error::Store(error) = error {
                    self.last_error = Some(error);
                }
                return;
            }
        };
        let at = stamp.as_ref().map(|stamp| stamp.at);
        let is_renewal = at.is_some_and(|at| env.now().since(at) < RENEWED);
        *self.bucket.stamp() = stamp.map(Arc::new);
        if let Some(denied) = self.bucket.denied_by_stamp(env, self.request) {
            let summary = self.bucket.summary();
            summary.record_retry_time(env.now(), denied.retry_after);
            self.done(Outcome::Denied(denied));
        } else if !is_second && !is_renewal && self.is_far_from_enough(env) {
            // Many processes may have been denied at this moment: one of them writes a stamp while
            // the others wait.
            let most = MAX_WAIT_PER_SHARD * self.bucket.summary().max_shards_seen();
            let draw = draw(&mut fastrand::Rng::with_seed(fastrand::u64(..)));
            self.wait = Some(Instant::now() + (most - most * draw / 10_000));
            self.next = Next::Stamp { is_second: true };
        }
    }

    /// Returns whether no viewed shard has enough of its rates within a second. For a request above
    /// a shard's share, returns whether all shards together lack it, if the others hold as much on
    /// average as the viewed ones.
    fn is_far_from_enough(&self, env: &Env) -> bool {
        let BucketRequest { asks, limits, .. } = self.request;
        let now = env.now();
        let seen = self.bucket.cached_bucket(limits, now);
        let seen = above_floors(&seen, self.request);
        let soon = now.plus(Millis(1_000));
        let rates = || limits.iter().filter(|limit| limit.rule().kind().refills());
        let lacks = |shard: &Shard, limit: &Limit| {
            asks.enforced(limit.name().as_str())
                .is_some_and(|need| shard.balance_at(limit.name(), soon) < need)
        };
        if self.request.exceeds_one_shard(self.bucket.summary().max_shards_seen()) {
            let all = |limit: &Limit| {
                let seen_of = i64::try_from(seen.shards().len()).unwrap_or(i64::MAX);
                let holds = i128::from(seen.balance_at(limit.name(), soon).0)
                    * i128::from(self.bucket.summary().max_shards_seen());
                asks.enforced(limit.name().as_str())
                    .is_some_and(|need| holds < i128::from(need.0) * i128::from(seen_of))
            };
            return rates().any(all);
        }
        seen.shards().iter().all(|shard| rates().any(|limit| lacks(shard, limit)))
    }
}

#[cfg(test)]
mod tests;
