//! Limits in the units of a response: whole tokens and whole seconds.

use std::time::Duration;

use weirgate_shared::{LimitMode, MilliTokens};

use crate::http::PolicyNames;
use crate::{Denied, LimitStatus};

/// The largest integer of a structured field: 15 digits (RFC 9651, section 3.3.1).
const SF_INTEGER_MAX: i64 = 999_999_999_999_999;
const MILLIS_PER_SECOND: i128 = 1000;

/// The limits of one response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policies {
    pub(crate) policies: Vec<Policy>,
    pub(crate) retry_after: Option<i64>,
    pub(crate) has_x_rate_limit: bool,
    pub(crate) is_degraded: bool,
}

/// One limit of a response. Numbers are 0 to 10^15 - 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Name of the limit in this response.
    pub name: String,
    /// Capacity, in tokens.
    pub quota: i64,
    /// Time to fill from empty, in seconds, rounded up, at least 1. `None` for slots.
    pub window_seconds: Option<i64>,
    /// Balance, in tokens, rounded down; 0 in debt.
    pub remaining: i64,
    /// Time until one more token is available, or after a denial the requested amount: seconds,
    /// rounded up, at least 1. `None` if time does not help, and after a denial for limits that are
    /// not short.
    pub seconds: Option<i64>,
    /// Amount requested, in tokens, rounded up, if the limit is short.
    pub denied: Option<i64>,
}

impl Policies {
    /// Returns the policies of a granted request; `limits` are those of
    /// [`Grant::limits`](crate::Grant::limits).
    #[must_use]
    pub fn granted(limits: &[LimitStatus], names: &PolicyNames) -> Self {
        Self::new(limits, names, |status| Policy {
            seconds: more_in(status),
            ..known(status)
        })
    }

    /// Returns the policies of a denial.
    #[must_use]
    pub fn denied(denied: &Denied, names: &PolicyNames) -> Self {
        let policies = Self::new(&denied.limits, names, |status| {
            if !status.is_short() {
                return known(status);
            }
            let seconds = status.retry_after.map(seconds);
            Policy {
                seconds,
                denied: Some(tokens_ceil(status.requested)),
                ..known(status)
            }
        });
        Self {
            retry_after: denied.retry_after.map(seconds),
            is_degraded: denied.degraded.is_some(),
            ..policies
        }
    }

    /// Sets whether [`fields`](Self::fields) includes the older `X-RateLimit-*`. Default: no.
    #[must_use]
    pub const fn with_x_rate_limit(mut self, is_wanted: bool) -> Self {
        self.has_x_rate_limit = is_wanted;
        self
    }

    /// Sets whether the decision was made without DynamoDB, which [`fields`](Self::fields) then
    /// says: for a grant with [`Grant::degraded`](crate::Grant::degraded). A denial sets it itself.
    #[must_use]
    pub const fn with_degraded(mut self, is_degraded: bool) -> Self {
        self.is_degraded = is_degraded;
        self
    }

    /// Iterates over the limits.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter()
    }

    /// Returns the retry-after in seconds, rounded up, at least 1. `None` if nothing was denied, or
    /// time alone does not help.
    #[must_use]
    pub const fn retry_after_seconds(&self) -> Option<i64> {
        self.retry_after
    }

    /// Returns the short limit with the longest wait, or else the one with the smallest part of its
    /// quota left.
    #[must_use]
    pub fn strictest(&self) -> Option<&Policy> {
        let in_the_way = self
            .policies
            .iter()
            .filter(|policy| policy.denied.is_some());
        let left = |policy: &&Policy| {
            i128::from(policy.remaining) * i128::from(SF_INTEGER_MAX)
                / i128::from(policy.quota.max(1))
        };
        in_the_way
            .max_by_key(|policy| policy.seconds.unwrap_or(SF_INTEGER_MAX))
            .or_else(|| self.policies.iter().min_by_key(left))
    }

    fn new(
        limits: &[LimitStatus],
        names: &PolicyNames,
        policy: impl Fn(&LimitStatus) -> Policy,
    ) -> Self {
        let shown: Vec<_> = limits
            .iter()
            .filter(|status| status.mode != LimitMode::Shadow)
            .collect();
        let named = names.of_statuses(&shown).into_iter().zip(shown);
        let shown = named
            .map(|(name, status)| Policy {
                name,
                ..policy(status)
            })
            .collect();
        Self {
            policies: shown,
            retry_after: None,
            has_x_rate_limit: false,
            is_degraded: false,
        }
    }
}

/// Returns the policy of a limit without the fields that depend on the decision.
fn known(status: &LimitStatus) -> Policy {
    Policy {
        name: String::new(),
        quota: tokens(status.capacity),
        window_seconds: window(status),
        remaining: tokens(status.available),
        seconds: None,
        denied: None,
    }
}

/// Returns whole tokens, rounded down.
pub(crate) fn tokens(amount: MilliTokens) -> i64 {
    amount.whole_tokens().clamp(0, SF_INTEGER_MAX)
}

/// Returns whole tokens, rounded up.
pub(crate) fn tokens_ceil(amount: MilliTokens) -> i64 {
    ceil_div(amount.0.into(), 1000)
}

/// Returns whole seconds, rounded up; at least 1, because a client retries a 0 at once.
pub(crate) fn seconds(wait: Duration) -> i64 {
    let started = u64::from(wait.subsec_nanos() > 0);
    i64::try_from(wait.as_secs().saturating_add(started))
        .unwrap_or(SF_INTEGER_MAX)
        .clamp(1, SF_INTEGER_MAX)
}

/// Returns the seconds in which an empty limit fills.
fn window(status: &LimitStatus) -> Option<i64> {
    (!status.is_concurrent()).then(|| seconds_for(status, status.capacity.0.into()))
}

/// Returns the seconds until one more whole token is available, if one can be.
fn more_in(status: &LimitStatus) -> Option<i64> {
    let next = (i128::from(tokens(status.available)) + 1) * 1000;
    let can_be = !status.is_concurrent() && next <= status.capacity.0.into();
    can_be.then(|| seconds_for(status, next - i128::from(status.available.0)))
}

/// Returns the seconds in which `milli` surely refill: a difference of floors is never below the
/// floor of the difference.
fn seconds_for(status: &LimitStatus, milli: i128) -> i64 {
    let period_ms = i128::try_from(status.refill_period.as_millis()).unwrap_or(i128::MAX);
    let per_second = i128::from(status.refill_amount.0) * MILLIS_PER_SECOND;
    ceil_div(milli.saturating_mul(period_ms), per_second).max(1)
}

/// Returns `a / b` rounded up, within the range of a field; `b` is not 0.
fn ceil_div(a: i128, b: i128) -> i64 {
    let quotient = a.div_euclid(b) + i128::from(a.rem_euclid(b) != 0);
    i64::try_from(quotient.clamp(0, SF_INTEGER_MAX.into())).unwrap_or(SF_INTEGER_MAX)
}
