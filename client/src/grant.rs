//! Taken tokens, and what happens to them: adjust, renew, release, roll back (design, section 5).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Condition, LeaseChange, Path, Settle, Settled, Update, Value};
use weirgate_shared::{Bucket, EpochMillis, ItemError, Limit, LimitName, MilliTokens, WriteId, attr};
use weirgate_store::{Answer, ErrorKind, Outcome};

use crate::clock::deadline;
use crate::decision::{self, LimitStatus};
use crate::limiter::Inner;
use crate::line::{Line, Needs, backoff};
use crate::stats::count;
use crate::{Error, acquire};

/// Tokens that were taken.
///
/// Rate tokens are used up unless they are rolled back. A durable lease, which slots always have, ends with
/// [`release`](Self::release), [`rollback`](Self::rollback), or its expiry; dropping the grant releases it in the
/// background.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grant {
    inner: Arc<Inner>,
    line: Arc<Line>,
    amounts: Needs,
    limits: Arc<[Limit]>,
    lease: Option<(WriteId, EpochMillis)>,
    bucket: Arc<Bucket>,
    at: EpochMillis,
    is_settled: bool,
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lease that has ended settles nothing"]
pub enum Settlement {
    /// It counts, once.
    Done,
    /// The lease had ended before: it was released, or it expired and its tokens went back. Nothing was changed.
    Ended,
}

impl Grant {
    pub(crate) fn new(
        (inner, line): (Arc<Inner>, Arc<Line>),
        (amounts, limits): (Needs, Arc<[Limit]>),
        lease: Option<(WriteId, EpochMillis)>,
        (bucket, at): (Arc<Bucket>, EpochMillis),
    ) -> Self {
        Self { inner, line, amounts, limits, lease, bucket, at, is_settled: false }
    }

    /// Id of the durable lease.
    #[must_use]
    pub fn lease_id(&self) -> Option<&str> {
        self.lease.as_ref().map(|(id, _)| id.as_str())
    }

    /// When the durable lease expires.
    #[must_use]
    pub fn expires(&self) -> Option<EpochMillis> {
        self.lease.as_ref().map(|(_, expires)| *expires)
    }

    /// What was taken of a limit, as adjusted.
    #[must_use]
    pub fn amount(&self, limit: &str) -> MilliTokens {
        self.amounts.get(limit).copied().unwrap_or_default()
    }

    /// Every limit of the bucket as it was right after the take.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStatus> {
        decision::status(&self.bucket, &self.limits, &Needs::new(), self.at)
    }

    /// Corrects an estimate: `tokens` of `limit` were used in truth. More than taken goes into debt if need be; less
    /// gives back. Costs nothing if the estimate was right.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `limit` was not taken, or `tokens` is negative or above 10^12. [`Error::Store`] if it
    /// could not be decided; an outcome that stays unknown without a lease is not repeated, and what was to be given
    /// back counts as used.
    pub async fn adjust(&mut self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        self.adjust_milli(limit, acquire::amount(limit, tokens, 0)?).await
    }

    /// [`adjust`](Self::adjust) to the millitoken.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn adjust_milli(&mut self, limit: &str, actual: MilliTokens) -> Result<Settlement, Error> {
        let Some((limit, &taken)) = self.amounts.get_key_value(limit) else {
            return Err(Error::Invalid(format!("limit {limit:?} was not taken by this grant: adjust one that was")));
        };
        if actual == taken {
            return Ok(Settlement::Done);
        }
        let limit = limit.clone();
        let more = actual - taken;
        let mut settled = self.give_back(&limit, -more);
        if more > MilliTokens::ZERO {
            settled.tc = more;
        }
        let change = LeaseChange::Hold(BTreeMap::from([(limit.clone(), (taken, actual))]));
        // Until it is known what became of it, a rollback gives back only what is taken either way.
        self.amounts.insert(limit.clone(), taken.min(actual));
        let done = self.settle(change, BTreeMap::from([(limit.clone(), settled)])).await;
        match &done {
            Ok(Settlement::Done) => drop(self.amounts.insert(limit, actual)),
            Ok(Settlement::Ended) => drop(self.amounts.insert(limit, taken)),
            Err(error) if !error.is_unknown() => drop(self.amounts.insert(limit, taken)),
            Err(_) => {}
        }
        done
    }

    /// Makes the durable lease last for `lasts` from now, or as long as it does already if that is longer. Without a
    /// lease there is nothing to renew.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a lease, [`Error::Store`] if it could not be decided.
    pub async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        let Some((_, until)) = self.lease else {
            return Err(Error::Invalid("this grant holds no lease: ask for one with lease()".to_owned()));
        };
        acquire::check_lease(lasts)?;
        // Never sooner: the bucket's `due` is a lower bound of every expiry.
        let expires = self.inner.clock.now().after(lasts.into()).max(until);
        let done = self.settle(LeaseChange::Renew(expires), BTreeMap::new()).await?;
        if let (Settlement::Done, Some((_, until))) = (done, &mut self.lease) {
            *until = expires;
        }
        Ok(done)
    }

    /// Ends the grant: its slots go back, its rate tokens were used. Without a lease there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Store`] if it could not be decided; the lease then expires by itself.
    pub async fn release(mut self) -> Result<Settlement, Error> {
        let done = if self.lease.is_none() { Ok(Settlement::Done) } else { self.end(Self::is_concurrent).await };
        // Only now: whoever gives up waiting for the answer has not released anything yet.
        self.is_settled = true;
        done
    }

    /// Ends the grant as if it had not been: everything goes back.
    ///
    /// # Errors
    /// As [`adjust`](Self::adjust).
    pub async fn rollback(mut self) -> Result<Settlement, Error> {
        let done = self.end(|_, _| true).await;
        self.is_settled = true;
        done
    }

    /// Ends the grant and gives back the limits that go back.
    async fn end(&mut self, goes_back: fn(&Self, &LimitName) -> bool) -> Result<Settlement, Error> {
        loop {
            let back = self.amounts.iter().filter(|(limit, _)| goes_back(self, limit));
            let back = back.map(|(limit, amount)| (limit.clone(), self.give_back(limit, *amount))).collect();
            match self.settling(LeaseChange::End, back).run().await? {
                Answered::Settled(settlement) => return Ok(settlement),
                // An adjustment of unknown outcome was made after all, or was not: the lease says what is held.
                Answered::Holds(amounts) => self.amounts = amounts,
            }
        }
    }

    fn is_concurrent(&self, limit: &LimitName) -> bool {
        self.limits.iter().any(|known| known.name() == limit && known.rule().is_concurrent())
    }

    /// Giving back `amount` of a limit. A slot has counted when it was taken.
    fn give_back(&self, limit: &LimitName, amount: MilliTokens) -> Settled {
        if self.is_concurrent(limit) {
            return Settled { tk: amount, tc: MilliTokens::ZERO, ceiling: None };
        }
        let ceiling = self.bucket.limits.get(limit).map(|state| self.bucket.share(state));
        Settled { tk: amount, tc: -amount, ceiling }
    }

    async fn settle(&self, change: LeaseChange, amounts: BTreeMap<LimitName, Settled>) -> Result<Settlement, Error> {
        match self.settling(change, amounts).run().await? {
            Answered::Settled(settlement) => Ok(settlement),
            Answered::Holds(_) => Ok(Settlement::Ended),
        }
    }

    fn settling(&self, change: LeaseChange, amounts: BTreeMap<LimitName, Settled>) -> Settling<'_> {
        let lease = self.lease.as_ref().map(|(id, _)| (id, change));
        let op = WriteId::from_bits(fastrand::u64(..));
        let settle = Settle { key: &self.line.key, op, lease, amounts };
        Settling { inner: &self.inner, line: &self.line, settle, holds: &self.amounts }
    }

    /// Gives everything back in the background, where nobody is left to wait for it.
    pub(crate) fn abandon(self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = self.rollback().await {
                tracing::warn!(%error, "tokens of a caller that went away could not be given back");
            }
        });
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.is_settled || self.lease.is_none() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let grant = Self {
            inner: Arc::clone(&self.inner),
            line: Arc::clone(&self.line),
            amounts: std::mem::take(&mut self.amounts),
            limits: Arc::clone(&self.limits),
            lease: self.lease.take(),
            bucket: Arc::clone(&self.bucket),
            at: self.at,
            is_settled: true,
        };
        runtime.spawn(async move {
            if let Err(error) = grant.release().await {
                tracing::warn!(%error, "a dropped lease could not be released; it expires by itself");
            }
        });
    }
}

/// One settlement, until its outcome is known.
struct Settling<'a> {
    inner: &'a Inner,
    line: &'a Line,
    settle: Settle<'a>,
    /// What the grant's lease holds, as far as the grant knows.
    holds: &'a Needs,
}

/// What became of a settlement, to the grant itself.
enum Answered {
    Settled(Settlement),
    /// The lease holds other amounts than the grant knows of, and was not ended.
    Holds(Needs),
}

impl Settling<'_> {
    async fn run(&self) -> Result<Answered, Error> {
        let deadline = deadline(self.inner.settings.timeout);
        let mut update = self.end_what_is_held(self.settle.whole());
        let (mut failures, mut races, mut doubt) = (0, 0, None);
        loop {
            count(&self.inner.counters.writes, 1);
            match self.inner.table.update(&update, Answer::Item).await {
                Ok(Outcome::Applied(item)) => {
                    if let Some(item) = item {
                        self.line.saw(item.bucket().map_err(|error| self.unreadable(error))?);
                    }
                    self.line.given_back.notify_waiters();
                    return Ok(Answered::Settled(Settlement::Done));
                }
                Ok(Outcome::LostRace(None)) => return Ok(Answered::Settled(Settlement::Ended)),
                Ok(Outcome::LostRace(Some(item))) => {
                    let bucket = self.line.saw(item.bucket().map_err(|error| self.unreadable(error))?);
                    if let Some(answered) = self.ended(&bucket, doubt.is_some()) {
                        self.line.given_back.notify_waiters();
                        return Ok(answered);
                    }
                    count(&self.inner.counters.lost_races, 1);
                    if Instant::now() >= deadline {
                        let (bucket, after) = (self.line.key.item_key().pk, self.inner.settings.timeout);
                        return Err(Error::Timeout { bucket, after, last: doubt.map(Arc::new) });
                    }
                    // The first time the answer is all it takes; who loses more often meets a crowd.
                    races += 1;
                    if races > 1 {
                        tokio::time::sleep(backoff(races - 1)).await;
                    }
                    update = self.end_what_is_held(self.settle.cut(&bucket));
                }
                Err(error) if error.kind.is_transient() && Instant::now() < deadline => {
                    if error.kind == ErrorKind::Unknown {
                        count(&self.inner.counters.unknown, 1);
                        if self.settle.lease.is_none() {
                            return Err(self.give_up(error.into()));
                        }
                        // The lease tells, when the same write is tried again, whether it has happened.
                        doubt = Some(error);
                    } else {
                        count(&self.inner.counters.refused, 1);
                    }
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
                // What was in doubt before stays so.
                Err(error) => return Err(doubt.unwrap_or(error).into()),
            }
        }
    }

    /// Ending a lease gives back what it holds, so it must hold what the grant knows of.
    fn end_what_is_held(&self, mut update: Update) -> Update {
        if let Some((id, LeaseChange::End)) = &self.settle.lease {
            let held = self.holds.iter().map(|(limit, amount)| (limit.to_string(), Value::Int(amount.0))).collect();
            let path = Path::lease(id).then(attr::LEASE_TOKENS);
            update.conditions.push(Condition::Equals(path, Value::Map(held)));
        }
        update
    }

    /// What the bucket says of the lease, if that settles the matter.
    fn ended(&self, bucket: &Bucket, in_doubt: bool) -> Option<Answered> {
        if bucket.op.as_ref() == Some(&self.settle.op) {
            return Some(Answered::Settled(Settlement::Done));
        }
        let (id, change) = self.settle.lease.as_ref()?;
        let Some(held) = bucket.leases.as_ref().and_then(|leases| leases.get(*id)) else {
            // Gone: by the write that was in doubt if that one ends it, or before it.
            let is_done = in_doubt && *change == LeaseChange::End;
            return Some(Answered::Settled(if is_done { Settlement::Done } else { Settlement::Ended }));
        };
        let amounts = match change {
            LeaseChange::End if held.tokens != *self.holds => return Some(Answered::Holds(held.tokens.clone())),
            LeaseChange::End | LeaseChange::Renew(_) => return None,
            LeaseChange::Hold(amounts) => amounts,
        };
        let holds = |limit: &LimitName, amount: &MilliTokens| held.tokens.get(limit) == Some(amount);
        if amounts.iter().all(|(limit, (before, _))| holds(limit, before)) {
            return None;
        }
        let is_done = in_doubt && amounts.iter().all(|(limit, (_, after))| holds(limit, after));
        Some(Answered::Settled(if is_done { Settlement::Done } else { Settlement::Ended }))
    }

    /// What was to be given back counts as used: to repeat it could give back twice.
    fn give_up(&self, error: Error) -> Error {
        let given: MilliTokens = self.settle.amounts.values().map(|settled| settled.tk.max(MilliTokens::ZERO)).sum();
        count(&self.inner.counters.unknown_milli, u64::try_from(given.0).unwrap_or_default());
        error
    }

    fn unreadable(&self, error: ItemError) -> Error {
        Error::Unreadable { bucket: self.line.key.item_key().pk, error }
    }
}
