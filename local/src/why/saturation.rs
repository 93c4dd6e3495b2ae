//! The use of a limit against its refill.

use serde::Serialize;
use weirgate::{
    EntityId, EpochMillis, Error, Granularity, LimitKind, LimitStatus, MilliTokens, MilliTotal,
    RateLimiter, Resource, Usage, UsageScope, Window,
};

/// Time below which the hour in progress says too little, so that the one before it counts too.
const LEAST_MS: i64 = 60_000;

/// What a bucket used in a span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// Acquires granted, and net tokens.
    pub usage: Usage,
    /// Length of the span.
    pub over_ms: i64,
}

/// How much of a limit is in use: of a rate, what was used in a span against what it refilled in the
/// same span; of slots, those that are held against all; of a quota, what was used of this window
/// against all of it.
///
/// At 100 percent and more, a rate only grants what was saved up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Saturation {
    /// `used` of `available`, in percent, rounded; 0 if more was returned than used.
    pub percent: i64,
    /// Tokens used in the span, net; slots held now; tokens used of this window.
    #[serde(rename = "used_tokens")]
    pub used: MilliTotal,
    /// Tokens refilled in the span; the capacity of slots and of a quota.
    #[serde(rename = "of_tokens")]
    pub of: MilliTokens,
    /// Length of the span, which ends now; 0 for slots and quotas.
    pub over_ms: i64,
}

impl Saturation {
    /// Returns the saturation of a limit of a bucket that `used` so much; `None` if it is unknown.
    #[must_use]
    pub fn of(status: &LimitStatus, used: Option<&Used>) -> Option<Self> {
        if matches!(status.kind(), LimitKind::Slots | LimitKind::Quota) {
            let held = status.capacity - status.available;
            return Some(Self {
                percent: percent(held.0.into(), status.capacity.0.into())?,
                used: held.into(),
                of: status.capacity,
                over_ms: 0,
            });
        }
        let Used { usage, over_ms } = used?;
        let mut tokens = usage.tokens.iter();
        let known = tokens.find(|(name, _)| name.as_str() == status.limit);
        let used = known.map_or(MilliTotal::ZERO, |(_, used)| *used);
        let period_ms = i128::try_from(status.refill_period.as_millis()).ok()?;
        let refill = i128::from(status.refill_amount.0) * i128::from(*over_ms);
        Some(Self {
            percent: percent(used.0.saturating_mul(period_ms), refill)?,
            used,
            of: MilliTotal(refill.checked_div(period_ms)?).bounded(),
            over_ms: *over_ms,
        })
    }
}

/// Returns a part in percent, rounded; `None` if there is nothing it could be a part of.
fn percent(part: i128, whole: i128) -> Option<i64> {
    if whole <= 0 {
        return None;
    }
    let percent = (part.max(0).saturating_mul(100).saturating_add(whole / 2)) / whole;
    Some(i64::try_from(percent).unwrap_or(i64::MAX))
}

impl Used {
    /// Returns what was used between two reads of what a bucket has counted, with so much time
    /// between them; `None` if that is unknown, because the counts fell by a merge or an expiry.
    #[must_use]
    pub fn between(before: &Usage, after: &Usage, over_ms: i64) -> Option<Self> {
        if after.acquires < before.acquires || over_ms <= 0 {
            return None;
        }
        let base = |name| before.tokens.get(name).copied().unwrap_or_default();
        let tokens = after.tokens.iter();
        let usage = Usage {
            tokens: tokens.map(|(name, amount)| (name.clone(), *amount - base(name))).collect(),
            acquires: after.acquires.saturating_sub(before.acquires),
        };
        Some(Self { usage, over_ms })
    }

    /// Reads what a bucket used in the hour (UTC) in progress, or in that and the one before if it
    /// has just begun. `None` if an item of it cannot be read.
    ///
    /// # Errors
    /// [`Error`] if the table cannot be read.
    pub(super) async fn this_hour(
        limiter: &RateLimiter,
        entity: &EntityId,
        resource: &Resource,
        now: EpochMillis,
    ) -> Result<Option<Self>, Error> {
        let hour = Window::Hourly.start(now);
        let start = match now.0 - hour.0 < LEAST_MS {
            true => Window::Hourly.start(EpochMillis(hour.0 - 1)),
            false => hour,
        };
        let scope = UsageScope::Bucket(entity.clone(), resource.clone());
        let admin = limiter.admin();
        let total = admin.usage_report(scope, Granularity::Hourly, start..now)?;
        let total = total.total().await?;
        Ok(total
            .unreadable
            .is_empty()
            .then_some(Self { usage: total.usage, over_ms: now.0 - start.0 }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weirgate::{LimitMode, WindowCode};

    use super::*;

    fn status(capacity: i64, refill: i64, period: Duration, available: i64) -> LimitStatus {
        LimitStatus {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            limit: "rpm".to_owned(),
            mode: LimitMode::Enforced,
            capacity: MilliTokens(capacity),
            refill_amount: MilliTokens(refill),
            refill_period: period,
            available: MilliTokens(available),
            requested: MilliTokens::ZERO,
            is_requested: false,
            retry_after: Some(Duration::ZERO),
            paused_for: None,
            window: None,
            window_end: None,
            resets_in: None,
        }
    }

    fn used(milli: i128, over_ms: i64) -> Used {
        Used {
            usage: Usage {
                tokens: [("rpm".try_into().unwrap(), MilliTotal(milli))].into(),
                acquires: 1,
            },
            over_ms,
        }
    }

    #[test]
    fn a_rates_saturation_is_its_use_against_its_refill_in_the_same_span() {
        let minute = Duration::from_mins(1);
        let rate = status(600_000, 600_000, minute, 600_000);
        let of = |used: &Used| Saturation::of(&rate, Some(used)).map(|known| known.percent);
        for (milli, over_ms, percent) in [
            (600_000, 60_000, 100),
            (300_000, 60_000, 50),
            (300_000, 15_000, 200),
            (2_000, 60_000, 0),
            (4_000, 60_000, 1),
            (-5_000, 60_000, 0),
        ] {
            assert_eq!(of(&used(milli, over_ms)), Some(percent), "{milli} {over_ms}");
        }
        assert_eq!(Saturation::of(&rate, None), None, "unknown, not 0");
        assert_eq!(of(&used(0, 0)), None, "no span");
        let known = Saturation::of(&rate, Some(&used(300_000, 15_000))).unwrap();
        assert_eq!((known.used.0, known.of.0), (300_000, 150_000));
        // One of five a day, in a minute that refills 0.0035.
        let daily = status(5_000, 5_000, Duration::from_hours(24), 4_000);
        let known = Saturation::of(&daily, Some(&used(1_000, 60_000))).unwrap();
        assert_eq!((known.percent, known.of.0), (28_800, 3));
    }

    #[test]
    fn the_saturation_of_a_quota_is_what_is_used_of_its_window() {
        let quota = LimitStatus {
            window: Some(WindowCode(-1)),
            ..status(10_000, 0, Duration::ZERO, 6_120)
        };
        let known = Saturation::of(&quota, None).unwrap();
        assert_eq!((known.percent, known.used.0, known.of.0), (39, 3_880, 10_000));
    }

    #[test]
    fn the_saturation_of_slots_is_what_is_held_now() {
        let slots = status(8_000, 0, Duration::ZERO, 3_000);
        let known = Saturation::of(&slots, None).unwrap();
        assert_eq!((known.percent, known.used.0, known.over_ms), (63, 5_000, 0));
    }
}
