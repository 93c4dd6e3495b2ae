//! What an acquire answers: granted, denied with a time to come back, or never.

use std::fmt;
use std::time::Duration;

use weirgate_shared::{Bucket, EpochMillis, Limit, LimitName, LimitState, MilliTokens, Whole};

use crate::Grant;
use crate::line::Needs;

/// The answer of an acquire.
#[derive(Debug)]
#[must_use = "a denial is an answer, not an error: look at it"]
pub enum Decision {
    /// The tokens were taken.
    Granted(Grant),
    /// Not now; nothing was taken.
    Denied(Denied),
    /// Not at any time: more was asked than a limit holds when full.
    NeverFits(NeverFits),
}

impl Decision {
    /// The grant, if there is one.
    #[must_use]
    pub fn granted(self) -> Option<Grant> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Denied(_) | Self::NeverFits(_) => None,
        }
    }

    /// Whether the tokens were taken.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }
}

/// Why not now, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// How long until what was asked is there, if nobody else takes it: exact for rates. For slots it is when enough
    /// leases expire, and an earlier release makes it sooner. `None` if time alone does not bring it.
    pub retry_after: Option<Duration>,
    /// Every limit of the bucket, the ones in the way among them.
    pub limits: Vec<LimitStatus>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.limits.iter().filter(|status| status.requested > status.available);
        let short: Vec<_> = short
            .map(|status| format!("{} has {} of {} asked", status.limit, status.available, status.requested))
            .collect();
        match self.retry_after {
            Some(after) => write!(f, "denied, retry after {after:?}: {}", short.join(", ")),
            None => write!(f, "denied: {}", short.join(", ")),
        }
    }
}

/// One limit of a bucket, as the last answer showed it, with the refill since then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStatus {
    /// Its name.
    pub limit: String,
    /// The most it holds.
    pub capacity: MilliTokens,
    /// What is there; negative in debt.
    pub available: MilliTokens,
    /// What this request asked of it.
    pub requested: MilliTokens,
    /// How long until `requested` is there. Zero if it is; `None` if time alone does not bring it.
    pub retry_after: Option<Duration>,
}

/// More was asked than the limit holds when full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeverFits {
    /// The limit.
    pub limit: String,
    /// What was asked.
    pub requested: MilliTokens,
    /// What it holds when full.
    pub capacity: MilliTokens,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, requested, capacity } = self;
        write!(f, "limit {limit:?} holds {capacity} tokens when full, {requested} were asked: ask for less or raise it")
    }
}

/// Every limit's status at `now`, as `needs` sees it.
pub(crate) fn status(bucket: &Bucket, limits: &[Limit], needs: &Needs, now: EpochMillis) -> Vec<LimitStatus> {
    let bucket = bucket.advanced(limits, now);
    let status = |(name, state): (&LimitName, &LimitState)| {
        let requested = needs.get(name).copied().unwrap_or_default();
        let retry_after = if requested <= state.tk {
            Some(Duration::ZERO)
        } else {
            bucket.ready_at(name, requested).map(|at| at.since(now).into())
        };
        let (capacity, available) = (state.rule.capacity, state.tk);
        LimitStatus { limit: name.to_string(), capacity, available, requested, retry_after }
    };
    bucket.limits.iter().map(status).collect()
}

/// Every limit's status at `now`, over all shards. The shards have the callers' own limits already.
pub(crate) fn status_of_whole(whole: &Whole, needs: &Needs, now: EpochMillis) -> Vec<LimitStatus> {
    let Some(shard) = whole.shards().first() else { return vec![] };
    let status = |(name, state): (&LimitName, &LimitState)| {
        let requested = needs.get(name).copied().unwrap_or_default();
        let retry_after = whole.ready_at(name, requested, now).map(|at| at.since(now).into());
        let (capacity, available) = (state.rule.capacity, whole.holds(name, now));
        LimitStatus { limit: name.to_string(), capacity, available, requested, retry_after }
    };
    shard.limits.iter().map(status).collect()
}

/// The denial that `status` amounts to.
pub(crate) fn denied(limits: Vec<LimitStatus>) -> Denied {
    let waits: Option<Vec<Duration>> = limits.iter().map(|status| status.retry_after).collect();
    let retry_after = waits.map(|waits| waits.into_iter().max().unwrap_or_default());
    Denied { retry_after, limits }
}
