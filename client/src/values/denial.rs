//! Denials, and the other decisions that grant nothing.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use weirgate_shared::{
    ConfigLevel, EntityId, EpochMillis, LimitMode, MilliTokens, PlanName, Resource, Shard,
    rounded_span,
};

use super::limit_status::{LimitStatus, most_restrictive, status_for, whole};
use super::request::BucketRequest;

/// Time for which a denial for lack of slots is cached, 50 ms: another process may release a slot
/// at any time.
pub(crate) const SLOT_DENIAL_TTL: Duration = Duration::from_millis(50);
/// Shortest time for which a denial by a rate is cached, 1 s.
const MIN_DENIAL_TTL: Duration = Duration::from_secs(1);
/// Longest time for which a denial by a rate is cached, 30 s.
const MAX_DENIAL_TTL: Duration = Duration::from_secs(30);

/// A denial: the limits that are short, and when to retry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Denied {
    /// Time until the tokens are available, if no other request takes them: exact for rates. For
    /// slots it is when enough leases expire; a release can make it sooner. `None` if time alone
    /// does not help.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "retry_after_ms", with = "crate::values::json::optional_ms")
    )]
    pub retry_after: Option<Duration>,
    /// Time until the request would start if its [queue](crate::Acquire::queue_up_to) were long enough,
    /// by the line as it is. `None` if it did not queue, or if time alone does not help.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "starts_in_ms",
            default,
            skip_serializing_if = "Option::is_none",
            with = "crate::values::json::optional_ms"
        )
    )]
    pub starts_in: Option<Duration>,
    /// Every limit of the buckets that denied, including those that are not short.
    pub limits: Vec<LimitStatus>,
    /// Reason for a denial without DynamoDB.
    pub degraded: Option<Degraded>,
    /// Plan of the entity, or else of an ancestor that it cascades to, although no level of it has a
    /// configuration: the next level that has one holds instead.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub missing_plan: Option<PlanName>,
}

impl Denied {
    /// Returns the limits that are short.
    pub fn short(&self) -> impl Iterator<Item = &LimitStatus> {
        self.limits.iter().filter(|status| status.is_short())
    }

    /// Returns whether the request waits for the end of a pause, for which a vendor asked, or an
    /// operator.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        blocking_limits(&self.limits).any(|status| status.paused_for.is_some())
    }

    /// Returns the short limit with the longest wait.
    #[must_use]
    pub fn blocking(&self) -> Option<&LimitStatus> {
        blocking_limits(&self.limits)
            .max_by_key(|status| status.retry_after.unwrap_or(Duration::MAX))
    }

    /// Returns the limit with the smallest part of its capacity left.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<&LimitStatus> {
        most_restrictive(&self.limits)
    }
}

impl Denied {
    /// Returns the denial some time later.
    pub(crate) fn sooner_by(self, since: Duration) -> Self {
        let sooner = |wait: Option<Duration>| wait.map(|wait| wait.saturating_sub(since));
        let mut limits = self.limits;
        for status in &mut limits {
            status.retry_after = sooner(status.retry_after);
        }
        Self {
            retry_after: sooner(self.retry_after),
            starts_in: sooner(self.starts_in),
            limits,
            degraded: self.degraded,
            missing_plan: self.missing_plan,
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = |status: &LimitStatus| match status.paused_for {
            Some(_) => format!("{} is paused", status.limit),
            None => format!(
                "{} has {} of {} requested",
                status.limit,
                status.available.whole_tokens(),
                status.requested
            ),
        };
        let short: Vec<_> = self.short().map(says).collect();
        if let Some(Degraded { reason }) = &self.degraded {
            write!(f, "the table is unavailable ({reason}): ")?;
        }
        f.write_str("denied")?;
        if let Some(after) = self.retry_after {
            write!(f, ", retry after {}", rounded_span(after))?;
        }
        match short.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", short.join(", ")),
        }
    }
}

/// Reason for a decision without DynamoDB.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Degraded {
    /// The error of this request, or the last error before it.
    pub reason: String,
}

/// A decision by a configuration that disables the resource, or by a level that is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Disabled {
    /// The entity.
    pub entity: EntityId,
    /// The resource that is disabled for the entity.
    pub resource: Resource,
    /// Level that is [stopped](crate::Admin::stop); `None` if a configuration disables the
    /// resource.
    pub stopped_at: Option<ConfigLevel>,
}

impl fmt::Display for Disabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity, resource, stopped_at } = self;
        write!(f, "{resource} is disabled for {entity}")?;
        match stopped_at {
            Some(level) => write!(f, ": {level} is stopped; start it"),
            None => f.write_str(" by its configuration: enable it there"),
        }
    }
}

/// A request for more than the limit's capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NeverFits {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: Resource,
    /// Name of the limit.
    pub limit: String,
    /// Amount requested.
    #[cfg_attr(feature = "serde", serde(rename = "requested_tokens"))]
    pub requested: MilliTokens,
    /// Capacity of the limit.
    #[cfg_attr(feature = "serde", serde(rename = "capacity_tokens"))]
    pub capacity: MilliTokens,
    /// Plan of the entity, or else of an ancestor that it cascades to, although no level of it has a
    /// configuration: the next level that has one holds instead.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub missing_plan: Option<PlanName>,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, requested, capacity, .. } = self;
        write!(
            f,
            "limit {limit:?} has a capacity of {capacity} tokens, {requested} were requested: request fewer or raise the capacity"
        )
    }
}

/// Returns the limits that a retry waits for: the enforced ones that are short, or all short ones
/// if none is enforced.
pub(crate) fn blocking_limits(limits: &[LimitStatus]) -> impl Iterator<Item = &LimitStatus> {
    let is_enforced =
        |status: &LimitStatus| status.is_short() && status.mode == LimitMode::Enforced;
    let is_denied = limits.iter().any(is_enforced);
    limits.iter().filter(
        move |status| {
            if is_denied { is_enforced(status) } else { status.is_short() }
        },
    )
}

/// Returns the longest wait for these limits; `None` if time alone does not help.
pub(crate) fn longest_wait<'a>(limits: impl Iterator<Item = &'a LimitStatus>) -> Option<Duration> {
    let waits: Option<Vec<Duration>> = limits.map(|status| status.retry_after).collect();
    waits.map(|waits| waits.into_iter().max().unwrap_or_default())
}

/// Returns the denial with these limits.
pub(crate) fn denial_of(limits: Vec<LimitStatus>) -> Denied {
    let limits = whole(limits);
    let retry_after = longest_wait(blocking_limits(&limits));
    Denied { retry_after, starts_in: None, limits, degraded: None, missing_plan: None }
}

impl Denied {
    /// Returns the denial by one of two choices of pools that ends first.
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        let wait = |denied: &Self| denied.retry_after.unwrap_or(Duration::MAX);
        let starts = [self.starts_in, other.starts_in];
        let first = if wait(&other) < wait(&self) { other } else { self };
        Self { starts_in: starts.into_iter().flatten().min(), ..first }
    }
}

impl BucketRequest {
    /// Returns what the first choice of pools gives that is not denied.
    ///
    /// # Errors
    /// The denial of all of them, by the one that ends first.
    pub(crate) fn choose<T>(&self, by: impl Fn(&Self) -> Result<T, Denied>) -> Result<T, Denied> {
        self.others.iter().fold(by(self), |known, asks| {
            known.or_else(|denied| by(&self.choosing(asks)).map_err(|next| denied.or_sooner(next)))
        })
    }
}

/// Merges the denials of two buckets, of which either may be none.
pub(crate) fn merge_two(one: Option<Denied>, other: Option<Denied>) -> Option<Denied> {
    match (one, other) {
        (Some(one), Some(other)) => Some(merge_denials([one, other])),
        (one, other) => one.or(other),
    }
}

/// Merges the denials of several buckets.
pub(crate) fn merge_denials(denials: impl IntoIterator<Item = Denied>) -> Denied {
    let (mut limits, mut starts) = (vec![], vec![]);
    for denied in denials {
        limits.extend(denied.limits);
        starts.push(denied.starts_in);
    }
    // One that time does not help denies all.
    let starts: Option<Vec<_>> = starts.into_iter().collect();
    Denied { starts_in: starts.and_then(|starts| starts.into_iter().max()), ..denial_of(limits) }
}

/// Returns the denial of a request by a shard that is short at `now`; `None` if it is not. If the
/// request queues, it can start by `start_by`.
pub(crate) fn shortage(
    shard: &Shard,
    request: &BucketRequest,
    start_by: Option<EpochMillis>,
    now: EpochMillis,
) -> Option<Denied> {
    let (limits, starts_in) = status_for(shard, request, start_by, now);
    let is_short = limits.iter().any(LimitStatus::is_short);
    is_short.then(|| Denied { starts_in, ..denial_of(limits) })
}

/// Returns how long a denial by one limit is cached, if the view has this `age`: for a rate a tenth
/// of its retry-after, between 1 s and 30 s; at most `most`.
pub(crate) fn denial_ttl(short: &LimitStatus, age: Duration, most: Duration) -> Duration {
    if short.may_return() {
        return SLOT_DENIAL_TTL.min(most);
    }
    let wait = short.retry_after.map_or(Duration::MAX, |left| left.saturating_add(age));
    (wait / 10).clamp(MIN_DENIAL_TTL, MAX_DENIAL_TTL).min(most)
}

/// What was decided on a request. `E` says what to do where this level alone cannot decide.
#[derive(Debug)]
pub(crate) enum Outcome<T, E = Infallible, D = Denied> {
    Granted(T),
    Denied(D),
    /// This level cannot decide.
    Elsewhere(E),
}

impl<T, E, D> Outcome<T, E, D> {
    /// Turns what was granted into something else.
    pub(crate) fn map<U>(self, granted: impl FnOnce(T) -> U) -> Outcome<U, E, D> {
        match self {
            Self::Granted(taken) => Outcome::Granted(granted(taken)),
            Self::Denied(denied) => Outcome::Denied(denied),
            Self::Elsewhere(reason) => Outcome::Elsewhere(reason),
        }
    }
}

/// Denials of several buckets, with the places of their requests.
pub(crate) type Denials = Vec<(usize, Denied)>;
