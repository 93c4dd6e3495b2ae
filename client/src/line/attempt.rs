//! One take for a group of callers, until its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::Take;
use weirgate_shared::{Bucket, EpochMillis, Lease, MilliTokens, WriteId};
use weirgate_store::{Answer, ErrorKind, Item, Outcome, StoreError};

use super::{Caller, Line, Needs, Verdict};
use crate::limiter::Inner;
use crate::stats::count;
use crate::{Error, Grant};

/// What became of a group.
pub(super) enum Resolved {
    /// Everybody was answered.
    Answered,
    /// Nothing was taken, and the line's view shows why: choose again.
    TryAgain(Vec<Caller>),
    /// Nothing was taken: DynamoDB refused for now.
    Refused(Vec<Caller>, Arc<StoreError>),
}

/// Takes for the whole group in one write.
///
/// A write of unknown outcome is followed by another that cannot happen if the first one was the last write of the
/// item, so the answer tells. Where somebody else has written since, the tokens count as taken.
pub(super) async fn take(inner: &Arc<Inner>, line: &Arc<Line>, callers: Vec<Caller>, now: EpochMillis) -> Resolved {
    Attempt::new(inner, line, callers, now).run().await
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    line: &'a Arc<Line>,
    callers: Vec<Caller>,
    /// In the callers' order.
    leases: Vec<Option<(WriteId, Lease)>>,
    needs: Needs,
    unknown: Vec<WriteId>,
    /// `v` when the first write of unknown outcome was made, as far as it was known.
    v_before: Option<i64>,
    missing: bool,
}

impl<'a> Attempt<'a> {
    fn new(inner: &'a Arc<Inner>, line: &'a Arc<Line>, callers: Vec<Caller>, now: EpochMillis) -> Self {
        let mut needs = Needs::new();
        for (limit, need) in callers.iter().flat_map(|caller| &caller.needs) {
            *needs.entry(limit.clone()).or_default() += *need;
        }
        let leases = callers.iter().map(|caller| caller.new_lease(now)).collect();
        Self { inner, line, callers, leases, needs, unknown: vec![], v_before: None, missing: false }
    }

    async fn run(mut self) -> Resolved {
        loop {
            let now = self.inner.clock.now();
            let view = self.line.view();
            let bucket = view.as_ref().map(|view| &*view.bucket);
            let op = WriteId::from_bits(fastrand::u64(..));
            let take = Take {
                key: &self.line.key,
                limits: &self.callers[0].limits,
                needs: self.needs.clone(),
                takes: i64::try_from(self.callers.len()).unwrap_or(i64::MAX),
                leases: self.leases.iter().flatten().cloned().collect(),
                op: op.clone(),
                unknown: &self.unknown,
            };
            let update = if self.missing { take.create(now) } else { take.on(bucket, now) };
            count(&self.inner.counters.writes, 1);
            let outcome = self.inner.table.update(&update, Answer::Item).await;
            let v = bucket.and_then(|bucket| bucket.v);
            match outcome {
                Ok(Outcome::Applied(item)) => return self.applied(item, now),
                Ok(Outcome::LostRace(None)) => {
                    self.line.forget();
                    self.missing = true;
                }
                Ok(Outcome::LostRace(Some(item))) => return self.lost(&item, now),
                Err(error) if error.kind == ErrorKind::Unknown => {
                    tracing::debug!(%error, "outcome unknown");
                    count(&self.inner.counters.unknown, 1);
                    if self.unknown.is_empty() {
                        self.v_before = v;
                    }
                    self.unknown.push(op);
                    let last = Arc::new(error);
                    self.drop_late(&last);
                    if self.callers.is_empty() {
                        return Resolved::Answered;
                    }
                    tokio::time::sleep(backoff(u32::try_from(self.unknown.len()).unwrap_or(u32::MAX))).await;
                }
                Err(error) if error.kind.is_transient() => {
                    count(&self.inner.counters.refused, 1);
                    tracing::debug!(%error, "refused for now");
                    let error = Arc::new(error);
                    if self.unknown.is_empty() {
                        return Resolved::Refused(self.callers, error);
                    }
                    // The earlier write is still in doubt: it must be found out about before anything else.
                    self.drop_late(&error);
                    if self.callers.is_empty() {
                        return Resolved::Answered;
                    }
                    tokio::time::sleep(backoff(1)).await;
                }
                Err(error) => return self.fail(&Error::from(error)),
            }
        }
    }

    /// The take happened: everybody is granted.
    fn applied(self, item: Option<Item>, now: EpochMillis) -> Resolved {
        self.line.pace(super::Pace::won);
        let bucket = match item.map(|item| item.bucket()) {
            Some(Ok(bucket)) => bucket,
            Some(Err(error)) => return self.fail_unreadable(error),
            None => unreachable!("the answer was asked for"),
        };
        if !self.unknown.is_empty() {
            self.count_unknown(bucket.v.map(|v| v - 1));
        }
        self.grant(bucket, now)
    }

    /// A condition did not hold, and `item` tells why.
    fn lost(self, item: &Item, now: EpochMillis) -> Resolved {
        let bucket = match item.bucket() {
            Ok(bucket) => bucket,
            Err(error) => return self.fail_unreadable(error),
        };
        let is_ours = bucket.op.as_ref().is_some_and(|op| self.unknown.contains(op));
        let holds = |(id, _): &(WriteId, Lease)| bucket.leases.as_ref().is_some_and(|leases| leases.contains_key(id));
        if is_ours || self.leases.iter().flatten().any(holds) {
            return self.grant(bucket, now);
        }
        count(&self.inner.counters.lost_races, 1);
        self.line.pace(super::Pace::lost);
        if !self.unknown.is_empty() {
            self.count_unknown(bucket.v);
        }
        self.line.saw(bucket);
        Resolved::TryAgain(self.callers)
    }

    /// Tokens that an earlier write may have taken, unless `v` shows that nothing was written since.
    fn count_unknown(&self, v: Option<i64>) {
        if self.v_before.is_none() || self.v_before != v {
            let milli: MilliTokens = self.needs.values().copied().sum();
            let milli = u64::try_from(milli.0).unwrap_or_default();
            count(&self.inner.counters.unknown_milli, milli);
            tracing::warn!(bucket = self.line.key.item_key().pk, milli, "a write of unknown outcome counts as taken");
        }
    }

    fn grant(self, bucket: Bucket, at: EpochMillis) -> Resolved {
        let bucket = self.line.saw(bucket);
        count(&self.inner.counters.granted, u64::try_from(self.callers.len()).unwrap_or_default());
        for (caller, lease) in self.callers.into_iter().zip(self.leases) {
            let lease = lease.map(|(id, lease)| (id, lease.expires));
            let taken = (caller.needs.clone(), Arc::clone(&caller.limits));
            let verdict = Verdict::Granted { lease: lease.clone(), bucket: Arc::clone(&bucket), at };
            if caller.tell(Ok(verdict)).is_err() {
                // The caller went away while its write was in flight: nobody will use the tokens.
                let owner = (Arc::clone(self.inner), Arc::clone(self.line));
                Grant::new(owner, taken, lease, (Arc::clone(&bucket), at)).abandon();
            }
        }
        Resolved::Answered
    }

    /// Answers those who have no time left to find out.
    fn drop_late(&mut self, last: &Arc<StoreError>) {
        let now = Instant::now();
        if self.callers.iter().any(|caller| now < caller.deadline && !caller.answer.is_closed()) {
            return;
        }
        for caller in self.callers.drain(..) {
            let bucket = self.line.key.item_key().pk;
            let timeout = Error::Timeout { bucket, after: self.inner.settings.timeout, last: Some(Arc::clone(last)) };
            let _ = caller.tell(Err(timeout));
        }
        self.count_unknown(None);
    }

    fn fail_unreadable(self, error: weirgate_shared::ItemError) -> Resolved {
        let bucket = self.line.key.item_key().pk;
        self.fail(&Error::Unreadable { bucket, error })
    }

    fn fail(self, error: &Error) -> Resolved {
        for caller in self.callers {
            let _ = caller.tell(Err(error.clone()));
        }
        Resolved::Answered
    }
}

/// Full jitter, doubling from 25 ms to 800 ms.
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = 25_000_u64 << failures.saturating_sub(1).min(5);
    Duration::from_micros(fastrand::u64(0..=most))
}
