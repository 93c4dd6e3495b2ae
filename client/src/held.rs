//! What was taken of one bucket, and what happens to it: adjust, renew, release, roll back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{Bucket, EpochMillis, LimitName, MilliTokens, Shard, WriteId};

use weirgate_store::ErrorKind;

use crate::ages::Moment;
use crate::decision::{self, LimitStatus};
use crate::inner::Inner;
use crate::limits::Limits;
use crate::line::{Line, Needs};
use crate::settling::{Answered, Settling};
use crate::shards::Shards;
use crate::{Error, Settlement};

/// What was taken of one bucket.
#[derive(Debug)]
pub(crate) struct Held {
    inner: Arc<Inner>,
    shards: Arc<Shards>,
    /// Of each shard that gave some, first come first.
    parts: Vec<Part>,
    limits: Limits,
    at: EpochMillis,
    /// Acquires that its writes have counted and that are not to be: they were not granted.
    uncounted: i64,
    is_settled: bool,
}

/// What one shard gave.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) line: Arc<Line>,
    pub(crate) amounts: Needs,
    /// The shard after the take.
    pub(crate) bucket: Arc<Shard>,
    /// When it was taken, if that was ahead.
    pub(crate) ahead: Option<Moment>,
    /// The id of the durable lease in this shard, and when it expires. Either all parts have one or
    /// none.
    pub(crate) lease: Option<(WriteId, EpochMillis)>,
}

impl Part {
    /// Giving back `amount` of a rate.
    pub(crate) fn rate_back(&self, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        let ceiling = self
            .bucket
            .limits
            .get(limit)
            .map(|state| self.bucket.share(state));
        LimitDelta {
            available: amount,
            consumed: -amount,
            ceiling,
        }
    }

    /// So much of it.
    fn of(&self, amounts: Needs) -> Self {
        Self {
            amounts,
            ..self.clone()
        }
    }
}

impl Held {
    pub(crate) fn new(
        (inner, shards): (Arc<Inner>, Arc<Shards>),
        parts: Vec<Part>,
        limits: Limits,
        at: EpochMillis,
    ) -> Self {
        Self {
            inner,
            shards,
            parts,
            limits,
            at,
            uncounted: 0,
            is_settled: false,
        }
    }

    /// The durable lease: its id in the first shard, and when the first part expires.
    pub(crate) fn lease(&self) -> Option<(&WriteId, EpochMillis)> {
        let (id, _) = self.parts.first()?.lease.as_ref()?;
        let expires = self
            .parts
            .iter()
            .filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires))
            .min()?;
        Some((id, expires))
    }

    const fn has_lease(&self) -> bool {
        matches!(self.parts.as_slice(), [Part { lease: Some(_), .. }, ..])
    }

    pub(crate) fn takes(&self, limit: &str) -> bool {
        self.parts
            .iter()
            .any(|part| part.amounts.contains_key(limit))
    }

    /// What was taken of a limit, as adjusted.
    pub(crate) fn amount(&self, limit: &str) -> MilliTokens {
        self.parts
            .iter()
            .filter_map(|part| part.amounts.get(limit))
            .copied()
            .sum()
    }

    /// Every limit of the bucket as it was right after the take. Of a bucket of several shards,
    /// those that gave something; they hold a part of what the bucket does.
    pub(crate) fn limits(&self) -> Vec<LimitStatus> {
        // Of parts taken ahead from one shard, the last one saw it last.
        let is_last = |(at, part): &(usize, &Part)| {
            self.parts[at + 1..]
                .iter()
                .all(|later| !Arc::ptr_eq(&later.line, &part.line))
        };
        let seen: Vec<_> = self
            .parts
            .iter()
            .enumerate()
            .filter(is_last)
            .map(|(_, part)| part)
            .collect();
        if let [part] = seen[..] {
            return decision::status(&part.bucket, &self.limits, &Needs::new(), self.at);
        }
        let shards = seen
            .iter()
            .map(|part| part.bucket.projected(&self.limits, self.at))
            .collect();
        decision::status_of_whole(&Bucket::new(shards), &self.limits, &Needs::new(), self.at)
    }

    /// `actual` of `limit` was used in truth, which was taken.
    pub(crate) async fn adjust(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        let mut more = actual - self.amount(limit);
        if more > MilliTokens::ZERO && self.takes_ahead(limit, more) {
            return Ok(Settlement::Done);
        }
        for at in 0..self.parts.len() {
            let Some(taken) = self.parts[at].amounts.get(limit).copied() else {
                continue;
            };
            // The first gives all that is needed more; each takes back what it gave at most.
            let change = more.max(-taken);
            if change == MilliTokens::ZERO {
                continue;
            }
            if self.adjust_part(at, limit, taken + change).await? == Settlement::Ended {
                return Ok(Settlement::Ended);
            }
            more -= change;
        }
        Ok(Settlement::Done)
    }

    async fn adjust_part(
        &mut self,
        at: usize,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        let Some((limit, &taken)) = self.parts[at].amounts.get_key_value(limit) else {
            return Ok(Settlement::Done);
        };
        let limit = limit.clone();
        let more = actual - taken;
        if more < MilliTokens::ZERO && self.put_back(at, Needs::from([(limit.clone(), -more)])) {
            self.parts[at].amounts.insert(limit, actual);
            return Ok(Settlement::Done);
        }
        let mut settled = self.give_back(&self.parts[at], &limit, -more);
        if more > MilliTokens::ZERO {
            settled.consumed = more;
        }
        let change = LeaseChange::SetAmounts(BTreeMap::from([(limit.clone(), (taken, actual))]));
        // Until it is known what became of it, a rollback gives back only what is taken either way.
        self.parts[at]
            .amounts
            .insert(limit.clone(), taken.min(actual));
        let done = self
            .settle(
                &self.parts[at],
                change,
                BTreeMap::from([(limit.clone(), settled)]),
            )
            .await;
        let amounts = &mut self.parts[at].amounts;
        match &done {
            Ok(Settlement::Done) => drop(amounts.insert(limit, actual)),
            Ok(Settlement::Ended) => drop(amounts.insert(limit, taken)),
            Err(error) if !error.is_unknown() => drop(amounts.insert(limit, taken)),
            Err(_) => {}
        }
        done
    }

    /// Makes the durable lease last for `lasts` from now, if there is one.
    pub(crate) async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        let untils = self
            .parts
            .iter()
            .filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires));
        let Some(until) = untils.max() else {
            return Ok(Settlement::Done);
        };
        let planned = self.inner.plan();
        // Never sooner: a shard's `due` is a lower bound of every expiry.
        let mut expires = planned.now.plus(lasts.into()).max(until);
        let mut renewed = self.renew_until(expires).await;
        let is_skewed =
            |error: &Error| matches!(error, Error::Store(error) if error.kind == ErrorKind::Skewed);
        // The clock was off, and an answer has corrected it.
        if renewed.as_ref().is_err_and(is_skewed)
            || renewed.is_ok() && planned.was_early(&self.inner)
        {
            expires = self.inner.now().plus(lasts.into()).max(until);
            renewed = self.renew_until(expires).await;
        }
        renewed
    }

    async fn renew_until(&mut self, expires: EpochMillis) -> Result<Settlement, Error> {
        for at in 0..self.parts.len() {
            let renewed = self
                .settle(
                    &self.parts[at],
                    LeaseChange::Renew(expires),
                    BTreeMap::new(),
                )
                .await?;
            if renewed == Settlement::Ended {
                return Ok(Settlement::Ended);
            }
            if let Some((_, until)) = &mut self.parts[at].lease {
                *until = expires;
            }
        }
        Ok(Settlement::Done)
    }

    /// Its slots go back, its rate tokens were used. Without a lease there is nothing to do.
    pub(crate) async fn release(mut self) -> Result<Settlement, Error> {
        let done = if self.has_lease() {
            self.end(Self::is_concurrent).await
        } else {
            Ok(Settlement::Done)
        };
        // Only now: whoever gives up waiting for the answer has not released anything yet.
        self.is_settled = true;
        done
    }

    /// Everything goes back.
    pub(crate) async fn rollback(mut self) -> Result<Settlement, Error> {
        let done = self.end(|_, _| true).await;
        self.is_settled = true;
        done
    }

    /// The request is not granted yet: if this goes back, the `takes` acquires that its write
    /// counted are none.
    pub(crate) fn provisional(mut self, takes: i64) -> Self {
        self.uncounted = takes;
        self
    }

    /// The request is granted: a rollback gives back tokens, and the acquire stays one.
    pub(crate) fn granted(self) -> Self {
        self.provisional(0)
    }

    /// Ends the hold and gives back the limits that go back. A part that fails does not keep the
    /// others.
    async fn end(&mut self, goes_back: fn(&Self, &LimitName) -> bool) -> Result<Settlement, Error> {
        let mut ended = Ok(Settlement::Done);
        for at in 0..self.parts.len() {
            match self.end_part(at, goes_back).await {
                Ok(Settlement::Done) => {}
                other if ended.is_ok() => ended = other,
                _ => {}
            }
            // The first write has said so.
            self.uncounted = 0;
        }
        ended
    }

    async fn end_part(
        &mut self,
        at: usize,
        goes_back: fn(&Self, &LimitName) -> bool,
    ) -> Result<Settlement, Error> {
        if self.put_back(at, self.parts[at].amounts.clone()) {
            return Ok(Settlement::Done);
        }
        loop {
            let part = &self.parts[at];
            let back = part
                .amounts
                .iter()
                .filter(|(limit, _)| goes_back(self, limit));
            let back = back
                .map(|(limit, amount)| (limit.clone(), self.give_back(part, limit, *amount)))
                .collect();
            match self.settling(part, LeaseChange::End, back).run().await? {
                Answered::Settled(settlement) => return Ok(settlement),
                // An adjustment of unknown outcome was made after all, or was not: the lease says
                // what is held.
                Answered::Holds(amounts) => self.parts[at].amounts = amounts,
            }
        }
    }

    /// Takes more of a limit from what was taken ahead, if that is there.
    fn takes_ahead(&mut self, limit: &str, more: MilliTokens) -> bool {
        let Some(pool) = self.shards.pool.as_ref().filter(|_| !self.has_lease()) else {
            return false;
        };
        let name = self
            .parts
            .iter()
            .find_map(|part| part.amounts.get_key_value(limit));
        let Some((name, _)) = name else { return false };
        let parts = pool.more(&Needs::from([(name.clone(), more)]), &self.limits);
        let is_there = !parts.is_empty();
        self.parts.extend(parts);
        is_there
    }

    /// Puts back what was taken ahead and not used after all, where it can still be used by another
    /// acquire.
    fn put_back(&self, at: usize, amounts: Needs) -> bool {
        let part = &self.parts[at];
        let pool = self.shards.pool.as_ref().filter(|_| part.ahead.is_some());
        let is_back = pool.is_some_and(|pool| pool.put(part.of(amounts), &self.limits));
        if is_back {
            part.line.bucket.given_back.notify_waiters();
        }
        is_back
    }

    /// What it holds, taken ahead at this instant, or later.
    pub(crate) fn taken_ahead(mut self, at: Moment) -> Vec<Part> {
        let mut parts = std::mem::take(&mut self.parts);
        parts.iter_mut().for_each(|part| part.ahead = Some(at));
        parts
    }

    /// Both of two holds on one bucket: both have a lease, or neither has.
    pub(crate) fn and(mut self, mut other: Self) -> Self {
        self.parts.append(&mut other.parts);
        self.uncounted += other.uncounted;
        self
    }

    fn is_concurrent(&self, limit: &LimitName) -> bool {
        self.limits
            .iter()
            .any(|known| known.name() == limit && known.rule().is_concurrent())
    }

    /// Giving back `amount` of a limit. A slot has counted when it was taken.
    fn give_back(&self, part: &Part, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        if self.is_concurrent(limit) {
            return LimitDelta {
                available: amount,
                consumed: MilliTokens::ZERO,
                ceiling: None,
            };
        }
        part.rate_back(limit, amount)
    }

    async fn settle(
        &self,
        part: &Part,
        change: LeaseChange,
        amounts: BTreeMap<LimitName, LimitDelta>,
    ) -> Result<Settlement, Error> {
        match self.settling(part, change, amounts).run().await? {
            Answered::Settled(settlement) => Ok(settlement),
            Answered::Holds(_) => Ok(Settlement::Ended),
        }
    }

    fn settling<'a>(
        &'a self,
        part: &'a Part,
        change: LeaseChange,
        amounts: BTreeMap<LimitName, LimitDelta>,
    ) -> Settling<'a> {
        Settling {
            inner: &self.inner,
            shards: &self.shards,
            line: Arc::clone(&part.line),
            op: weirgate_store::random_id(),
            lease: part
                .lease
                .as_ref()
                .map(|(id, expires)| (id, *expires, change)),
            amounts,
            takes: -self.uncounted,
            holds: &part.amounts,
        }
    }

    /// Gives everything back in the background, where nobody is left to wait for it.
    pub(crate) fn abandon(self) {
        let Some(runtime) = self.inner.runtime() else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = self.rollback().await {
                tracing::warn!(%error, "tokens of a caller that went away could not be given back");
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_settled || !self.has_lease() {
            return;
        }
        let Some(runtime) = self.inner.runtime() else {
            return;
        };
        let held = Self {
            inner: Arc::clone(&self.inner),
            shards: Arc::clone(&self.shards),
            parts: std::mem::take(&mut self.parts),
            limits: self.limits.clone(),
            at: self.at,
            uncounted: self.uncounted,
            is_settled: true,
        };
        runtime.spawn(async move {
            if let Err(error) = held.release().await {
                tracing::warn!(%error, "a dropped lease could not be released; it expires by itself");
            }
        });
    }
}
