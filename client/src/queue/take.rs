//! One take for a batch of waiters, until its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Contention, Take};
use weirgate_shared::{EpochMillis, Lease, MilliTokens, Millis, Shard, WriteId};
use weirgate_store::{ErrorKind, Item, StoreError, WriteOutcome};

use super::{Amounts, ShardDecision, ShardQueue, ShardView, Waiter, clock_jump, retake};
use crate::Error;
use crate::hold::{Hold, HoldPart};
use crate::inner::Inner;
use crate::limits::check_bucket_limit_count;
use crate::plan_time::PlanTime;
use crate::stats::count;

/// Outcome of a batch.
pub(super) enum TakeOutcome {
    /// Every waiter has its reply.
    Replied,
    /// Nothing was taken, and the queue's view shows why: select again.
    Retry(Vec<Waiter>),
    /// Nothing was taken: the shard has no item, and a take may not create it.
    ShardMissing(Vec<Waiter>),
    /// Nothing was taken: DynamoDB rejected the write for now.
    Rejected(Vec<Waiter>, Arc<StoreError>),
}

/// Age below which a view of a contended shard counts as fresh, 3 ms.
const FRESH_VIEW: Duration = Duration::from_millis(3);

/// Time without writes of other processes after which this one is alone, 20 ms: longer than a read
/// and the write after it.
const ALONE_AFTER: Duration = Duration::from_millis(20);

/// Time after a split in which no other is requested, 1 s: about as long as all processes need to
/// see it.
const SPLIT_COOLDOWN: Millis = Millis(1_000);

/// Takes for the whole batch in one write.
///
/// After an unconfirmed write it sends another, which fails if the first was the item's last write;
/// the response then shows which. If another process has written since, the tokens count as taken.
pub(super) async fn take(
    inner: &Arc<Inner>,
    queue: &Arc<ShardQueue>,
    waiters: Vec<Waiter>,
) -> TakeOutcome {
    TakeAttempt::new(inner, queue, waiters).run().await
}

struct TakeAttempt<'a> {
    inner: &'a Arc<Inner>,
    queue: &'a Arc<ShardQueue>,
    waiters: Vec<Waiter>,
    /// Time of the first plan that may have been applied.
    planned: PlanTime,
    /// Leases in the order of the waiters.
    leases: Vec<Option<(WriteId, Lease)>>,
    amounts: Amounts,
    soft_amounts: Amounts,
    /// Ids of the writes sent so far.
    write_ids: Vec<WriteId>,
    /// Shard that the last write was planned on.
    seen: Option<Arc<Shard>>,
    /// Age of that view.
    age: Duration,
    /// Whether the wall clock has jumped ahead since.
    is_doubted: bool,
    unconfirmed: Option<Unconfirmed>,
    missing: bool,
}

/// Unconfirmed writes of an attempt.
struct Unconfirmed {
    writes: i64,
    /// Write sequence before the first of them, if it was seen.
    v_before: Option<i64>,
    error: Arc<StoreError>,
}

impl<'a> TakeAttempt<'a> {
    fn new(inner: &'a Arc<Inner>, queue: &'a Arc<ShardQueue>, waiters: Vec<Waiter>) -> Self {
        let sum = |asked: fn(&Waiter) -> &Amounts| {
            let mut sum = Amounts::new();
            for (limit, need) in waiters.iter().flat_map(asked) {
                *sum.entry(limit.clone()).or_default() += *need;
            }
            sum
        };
        let (amounts, soft_amounts) = (
            sum(|waiter| &waiter.amounts),
            sum(|waiter| &waiter.soft_amounts),
        );
        Self {
            inner,
            queue,
            waiters,
            planned: inner.plan_time(),
            leases: vec![],
            amounts,
            soft_amounts,
            write_ids: vec![],
            seen: None,
            age: Duration::ZERO,
            is_doubted: false,
            unconfirmed: None,
            missing: queue.may_be_created(),
        }
    }

    async fn run(mut self) -> TakeOutcome {
        loop {
            let now = self.replan();
            let roll = self.queue.roll(self.inner, now);
            let is_safe = |view: &ShardView| {
                !view.predates_clock_jump
                    || clock_jump::is_safe(&view.shard, &self.waiters[0].limits, roll, now)
            };
            let view = self.queue.view().filter(is_safe);
            if view.is_none() && !self.missing {
                // No view is left that a write could be planned on.
                self.queue.clear_view();
                if self.unconfirmed.is_none() {
                    return TakeOutcome::Retry(self.waiters);
                }
                match self.look().await {
                    Ok(()) if self.expire_waiters() => return TakeOutcome::Replied,
                    Ok(()) if self.queue.was_merged_away() => return self.shard_missing(),
                    Ok(()) => continue,
                    Err(error) => return self.fail(error),
                }
            }
            self.is_doubted |= view.as_ref().is_some_and(|view| view.predates_clock_jump);
            let is_doubted = view.as_ref().is_some_and(|view| view.predates_clock_jump);
            self.age = view
                .as_ref()
                .map(|view| self.queue.age(view))
                .unwrap_or_default();
            self.seen = view.map(|view| view.shard);
            let shard = self.seen.as_deref();
            if let Some(Err(error)) =
                shard.map(|shard| check_bucket_limit_count(shard, &self.waiters[0].limits))
            {
                // The next batch reads again, because an operator may have deleted the item as the
                // error advises.
                self.queue.clear_view();
                return self.fail(error);
            }
            let op = weirgate_store::random_id();
            let hot = self.wants_split(shard, now);
            // The write's own id is included, so a request that the network repeats does not take
            // twice.
            self.write_ids.push(op.clone());
            let take = Take {
                key: &self.queue.key,
                limits: (&self.waiters[0].limits).into(),
                amounts: self.amounts.clone(),
                soft_amounts: self.soft_amounts.clone(),
                acquires: self.waiters.iter().map(|waiter| waiter.acquires).sum(),
                leases: self.leases.iter().flatten().cloned().collect(),
                roll,
                write_id: op,
                request_split: hot,
                contention: self.contention(),
                unconfirmed: &self.write_ids,
            };
            let mut update =
                shard.map_or_else(|| take.create(now), |shard| take.plan(Some(shard), now));
            if let Some(seen) = shard.filter(|_| is_doubted) {
                clock_jump::require_unchanged(&mut update, &take, seen, now);
            }
            self.queue.request_started("UpdateItem");
            let outcome = self.inner.update(&update).await;
            self.queue.request_finished(&outcome);
            if outcome.is_ok() {
                self.queue.record_unthrottled_write();
            }
            match outcome {
                Ok(WriteOutcome::Applied(item)) => {
                    if hot {
                        self.queue.clear_throttle();
                    }
                    return self.applied(item, now).await;
                }
                Ok(WriteOutcome::ConditionFailed(None)) if !self.queue.is_only() => {
                    return self.shard_missing();
                }
                Ok(WriteOutcome::ConditionFailed(None)) => {
                    self.queue.clear_view();
                    self.missing = true;
                }
                Ok(WriteOutcome::ConditionFailed(Some(item))) => {
                    return self.condition_failed(&item, now).await;
                }
                Err(error) if error.kind == ErrorKind::Unconfirmed => {
                    tracing::debug!(%error, "outcome unknown");
                    count(&self.inner.counters.unconfirmed, 1);
                    let writes = self.note_unconfirmed(error);
                    if self.expire_waiters() {
                        return TakeOutcome::Replied;
                    }
                    pause(writes, &self.waiters).await;
                }
                Err(error) if error.kind.is_transient() => {
                    count(&self.inner.counters.refused, 1);
                    tracing::debug!(%error, "refused for now");
                    if error.kind == (ErrorKind::Throttled { key_range: true }) {
                        self.queue.record_throttle();
                    }
                    if self.unconfirmed.is_none() {
                        return TakeOutcome::Rejected(self.waiters, Arc::new(error));
                    }
                    // An earlier write is still unconfirmed: its outcome comes first.
                    if self.expire_waiters() {
                        return TakeOutcome::Replied;
                    }
                    pause(1, &self.waiters).await;
                }
                Err(error) => return self.fail(Error::from(error)),
            }
        }
    }

    /// Reads the shard, because there is no view while an earlier write is unconfirmed.
    async fn look(&mut self) -> Result<(), Error> {
        match self.queue.read_shard(self.inner).await {
            Ok(()) => self.missing = self.queue.may_be_created(),
            Err(Error::Store(error)) if error.kind.is_transient() => pause(1, &self.waiters).await,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the time for the next plan. An unconfirmed write keeps its leases.
    fn replan(&mut self) -> EpochMillis {
        let planned = self.inner.plan_time();
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

    /// Returns whether other processes write to the shard, and whether the view may miss their
    /// writes.
    fn contention(&self) -> Contention {
        match (self.queue.is_contended(), self.age >= FRESH_VIEW) {
            (false, _) => Contention::Alone,
            (true, false) => Contention::Shared,
            (true, true) => Contention::SharedStale,
        }
    }

    /// Returns whether the write should request a split: the shard has no write units left, or was
    /// throttled repeatedly. Not just after a split, when every process pays for a write or two to
    /// see it, and not twice.
    fn wants_split(&self, seen: Option<&Shard>, now: EpochMillis) -> bool {
        let Some(seen) = seen.filter(|seen| !seen.scaling.is_hot) else {
            return false;
        };
        let settled_at = seen
            .scaling
            .sample
            .map_or(EpochMillis::default(), |look| look.at.plus(SPLIT_COOLDOWN));
        let is_settled = |age: Duration| now.since(settled_at) > Millis::from(age);
        let was_throttled = self
            .queue
            .repeatedly_throttled_for()
            .is_some_and(is_settled);
        was_throttled || seen.is_near_write_limit(now)
    }

    /// Records one more unconfirmed write. Returns how many there are.
    fn note_unconfirmed(&mut self, error: StoreError) -> u32 {
        let (error, v_before) = (
            Arc::new(error),
            self.seen.as_ref().map(|shard| shard.write_seq),
        );
        let first = Unconfirmed {
            writes: 0,
            v_before,
            error: Arc::clone(&error),
        };
        let doubt = self.unconfirmed.get_or_insert(first);
        doubt.writes += 1;
        doubt.error = error;
        u32::try_from(doubt.writes).unwrap_or(u32::MAX)
    }

    /// Grants all waiters after an applied write.
    async fn applied(self, item: Option<Item>, now: EpochMillis) -> TakeOutcome {
        self.queue.with_backoff(super::ContentionBackoff::won_race);
        let shard = match item.map(|item| item.bucket()) {
            Some(Ok(shard)) => shard,
            Some(Err(error)) => return self.fail_unreadable(error),
            None => unreachable!("the answer was asked for"),
        };
        self.count_unconfirmed_tokens(0, Some(shard.write_seq - 1));
        if let Some(seen) = &self.seen {
            let others = shard.write_seq - seen.write_seq > 1;
            // Absence of other writes within a shorter time proves nothing.
            if others || self.age >= ALONE_AFTER {
                self.queue.set_contended(others);
            }
        }
        self.grant(shard, now).await
    }

    /// Grants all waiters if `item` shows that an earlier write was applied; otherwise returns
    /// them.
    async fn condition_failed(self, item: &Item, now: EpochMillis) -> TakeOutcome {
        let shard = match item.bucket() {
            Ok(shard) => shard,
            Err(error) => return self.fail_unreadable(error),
        };
        let ours = shard
            .last_write_id
            .as_ref()
            .and_then(|op| self.write_ids.iter().position(|known| known == op));
        let holds = |(id, _): &(WriteId, Lease)| {
            shard
                .leases
                .as_ref()
                .is_some_and(|leases| leases.contains_key(id))
        };
        if ours.is_some() || self.leases.iter().flatten().any(holds) {
            // One unconfirmed write is then known, unless the last write arrived twice.
            let known = i64::from(ours != Some(self.write_ids.len() - 1));
            self.count_unconfirmed_tokens(known, Some(shard.write_seq - 1));
            return self.grant(shard, now).await;
        }
        // If the item equals the view, the state itself failed the condition, not a race.
        if self.seen.as_deref().is_some_and(|seen| *seen != shard) {
            count(&self.inner.counters.lost_races, 1);
            self.queue.with_backoff(super::ContentionBackoff::lost_race);
            self.queue.set_contended(true);
        } else if self.age >= ALONE_AFTER && self.seen.is_some() {
            self.queue.set_contended(false);
        }
        self.count_unconfirmed_tokens(0, Some(shard.write_seq));
        self.record_view(shard);
        if self.planned.clock_jumped(self.inner) {
            // The clock may have been set after this request was sent; then its response has not
            // corrected the clock.
            self.queue.clear_view();
        }
        TakeOutcome::Retry(self.waiters)
    }

    /// Records the shard of a response. An item with a lower write sequence than the view was
    /// created again.
    fn record_view(&self, shard: Shard) -> Arc<Shard> {
        if self
            .seen
            .as_ref()
            .is_some_and(|seen| seen.write_seq > shard.write_seq)
        {
            self.queue.clear_view();
        }
        self.queue.record_view(shard)
    }

    /// Counts tokens that unconfirmed writes may have taken. `known` of these writes are accounted
    /// for, and the write sequence `v` may show that fewer were applied. Leases are certain: a take
    /// fails if one of its leases is already in the item.
    fn count_unconfirmed_tokens(&self, known: i64, v: Option<i64>) {
        let Some(doubt) = &self.unconfirmed else {
            return;
        };
        let made = doubt
            .v_before
            .zip(v)
            .map_or(i64::MAX, |(before, v)| v.saturating_sub(before));
        let is_certain = v.is_some() && self.leases.iter().any(Option::is_some);
        let writes = if is_certain {
            0
        } else {
            (doubt.writes - known).min(made).max(0)
        };
        if writes == 0 {
            return;
        }
        let needs: MilliTokens = self.amounts.values().copied().sum();
        let milli = u64::try_from(needs.0.saturating_mul(writes)).unwrap_or_default();
        count(&self.inner.counters.unconfirmed_millitokens, milli);
        tracing::warn!(
            bucket = self.queue.key.item_key().pk,
            milli,
            "writes of unknown outcome count as taken"
        );
    }

    /// Grants all waiters. A take that was planned too early is made again if it took overflow, or
    /// if it wrote leases, which would end too soon; otherwise it stands.
    async fn grant(self, shard: Shard, at: EpochMillis) -> TakeOutcome {
        let shard = self.record_view(shard);
        let mut was_there = true;
        if let (Some(seen), true) = (
            &self.seen,
            self.is_doubted && self.planned.clock_was_fast(self.inner),
        ) {
            let owner = (self.queue, &self.waiters[0].bucket);
            was_there = clock_jump::restore_cut(
                self.inner,
                owner,
                (seen, &shard),
                &super::merge_amounts(&self.amounts, &self.soft_amounts),
            )
            .await;
        }
        if self.seen.is_none() && self.planned.clock_was_fast(self.inner) {
            clock_jump::correct_creation(self.inner, self.queue, &shard).await;
        }
        let was_early = self.planned.clock_was_slow(self.inner);
        let spilled = was_early && retake::took_overflow(&self.amounts, &shard, self.inner.now());
        let mut again = vec![];
        for (waiter, lease) in self.waiters.into_iter().zip(self.leases) {
            let lease = lease.map(|(id, lease)| (id, lease.expires_at));
            let is_good = was_there && (!was_early || !spilled && lease.is_none());
            let (queue, after) = (Arc::clone(self.queue), Arc::clone(&shard));
            let part = HoldPart {
                queue,
                amounts: waiter.all(),
                shard: after,
                prefetched_at: None,
                lease,
            };
            let owner = (Arc::clone(self.inner), Arc::clone(&waiter.bucket));
            let hold = Hold::new(owner, vec![part], waiter.limits.clone(), at)
                .provisional(waiter.acquires);
            if is_good {
                waiter.reply(Ok(ShardDecision::Granted(hold.into())));
            } else {
                retake::undo_take(self.inner, hold, &waiter.amounts, &shard, spilled).await;
                again.push(waiter);
            }
        }
        if again.is_empty() {
            TakeOutcome::Replied
        } else {
            TakeOutcome::Retry(again)
        }
    }

    /// Replies to all waiters with a timeout once none has time left. Returns whether it did.
    fn expire_waiters(&mut self) -> bool {
        let now = Instant::now();
        if self
            .waiters
            .iter()
            .any(|waiter| now < waiter.deadline && !waiter.reply.is_closed())
        {
            return false;
        }
        for waiter in self.waiters.drain(..) {
            let bucket = self.queue.key.item_key().pk;
            let last = self
                .unconfirmed
                .as_ref()
                .map(|doubt| Arc::clone(&doubt.error));
            let after = waiter.deadline - waiter.enqueued_at;
            waiter.reply(Err(Error::Timeout {
                bucket,
                after,
                last,
            }));
        }
        self.count_unconfirmed_tokens(0, None);
        true
    }

    /// Returns the waiters for another shard, because this one is missing and may not be created.
    fn shard_missing(self) -> TakeOutcome {
        self.queue.mark_missing();
        self.count_unconfirmed_tokens(0, None);
        TakeOutcome::ShardMissing(self.waiters)
    }

    fn fail_unreadable(self, error: weirgate_shared::ItemError) -> TakeOutcome {
        let bucket = self.queue.key.item_key().pk;
        self.fail(Error::Unreadable { bucket, error })
    }

    /// Fails all waiters. Unconfirmed writes stay unconfirmed, and their error takes precedence.
    fn fail(self, error: Error) -> TakeOutcome {
        self.count_unconfirmed_tokens(0, None);
        let error = self
            .unconfirmed
            .as_ref()
            .map_or(error, |doubt| Error::Store(Arc::clone(&doubt.error)));
        for waiter in self.waiters {
            waiter.reply(Err(error.clone()));
        }
        TakeOutcome::Replied
    }
}

/// Waits after failures in a row, at most until the latest deadline of the waiters.
pub(super) async fn pause<'a>(failures: u32, waiters: impl IntoIterator<Item = &'a Waiter>) {
    let until = Instant::now() + backoff(failures);
    let last = waiters.into_iter().map(|waiter| waiter.deadline).max();
    tokio::time::sleep_until(last.map_or(until, |last| until.min(last))).await;
}

/// Returns a random time up to a bound that doubles from 25 ms to 800 ms (full jitter).
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = 25_000_u64 << failures.saturating_sub(1).min(5);
    Duration::from_micros(fastrand::u64(0..=most))
}
