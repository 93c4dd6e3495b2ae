//! What was taken of one bucket, and what happens to it: adjust, renew, release, roll back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::write::{LeaseChange, LimitDelta};
use weirgate_shared::{Bucket, EpochMillis, LimitName, MilliTokens, Shard, WriteId};

use weirgate_store::ErrorKind;

use crate::ages::Moment;
use crate::bucket::BucketState;
use crate::decision::{self, LimitStatus};
use crate::inner::Inner;
use crate::limits::Limits;
use crate::queue::{Amounts, ShardQueue};
use crate::settle::{SettleAttempt, SettleOutcome};
use crate::{Error, Settlement};

/// What was taken of one bucket.
#[derive(Debug)]
pub(crate) struct Hold {
    inner: Arc<Inner>,
    bucket: Arc<BucketState>,
    /// Of each shard that gave some, first come first.
    parts: Vec<HoldPart>,
    limits: Limits,
    at: EpochMillis,
    /// Acquires that its writes have counted and that are not to be: they were not granted.
    uncounted: i64,
    is_settled: bool,
}

/// What one shard gave.
#[derive(Debug, Clone)]
pub(crate) struct HoldPart {
    pub(crate) queue: Arc<ShardQueue>,
    pub(crate) amounts: Amounts,
    /// The shard after the take.
    pub(crate) shard: Arc<Shard>,
    /// When it was taken, if that was ahead.
    pub(crate) prefetched_at: Option<Moment>,
    /// The id of the durable lease in this shard, and when it expires. Either all parts have one or
    /// none.
    pub(crate) lease: Option<(WriteId, EpochMillis)>,
}

impl HoldPart {
    /// Giving back `amount` of a rate.
    pub(crate) fn rate_return(&self, limit: &LimitName, amount: MilliTokens) -> LimitDelta {
        let ceiling = self
            .shard
            .limits
            .get(limit)
            .map(|state| self.shard.share(state));
        LimitDelta {
            available: amount,
            consumed: -amount,
            ceiling,
        }
    }

    /// So much of it.
    fn with_amounts(&self, amounts: Amounts) -> Self {
        Self {
            amounts,
            ..self.clone()
        }
    }
}

impl Hold {
    pub(crate) fn new(
        (inner, bucket): (Arc<Inner>, Arc<BucketState>),
        parts: Vec<HoldPart>,
        limits: Limits,
        at: EpochMillis,
    ) -> Self {
        Self {
            inner,
            bucket,
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
        matches!(self.parts.as_slice(), [HoldPart { lease: Some(_), .. }, ..])
    }

    pub(crate) fn has(&self, limit: &str) -> bool {
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
        let is_last = |(at, part): &(usize, &HoldPart)| {
            self.parts[at + 1..]
                .iter()
                .all(|later| !Arc::ptr_eq(&later.queue, &part.queue))
        };
        let seen: Vec<_> = self
            .parts
            .iter()
            .enumerate()
            .filter(is_last)
            .map(|(_, part)| part)
            .collect();
        if let [part] = seen[..] {
            return decision::status(&part.shard, &self.limits, &Amounts::new(), self.at);
        }
        let shards = seen
            .iter()
            .map(|part| part.shard.projected(&self.limits, self.at))
            .collect();
        decision::bucket_status(&Bucket::new(shards), &self.limits, &Amounts::new(), self.at)
    }

    /// `actual` of `limit` was used in truth, which was taken.
    pub(crate) async fn adjust(
        &mut self,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        let mut more = actual - self.amount(limit);
        if more > MilliTokens::ZERO && self.take_from_pool(limit, more) {
            return Ok(Settlement::Applied);
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
            if self.adjust_part(at, limit, taken + change).await? == Settlement::LeaseGone {
                return Ok(Settlement::LeaseGone);
            }
            more -= change;
        }
        Ok(Settlement::Applied)
    }

    async fn adjust_part(
        &mut self,
        at: usize,
        limit: &str,
        actual: MilliTokens,
    ) -> Result<Settlement, Error> {
        let Some((limit, &taken)) = self.parts[at].amounts.get_key_value(limit) else {
            return Ok(Settlement::Applied);
        };
        let limit = limit.clone();
        let more = actual - taken;
        if more < MilliTokens::ZERO
            && self.return_to_pool(at, Amounts::from([(limit.clone(), -more)]))
        {
            self.parts[at].amounts.insert(limit, actual);
            return Ok(Settlement::Applied);
        }
        let mut settled = self.returned_delta(&self.parts[at], &limit, -more);
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
            Ok(Settlement::Applied) => drop(amounts.insert(limit, actual)),
            Ok(Settlement::LeaseGone) => drop(amounts.insert(limit, taken)),
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
            return Ok(Settlement::Applied);
        };
        let planned = self.inner.plan_time();
        // Never sooner: a shard's `due` is a lower bound of every expiry.
        let mut expires = planned.now.plus(lasts.into()).max(until);
        let mut renewed = self.renew_until(expires).await;
        let is_skewed = |error: &Error| matches!(error, Error::Store(error) if error.kind == ErrorKind::ClockSkew);
        // The clock was off, and an answer has corrected it.
        if renewed.as_ref().is_err_and(is_skewed)
            || renewed.is_ok() && planned.clock_was_slow(&self.inner)
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
            if renewed == Settlement::LeaseGone {
                return Ok(Settlement::LeaseGone);
            }
            if let Some((_, until)) = &mut self.parts[at].lease {
                *until = expires;
            }
        }
        Ok(Settlement::Applied)
    }

    /// Its slots go back, its rate tokens were used. Without a lease there is nothing to do.
    pub(crate) async fn release(mut self) -> Result<Settlement, Error> {
        let done = if self.has_lease() {
            self.end(Self::is_concurrent).await
        } else {
            Ok(Settlement::Applied)
        };
        // Only now: whoever gives up waiting for the answer has not released anything yet.
        self.is_settled = true;
        done
    }

    /// Everything goes back.
    pub(crate) async fn roll_back(mut self) -> Result<Settlement, Error> {
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
        let mut ended = Ok(Settlement::Applied);
        for at in 0..self.parts.len() {
            match self.end_part(at, goes_back).await {
                Ok(Settlement::Applied) => {}
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
        if self.return_to_pool(at, self.parts[at].amounts.clone()) {
            return Ok(Settlement::Applied);
        }
        loop {
            let part = &self.parts[at];
            let back = part
                .amounts
                .iter()
                .filter(|(limit, _)| goes_back(self, limit));
            let back = back
                .map(|(limit, amount)| (limit.clone(), self.returned_delta(part, limit, *amount)))
                .collect();
            match self.settling(part, LeaseChange::End, back).run().await? {
                SettleOutcome::Done(settlement) => return Ok(settlement),
                // An adjustment of unknown outcome was made after all, or was not: the lease says
                // what is held.
                SettleOutcome::LeaseDiffers(amounts) => self.parts[at].amounts = amounts,
            }
        }
    }

    /// Takes more of a limit from what was taken ahead, if that is there.
    fn take_from_pool(&mut self, limit: &str, more: MilliTokens) -> bool {
        let Some(pool) = self.bucket.pool.as_ref().filter(|_| !self.has_lease()) else {
            return false;
        };
        let name = self
            .parts
            .iter()
            .find_map(|part| part.amounts.get_key_value(limit));
        let Some((name, _)) = name else { return false };
        let parts = pool.take_extra(&Amounts::from([(name.clone(), more)]), &self.limits);
        let is_there = !parts.is_empty();
        self.parts.extend(parts);
        is_there
    }

    /// Puts back what was taken ahead and not used after all, where it can still be used by another
    /// acquire.
    fn return_to_pool(&self, at: usize, amounts: Amounts) -> bool {
        let part = &self.parts[at];
        let pool = self
            .bucket
            .pool
            .as_ref()
            .filter(|_| part.prefetched_at.is_some());
        let is_back =
            pool.is_some_and(|pool| pool.put_back(part.with_amounts(amounts), &self.limits));
        if is_back {
            part.queue.summary.tokens_returned.notify_waiters();
        }
        is_back
    }

    /// What it holds, taken ahead at this instant, or later.
    pub(crate) fn into_prefetched_parts(mut self, at: Moment) -> Vec<HoldPart> {
        let mut parts = std::mem::take(&mut self.parts);
        parts
            .iter_mut()
            .for_each(|part| part.prefetched_at = Some(at));
        parts
    }

    /// Both of two holds on one bucket: both have a lease, or neither has.
    pub(crate) fn merge(mut self, mut other: Self) -> Self {
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
    fn returned_delta(
        &self,
        part: &HoldPart,
        limit: &LimitName,
        amount: MilliTokens,
    ) -> LimitDelta {
        if self.is_concurrent(limit) {
            return LimitDelta {
                available: amount,
                consumed: MilliTokens::ZERO,
                ceiling: None,
            };
        }
        part.rate_return(limit, amount)
    }

    async fn settle(
        &self,
        part: &HoldPart,
        change: LeaseChange,
        amounts: BTreeMap<LimitName, LimitDelta>,
    ) -> Result<Settlement, Error> {
        match self.settling(part, change, amounts).run().await? {
            SettleOutcome::Done(settlement) => Ok(settlement),
            SettleOutcome::LeaseDiffers(_) => Ok(Settlement::LeaseGone),
        }
    }

    fn settling<'a>(
        &'a self,
        part: &'a HoldPart,
        change: LeaseChange,
        amounts: BTreeMap<LimitName, LimitDelta>,
    ) -> SettleAttempt<'a> {
        SettleAttempt {
            inner: &self.inner,
            bucket: &self.bucket,
            queue: Arc::clone(&part.queue),
            write_id: weirgate_store::random_id(),
            lease: part
                .lease
                .as_ref()
                .map(|(id, expires)| (id, *expires, change)),
            amounts,
            acquires: -self.uncounted,
            held_amounts: &part.amounts,
        }
    }

    /// Gives everything back in the background, where nobody is left to wait for it.
    pub(crate) fn roll_back_in_background(self) {
        let Some(runtime) = self.inner.runtime() else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = self.roll_back().await {
                tracing::warn!(%error, "tokens of a caller that went away could not be given back");
            }
        });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_settled || !self.has_lease() {
            return;
        }
        let Some(runtime) = self.inner.runtime() else {
            return;
        };
        let hold = Self {
            inner: Arc::clone(&self.inner),
            bucket: Arc::clone(&self.bucket),
            parts: std::mem::take(&mut self.parts),
            limits: self.limits.clone(),
            at: self.at,
            uncounted: self.uncounted,
            is_settled: true,
        };
        runtime.spawn(async move {
            if let Err(error) = hold.release().await {
                tracing::warn!(%error, "a dropped lease could not be released; it expires by itself");
            }
        });
    }
}
