//! Limits in the units of a response: whole tokens and whole seconds.

use std::time::Duration;

use weirgate_shared::{LimitKind, LimitMode, MilliTokens};

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
    /// What a token is, as the draft's quota unit; `None` for a request.
    pub unit: Option<&'static str>,
    /// Time to fill from empty, or the length of a quota's window, in seconds, rounded up, at least 1.
    /// `None` for slots, and for a window that this process does not know.
    pub window_seconds: Option<i64>,
    /// Balance, in tokens, rounded down; 0 in debt and in a pause. After a denial of a short rate, at most what
    /// refills in `seconds`.
    pub remaining: i64,
    /// Time in which `remaining` refills, and until one more token is available, or until the end of a
    /// quota's window; after a denial until the requested amount is: seconds, rounded up, at least 1.
    /// `None` if time does not help, and after a denial for limits that are not short.
    pub seconds: Option<i64>,
    /// Amount requested, in tokens, rounded up, if the limit is short.
    pub denied: Option<i64>,
}

impl Policies {
    /// Returns the policies of a granted request; `limits` are those of
    /// [`Grant::limits`](crate::Grant::limits).
    #[must_use]
    pub fn granted(limits: &[LimitStatus], names: &PolicyNames) -> Self {
        Self::new(limits, names, |status| Policy { seconds: refills_in(status), ..known(status) })
    }

    /// Returns the policies of a denial.
    #[must_use]
    pub fn denied(denied: &Denied, names: &PolicyNames) -> Self {
        let mut policies = Self::denied_with_balances(denied, names);
        for (policy, status) in policies.policies.iter_mut().zip(shown(&denied.limits)) {
            if let Some(seconds) = policy.seconds.filter(|_| status.refill_amount.0 > 0) {
                policy.remaining = policy.remaining.min(refill_in(status, seconds));
            }
        }
        policies
    }

    /// Returns the policies of a denial, with the whole balances.
    pub(crate) fn denied_with_balances(denied: &Denied, names: &PolicyNames) -> Self {
        let policies = Self::new(&denied.limits, names, |status| {
            if !status.is_short() {
                return known(status);
            }
            let seconds = status.retry_after.map(seconds);
            Policy { seconds, denied: Some(tokens_ceil(status.requested)), ..known(status) }
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
        self.policies.iter().min_by_key(|policy| policy.leniency())
    }

    fn new(
        limits: &[LimitStatus],
        names: &PolicyNames,
        policy: impl Fn(&LimitStatus) -> Policy,
    ) -> Self {
        let shown = shown(limits);
        let named = names.of_statuses(&shown).into_iter().zip(shown);
        let policies = named
            .map(|(name, status)| Policy {
                name,
                unit: names.unit(&status.limit),
                ..policy(status)
            })
            .collect();
        Self { policies, retry_after: None, has_x_rate_limit: false, is_degraded: false }
    }
}

impl Policy {
    /// Returns a number that is smaller the stricter the limit is: short limits come first, by the longest
    /// wait, then the others by the part of their quota that is left.
    pub(crate) fn leniency(&self) -> (bool, i128) {
        let waits = self.seconds.unwrap_or(SF_INTEGER_MAX);
        let left = i128::from(self.remaining) * i128::from(SF_INTEGER_MAX);
        match self.denied {
            Some(_) => (false, -i128::from(waits)),
            None => (true, left / i128::from(self.quota.max(1))),
        }
    }
}

/// Returns the limits that clients may see. What is only reported is invisible to them: all fields and
/// bodies are made of these. Of a limit that was asked several times, it is the strictest status.
pub(crate) fn shown(limits: &[LimitStatus]) -> Vec<&LimitStatus> {
    let mut shown: Vec<&LimitStatus> = vec![];
    let is_of = |one: &LimitStatus, other: &LimitStatus| {
        one.limit == other.limit && one.entity == other.entity && one.resource == other.resource
    };
    let leniency = |status: &LimitStatus| (!status.is_short(), status.available);
    for status in limits.iter().filter(|one| one.mode != LimitMode::Shadow) {
        match shown.iter_mut().find(|known| is_of(known, status)) {
            Some(known) if leniency(status) < leniency(known) => *known = status,
            Some(_) => {}
            None => shown.push(status),
        }
    }
    shown
}

/// Returns the policy of a limit without the fields that depend on the decision.
fn known(status: &LimitStatus) -> Policy {
    Policy {
        name: String::new(),
        unit: None,
        quota: tokens(status.capacity),
        window_seconds: window(status),
        remaining: match status.paused_for {
            Some(_) => 0,
            None => tokens(status.available),
        },
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

/// Returns the seconds in which an empty limit fills; for a limit that admits nothing, its period; for
/// a quota, those of its window.
fn window(status: &LimitStatus) -> Option<i64> {
    match (status.kind(), status.refill_amount.0) {
        (LimitKind::Rate, 0) => Some(seconds(status.refill_period)),
        (LimitKind::Rate, _) => Some(seconds_for(status, status.capacity.0.into())),
        (LimitKind::Slots, _) => None,
        (LimitKind::Quota, _) => status.window_length().map(seconds),
    }
}

/// Returns the seconds in which what is left surely refills, and after which one more whole token is
/// available, if one can be: a client that spreads what is left over them never exceeds the refill. For a
/// quota, those until its window ends.
fn refills_in(status: &LimitStatus) -> Option<i64> {
    if status.window.is_some() {
        return status.resets_in.map(seconds);
    }
    if status.refill_amount.0 <= 0 {
        return None;
    }
    let left = i128::from(tokens(status.available)) * 1000;
    let next = left + 1000;
    let more = (next <= status.capacity.0.into()).then(|| next - i128::from(status.available.0));
    let most = more.into_iter().chain((left > 0).then_some(left)).max()?;
    Some(seconds_for(status, most))
}

/// Returns the whole tokens that surely refill in these seconds.
fn refill_in(status: &LimitStatus, seconds: i64) -> i64 {
    let period_ms = i128::try_from(status.refill_period.as_millis()).unwrap_or(i128::MAX);
    let per_second = i128::from(status.refill_amount.0) * MILLIS_PER_SECOND;
    let milli = per_second.saturating_mul(seconds.into()) / period_ms.max(1);
    i64::try_from(milli / 1000).unwrap_or(SF_INTEGER_MAX)
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
