//! One take for a group of callers, until its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Contention, Take};
use weirgate_shared::{EpochMillis, Lease, MilliTokens, Millis, Shard, WriteId};
use weirgate_store::{ErrorKind, Item, Outcome, StoreError};

use super::{Caller, Line, Needs, Verdict, View, early, late};
use crate::Error;
use crate::held::{Held, Part};
use crate::inner::Inner;
use crate::limits::check_room;
use crate::planned::Planned;
use crate::stats::count;

/// What became of a group.
pub(super) enum Resolved {
    /// Everybody was answered.
    Answered,
    /// Nothing was taken, and the line's view shows why: choose again.
    TryAgain(Vec<Caller>),
    /// Nothing was taken: the shard is not there, and is not the one that may be made.
    Gone(Vec<Caller>),
    /// Nothing was taken: DynamoDB refused for now.
    Refused(Vec<Caller>, Arc<StoreError>),
}

/// For how long what was seen of a shard that others write to is news.
const RECENT: Duration = Duration::from_millis(3);

/// For how long no other process must have written to a shard until this one is said to be alone:
/// longer than a read and the write after it.
const ALONE: Duration = Duration::from_millis(20);

/// How long a shard that was just split is left alone: about as long as all callers take to learn
/// of it.
const SETTLING: Millis = Millis(1_000);

/// Takes for the whole group in one write.
///
/// A write of unknown outcome is followed by another that cannot happen if the first one was the
/// last write of the item, so the answer tells. Where somebody else has written since, the tokens
/// count as taken.
pub(super) async fn take(inner: &Arc<Inner>, line: &Arc<Line>, callers: Vec<Caller>) -> Resolved {
    Attempt::new(inner, line, callers).run().await
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    line: &'a Arc<Line>,
    callers: Vec<Caller>,
    /// The first plan of which it is not known that it did not happen.
    planned: Planned,
    /// In the callers' order.
    leases: Vec<Option<(WriteId, Lease)>>,
    needs: Needs,
    soft: Needs,
    /// Ids of the writes sent so far.
    ops: Vec<WriteId>,
    /// What the last write was planned on.
    seen: Option<Arc<Shard>>,
    /// How long before it was seen.
    age: Duration,
    /// Since then the wall clock has jumped ahead.
    is_doubted: bool,
    doubt: Option<Doubt>,
    missing: bool,
}

/// Writes whose outcome is unknown.
struct Doubt {
    writes: i64,
    /// `v` when the first of them was made, as far as it was known.
    v_before: Option<i64>,
    error: Arc<StoreError>,
}

impl<'a> Attempt<'a> {
    fn new(inner: &'a Arc<Inner>, line: &'a Arc<Line>, callers: Vec<Caller>) -> Self {
        let sum = |asked: fn(&Caller) -> &Needs| {
            let mut sum = Needs::new();
            for (limit, need) in callers.iter().flat_map(asked) {
                *sum.entry(limit.clone()).or_default() += *need;
            }
            sum
        };
        let (needs, soft) = (sum(|caller| &caller.needs), sum(|caller| &caller.soft));
        Self {
            inner,
            line,
            callers,
            planned: inner.plan(),
            leases: vec![],
            needs,
            soft,
            ops: vec![],
            seen: None,
            age: Duration::ZERO,
            is_doubted: false,
            doubt: None,
            missing: line.may_be_made(),
        }
    }

    async fn run(mut self) -> Resolved {
        loop {
            let now = self.replan();
            let roll = self.line.roll(self.inner, now);
            let is_safe = |view: &View| {
                !view.is_doubted || late::is_safe(&view.bucket, &self.callers[0].limits, roll, now)
            };
            let view = self.line.view().filter(is_safe);
            if view.is_none() && !self.missing {
                // Nothing is known any more that a write may rest on.
                self.line.forget();
                if self.doubt.is_none() {
                    return Resolved::TryAgain(self.callers);
                }
                match self.look().await {
                    Ok(()) if self.drop_late() => return Resolved::Answered,
                    Ok(()) if self.line.is_gone() => return self.gone(),
                    Ok(()) => continue,
                    Err(error) => return self.fail(error),
                }
            }
            self.is_doubted |= view.as_ref().is_some_and(|view| view.is_doubted);
            let is_doubted = view.as_ref().is_some_and(|view| view.is_doubted);
            self.age = view
                .as_ref()
                .map(|view| self.line.age(view))
                .unwrap_or_default();
            self.seen = view.map(|view| view.bucket);
            let bucket = self.seen.as_deref();
            if let Some(Err(error)) =
                bucket.map(|bucket| check_room(bucket, &self.callers[0].limits))
            {
                // The next one looks again: somebody may have deleted the item, as the error says.
                self.line.forget();
                return self.fail(error);
            }
            let op = weirgate_store::random_id();
            let hot = self.wants_split(bucket, now);
            // Its own id is among them: a network that repeats the request does not take twice
            // either.
            self.ops.push(op.clone());
            let take = Take {
                key: &self.line.key,
                limits: (&self.callers[0].limits).into(),
                amounts: self.needs.clone(),
                soft_amounts: self.soft.clone(),
                acquires: self.callers.iter().map(|caller| caller.takes).sum(),
                leases: self.leases.iter().flatten().cloned().collect(),
                roll,
                write_id: op,
                request_split: hot,
                contention: self.company(),
                unconfirmed: &self.ops,
            };
            let mut update =
                bucket.map_or_else(|| take.create(now), |bucket| take.plan(Some(bucket), now));
            if let Some(seen) = bucket.filter(|_| is_doubted) {
                late::only_as_seen(&mut update, &take, seen, now);
            }
            self.line.asks("UpdateItem");
            let outcome = self.inner.update(&update).await;
            self.line.heard(&outcome);
            if outcome.is_ok() {
                self.line.passed();
            }
            match outcome {
                Ok(Outcome::Applied(item)) => {
                    if hot {
                        self.line.asked_for_split();
                    }
                    return self.applied(item, now).await;
                }
                Ok(Outcome::LostRace(None)) if !self.line.is_only() => {
                    return self.gone();
                }
                Ok(Outcome::LostRace(None)) => {
                    self.line.forget();
                    self.missing = true;
                }
                Ok(Outcome::LostRace(Some(item))) => return self.lost(&item, now).await,
                Err(error) if error.kind == ErrorKind::Unknown => {
                    tracing::debug!(%error, "outcome unknown");
                    count(&self.inner.counters.unknown, 1);
                    let writes = self.in_doubt(error);
                    if self.drop_late() {
                        return Resolved::Answered;
                    }
                    pause(writes, &self.callers).await;
                }
                Err(error) if error.kind.is_transient() => {
                    count(&self.inner.counters.refused, 1);
                    tracing::debug!(%error, "refused for now");
                    if error.kind == (ErrorKind::Throttled { key_range: true }) {
                        self.line.was_throttled();
                    }
                    if self.doubt.is_none() {
                        return Resolved::Refused(self.callers, Arc::new(error));
                    }
                    // The earlier write is still in doubt: it must be found out about before
                    // anything else.
                    if self.drop_late() {
                        return Resolved::Answered;
                    }
                    pause(1, &self.callers).await;
                }
                Err(error) => return self.fail(Error::from(error)),
            }
        }
    }

    /// Reads the shard, of which nothing is known any more while an earlier write is in doubt.
    async fn look(&mut self) -> Result<(), Error> {
        match self.line.look(self.inner).await {
            Ok(()) => self.missing = self.line.may_be_made(),
            Err(Error::Store(error)) if error.kind.is_transient() => pause(1, &self.callers).await,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The time to plan the next write by. What may have happened already keeps its leases.
    fn replan(&mut self) -> EpochMillis {
        let planned = self.inner.plan();
        if self.doubt.is_none() {
            self.planned = planned;
            self.leases = self
                .callers
                .iter()
                .map(|caller| caller.new_lease(planned.now))
                .collect();
        }
        planned.now
    }

    /// Who else writes to the shard.
    fn company(&self) -> Contention {
        match (self.line.has_company(), self.age >= RECENT) {
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
            .map_or(EpochMillis::default(), |look| look.at.plus(SETTLING));
        let is_settled = |age: Duration| now.since(settled_at) > Millis::from(age);
        let was_throttled = self.line.throttled().is_some_and(is_settled);
        was_throttled || seen.is_near_write_limit(now)
    }

    /// One more write of unknown outcome; how many there are.
    fn in_doubt(&mut self, error: StoreError) -> u32 {
        let (error, v_before) = (
            Arc::new(error),
            self.seen.as_ref().map(|bucket| bucket.write_seq),
        );
        let first = Doubt {
            writes: 0,
            v_before,
            error: Arc::clone(&error),
        };
        let doubt = self.doubt.get_or_insert(first);
        doubt.writes += 1;
        doubt.error = error;
        u32::try_from(doubt.writes).unwrap_or(u32::MAX)
    }

    /// The take happened: everybody is granted.
    async fn applied(self, item: Option<Item>, now: EpochMillis) -> Resolved {
        self.line.pace(super::Pace::won);
        let bucket = match item.map(|item| item.bucket()) {
            Some(Ok(bucket)) => bucket,
            Some(Err(error)) => return self.fail_unreadable(error),
            None => unreachable!("the answer was asked for"),
        };
        self.count_doubt(0, Some(bucket.write_seq - 1));
        if let Some(seen) = &self.seen {
            let others = bucket.write_seq - seen.write_seq > 1;
            // That no other process wrote within a moment says nothing.
            if others || self.age >= ALONE {
                self.line.meets(others);
            }
        }
        self.grant(bucket, now).await
    }

    /// A condition did not hold, and `item` tells why.
    async fn lost(self, item: &Item, now: EpochMillis) -> Resolved {
        let bucket = match item.bucket() {
            Ok(bucket) => bucket,
            Err(error) => return self.fail_unreadable(error),
        };
        let ours = bucket
            .last_write_id
            .as_ref()
            .and_then(|op| self.ops.iter().position(|known| known == op));
        let holds = |(id, _): &(WriteId, Lease)| {
            bucket
                .leases
                .as_ref()
                .is_some_and(|leases| leases.contains_key(id))
        };
        if ours.is_some() || self.leases.iter().flatten().any(holds) {
            // It is known of one write in doubt, unless it is this very one that arrived twice.
            let known = i64::from(ours != Some(self.ops.len() - 1));
            self.count_doubt(known, Some(bucket.write_seq - 1));
            return self.grant(bucket, now).await;
        }
        // A write that was planned on this very state has failed because of it, not because of
        // somebody else.
        if self.seen.as_deref().is_some_and(|seen| *seen != bucket) {
            count(&self.inner.counters.lost_races, 1);
            self.line.pace(super::Pace::lost);
            self.line.meets(true);
        } else if self.age >= ALONE && self.seen.is_some() {
            self.line.meets(false);
        }
        self.count_doubt(0, Some(bucket.write_seq));
        self.saw(bucket);
        if self.planned.was_wrong(self.inner) {
            // The clock may have been set after this request was sent; then its answer has not
            // corrected it.
            self.line.forget();
        }
        Resolved::TryAgain(self.callers)
    }

    /// Keeps what the answer showed. An item with a lower `v` than the one seen before the write
    /// was made anew.
    fn saw(&self, bucket: Shard) -> Arc<Shard> {
        if self
            .seen
            .as_ref()
            .is_some_and(|seen| seen.write_seq > bucket.write_seq)
        {
            self.line.forget();
        }
        self.line.saw(bucket)
    }

    /// Tokens that writes in doubt may have taken beside what is known: all but `known` of them, as
    /// far as `v` does not show that fewer were made since. Leases leave no doubt: a take does not
    /// happen where one of them is already.
    fn count_doubt(&self, known: i64, v: Option<i64>) {
        let Some(doubt) = &self.doubt else { return };
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
        let needs: MilliTokens = self.needs.values().copied().sum();
        let milli = u64::try_from(needs.0.saturating_mul(writes)).unwrap_or_default();
        count(&self.inner.counters.unknown_milli, milli);
        tracing::warn!(
            bucket = self.line.key.item_key().pk,
            milli,
            "writes of unknown outcome count as taken"
        );
    }

    /// The take happened: everybody is granted. One that was planned too early is made again if it
    /// took what had flowed over by then, or wrote leases, which would end too soon; otherwise it
    /// is as good as any.
    async fn grant(self, bucket: Shard, at: EpochMillis) -> Resolved {
        let bucket = self.saw(bucket);
        let mut was_there = true;
        if let (Some(seen), true) = (
            &self.seen,
            self.is_doubted && self.planned.was_late(self.inner),
        ) {
            let owner = (self.line, &self.callers[0].shards);
            was_there = late::put_right(
                self.inner,
                owner,
                (seen, &bucket),
                &super::all(&self.needs, &self.soft),
            )
            .await;
        }
        let was_early = self.planned.was_early(self.inner);
        let spilled = was_early && early::spilled(&self.needs, &bucket, self.inner.now());
        let mut again = vec![];
        for (caller, lease) in self.callers.into_iter().zip(self.leases) {
            let lease = lease.map(|(id, lease)| (id, lease.expires_at));
            let is_good = was_there && (!was_early || !spilled && lease.is_none());
            let (line, after) = (Arc::clone(self.line), Arc::clone(&bucket));
            let part = Part {
                line,
                amounts: caller.all(),
                bucket: after,
                ahead: None,
                lease,
            };
            let owner = (Arc::clone(self.inner), Arc::clone(&caller.shards));
            let held =
                Held::new(owner, vec![part], caller.limits.clone(), at).provisional(caller.takes);
            if is_good {
                caller.tell(Ok(Verdict::Granted(held.into())));
            } else {
                early::take_back(self.inner, held, &caller.needs, &bucket, spilled).await;
                again.push(caller);
            }
        }
        if again.is_empty() {
            Resolved::Answered
        } else {
            Resolved::TryAgain(again)
        }
    }

    /// Answers all once nobody has time left to find out; whether it did.
    fn drop_late(&mut self) -> bool {
        let now = Instant::now();
        if self
            .callers
            .iter()
            .any(|caller| now < caller.deadline && !caller.answer.is_closed())
        {
            return false;
        }
        for caller in self.callers.drain(..) {
            let bucket = self.line.key.item_key().pk;
            let last = self.doubt.as_ref().map(|doubt| Arc::clone(&doubt.error));
            let after = caller.deadline - caller.joined;
            caller.tell(Err(Error::Timeout {
                bucket,
                after,
                last,
            }));
        }
        self.count_doubt(0, None);
        true
    }

    /// The shard is not there, and is not the one that may be made.
    fn gone(self) -> Resolved {
        self.line.gone();
        self.count_doubt(0, None);
        Resolved::Gone(self.callers)
    }

    fn fail_unreadable(self, error: weirgate_shared::ItemError) -> Resolved {
        let bucket = self.line.key.item_key().pk;
        self.fail(Error::Unreadable { bucket, error })
    }

    /// Nothing can be found out any more. What was in doubt before stays so.
    fn fail(self, error: Error) -> Resolved {
        self.count_doubt(0, None);
        let error = self
            .doubt
            .as_ref()
            .map_or(error, |doubt| Error::Store(Arc::clone(&doubt.error)));
        for caller in self.callers {
            caller.tell(Err(error.clone()));
        }
        Resolved::Answered
    }
}

/// Waits after failures in a row, and no longer than anybody of the callers has time.
pub(super) async fn pause<'a>(failures: u32, callers: impl IntoIterator<Item = &'a Caller>) {
    let until = Instant::now() + backoff(failures);
    let last = callers.into_iter().map(|caller| caller.deadline).max();
    tokio::time::sleep_until(last.map_or(until, |last| until.min(last))).await;
}

/// Full jitter, doubling from 25 ms to 800 ms.
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = 25_000_u64 << failures.saturating_sub(1).min(5);
    Duration::from_micros(fastrand::u64(0..=most))
}
