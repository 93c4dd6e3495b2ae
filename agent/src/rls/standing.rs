//! What is left of the limit of one descriptor.

use std::cmp::Reverse;
use std::time::Duration;

use weirgate::{LimitMode, LimitStatus};

use super::messages::{self, Code, DescriptorStatus, RateLimit, Unit};
use crate::rules::Terms;

/// What is left of the limit of one descriptor.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) is_over: bool,
    pub(super) is_unlimited: bool,
    /// The limit that matters most: the one that denies, or the one with the smallest part left.
    pub(super) status: Option<LimitStatus>,
    /// Name of the limit, instead of its own.
    pub(super) label: Option<Box<str>>,
}

impl Standing {
    /// Returns the standing by the limits of the bucket, of which those of `terms` count.
    pub(super) fn of(limits: &[LimitStatus], terms: &Terms, is_over: bool) -> Self {
        let mut status = strictest(limits, |status| {
            terms.takes.iter().any(|take| *take.limit == *status.limit)
        });
        // What denies may be a limit of a parent, which has other names.
        if is_over && status.is_none_or(|status| !status.is_short()) {
            status = strictest(limits, LimitStatus::is_short).or(status);
        }
        Self {
            is_over,
            is_unlimited: false,
            status: status.cloned(),
            label: terms.label.clone(),
        }
    }

    pub(super) fn message(&self) -> DescriptorStatus {
        let code = if self.is_over {
            Code::OverLimit
        } else {
            Code::Ok
        };
        let Some(status) = &self.status else {
            return DescriptorStatus {
                code: code.into(),
                limit_remaining: if self.is_unlimited { u32::MAX } else { 0 },
                ..DescriptorStatus::default()
            };
        };
        let name = self.label.as_deref().unwrap_or(&status.limit);
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: whole(status.capacity.whole_tokens()),
                unit: unit(status).into(),
                name: name.to_owned(),
            }),
            limit_remaining: whole(status.available.whole_tokens()),
            duration_until_reset: reset(status).map(duration),
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
        let is_trial = status.mode == LimitMode::Shadow;
        let short = status.is_short().then_some(Reverse(wait));
        (is_trial, short.is_none(), short, left)
    };
    let meant = limits.iter().filter(|status| is_meant(status));
    meant.min_by_key(order)
}

fn whole(tokens: i64) -> u32 {
    u32::try_from(tokens.max(0)).unwrap_or(u32::MAX)
}

/// Returns the unit in which the whole limit comes back, if there is one.
fn unit(status: &LimitStatus) -> Unit {
    const DAY: u64 = 86_400;
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

/// Returns the time until the request fits, or until the limit is full. `None` for slots.
fn reset(status: &LimitStatus) -> Option<Duration> {
    if status.is_short() {
        return status.retry_after;
    }
    if status.is_concurrent() {
        return None;
    }
    let missing = i128::from((status.capacity - status.available).0.max(0));
    let period = i128::try_from(status.refill_period.as_millis()).unwrap_or(i128::MAX);
    let refill = i128::from(status.refill_amount.0);
    let ms = missing.saturating_mul(period).saturating_add(refill - 1) / refill;
    Some(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
}

/// Returns a time as a message; one that is rounded up to whole seconds by the filter is never too
/// early, so it is rounded up here.
fn duration(time: Duration) -> messages::Duration {
    let started = u64::from(time.subsec_nanos() > 0);
    let seconds = time.as_secs().saturating_add(started);
    messages::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}
