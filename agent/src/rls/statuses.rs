//! What is left of the limit of one descriptor.

use std::cmp::Reverse;
use std::time::Duration;

use weirgate::http::{Policies, Policy, PolicyNames};
use weirgate::{Denied, LimitMode, LimitStatus, Period, QuotaWindow};

use super::messages::{self, Code, DescriptorStatus, RateLimit, Unit};
use crate::rules::Terms;

/// What is left of the limit of one descriptor.
#[derive(Debug, Default)]
pub(super) struct DescriptorResult {
    pub(super) is_over: bool,
    pub(super) is_unlimited: bool,
    /// The limit that matters most: the one that denies, or the one with the smallest part left.
    pub(super) status: Option<LimitStatus>,
    /// Name of the limit, instead of its own.
    pub(super) label: Option<Box<str>>,
}

impl DescriptorResult {
    /// Returns the result by the limits of the bucket, of which those of `terms` count. What is only
    /// reported is over for no client, and has no limit that one could see.
    pub(super) fn of(limits: &[LimitStatus], terms: &Terms, is_over: bool) -> Self {
        if terms.is_shadow {
            return Self::default();
        }
        let mut status =
            strictest(limits, |status| terms.takes.iter().any(|take| *take.limit == *status.limit));
        // What denies may be a limit of a parent, which has other names.
        if is_over && status.is_none_or(|status| !status.is_short()) {
            status = strictest(limits, LimitStatus::is_short).or(status);
        }
        Self { is_over, is_unlimited: false, status: status.cloned(), label: terms.label.clone() }
    }

    pub(super) fn message(&self) -> DescriptorStatus {
        let code = if self.is_over { Code::OverLimit } else { Code::Ok };
        let Some(status) = &self.status else {
            return DescriptorStatus {
                code: code.into(),
                limit_remaining: if self.is_unlimited { u32::MAX } else { 0 },
                ..DescriptorStatus::default()
            };
        };
        let name = self.label.as_deref().unwrap_or(&status.limit);
        let policy = policy(status);
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: whole(status.capacity.whole_tokens()),
                unit: unit(status).into(),
                name: name.to_owned(),
            }),
            limit_remaining: whole(policy.as_ref().map_or(0, |policy| policy.remaining)),
            duration_until_reset: policy.and_then(|policy| reset(status, &policy)),
        }
    }
}

/// Returns the limit that denies for the longest time, or else the one with the smallest part of
/// its capacity left.
fn strictest(
    limits: &[LimitStatus],
    is_meant: impl Fn(&LimitStatus) -> bool,
) -> Option<&LimitStatus> {
    let order = |status: &&LimitStatus| {
        let part = i128::from(status.available.0) * 1_000_000;
        let left = part / i128::from(status.capacity.0.max(1));
        let wait = status.retry_after.unwrap_or(Duration::MAX);
        let short = status.is_short().then_some(Reverse(wait));
        (short.is_none(), short, left)
    };
    let is_shown = |status: &&LimitStatus| status.mode != LimitMode::Shadow && is_meant(status);
    let meant = limits.iter().filter(is_shown);
    meant.min_by_key(order)
}

fn whole(tokens: i64) -> u32 {
    u32::try_from(tokens.max(0)).unwrap_or(u32::MAX)
}

/// Returns the unit in which the whole limit comes back, if there is one.
fn unit(status: &LimitStatus) -> Unit {
    const DAY: u64 = 86_400;
    if let Some(code) = status.window {
        return match code.decode() {
            Some(QuotaWindow::Calendar(window)) => match window.period() {
                Period::Hour => Unit::Hour,
                Period::Day => Unit::Day,
                Period::Week => Unit::Week,
                Period::Month => Unit::Month,
                Period::Year => Unit::Year,
            },
            Some(QuotaWindow::Session(_)) | None => Unit::Unknown,
        };
    }
    if status.capacity != status.refill_amount || status.refill_period.subsec_nanos() > 0 {
        return Unit::Unknown;
    }
    match status.refill_period.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        DAY => Unit::Day,
        seconds if seconds == 7 * DAY => Unit::Week,
        seconds if seconds == 30 * DAY => Unit::Month,
        seconds if seconds == 365 * DAY => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Returns the numbers that the fields of an answer have of the limit: as long as the request does not
/// fit, those of a denial.
fn policy(status: &LimitStatus) -> Option<Policy> {
    let (limits, names) = (vec![status.clone()], PolicyNames::default());
    let policies = match status.retry_after.filter(|_| status.is_short()) {
        None => Policies::granted(&limits, &names),
        wait => Policies::denied(
            &Denied {
                retry_after: wait,
                starts_in: None,
                limits,
                degraded: None,
                missing_plan: None,
            },
            &names,
        ),
    };
    policies.iter().next().cloned()
}

/// Returns the time until the request fits, or in which what is left refills, or to the end of a
/// quota's window. `None` for slots. A
/// limit that admits nothing has its period: the filter would send 0 otherwise, which is now.
fn reset(status: &LimitStatus, policy: &Policy) -> Option<messages::Duration> {
    let is_blocked = status.capacity.0 <= 0;
    let seconds = policy.seconds.or(policy.window_seconds.filter(|_| is_blocked));
    seconds.map(|seconds| messages::Duration { seconds, nanos: 0 })
}
