//! Tokens taken from one bucket, and the writes that change them: adjust, renew, release, roll
//! back.

mod adjust;
mod token;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use weirgate_shared::{
    Ask, Bucket, ClassName, EpochMillis, Limit, LimitMode, LimitName, MilliTokens, WriteId,
};

use super::prefetch::return_in_time;
use super::state::{BucketState, BucketTarget};
use crate::queue::{HoldPart, SettleOutcome, Taken};
use crate::session::{Moment, Session};
use crate::values::{
    Amounts, BucketRequest, Error, HoldSettlement, LimitStatus, Limits, VendorReport,
    bucket_status, check_debt, effect, status, whole,
};

pub(crate) use adjust::Adjustment;
pub(crate) use token::{HoldToken, check_namespace};

/// Tokens taken from one bucket. Dropping a hold that was not claimed rolls it back, so the tokens
/// of a dropped request return; dropping a claimed one releases its lease.
#[derive(Debug)]
pub(crate) struct Hold {
    session: Arc<Session>,
    bucket: Arc<BucketState>,
    /// Parts of the shards, in the order of their takes.
    parts: Vec<HoldPart>,
    limits: Limits,
    /// Class of the caller.
    class: Option<ClassName>,
    taken_at: EpochMillis,
    /// Start of a request that queued; `None` if it did not.
    starts_at: Option<EpochMillis>,
    /// Acquires that the takes counted, but that are not granted yet: a rollback subtracts them.
    counted_acquires: i64,
    /// Acquires that the pool has counted: a rollback subtracts them there.
    pooled_acquires: i64,
    /// Whether a denial of the request is only reported.
    is_shadow: bool,
    stage: Stage,
    /// Adjustment under way, whose caller may have gone away.
    adjusting: Option<Adjusting>,
}

/// An adjustment of one part, in a task of its own: a caller that goes away leaves no doubt.
#[derive(Debug)]
struct Adjusting {
    /// Place of the part.
    at: usize,
    limit: LimitName,
    /// Amount before; `None` if the part had none of the limit.
    before: Option<MilliTokens>,
    after: MilliTokens,
    done: oneshot::Receiver<Result<SettleOutcome, Error>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// On its way to the caller.
    Unclaimed,
    /// In the caller's hands.
    Claimed,
    /// Restored from a token, which still settles it: dropping it changes nothing.
    Restored,
    /// Released or rolled back.
    Settled,
}

impl Hold {
    /// Creates an unclaimed hold.
    pub(crate) fn new(
        session: &Arc<Session>,
        bucket: &Arc<BucketState>,
        parts: Vec<HoldPart>,
        limits: Limits,
        taken_at: EpochMillis,
    ) -> Self {
        Self {
            session: Arc::clone(session),
            bucket: Arc::clone(bucket),
            parts,
            limits,
            class: None,
            taken_at,
            starts_at: None,
            counted_acquires: 0,
            pooled_acquires: 0,
            is_shadow: false,
            stage: Stage::Unclaimed,
            adjusting: None,
        }
    }

    /// Creates an unclaimed hold on what a pool gave for a request.
    pub(super) fn of_pool(
        session: &Arc<Session>,
        bucket: &Arc<BucketState>,
        parts: Vec<HoldPart>,
        request: &BucketRequest,
        now: EpochMillis,
    ) -> Self {
        let mut hold = Self::new(session, bucket, parts, request.limits.clone(), now);
        hold.class.clone_from(&request.class);
        hold
    }

    /// Notes whether a denial of the request is only reported.
    pub(crate) const fn set_shadow(&mut self, is_shadow: bool) {
        self.is_shadow = is_shadow;
    }

    /// Notes that the request queued: what was taken at once has started.
    pub(super) fn in_line(mut self) -> Self {
        self.starts_at = self.starts_at.or(Some(self.taken_at));
        self
    }

    /// Notes the acquires that the pool has counted for this hold.
    pub(super) const fn pooled(mut self, acquires: i64) -> Self {
        self.pooled_acquires = acquires;
        self
    }

    /// Creates an unclaimed hold on what several shards gave for one request.
    pub(super) fn of(
        session: &Arc<Session>,
        bucket: &Arc<BucketState>,
        request: &BucketRequest,
        taken: impl IntoIterator<Item = Taken>,
    ) -> Self {
        let limits = request.limits.clone();
        let mut hold = Self::new(session, bucket, vec![], limits, EpochMillis::default());
        hold.class.clone_from(&request.class);
        for taken in taken {
            let taken = taken.claim();
            if hold.parts.is_empty() {
                hold.taken_at = taken.taken_at;
            }
            // The part that counted the acquire is the first one, and a rollback begins there.
            let place = if taken.acquires > 0 { 0 } else { hold.parts.len() };
            hold.counted_acquires += taken.acquires;
            hold.starts_at = hold.starts_at.max(taken.starts_at);
            hold.parts.insert(place, taken.part);
        }
        hold
    }

    /// Hands the hold to the caller: its acquires stay counted, whatever happens to the tokens.
    pub(crate) fn claim(mut self) -> Self {
        self.counted_acquires = 0;
        self.pooled_acquires = 0;
        self.stage = Stage::Claimed;
        self
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

    /// Returns when a request starts that queued; `None` if it did not.
    pub(crate) const fn starts_at(&self) -> Option<EpochMillis> {
        self.starts_at
    }

    /// Tells the bucket what its vendor said. Returns when its pause ends.
    pub(crate) fn vendor_said(
        &self,
        report: VendorReport,
    ) -> impl Future<Output = Result<Option<EpochMillis>, Error>> + Send + use<> {
        let (session, bucket) = (Arc::clone(&self.session), Arc::clone(&self.bucket));
        let shard = self.parts.first().map(|part| Arc::clone(&part.state));
        let taken = self.limits_taken();
        let taken: Amounts =
            taken.map(|limit| (limit.clone(), self.amount(limit.base()))).collect();
        async move { bucket.vendor_said(&session, &report, shard, &taken).await }
    }

    pub(crate) const fn bucket(&self) -> &Arc<BucketState> {
        &self.bucket
    }

    pub(crate) const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the request for more of limits of this bucket, which counts as no acquire of its own.
    pub(crate) fn target(
        &self,
        more: &[(&str, MilliTokens)],
        lease: Option<Duration>,
    ) -> BucketTarget {
        let settings = &self.session.settings;
        let mut request = BucketRequest {
            class: self.class.clone(),
            lease: lease.map(|lasts| (lasts, Arc::clone(&settings.owner))),
            timeout: settings.timeout,
            acquires: 0,
            ..BucketRequest::of(self.limits.clone())
        };
        for (limit, amount) in more {
            let Some(known) = self.brought(limit) else {
                continue;
            };
            // A restored hold has the pools that it was taken from, without their classes.
            let pool = self.pools(limit).next().unwrap_or(known.name());
            let ask = Ask {
                limit: pool.clone(),
                amount: *amount,
                most: *amount,
                effect: effect(known.mode(), self.is_bypass(), false),
                floor: MilliTokens::ZERO,
            };
            request.add(known, ask);
        }
        BucketTarget {
            bucket: Arc::clone(&self.bucket),
            request,
            is_shadow: settings.is_shadow || self.is_shadow,
            request_at: 0,
        }
    }

    pub(crate) const fn part_count(&self) -> usize {
        self.parts.len()
    }

    pub(crate) const fn has_lease(&self) -> bool {
        matches!(self.parts.as_slice(), [HoldPart { lease: Some(_), .. }, ..])
    }

    /// Returns whether the request bypassed the limits. All parts are then of this kind.
    fn is_bypass(&self) -> bool {
        self.parts.first().is_some_and(|part| part.is_bypass)
    }

    pub(crate) fn has(&self, limit: &str) -> bool {
        self.pools(limit).next().is_some()
    }

    /// Iterates over the pools of a limit from which its parts are.
    fn pools(&self, limit: &str) -> impl Iterator<Item = &LimitName> {
        let taken = self.limits_taken();
        taken.filter(move |pool| pool.base() == limit)
    }

    /// Iterates over the limits that were taken; one may come several times.
    pub(crate) fn limits_taken(&self) -> impl Iterator<Item = &LimitName> {
        self.parts.iter().flat_map(|part| part.amounts.keys())
    }

    /// Returns whether the limit is among those that the request brought. An item has others too:
    /// it keeps every limit that it ever had.
    pub(crate) fn brings(&self, limit: &str) -> bool {
        self.limits.iter().any(|known| known.name().as_str() == limit)
    }

    /// Returns a limit that the request brought.
    fn brought(&self, limit: &str) -> Option<&Limit> {
        let mut named = self.limits.named().iter();
        named.find(|known| known.name().as_str() == limit)
    }

    /// Requires that the hold can have so much of a limit: of more than it has, only what may go into
    /// debt.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is more.
    pub(crate) fn check_adjust(&self, limit: &str, actual: MilliTokens) -> Result<(), Error> {
        if self.is_bypass() || actual <= self.amount(limit) {
            return Ok(());
        }
        let mut shards = self.parts.iter().map(|part| &part.shard.limits);
        let pool = match self.has(limit) {
            true => limit.to_owned(),
            false => self.first_pool(limit),
        };
        match shards.find_map(|limits| limits.get_key_value(&*pool)) {
            Some((name, state)) => check_debt(name, &state.rule, actual),
            None => Ok(()),
        }
    }

    /// Returns the pool from which an adjustment takes of a limit that was not taken: as what goes into debt,
    /// the first one of the caller's class.
    fn first_pool(&self, limit: &str) -> String {
        let (known, class) = (self.brought(limit), self.class.as_ref());
        let choices = known.and_then(|known| known.choices(class).or_else(|| known.choices(None)));
        let first = choices.and_then(|choices| choices.into_iter().next());
        first.map_or_else(|| limit.to_owned(), |choice| choice.pool.to_string())
    }

    /// Returns whether the hold's first shard has a limit.
    pub(crate) fn knows(&self, limit: &str) -> bool {
        let first = self.parts.first();
        first.is_some_and(|part| part.shard.limits.contains_key(limit))
    }

    /// Returns whether an adjustment can take a limit that the hold has not taken: one of its first
    /// shard. Slots need a lease, or they would never return, unless they are only counted.
    pub(crate) fn could_take(&self, limit: &str) -> bool {
        let first = self.parts.first();
        let known = first.and_then(|part| part.shard.limits.get(limit));
        let can_hold = self.has_lease() || self.is_bypass();
        known.is_some_and(|state| !state.rule.kind().is_held() || can_hold)
    }

    /// Returns whether an adjustment of a limit changes the hold. `is_taken` is whether any hold of the
    /// grant has taken it.
    pub(crate) fn is_meant(&self, limit: &str, is_taken: bool) -> bool {
        match is_taken {
            true => self.has(limit),
            false => self.could_take(limit),
        }
    }

    /// Returns whether the hold is of a limit that can deny.
    pub(crate) fn enforces(&self, limit: &str) -> bool {
        let known = self.brought(limit);
        let is_enforced = known.is_some_and(|known| known.mode() == LimitMode::Enforced);
        is_enforced && !self.is_shadow && !self.is_bypass() && self.has(limit)
    }

    /// Iterates over the names of the request's limits.
    pub(crate) fn limit_names(&self) -> impl Iterator<Item = &LimitName> {
        self.limits.named().iter().map(Limit::name)
    }

    /// Returns the amount taken of a limit, as adjusted.
    pub(crate) fn amount(&self, limit: &str) -> MilliTokens {
        let taken = self.parts.iter().flat_map(|part| &part.amounts);
        let of_limit = taken.filter(|(pool, _)| pool.base() == limit);
        of_limit.map(|(_, amount)| *amount).sum()
    }

    /// Returns every limit of the bucket as it was right after the take. In a split bucket, only
    /// the shards of this hold count, with their shares. A restored hold does not know them.
    pub(crate) fn limits(&self) -> Vec<LimitStatus> {
        let limits = whole(self.statuses());
        match self.is_shadow {
            true => limits.into_iter().map(LimitStatus::report_only).collect(),
            false => limits,
        }
    }

    fn statuses(&self) -> Vec<LimitStatus> {
        if self.stage == Stage::Restored {
            return vec![];
        }
        // Of prefetched parts from one shard, the last one has the newest state.
        let is_last = |(at, part): &(usize, &HoldPart)| {
            self.parts[at + 1..].iter().all(|later| !Arc::ptr_eq(&later.state, &part.state))
        };
        let seen: Vec<_> =
            self.parts.iter().enumerate().filter(is_last).map(|(_, part)| part).collect();
        if let [part] = seen[..] {
            return status(&part.shard, &self.limits, |_| None, self.taken_at);
        }
        let shards =
            seen.iter().map(|part| part.shard.projected(&self.limits, self.taken_at)).collect();
        bucket_status(&Bucket::new(shards), &self.limits, |_| None, self.taken_at)
    }

    /// Takes more of a limit from the pool. Returns whether the pool had enough.
    fn take_from_pool(&mut self, limit: &str, more: MilliTokens) -> bool {
        let is_served = !self.has_lease() && !self.is_bypass();
        let Some(pool) = self.bucket.pool.as_ref().filter(|_| is_served) else {
            return false;
        };
        let name = self.parts.iter().find_map(|part| part.amounts.get_key_value(limit));
        let Some((name, _)) = name else { return false };
        let parts = pool.take_extra(&Amounts::from([(name.clone(), more)]), &self.limits);
        let is_there = !parts.is_empty();
        self.parts.extend(parts);
        is_there
    }

    /// Returns unused prefetched tokens to the pool, if another acquire can still use them.
    fn return_to_pool(&self, at: usize, amounts: Amounts) -> bool {
        let part = &self.parts[at];
        let pool = self.bucket.pool.as_ref().filter(|_| part.prefetched_at.is_some());
        let is_back =
            pool.is_some_and(|pool| pool.put_back(part.with_amounts(amounts), &self.limits));
        if is_back {
            return_in_time(&self.session, &self.bucket);
            part.state.summary.tokens_returned.notify_waiters();
        }
        is_back
    }

    /// Returns the parts as prefetched at `at`.
    pub(crate) fn into_prefetched_parts(mut self, at: Moment) -> Vec<HoldPart> {
        let mut parts = std::mem::take(&mut self.parts);
        parts.iter_mut().for_each(|part| part.prefetched_at = Some(at));
        parts
    }

    /// Merges two holds on one bucket. Either both have a lease or neither.
    pub(crate) fn merge(mut self, mut other: Self) -> Self {
        self.parts.append(&mut other.parts);
        self.counted_acquires += other.counted_acquires;
        self
    }
}

/// How a hold ends: by a release, a rollback, or because it is dropped.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Slots return, rate tokens stay consumed, as these limits were adjusted.
    Release(Vec<(String, Adjustment)>),
    /// All tokens return.
    RollBack,
}

impl Hold {
    /// Ends the hold. An end under a lease is one write for each part, which is repeatable: the lease is
    /// there, or it was settled. Without a lease, a release writes only what it adjusts.
    ///
    /// A hold that is dropped meanwhile is not ended otherwise, so this runs in a task of its own.
    pub(crate) async fn end(mut self, ending: Ending) -> Result<HoldSettlement, Error> {
        self.stage = Stage::Settled;
        let _ = self.end_adjusting().await;
        if let Ending::Release(changes) = &ending
            && !self.has_lease()
        {
            for (at, (limit, adjustment)) in changes.iter().enumerate() {
                let adjusted = self.adjust(limit, *adjustment).await;
                adjusted.map_err(|error| error.halfway(at > 0))?;
            }
            return Ok(HoldSettlement::Applied);
        }
        let pooled = std::mem::take(&mut self.pooled_acquires);
        if let Some(pool) = self.bucket.pool.as_ref().filter(|_| pooled != 0) {
            pool.add_unreported(-pooled);
        }
        if self.parts.len() == 1 {
            return HoldSettlement::all(self.end_parts(&ending).await);
        }
        let _ = self.end_doubts().await;
        let holds = match &ending {
            // What one part has decides what the others return.
            Ending::Release(changes) if !changes.is_empty() => vec![self],
            Ending::Release(_) | Ending::RollBack => self.by_shard(),
        };
        let ends = holds.into_iter().map(|hold| hold.end_parts(&ending));
        HoldSettlement::all(join_all(ends).await.into_iter().flatten())
    }

    /// Splits an ending hold by shards. The parts of one shard end one after the other, because only its last
    /// write shows in it.
    fn by_shard(mut self) -> Vec<Self> {
        let mut holds = Vec::<Self>::new();
        for part in std::mem::take(&mut self.parts) {
            let shard = part.state.key.shard;
            match holds.iter_mut().find(|hold| hold.parts[0].state.key.shard == shard) {
                Some(hold) => hold.parts.push(part),
                None => {
                    let (limits, parts) = (self.limits.clone(), vec![part]);
                    let mut hold =
                        Self::new(&self.session, &self.bucket, parts, limits, self.taken_at);
                    hold.counted_acquires = std::mem::take(&mut self.counted_acquires);
                    hold.stage = Stage::Settled;
                    holds.push(hold);
                }
            }
        }
        holds
    }

    /// Ends the parts one after the other. None stops the others.
    async fn end_parts(mut self, ending: &Ending) -> Vec<Result<HoldSettlement, Error>> {
        let mut ended = vec![];
        for at in 0..self.parts.len() {
            // The first write subtracts the acquires.
            let acquires = -std::mem::take(&mut self.counted_acquires);
            ended.push(self.end_part(at, ending, acquires).await);
        }
        ended
    }

    /// Ends a part by the amounts that its lease has.
    async fn end_part(
        &mut self,
        at: usize,
        ending: &Ending,
        acquires: i64,
    ) -> Result<HoldSettlement, Error> {
        if self.return_to_pool(at, self.parts[at].amounts.clone()) {
            return Ok(HoldSettlement::Applied);
        }
        let mut settled = HoldSettlement::Applied;
        loop {
            let used = match ending {
                Ending::Release(changes) => Some(self.used(at, changes)),
                Ending::RollBack => None,
            };
            let part = &mut self.parts[at];
            let ended = match part.end(&self.session, &self.limits, used.as_ref(), acquires).await {
                Ok(SettleOutcome::LeaseDiffers(lease)) => {
                    if !part.record_lease(lease) {
                        settled = HoldSettlement::Outdated;
                    }
                    continue;
                }
                Ok(SettleOutcome::Done(done)) => Ok(settled.max(done.into())),
                Err(error) => Err(error),
            };
            // Also if it failed: the others take nothing in its place, or a repeated end counts that twice.
            part.amounts.extend(used.into_iter().flatten());
            return ended;
        }
    }

    /// Returns what a part has after adjustments, of the limits that they change in it. Those before it have
    /// ended.
    fn used(&self, at: usize, changes: &[(String, Adjustment)]) -> Amounts {
        let adjusted = changes
            .iter()
            .flat_map(|(limit, adjustment)| self.adjusted_parts(limit, *adjustment, at));
        let of_part = adjusted.filter(|(place, ..)| *place == at);
        of_part.map(|(_, pool, amount)| (pool, amount)).collect()
    }

    /// Makes a drop roll the hold back, unless its token still settles it.
    pub(crate) fn unclaim(mut self) -> Self {
        if self.stage == Stage::Claimed {
            self.stage = Stage::Unclaimed;
        }
        self
    }

    /// Returns all tokens, in a task that begins at once.
    pub(crate) fn roll_back(self) -> impl Future<Output = Result<HoldSettlement, Error>> {
        let session = Arc::clone(&self.session);
        session.in_task(self.end(Ending::RollBack))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (ending, lost) = match std::mem::replace(&mut self.stage, Stage::Settled) {
            Stage::Unclaimed if !self.parts.is_empty() => {
                (Ending::RollBack, "tokens of a dropped request could not be returned")
            }
            Stage::Claimed if self.has_lease() => (
                Ending::Release(vec![]),
                "a dropped lease could not be released; it expires by itself",
            ),
            _ => return,
        };
        let (session, nothing) = (Arc::clone(&self.session), Limits::default());
        let mut settled = Self::new(&session, &self.bucket, vec![], nothing, self.taken_at);
        settled.stage = Stage::Settled;
        let hold = std::mem::replace(self, settled);
        session.spawn(async move {
            if let Err(error) = hold.end(ending).await {
                tracing::warn!(%error, "{lost}");
            }
        });
    }
}
