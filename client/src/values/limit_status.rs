//! Status of the limits of a bucket.

use std::time::Duration;

use weirgate_shared::{
    Bucket, BucketKey, EntityId, EpochMillis, Limit, LimitKind, LimitMode, LimitName, LimitState,
    MilliTokens, Millis, RefillRule, Resource, Shard,
};

use super::limits::Limits;

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
    /// Refill per `refill_period`; zero for slots.
    #[cfg_attr(feature = "serde", serde(rename = "refill_tokens"))]
    pub refill_amount: MilliTokens,
    /// Refill period.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "refill_period_ms", with = "crate::values::json::ms")
    )]
    pub refill_period: Duration,
    /// Balance; negative in debt.
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
}

impl LimitStatus {
    /// Returns whether the limit has too little for the request. A soft limit, or one that is not
    /// requested, is never short.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_requested && self.requested > self.available && self.mode != LimitMode::Soft
    }

    /// Returns the kind of the limit. One with neither capacity nor refill is a rate that admits
    /// nothing.
    #[must_use]
    pub const fn kind(&self) -> LimitKind {
        match (self.refill_amount.0, self.capacity.0) {
            (0, 1..) => LimitKind::Slots,
            _ => LimitKind::Rate,
        }
    }

    /// Returns the status as one of a request whose denial is only reported.
    pub(crate) fn report_only(self) -> Self {
        Self {
            mode: LimitMode::Shadow,
            ..self
        }
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
    let shard = shard.projected(limits, now);
    let status = |(name, state): (&LimitName, &LimitState)| {
        let amount = need(name);
        let requested = amount.unwrap_or_default();
        let retry_after = if requested <= state.available {
            Some(Duration::ZERO)
        } else {
            shard
                .ready_at(name, requested)
                .map(|at| at.since(now).into())
        };
        limit_status(
            &shard.key,
            limits,
            name,
            &state.rule,
            (state.available, amount, retry_after),
        )
    };
    shard.limits.iter().map(status).collect()
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
    };
    shard.limits.iter().map(status).collect()
}

/// Returns the balance over all shards; the smallest debt if all of them are in debt.
fn available(bucket: &Bucket, name: &LimitName, now: EpochMillis) -> MilliTokens {
    let balances = bucket
        .shards()
        .iter()
        .map(|shard| shard.balance_at(name, now));
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
    }
}
