//! Serves a line until nobody is in it: chooses, writes, answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::EpochMillis;
use weirgate_store::{ErrorKind, StoreError};

use super::attempt::{self, Resolved, pause};
use super::make_way::make_way;
use super::{Caller, Line, Verdict, View, Why, memory, plan};
use crate::inner::Inner;
use crate::shards::PLENTY;
use crate::stats::count;
use crate::{Error, decision};

/// For how long what was seen counts as new where the shard is too hot to be read.
const TRUST: Duration = Duration::from_secs(1);

/// Serves `line` until it is empty.
pub(crate) async fn serve(inner: Arc<Inner>, line: Arc<Line>) {
    let mut server = Server {
        inner,
        line,
        waiting: VecDeque::new(),
        failures: 0,
        losses: 0,
        is_done: false,
    };
    loop {
        let newcomers = server.line.next(!server.waiting.is_empty());
        server.waiting.extend(newcomers);
        if server.waiting.is_empty() {
            server.is_done = true;
            return;
        }
        server.step().await;
    }
}

/// Serving ends half way if its runtime shuts down; others may still come, from another one.
impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_done {
            self.line.left_alone();
        }
    }
}

struct Server {
    inner: Arc<Inner>,
    line: Arc<Line>,
    waiting: VecDeque<Caller>,
    /// Failed requests in a row.
    failures: u32,
    /// Writes lost to others in a row.
    losses: u32,
    is_done: bool,
}

impl Server {
    /// Answers whom it can from what is known, and makes one write for the others.
    async fn step(&mut self) {
        self.drop_late();
        // Only of the write just before: whoever comes after an answer has lost nothing.
        let losses = std::mem::take(&mut self.losses);
        self.hold_back(losses).await;
        if (!self.line.is_known() || self.line.is_outgrown()) && !self.look().await {
            return;
        }
        let now = self.inner.now();
        let view = self.line.view();
        let bucket = view.as_ref().map(|view| &*view.bucket);
        let (mut chosen, others) = plan::select(bucket, std::mem::take(&mut self.waiting), now);
        self.waiting = others;
        if let Some(view) = &view {
            if let (true, Some(first)) =
                (chosen.is_empty() && !view.is_doubted, self.waiting.front())
                && make_way(&self.inner, &self.line, &view.bucket, first, now).await
            {
                return;
            }
            self.deny_short(view);
            if chosen.is_empty() {
                // Nobody fits into what was seen a while ago: a read shows how it is now.
                self.check().await;
                return;
            }
        }
        if chosen.is_empty() {
            chosen.extend(self.waiting.pop_front());
        }
        if chosen.is_empty() {
            return;
        }
        if let Some(until) = self.line.held_until() {
            self.back_in_line(chosen);
            self.wait_until(until).await;
            // By now it may be short, or split.
            self.check().await;
            return;
        }
        match attempt::take(&self.inner, &self.line, chosen).await {
            Resolved::Answered => self.failures = 0,
            Resolved::TryAgain(chosen) => {
                self.losses = losses + 1;
                self.failures = 0;
                self.back_in_line(chosen);
            }
            Resolved::Gone(chosen) => {
                self.back_in_line(chosen);
                self.send_elsewhere(&Why::Missing);
            }
            Resolved::Refused(chosen, error) if self.can_go_elsewhere(&error) => {
                for caller in chosen {
                    caller.send_elsewhere(Why::Throttled(Arc::clone(&error)));
                }
            }
            Resolved::Refused(chosen, error) => {
                self.back_in_line(chosen);
                self.failures += 1;
                if is_hot(&error) {
                    // It may be short by now, or split.
                    self.check().await;
                } else {
                    pause(self.failures, &self.waiting).await;
                }
            }
        }
    }

    /// Reads the shard, of which nothing is known; whether its callers can be served here then.
    /// Callers that come meanwhile share what was read.
    async fn look(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let known = self.count();
        let was_only = self.line.bucket.most() == 1;
        let looked = self.line.look(&self.inner).await;
        self.waiting.extend(self.line.next(true));
        match looked {
            Ok(()) if was_only && self.line.bucket.most() > 1 => self.send_elsewhere(&Why::Several),
            Ok(()) if !self.line.is_known() => self.send_elsewhere(&Why::Missing),
            Ok(()) if self.was_split(known) => self.send_elsewhere(&Why::Several),
            Ok(()) => {
                self.failures = 0;
                self.drop_late();
                return true;
            }
            // Then a write by what was seen before tells as much.
            Err(Error::Store(error)) if is_hot(&error) && self.line.is_known() => return true,
            Err(Error::Store(error)) if self.can_go_elsewhere(&error) => {
                self.send_elsewhere(&Why::Throttled(error))
            }
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&self.inner.counters.refused, 1);
                self.failures += 1;
                pause(self.failures, &self.waiting).await;
            }
            Err(error) => {
                for caller in std::mem::take(&mut self.waiting) {
                    caller.tell(Err(error.clone()));
                }
            }
        }
        false
    }

    /// How many shards the bucket had when this one was seen last.
    fn count(&self) -> Option<u32> {
        self.line.view().map(|view| view.bucket.shard().count)
    }

    /// Whether the shard, which was one of so many, has been split since: others have a part of its
    /// tokens.
    fn was_split(&self, count: Option<u32>) -> bool {
        count.is_some_and(|count| self.count().is_some_and(|now| count < now))
    }

    fn send_elsewhere(&mut self, why: &Why) {
        for caller in std::mem::take(&mut self.waiting) {
            caller.send_elsewhere(why.clone());
        }
    }

    /// Reads the shard for those in line. If it is too hot for that, denies those for whom it was
    /// seen short.
    async fn check(&mut self) {
        let (view, Some(first)) = (self.line.view(), self.waiting.front()) else {
            return;
        };
        let seen = view.as_ref().map(|view| &*view.bucket);
        let known = self.count();
        let short = seen.and_then(|bucket| plan::shortage(bucket, first, self.inner.now()));
        let lacks_slots = short
            .iter()
            .flatten()
            .any(|status| status.is_short() && status.is_concurrent());
        match self.line.check(&self.inner, seen, lacks_slots).await {
            Ok(()) if self.line.is_gone() => self.send_elsewhere(&Why::Missing),
            Ok(()) if self.was_split(known) => self.send_elsewhere(&Why::Several),
            Ok(()) => {}
            Err(Error::Store(error)) if error.kind.is_transient() => {
                count(&self.inner.counters.refused, 1);
                tracing::debug!(%error, "could not be read for now");
                self.failures += 1;
                if let Some(view) = view.filter(|_| is_hot(&error)) {
                    self.line.trusts(TRUST);
                    self.deny_short(&view);
                }
                pause(self.failures, &self.waiting).await;
            }
            Err(error) => {
                for caller in std::mem::take(&mut self.waiting) {
                    caller.tell(Err(error.clone()));
                }
            }
        }
    }

    /// Waits for others to write, and no longer than those in line have time.
    async fn wait_until(&mut self, until: Instant) {
        let first = self.waiting.iter().map(|caller| caller.deadline).min();
        tokio::time::sleep_until(first.map_or(until, |first| until.min(first))).await;
        self.waiting.extend(self.line.next(true));
    }

    /// Whether it is this shard that is too hot, and not the only one.
    fn can_go_elsewhere(&self, error: &StoreError) -> bool {
        is_hot(error) && self.line.bucket.most() > 1
    }

    fn back_in_line(&mut self, chosen: Vec<Caller>) {
        for caller in chosen.into_iter().rev() {
            self.waiting.push_front(caller);
        }
    }

    /// Denies everybody whom a view that is new enough says the bucket has not enough for.
    fn deny_short(&mut self, view: &View) {
        let now = self.inner.now();
        for caller in std::mem::take(&mut self.waiting) {
            match plan::shortage(&view.bucket, &caller, now) {
                Some(shortage) if !self.is_fresh(view, &caller, &shortage, now) => {
                    self.waiting.push_back(caller)
                }
                Some(_) if view.bucket.shard().count > 1 => caller.send_elsewhere(Why::Short),
                Some(shortage) => {
                    count(
                        &self.inner.counters.local_denied,
                        u64::from(!self.line.is_since(view, caller.joined)),
                    );
                    self.deny(caller, shortage, now);
                }
                None => self.waiting.push_back(caller),
            }
        }
    }

    fn deny(&self, caller: Caller, shortage: Vec<decision::LimitStatus>, now: EpochMillis) {
        let denied = decision::denied(shortage);
        self.line.bucket.promise(now, denied.retry_after);
        caller.tell(Ok(Verdict::Denied(denied)));
    }

    fn is_fresh(
        &self,
        view: &View,
        caller: &Caller,
        shortage: &[decision::LimitStatus],
        now: EpochMillis,
    ) -> bool {
        let (age, most) = (self.line.age(view), self.inner.settings.denial_memory);
        let mut short = shortage.iter().filter(|status| status.is_short());
        self.line.is_since(view, caller.joined)
            || !self.line.bucket.is_due(now, age)
                && (self.line.is_trusted() || short.all(|status| age < memory(status, age, most)))
    }

    /// Waits a moment where processes compete for the last tokens, while more callers come.
    async fn hold_back(&mut self, losses: u32) {
        // Who has just lost a race knows how it stands, and would know it no more after a wait. Who
        // loses the next one too may be in step with somebody who always comes first, and be so for
        // ever if he does not wait.
        if losses % 2 == 1 {
            return;
        }
        let Some(moment) = self.line.pace(|pace| pace.moment()) else {
            return;
        };
        let now = self.inner.now();
        let has_plenty = |view: View| {
            let bucket = &view.bucket;
            let holds = |caller: &Caller| {
                caller.needs.iter().all(|(name, need)| {
                    let balance = bucket
                        .limits
                        .get(name)
                        .map(|state| bucket.balance(state, now));
                    balance.is_some_and(|balance| balance / PLENTY >= *need)
                })
            };
            self.waiting.front().is_some_and(holds)
        };
        if !self.line.view().is_some_and(has_plenty) {
            let until = Instant::now() + moment;
            let first = self.waiting.iter().map(|caller| caller.deadline).min();
            tokio::time::sleep_until(first.map_or(until, |first| until.min(first))).await;
            self.waiting.extend(self.line.next(true));
            self.drop_late();
        }
    }

    /// Answers those whose time for a decision is over, and forgets those who have gone away.
    fn drop_late(&mut self) {
        let now = Instant::now();
        for caller in std::mem::take(&mut self.waiting) {
            if caller.answer.is_closed() {
                continue;
            }
            if now < caller.deadline {
                self.waiting.push_back(caller);
                continue;
            }
            if let Some(shortage) = self.last_seen_short(&caller) {
                self.deny(caller, shortage, self.inner.now());
                continue;
            }
            let timeout = Error::Timeout {
                bucket: self.line.key.item_key().pk,
                after: caller.deadline - caller.joined,
                last: self.line.failure(),
            };
            caller.tell(Err(timeout));
        }
    }

    /// What the caller lacks by what was seen last, if the shard is too hot to tell how it is now.
    fn last_seen_short(&self, caller: &Caller) -> Option<Vec<decision::LimitStatus>> {
        let view = self
            .line
            .view()
            .filter(|view| !view.is_outdated && view.bucket.shard().count == 1)?;
        self.line.failure().filter(|error| is_hot(error))?;
        plan::shortage(&view.bucket, caller, self.inner.now())
    }
}

/// Whether it is the item's own partition that is over its throughput.
fn is_hot(error: &StoreError) -> bool {
    error.kind == (ErrorKind::Throttled { key_range: true })
}
