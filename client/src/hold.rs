//! Tokens taken from one bucket, and the writes that change them: adjust, renew, release, roll
//! back.

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

/// Tokens taken from one bucket.
#[derive(Debug)]
pub(crate) struct Hold {
    inner: Arc<Inner>,
    bucket: Arc<BucketState>,
    /// Parts of the shards, in the order of their takes.
    parts: Vec<HoldPart>,
    limits: Limits,
    at: EpochMillis,
    /// Acquires that the takes counted, but that are not granted yet: a rollback subtracts them.
    uncounted: i64,
    is_settled: bool,
}

/// Tokens taken from one shard.
#[derive(Debug, Clone)]
pub(crate) struct HoldPart {
    pub(crate) queue: Arc<ShardQueue>,
    pub(crate) amounts: Amounts,
    /// The shard after the take.
    pub(crate) shard: Arc<Shard>,
    /// Time of the take, if the tokens were prefetched.
    pub(crate) prefetched_at: Option<Moment>,
    /// Id of the durable lease in this shard, and its expiry. Either all parts have a lease or
    /// none.
    pub(crate) lease: Option<(WriteId, EpochMillis)>,
}

impl HoldPart {
    /// Returns the change that returns `amount` of a rate to the shard.
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

    /// Returns the same part with other amounts.
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

    /// Returns the durable lease: its id in the first shard, and the earliest expiry of a part.
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

    /// Returns the amount taken of a limit, as adjusted.
    pub(crate) fn amount(&self, limit: &str) -> MilliTokens {
        self.parts
            .iter()
            .filter_map(|part| part.amounts.get(limit))
            .copied()
            .sum()
    }

    /// Returns every limit of the bucket as it was right after the take. In a split bucket, only
    /// the shards of this hold count, with their shares.
    pub(crate) fn limits(&self) -> Vec<LimitStatus> {
        // Of prefetched parts from one shard, the last one has the newest state.
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

    /// Adjusts `limit` to the `actual` amount used.
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
            // The first part takes all that is missing; each part returns at most what it took.
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
        // Until the outcome is known, a rollback returns only the smaller amount.
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

    /// Renews the durable lease, if there is one, to expire `lasts` from now.
    pub(crate) async fn renew(&mut self, lasts: Duration) -> Result<Settlement, Error> {
        let untils = self
            .parts
            .iter()
            .filter_map(|part| part.lease.as_ref().map(|(_, expires)| *expires));
        let Some(until) = untils.max() else {
            return Ok(Settlement::Applied);
        };
        let planned = self.inner.plan_time();
        // Never earlier than before, because a shard's `due` is a lower bound of every expiry.
        let mut expires = planned.now.plus(lasts.into()).max(until);
        let mut renewed = self.renew_until(expires).await;
        let is_skewed = |error: &Error| matches!(error, Error::Store(error) if error.kind == ErrorKind::ClockSkew);
        // The clock was wrong, and a response has corrected it.
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

    /// Ends the hold: its slots return, its rate tokens stay consumed. Without a lease it writes
    /// nothing.
    pub(crate) async fn release(mut self) -> Result<Settlement, Error> {
        let done = if self.has_lease() {
            self.end(Self::is_concurrent).await
        } else {
            Ok(Settlement::Applied)
        };
        // Set after the await, so a hold dropped before the response is still released.
        self.is_settled = true;
        done
    }

    /// Ends the hold and returns all tokens.
    pub(crate) async fn roll_back(mut self) -> Result<Settlement, Error> {
        let done = self.end(|_, _| true).await;
        self.is_settled = true;
        done
    }

    /// Marks the hold as not granted yet: a rollback also subtracts the `takes` acquires that its
    /// take counted.
    pub(crate) fn provisional(mut self, takes: i64) -> Self {
        self.uncounted = takes;
        self
    }

    /// Marks the hold as granted: a rollback returns tokens, but the acquire stays counted.
    pub(crate) fn granted(self) -> Self {
        self.provisional(0)
    }

    /// Ends the hold and returns the limits for which `goes_back` is true. A failed part does not
    /// stop the others.
    async fn end(&mut self, goes_back: fn(&Self, &LimitName) -> bool) -> Result<Settlement, Error> {
        let mut ended = Ok(Settlement::Applied);
        for at in 0..self.parts.len() {
            match self.end_part(at, goes_back).await {
                Ok(Settlement::Applied) => {}
                other if ended.is_ok() => ended = other,
                _ => {}
            }
            // The first write has subtracted the acquires.
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
                // An unconfirmed adjustment was applied, or was not: the lease has the real
                // amounts.
                SettleOutcome::LeaseDiffers(amounts) => self.parts[at].amounts = amounts,
            }
        }
    }

    /// Takes more of a limit from the pool. Returns whether the pool had enough.
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

    /// Returns unused prefetched tokens to the pool, if another acquire can still use them.
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

    /// Returns the parts as prefetched at `at`.
    pub(crate) fn into_prefetched_parts(mut self, at: Moment) -> Vec<HoldPart> {
        let mut parts = std::mem::take(&mut self.parts);
        parts
            .iter_mut()
            .for_each(|part| part.prefetched_at = Some(at));
        parts
    }

    /// Merges two holds on one bucket. Either both have a lease or neither.
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

    /// Returns the change that returns `amount` of a limit. A slot stays counted as consumed.
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

    /// Rolls the hold back in a background task, because no request waits for it.
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
