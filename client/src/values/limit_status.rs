//! Status of the limits of a bucket.

use std::time::Duration;

use weirgate_shared::{
    Bucket, BucketKey, EntityId, EpochMillis, Limit, LimitKind, LimitMode, LimitName, LimitState,
    MilliTokens, Millis, RefillRule, Resource, Shard, WindowCode, ready_at as ready_by_refill,
};

use super::calendar;
use super::limits::Limits;
use super::request::BucketRequest;

/// One limit of a bucket, by the last response and the refill since then.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimitStatus {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: Resource,
    /// Name of the limit.
    pub limit: String,
    /// Mode of the limit in this request: shadow wherever a denial would only be reported.
    pub mode: LimitMode,
    /// Capacity.
    #[cfg_attr(feature = "serde", serde(rename = "capacity_tokens"))]
    pub capacity: MilliTokens,
    /// Refill per `refill_period`; zero for slots and quotas.
    #[cfg_attr(feature = "serde", serde(rename = "refill_tokens"))]
    pub refill_amount: MilliTokens,
    /// Refill period; zero for quotas.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "refill_period_ms", with = "crate::values::json::ms")
    )]
    pub refill_period: Duration,
    /// Balance; negative in debt. In the denial of a request that
    /// [queues](crate::Acquire::queue_up_to), with the refill that comes within its wait.
    #[cfg_attr(feature = "serde", serde(rename = "available_tokens"))]
    pub available: MilliTokens,
    /// Amount requested.
    #[cfg_attr(feature = "serde", serde(rename = "requested_tokens"))]
    pub requested: MilliTokens,
    /// Whether the request takes this limit, even if the amount is 0.
    pub is_requested: bool,
    /// Time until `requested` is available: zero if it is now; `None` if time alone does not help.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "retry_after_ms", with = "crate::values::json::optional_ms")
    )]
    pub retry_after: Option<Duration>,
    /// Time until the bucket's pause ends; `None` without one. A paused bucket grants nothing.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "paused_ms",
            default,
            skip_serializing_if = "Option::is_none",
            with = "crate::values::json::optional_ms"
        )
    )]
    pub paused_for: Option<Duration>,
    /// Window of a quota; `None` for other limits.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub window: Option<WindowCode>,
    /// End of the quota's window, at which the next one begins full. `None` for other limits, for a
    /// session that has not begun, and for a window that this process does not know.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "resets_at_ms", default, skip_serializing_if = "Option::is_none")
    )]
    pub window_end: Option<EpochMillis>,
    /// Time until `window_end`.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "resets_in_ms",
            default,
            skip_serializing_if = "Option::is_none",
            with = "crate::values::json::optional_ms"
        )
    )]
    pub resets_in: Option<Duration>,
}

impl LimitStatus {
    /// Returns whether the limit has too little for the request, or its bucket is paused. A soft limit,
    /// or one that is not requested, is never short.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let lacks = self.requested > self.available || self.paused_for.is_some();
        self.is_requested && lacks && self.mode != LimitMode::Soft
    }

    /// Returns whether a caller may return what the limit lacks at any time: it counts slots, and is not
    /// paused.
    pub(crate) fn may_return(&self) -> bool {
        self.kind().is_held() && self.paused_for.is_none()
    }

    /// Returns the kind of the limit. One with neither capacity nor refill is a rate that admits
    /// nothing.
    #[must_use]
    pub const fn kind(&self) -> LimitKind {
        match (self.window, self.refill_amount.0, self.capacity.0) {
            (Some(_), ..) => LimitKind::Quota,
            (None, 0, 1..) => LimitKind::Slots,
            (None, ..) => LimitKind::Rate,
        }
    }

    /// Returns the length of the quota's window, from its start to its end; `None` for other limits,
    /// and for a window that this process does not know.
    #[must_use]
    pub fn window_length(&self) -> Option<Duration> {
        calendar::length(self.window?, self.window_end).map(Duration::from)
    }

    /// Returns the status with the end of its window: the one that the bucket has, or the one on the
    /// calendar at `now`.
    fn in_window(self, known: EpochMillis, now: EpochMillis) -> Self {
        let Some(code) = self.window else {
            return self;
        };
        let on_calendar = || calendar::end_after(code, now).filter(|_| code.session().is_none());
        let end = Some(known).filter(|end| *end > now).or_else(on_calendar);
        Self { window_end: end, resets_in: end.map(|end| end.since(now).into()), ..self }
    }

    /// Returns the status in a bucket that is paused until then: nothing is available before.
    fn paused(self, until: Option<EpochMillis>, now: EpochMillis) -> Self {
        let paused_for = until.map(|until| Duration::from(until.since(now)));
        Self {
            retry_after: self.retry_after.map(|after| after.max(paused_for.unwrap_or_default())),
            paused_for,
            ..self
        }
    }

    /// Returns the status as one of a request whose denial is only reported.
    pub(crate) fn report_only(self) -> Self {
        Self { mode: LimitMode::Shadow, ..self }
    }
}

/// Returns the limit with the smallest part of its capacity left.
pub(crate) fn most_restrictive(limits: &[LimitStatus]) -> Option<&LimitStatus> {
    let left = |status: &&LimitStatus| {
        i128::from(status.available.0) * 1_000_000 / i128::from(status.capacity.0.max(1))
    };
    limits.iter().min_by_key(left)
}

/// Returns the status of every limit of a shard at `now`, for the amounts that the request
/// `need`s.
pub(crate) fn status(
    shard: &Shard,
    limits: &Limits,
    need: impl Fn(&LimitName) -> Option<MilliTokens>,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    status_of(&shard.projected(limits, now), limits, need, now)
}

/// Returns the status of every limit of a shard as it is at `now`.
fn status_of(
    shard: &Shard,
    limits: &Limits,
    need: impl Fn(&LimitName) -> Option<MilliTokens>,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let status = |(name, state): (&LimitName, &LimitState)| {
        let amount = need(name);
        let requested = amount.unwrap_or_default();
        let retry_after = if requested <= state.available {
            Some(Duration::ZERO)
        } else {
            shard.ready_at(name, requested).map(|at| at.since(now).into())
        };
        limit_status(&shard.key, limits, name, &state.rule, (state.available, amount, retry_after))
            .in_window(state.window_end, now)
            .paused(shard.paused_until(now), now)
    };
    shard.limits.iter().map(status).collect()
}

/// Returns the status of every limit of a shard at `now` for a request. If it queues, it starts by
/// `start_by`, so refill until then is available; the second value is the time until it starts.
pub(crate) fn status_for(
    shard: &Shard,
    request: &BucketRequest,
    start_by: Option<EpochMillis>,
    now: EpochMillis,
) -> (Vec<LimitStatus>, Option<Duration>) {
    let need = |name: &LimitName| request.asks.enforced(name.as_str());
    let next = request.above_floors(shard.projected(&request.limits, now));
    let mut all = with_floors(request, status_of(&next, &request.limits, need, now));
    let Some(start_by) = start_by else {
        return (all, None);
    };
    let mut starts_in = Some(Duration::ZERO);
    for status in &mut all {
        if let Some((name, state)) = next.limits.get_key_value(status.limit.as_str())
            && request.queues_for(name, shard)
        {
            let ahead = request.refill_ahead((shard, &next), name, start_by);
            let (rf, of) = (next.refilled_at, next.shard());
            let repaid = |need| ready_by_refill(need, state.available, &state.rule, of, rf);
            let (start, room) = (repaid(status.requested), next.share(state));
            let short_enough = repaid(status.requested - room);
            let late = start.map(|start| start.since(start_by));
            status.retry_after = late.zip(short_enough).map(|(late, short_enough)| {
                let by_line = Duration::from(late).max(short_enough.since(now).into());
                by_line.max(status.paused_for.unwrap_or_default())
            });
            status.available += ahead;
            let wait = start.map(|start| Duration::from(start.since(now)));
            starts_in = starts_in.zip(wait).map(|(one, other)| one.max(other));
        } else if status.is_short() && status.mode == LimitMode::Enforced {
            starts_in = starts_in.zip(status.retry_after).map(|(one, other)| one.max(other));
        }
    }
    (all, starts_in)
}

/// Returns the statuses of shards without what the request must leave there, with the capacities that
/// they have with it.
pub(crate) fn with_floors(
    request: &BucketRequest,
    mut limits: Vec<LimitStatus>,
) -> Vec<LimitStatus> {
    for ask in request.asks.debits().filter(|ask| ask.floor > MilliTokens::ZERO) {
        let mut limits = limits.iter_mut();
        if let Some(status) = limits.find(|status| status.limit == ask.limit.as_str()) {
            status.capacity += ask.floor;
            // What must stay is no debt.
            let left = (status.available + ask.floor).min(MilliTokens::ZERO);
            status.available = status.available.max(left);
        }
    }
    limits
}

/// Returns one status for each limit: that of its pools together. Of one that is requested, the amounts
/// and waits are those of the pool that the request takes from.
pub(crate) fn whole(limits: Vec<LimitStatus>) -> Vec<LimitStatus> {
    // Almost always.
    if !limits.iter().any(|status| status.limit.contains('@')) {
        return limits;
    }
    let (pools, mut whole): (Vec<_>, Vec<_>) =
        limits.into_iter().partition(|status| status.limit.contains('@'));
    // Without a capacity it is that of a class that is gone.
    let pools = pools.into_iter();
    for mut pool in pools.filter(|pool| pool.capacity > MilliTokens::ZERO) {
        pool.limit.truncate(pool.limit.find('@').unwrap_or_default());
        let same = whole.iter_mut().find(|known| {
            let bucket = (&known.entity, &known.resource);
            known.limit == pool.limit && bucket == (&pool.entity, &pool.resource)
        });
        let Some(known) = same else {
            whole.push(pool);
            continue;
        };
        let sums = [
            known.capacity + pool.capacity,
            known.refill_amount + pool.refill_amount,
            known.available + pool.available,
        ];
        let available = match (known.is_requested, pool.is_requested) {
            (false, false) => sums[2],
            (_, false) => known.available,
            (_, true) => {
                *known = pool;
                known.available
            }
        };
        (known.capacity, known.refill_amount, known.available) = (sums[0], sums[1], available);
    }
    whole
}

/// Returns the status of every limit at `now`, over all shards. They already have the request's
/// limits.
pub(crate) fn bucket_status(
    bucket: &Bucket,
    limits: &Limits,
    need: impl Fn(&LimitName) -> Option<MilliTokens>,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let Some(shard) = bucket.shards().first() else {
        return vec![];
    };
    let status = |(name, state): (&LimitName, &LimitState)| {
        let amount = need(name);
        let retry_after = ready_at(bucket, name, amount, now).map(|at| at.since(now).into());
        limit_status(
            &shard.key,
            limits,
            name,
            &state.rule,
            (available(bucket, name, now), amount, retry_after),
        )
        .in_window(window_end(bucket, name), now)
        .paused(bucket.paused_until(now), now)
    };
    shard.limits.iter().map(status).collect()
}

/// Returns the end of the window that was opened last in a shard.
fn window_end(bucket: &Bucket, name: &LimitName) -> EpochMillis {
    let states = bucket.shards().iter();
    let ends = states.filter_map(|shard| Some(shard.limits.get(name)?.window_end));
    ends.max().unwrap_or(EpochMillis(0))
}

/// Returns the balance over all shards; the smallest debt if all of them are in debt.
fn available(bucket: &Bucket, name: &LimitName, now: EpochMillis) -> MilliTokens {
    let balances = bucket.shards().iter().map(|shard| shard.balance_at(name, now));
    balances
        .max()
        .filter(|best| *best < MilliTokens::ZERO)
        .unwrap_or_else(|| bucket.balance_at(name, now))
}

/// Returns when the amount is available over all shards; an amount of 0, when one shard has no debt.
fn ready_at(
    bucket: &Bucket,
    name: &LimitName,
    amount: Option<MilliTokens>,
    now: EpochMillis,
) -> Option<EpochMillis> {
    if amount != Some(MilliTokens::ZERO) {
        return bucket.ready_at(name, amount.unwrap_or_default(), now);
    }
    let shards = bucket.shards().iter();
    let ready = shards.filter_map(|shard| shard.ready_at(name, MilliTokens::ZERO));
    ready.min().map(|at| at.max(now))
}

/// Returns the status of a limit whose capacity is below the requested amount.
pub(crate) fn never_status(key: &BucketKey, limit: &Limit, requested: MilliTokens) -> LimitStatus {
    let limits = std::slice::from_ref(limit);
    limit_status(
        key,
        limits,
        limit.name(),
        limit.rule(),
        (limit.rule().capacity, Some(requested), None),
    )
}

fn limit_status(
    key: &BucketKey,
    limits: &[Limit],
    name: &LimitName,
    rule: &RefillRule,
    (available, amount, retry_after): (MilliTokens, Option<MilliTokens>, Option<Duration>),
) -> LimitStatus {
    let known = limits.iter().find(|limit| limit.name() == name);
    LimitStatus {
        entity: key.entity.clone(),
        resource: key.resource.clone(),
        limit: name.to_string(),
        mode: known.map(Limit::mode).unwrap_or_default(),
        capacity: rule.capacity,
        refill_amount: rule.refill_amount,
        refill_period: Millis(rule.refill_period_ms).into(),
        available,
        requested: amount.unwrap_or_default(),
        is_requested: amount.is_some(),
        retry_after,
        paused_for: None,
        window: rule.window_code(),
        window_end: None,
        resets_in: None,
    }
}
