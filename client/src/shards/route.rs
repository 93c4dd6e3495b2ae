//! One request on a bucket of any number of shards: whom to ask, and in which order, until it is
//! decided.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weirgate_shared::{Bucket, EpochMillis, Limit, ShardIndex};
use weirgate_store::{Consistency, ErrorKind, StoreError};

use super::Shards;
use super::judge::{Judgement, judge};
use crate::clock::after;
use crate::inner::Inner;
use crate::limits::Limits;
use crate::line::{self, Caller, Line, Needs, Told, Verdict, Why, backoff, memory};
use crate::prefetch::{self, Pool};
use crate::stats::count;
use crate::{Denied, Error};

/// How long a line may take to say that the time is over.
const GRACE: Duration = Duration::from_millis(20);
/// After how long without an answer a request is said to hang.
const HANGS: Duration = Duration::from_secs(1);
/// How many shards are asked one by one before all are read.
const TRIES: usize = 3;

/// What is asked of a bucket.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) needs: Needs,
    /// What is taken whether it is there or not.
    pub(crate) soft: Needs,
    pub(crate) limits: Limits,
    /// How long a durable lease lasts, and its owner.
    pub(crate) lease: Option<(Duration, Arc<str>)>,
    /// How long the decision may take.
    pub(crate) timeout: Duration,
    /// Acquires that the write counts: 1, or those that were granted from tokens taken ahead.
    pub(crate) takes: i64,
}

impl Request {
    /// Whether anything is asked.
    pub(crate) fn asks(&self) -> bool {
        !self.needs.is_empty() || !self.soft.is_empty()
    }
}

/// Decides about one request.
pub(crate) async fn ask(
    inner: &Arc<Inner>,
    shards: &Arc<Shards>,
    request: &Request,
) -> Result<Verdict, Error> {
    match &shards.pool {
        Some(pool) if Pool::serves(request) => prefetch::ask(inner, shards, pool, request).await,
        _ => ask_table(inner, shards, request, Instant::now()).await,
    }
}

/// Decides about one request that `joined` a while ago, by the table.
pub(crate) async fn ask_table(
    inner: &Arc<Inner>,
    shards: &Arc<Shards>,
    request: &Request,
    joined: Instant,
) -> Result<Verdict, Error> {
    Asking::new(inner, shards, request, joined).run().await
}

/// A denial that a former answer already implies: nothing is sent.
pub(crate) fn remembered(inner: &Inner, shards: &Shards, request: &Request) -> Option<Denied> {
    if shards.pool.as_ref().is_some_and(|pool| pool.has(request)) {
        return None;
    }
    let denied =
        seen_short(inner, shards, request).or_else(|| shards.denied_by_stamp(inner, request))?;
    shards.overview().promise(inner.now(), denied.retry_after);
    Some(denied)
}

/// A denial that what was seen of all shards implies.
fn seen_short(inner: &Inner, shards: &Shards, request: &Request) -> Option<Denied> {
    let most = inner.settings.denial_memory;
    // What one shard of several lacks says nothing about the others: only a denial by all of them
    // is remembered.
    let moment = inner.ages.now();
    let denied = shards.denied().map(|at| moment.since(at));
    if shards.overview().most() > 1 && denied.is_none_or(|age| age >= most) {
        return None;
    }
    let now = inner.now();
    let mut age = denied
        .filter(|_| shards.overview().most() > 1)
        .unwrap_or_default();
    let whole = shards.seen(&request.limits, now, |view| {
        let seen = moment.since(view.at);
        let is_known = seen < most;
        age = age.max(if is_known { seen } else { Duration::ZERO });
        is_known
    });
    let Judgement::Denied(denied) = judge(&whole, request, now) else {
        return None;
    };
    let is_fresh = denied.short().all(|status| age < memory(status, age, most));
    (whole.is_complete() && is_fresh && !shards.overview().is_due(now, age)).then_some(denied)
}

pub(super) struct Asking<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) shards: &'a Arc<Shards>,
    pub(super) request: &'a Request,
    joined: Instant,
    pub(super) deadline: Instant,
    /// Shards that had not enough.
    tried: Vec<u32>,
    failures: u32,
    /// Shards were not what they seemed when they were to give a part each.
    has_lost: bool,
    /// Why the last shard could not be asked.
    pub(super) last: Option<Arc<StoreError>>,
}

impl<'a> Asking<'a> {
    fn new(
        inner: &'a Arc<Inner>,
        shards: &'a Arc<Shards>,
        request: &'a Request,
        joined: Instant,
    ) -> Self {
        let deadline = after(joined, request.timeout);
        Self {
            inner,
            shards,
            request,
            joined,
            deadline,
            tried: vec![],
            failures: 0,
            has_lost: false,
            last: None,
        }
    }

    async fn run(mut self) -> Result<Verdict, Error> {
        // A bucket of one shard is asked in its line, where it is first come, first served.
        if self.shards.overview().most() > 1
            && let Some(denied) = remembered(self.inner, self.shards, self.request)
        {
            count(&self.inner.counters.local_denied, 1);
            return Ok(Verdict::Denied(denied));
        }
        let mut next = self.first();
        loop {
            let Some(line) = next.take() else {
                match self.ask_the_whole().await? {
                    Ok(verdict) => return Ok(verdict),
                    Err(line) => next = line,
                }
                self.check_time()?;
                continue;
            };
            match self.stand_in(&line, self.request).await? {
                Told::Decided(verdict) => return Ok(verdict),
                Told::Elsewhere(Why::Missing) => next = self.other_than(&line),
                Told::Elsewhere(Why::Several) => next = self.first(),
                Told::Elsewhere(Why::Short) => {
                    self.tried.push(line.key.shard);
                    next = self.better();
                }
                Told::Elsewhere(Why::Throttled(error)) => {
                    self.last = Some(error);
                    self.pause().await;
                    next = Some(self.choose());
                }
            }
            self.check_time()?;
        }
    }

    /// The shard to ask first; `None` for asking the whole bucket.
    fn first(&self) -> Option<Arc<Line>> {
        (!self.is_above_a_share() && !self.is_stamped_short()).then(|| self.choose())
    }

    fn choose(&self) -> Arc<Line> {
        let Request { needs, limits, .. } = self.request;
        self.shards
            .choose(needs, limits, self.inner.now(), &self.tried)
    }

    /// Whether no shard of a bucket of so many can have what is asked.
    pub(super) fn is_above_a_share(&self) -> bool {
        let largest = ShardIndex {
            index: 0,
            count: self.shards.overview().most(),
        };
        let is_above = |limit: &Limit| {
            let need = self.request.needs.get(limit.name());
            need.is_some_and(|need| *need > largest.share(limit.rule().capacity))
        };
        largest.count > 1 && self.request.limits.iter().any(is_above)
    }

    /// After a shard that had not enough: another that is known to have, or `None` for asking the
    /// whole bucket.
    fn better(&self) -> Option<Arc<Line>> {
        if self.tried.len() >= TRIES {
            return None;
        }
        let now = self.inner.now();
        let has_enough = |line: &Arc<Line>| {
            let view = line
                .view()
                .filter(|_| !self.tried.contains(&line.key.shard))?;
            let holds = self
                .request
                .needs
                .iter()
                .map(|(limit, need)| view.bucket.balance_at(limit, now) - *need)
                .min()?;
            (holds.0 >= 0).then_some(holds)
        };
        let lines = self.shards.lines();
        lines
            .iter()
            .filter_map(|line| Some((has_enough(line)?, line)))
            .max_by_key(|(room, _)| *room)
            .map(|(_, line)| Arc::clone(line))
    }

    /// After a shard that is missing: the one it was split off, or any other that is known; `None`
    /// for asking the whole bucket, of which there may be nothing left.
    fn other_than(&self, missing: &Line) -> Option<Arc<Line>> {
        if missing.key.shard > 0 {
            return Some(self.choose());
        }
        self.shards
            .lines()
            .into_iter()
            .find(|line| line.view().is_some())
    }

    /// Decides by all shards together: a verdict, or else the shard to ask, or nothing if they are
    /// not what they seemed.
    async fn ask_the_whole(&mut self) -> Result<Result<Verdict, Option<Arc<Line>>>, Error> {
        if !self.has_lost
            && let Some(denied) = self.ask_the_stamp().await
        {
            self.shards
                .overview()
                .promise(self.inner.now(), denied.retry_after);
            return Ok(Ok(Verdict::Denied(denied)));
        }
        let Some((whole, looked_at)) = self.read_the_whole().await? else {
            return Ok(Err(None));
        };
        let now = looked_at.unwrap_or_else(|| self.inner.now());
        let is_unmade = |shard: &u32| self.shards.line(*shard).view().is_none();
        self.tried.clear();
        if whole.shards().is_empty() {
            self.shards.start_anew();
            return Ok(Err(Some(self.choose())));
        }
        let verdict = match judge(&whole, self.request, now) {
            Judgement::Denied(denied) => {
                self.shards.was_denied();
                self.shards.overview().promise(now, denied.retry_after);
                if looked_at.is_some() {
                    self.shards.leave_stamp(self.inner, &whole, now);
                }
                Verdict::Denied(denied)
            }
            Judgement::One(shard) if is_unmade(&shard) => {
                self.pause().await;
                return Ok(Err(None));
            }
            Judgement::One(shard) => return Ok(Err(Some(self.shards.line(shard)))),
            Judgement::Several(parts) if parts.iter().any(|(shard, _)| is_unmade(shard)) => {
                self.pause().await;
                return Ok(Err(None));
            }
            Judgement::Several(parts) => {
                let Some(held) = self.take_parts(parts).await? else {
                    self.has_lost = true;
                    self.pause().await;
                    return Ok(Err(None));
                };
                Verdict::Granted(held.into())
            }
        };
        Ok(Ok(verdict))
    }

    /// All shards as they are, and when they were read if they were; `None` if they could not be
    /// read for now.
    async fn read_the_whole(&mut self) -> Result<Option<(Bucket, Option<EpochMillis>)>, Error> {
        let Request { needs, limits, .. } = self.request;
        let joined = self.inner.ages.of(self.joined);
        // Whether there is enough of a rate can be half a second old; whether a slot is free, not.
        let asks_slots = limits
            .iter()
            .any(|limit| limit.rule().is_concurrent() && needs.contains_key(limit.name()));
        let first = if asks_slots {
            Consistency::Strong
        } else {
            Consistency::Eventual
        };
        let mut whole = self
            .shards
            .seen(limits, self.inner.now(), |view| view.at >= joined);
        if std::mem::take(&mut self.has_lost) {
            whole = Bucket::default();
        }
        let (mut looked_at, mut is_unread) = (None, false);
        // Read twice, they may have been of two times; if they still are no whole, items were
        // deleted by hand, and the shards that are there decide.
        for (since, consistency) in [
            (Some(joined).filter(|_| self.failures == 0), first),
            (None, Consistency::Strong),
        ] {
            if whole.is_complete() {
                break;
            }
            let looked = tokio::time::timeout_at(
                self.deadline,
                self.shards.look(self.inner, since, consistency),
            );
            is_unread = true;
            match looked.await {
                Ok(Err(Error::Store(error)))
                    if error.kind == (ErrorKind::Throttled { key_range: true }) =>
                {
                    self.last = Some(error);
                    self.pause().await;
                }
                Ok(looked) => {
                    looked?;
                    (looked_at, is_unread) = (Some(self.inner.now()), false);
                }
                Err(_) => {
                    let error = self
                        .inner
                        .unanswered("BatchGetItem of all shards", self.request.timeout);
                    self.last = Some(Arc::new(error));
                }
            }
            self.check_time()?;
            whole = self.shards.seen(limits, self.inner.now(), |_| true);
        }
        if !whole.is_complete() && is_unread {
            // Those that could not be read may have what these lack.
            return Ok(None);
        }
        if !whole.is_complete() {
            // What a split has put aside is there; it can only be taken a little later.
            whole = self.shards.seen_with_escrows(limits, self.inner.now());
        }
        Ok(Some((whole, looked_at)))
    }

    /// Stands in the line of one shard with the request, or a part of it.
    pub(super) async fn stand_in(
        &self,
        line: &Arc<Line>,
        request: &Request,
    ) -> Result<Told, Error> {
        let Request {
            needs,
            soft,
            limits,
            lease,
            takes,
            ..
        } = request.clone();
        let (answer, verdict) = oneshot::channel();
        let (joined, deadline) = (self.joined, self.deadline);
        let shards = Arc::clone(self.shards);
        if line.join(Caller {
            needs,
            soft,
            limits,
            lease,
            takes,
            joined,
            deadline,
            shards,
            answer,
        }) {
            tokio::spawn(line::serve(Arc::clone(self.inner), Arc::clone(line)));
        }
        // Only a runtime that shuts down drops the line unserved.
        let bucket = || line.key.item_key().pk;
        // The line answers in time itself, unless its request hangs; what that gives in the end
        // goes back.
        match tokio::time::timeout_at(deadline + GRACE, verdict).await {
            Ok(told) => told.unwrap_or_else(|_| {
                Err(Error::Timeout {
                    bucket: bucket(),
                    after: joined.elapsed(),
                    last: None,
                })
            }),
            Err(_) => {
                let after = self.request.timeout;
                // Otherwise it is competition that takes so long.
                let hanging = line.asks_for(HANGS.min(after / 2)).map(|operation| {
                    Arc::new(
                        self.inner
                            .unanswered(&format!("{operation} of {}", bucket()), after),
                    )
                });
                Err(Error::Timeout {
                    bucket: bucket(),
                    after,
                    last: hanging.or_else(|| line.failure()),
                })
            }
        }
    }

    pub(super) async fn pause(&mut self) {
        self.failures += 1;
        let until = Instant::now() + backoff(self.failures);
        tokio::time::sleep_until(until.min(self.deadline)).await;
    }

    pub(super) fn check_time(&self) -> Result<(), Error> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let (bucket, last) = (self.shards.key.item_key().pk, self.last.clone());
        Err(Error::Timeout {
            bucket,
            after: self.request.timeout,
            last,
        })
    }
}

#[cfg(test)]
mod tests;
