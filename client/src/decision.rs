//! What an acquire answers: granted, denied with a time to come back, or never.

use std::fmt;
use std::time::Duration;

use weirgate_shared::{
    Bucket, BucketKey, EntityId, EpochMillis, Limit, LimitMode, LimitName, LimitState, MilliTokens,
    Millis, RefillRule, Resource, Shard,
};

use crate::limits::Limits;
use crate::queue::Amounts;
use crate::{Degraded, Grant};

/// The answer of an acquire.
#[derive(Debug)]
#[must_use = "a denial is an answer, not an error: look at it"]
pub enum Decision<G = Grant> {
    /// The tokens were taken.
    Granted(G),
    /// Not now; nothing was taken.
    Denied(Denied),
    /// Not at any time: more was asked than a limit holds when full.
    NeverFits(NeverFits),
    /// Not until somebody enables it: the configuration says so.
    Disabled(Disabled),
}

impl<G> Decision<G> {
    /// The grant, if there is one.
    #[must_use]
    pub fn granted(self) -> Option<G> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Denied(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
        }
    }

    /// Whether the tokens were taken.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    pub(crate) fn map<H>(self, grant: impl FnOnce(G) -> H) -> Decision<H> {
        match self {
            Self::Granted(granted) => Decision::Granted(grant(granted)),
            Self::Denied(denied) => Decision::Denied(denied),
            Self::NeverFits(never) => Decision::NeverFits(never),
            Self::Disabled(disabled) => Decision::Disabled(disabled),
        }
    }
}

/// Why not now, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// How long until what was asked is there, if nobody else takes it: exact for rates. For slots
    /// it is when enough leases expire, and an earlier release makes it sooner. `None` if time
    /// alone does not bring it.
    pub retry_after: Option<Duration>,
    /// Every limit of the buckets that denied, the ones in the way among them.
    pub limits: Vec<LimitStatus>,
    /// Why DynamoDB was not what denied.
    pub degraded: Option<Degraded>,
}

impl Denied {
    /// The limits in the way.
    pub fn short(&self) -> impl Iterator<Item = &LimitStatus> {
        self.limits.iter().filter(|status| status.is_short())
    }

    /// The limit that is in the way for longest.
    #[must_use]
    pub fn blocking(&self) -> Option<&LimitStatus> {
        blocking_limits(&self.limits)
            .max_by_key(|status| status.retry_after.unwrap_or(Duration::MAX))
    }

    /// The limit that has least left of its capacity.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<&LimitStatus> {
        most_restrictive(&self.limits)
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = |status: &LimitStatus| {
            format!(
                "{} has {} of {} asked",
                status.limit, status.available, status.requested
            )
        };
        let short: Vec<_> = self.short().map(says).collect();
        if let Some(Degraded { reason }) = &self.degraded {
            write!(f, "DynamoDB is away ({reason}): ")?;
        }
        match self.retry_after {
            Some(after) => write!(f, "denied, retry after {after:?}: {}", short.join(", ")),
            None => write!(f, "denied: {}", short.join(", ")),
        }
    }
}

/// One limit of a bucket, as the last answer showed it, with the refill since then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// Who is limited.
    pub entity: EntityId,
    /// On what.
    pub resource: Resource,
    /// Its name.
    pub limit: String,
    /// What becomes of a request that it has not enough for.
    pub mode: LimitMode,
    /// The most it holds.
    pub capacity: MilliTokens,
    /// What flows back every `refill_period`; zero for a concurrency limit.
    pub refill_amount: MilliTokens,
    /// The refill period.
    pub refill_period: Duration,
    /// What is there; negative in debt.
    pub available: MilliTokens,
    /// What this request asked of it.
    pub requested: MilliTokens,
    /// How long until `requested` is there. Zero if it is; `None` if time alone does not bring it.
    pub retry_after: Option<Duration>,
}

impl LimitStatus {
    /// Whether it has not enough for the request. A soft limit has always enough, and so has one of
    /// which nothing is asked.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let is_asked = self.requested > MilliTokens::ZERO;
        is_asked && self.requested > self.available && self.mode != LimitMode::Soft
    }

    /// Whether it is a number of slots held at the same time.
    #[must_use]
    pub const fn is_concurrent(&self) -> bool {
        self.refill_amount.0 == 0
    }
}

/// The limit that has least left of its capacity.
pub(crate) fn most_restrictive(limits: &[LimitStatus]) -> Option<&LimitStatus> {
    let left = |status: &&LimitStatus| {
        i128::from(status.available.0) * 1_000_000 / i128::from(status.capacity.0.max(1))
    };
    limits.iter().min_by_key(left)
}

/// Disabled by its configuration: a switch for emergencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disabled {
    /// Who is limited.
    pub entity: EntityId,
    /// What is disabled for them.
    pub resource: Resource,
}

impl fmt::Display for Disabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity, resource } = self;
        write!(
            f,
            "{resource} is disabled for {entity} by its configuration: enable it there"
        )
    }
}

/// More was asked than the limit holds when full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeverFits {
    /// Who is limited.
    pub entity: EntityId,
    /// On what.
    pub resource: Resource,
    /// The limit.
    pub limit: String,
    /// What was asked.
    pub requested: MilliTokens,
    /// What it holds when full.
    pub capacity: MilliTokens,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            requested,
            capacity,
            ..
        } = self;
        write!(
            f,
            "limit {limit:?} holds {capacity} tokens when full, {requested} were asked: ask for less or raise it"
        )
    }
}

/// Every limit's status at `now`, as `needs` sees it.
pub(crate) fn status(
    shard: &Shard,
    limits: &Limits,
    amounts: &Amounts,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let shard = shard.projected(limits, now);
    let status = |(name, state): (&LimitName, &LimitState)| {
        let requested = amounts.get(name).copied().unwrap_or_default();
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
            (state.available, requested, retry_after),
        )
    };
    shard.limits.iter().map(status).collect()
}

/// Every limit's status at `now`, over all shards. The shards have the callers' own limits already.
pub(crate) fn bucket_status(
    bucket: &Bucket,
    limits: &Limits,
    amounts: &Amounts,
    now: EpochMillis,
) -> Vec<LimitStatus> {
    let Some(shard) = bucket.shards().first() else {
        return vec![];
    };
    let status = |(name, state): (&LimitName, &LimitState)| {
        let requested = amounts.get(name).copied().unwrap_or_default();
        let retry_after = bucket
            .ready_at(name, requested, now)
            .map(|at| at.since(now).into());
        limit_status(
            &shard.key,
            limits,
            name,
            &state.rule,
            (bucket.balance_at(name, now), requested, retry_after),
        )
    };
    shard.limits.iter().map(status).collect()
}

/// The status of a limit that never holds what is asked.
pub(crate) fn never_status(key: &BucketKey, limit: &Limit, requested: MilliTokens) -> LimitStatus {
    let limits = std::slice::from_ref(limit);
    limit_status(
        key,
        limits,
        limit.name(),
        limit.rule(),
        (limit.rule().capacity, requested, None),
    )
}

fn limit_status(
    key: &BucketKey,
    limits: &[Limit],
    name: &LimitName,
    rule: &RefillRule,
    (available, requested, retry_after): (MilliTokens, MilliTokens, Option<Duration>),
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
        requested,
        retry_after,
    }
}

/// The limits that are waited for. Nobody waits for a shadow limit, unless that is all there is to
/// say.
pub(crate) fn blocking_limits(limits: &[LimitStatus]) -> impl Iterator<Item = &LimitStatus> {
    let is_enforced =
        |status: &LimitStatus| status.is_short() && status.mode == LimitMode::Enforced;
    let is_denied = limits.iter().any(is_enforced);
    limits.iter().filter(move |status| {
        if is_denied {
            is_enforced(status)
        } else {
            status.is_short()
        }
    })
}

/// The denial that `status` amounts to.
pub(crate) fn denial_of(limits: Vec<LimitStatus>) -> Denied {
    let waits: Option<Vec<Duration>> = blocking_limits(&limits)
        .map(|status| status.retry_after)
        .collect();
    let retry_after = waits.map(|waits| waits.into_iter().max().unwrap_or_default());
    Denied {
        retry_after,
        limits,
        degraded: None,
    }
}

/// What would have been denied in all.
pub(crate) fn merge_two(one: Option<Denied>, other: Option<Denied>) -> Option<Denied> {
    match (one, other) {
        (Some(one), Some(other)) => Some(merge_denials([one, other])),
        (one, other) => one.or(other),
    }
}

/// The denial of several buckets.
pub(crate) fn merge_denials(denials: impl IntoIterator<Item = Denied>) -> Denied {
    denial_of(
        denials
            .into_iter()
            .flat_map(|denied| denied.limits)
            .collect(),
    )
}
