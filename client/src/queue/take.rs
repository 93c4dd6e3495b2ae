//! One take for a group of callers, until its outcome is known.

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

/// What became of a group.
pub(super) enum TakeOutcome {
    /// Everybody was answered.
    Replied,
    /// Nothing was taken, and the line's view shows why: choose again.
    Retry(Vec<Waiter>),
    /// Nothing was taken: the shard is not there, and is not the one that may be made.
    ShardMissing(Vec<Waiter>),
    /// Nothing was taken: DynamoDB refused for now.
    Rejected(Vec<Waiter>, Arc<StoreError>),
}

/// For how long what was seen of a shard that others write to is news.
const FRESH_VIEW: Duration = Duration::from_millis(3);

/// For how long no other process must have written to a shard until this one is said to be alone:
/// longer than a read and the write after it.
const ALONE_AFTER: Duration = Duration::from_millis(20);

/// How long a shard that was just split is left alone: about as long as all callers take to learn
/// of it.
const SPLIT_COOLDOWN: Millis = Millis(1_000);

/// Takes for the whole group in one write.
///
/// A write of unknown outcome is followed by another that cannot happen if the first one was the
/// last write of the item, so the answer tells. Where somebody else has written since, the tokens
/// count as taken.
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
    /// The first plan of which it is not known that it did not happen.
    planned: PlanTime,
    /// In the callers' order.
    leases: Vec<Option<(WriteId, Lease)>>,
    amounts: Amounts,
    soft_amounts: Amounts,
    /// Ids of the writes sent so far.
    write_ids: Vec<WriteId>,
    /// What the last write was planned on.
    seen: Option<Arc<Shard>>,
    /// How long before it was seen.
    age: Duration,
    /// Since then the wall clock has jumped ahead.
    is_doubted: bool,
    unconfirmed: Option<Unconfirmed>,
    missing: bool,
}

/// Writes whose outcome is unknown.
struct Unconfirmed {
    writes: i64,
    /// `v` when the first of them was made, as far as it was known.
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
                // Nothing is known any more that a write may rest on.
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
                // The next one looks again: somebody may have deleted the item, as the error says.
                self.queue.clear_view();
                return self.fail(error);
            }
            let op = weirgate_store::random_id();
            let hot = self.wants_split(shard, now);
            // Its own id is among them: a network that repeats the request does not take twice
            // either.
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
                    // The earlier write is still in doubt: it must be found out about before
                    // anything else.
                    if self.expire_waiters() {
                        return TakeOutcome::Replied;
                    }
                    pause(1, &self.waiters).await;
                }
                Err(error) => return self.fail(Error::from(error)),
            }
        }
    }

    /// Reads the shard, of which nothing is known any more while an earlier write is in doubt.
    async fn look(&mut self) -> Result<(), Error> {
        match self.queue.read_shard(self.inner).await {
            Ok(()) => self.missing = self.queue.may_be_created(),
            Err(Error::Store(error)) if error.kind.is_transient() => pause(1, &self.waiters).await,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The time to plan the next write by. What may have happened already keeps its leases.
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

    /// Who else writes to the shard.
    fn contention(&self) -> Contention {
        match (self.queue.is_contended(), self.age >= FRESH_VIEW) {
            (false, _) => Contention::Alone,
            (true, false) => Contention::Shared,
            (true, true) => Contention::SharedStale,
        }
    }

    /// Whether the shard, as it was seen, should be split: its write units have run out, or it was
    /// throttled, and not just after a split, when everybody pays for a write or two to learn of
    /// it. Once is enough to ask.
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

    /// One more write of unknown outcome; how many there are.
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

    /// The take happened: everybody is granted.
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
            // That no other process wrote within a moment says nothing.
            if others || self.age >= ALONE_AFTER {
                self.queue.set_contended(others);
            }
        }
        self.grant(shard, now).await
    }

    /// A condition did not hold, and `item` tells why.
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
            // It is known of one write in doubt, unless it is this very one that arrived twice.
            let known = i64::from(ours != Some(self.write_ids.len() - 1));
            self.count_unconfirmed_tokens(known, Some(shard.write_seq - 1));
            return self.grant(shard, now).await;
        }
        // A write that was planned on this very state has failed because of it, not because of
        // somebody else.
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
            // The clock may have been set after this request was sent; then its answer has not
            // corrected it.
            self.queue.clear_view();
        }
        TakeOutcome::Retry(self.waiters)
    }

    /// Keeps what the answer showed. An item with a lower `v` than the one seen before the write
    /// was made anew.
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

    /// Tokens that writes in doubt may have taken beside what is known: all but `known` of them, as
    /// far as `v` does not show that fewer were made since. Leases leave no doubt: a take does not
    /// happen where one of them is already.
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

    /// The take happened: everybody is granted. One that was planned too early is made again if it
    /// took what had flowed over by then, or wrote leases, which would end too soon; otherwise it
    /// is as good as any.
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

    /// Answers all once nobody has time left to find out; whether it did.
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

    /// The shard is not there, and is not the one that may be made.
    fn shard_missing(self) -> TakeOutcome {
        self.queue.mark_missing();
        self.count_unconfirmed_tokens(0, None);
        TakeOutcome::ShardMissing(self.waiters)
    }

    fn fail_unreadable(self, error: weirgate_shared::ItemError) -> TakeOutcome {
        let bucket = self.queue.key.item_key().pk;
        self.fail(Error::Unreadable { bucket, error })
    }

    /// Nothing can be found out any more. What was in doubt before stays so.
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

/// Waits after failures in a row, and no longer than anybody of the callers has time.
pub(super) async fn pause<'a>(failures: u32, waiters: impl IntoIterator<Item = &'a Waiter>) {
    let until = Instant::now() + backoff(failures);
    let last = waiters.into_iter().map(|waiter| waiter.deadline).max();
    tokio::time::sleep_until(last.map_or(until, |last| until.min(last))).await;
}

/// Full jitter, doubling from 25 ms to 800 ms.
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = 25_000_u64 << failures.saturating_sub(1).min(5);
    Duration::from_micros(fastrand::u64(0..=most))
}
