//! Which rule of a schedule is in force, and until when.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::zone::Zone;
use crate::{ActiveScale, ClockMinute, EpochMillis, Scale, Schedule, ScheduleRule};

/// Returns what a schedule says at `now`; `None` if the database does not have its zone.
///
/// ```
/// # use weirgate_shared::calendar::active_scale;
/// # use weirgate_shared::{EpochMillis, Scale, Schedule};
/// let schedule: Schedule = "0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin".parse()?;
/// let monday_at_noon = EpochMillis(1_772_449_200_000); // 2 March 2026, 12:00 in Berlin
/// let active = active_scale(&schedule, monday_at_noon).unwrap();
/// assert_eq!(active.scale, Scale::new(2, 1)?);
/// assert_eq!(active.until.since(monday_at_noon).0, 6 * 3_600_000);
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[must_use]
pub fn active_scale(schedule: &Schedule, now: EpochMillis) -> Option<ActiveScale> {
    let zone = Zone::of(schedule.zone_name())?;
    let none = ActiveScale {
        scale: Scale::ONE,
        since: EpochMillis(i64::MIN),
        until: EpochMillis(i64::MAX),
    };
    // Backwards, so that the first rule that holds decides.
    let active = schedule.rules().iter().rev().fold(none, |active, rule| {
        let around = Around::of(rule, &zone, now);
        let begun = active.since.max(around.begin);
        match around.end {
            end if end > now => ActiveScale {
                scale: rule.scale(),
                since: begun,
                until: active.until.min(end).min(around.next),
            },
            end => ActiveScale {
                since: begun.max(end),
                until: active.until.min(around.next),
                ..active
            },
        }
    });
    Some(active)
}

/// The last begin of a rule at or before an instant, the end that belongs to it, and the next begin.
struct Around {
    begin: EpochMillis,
    end: EpochMillis,
    next: EpochMillis,
}

impl Around {
    fn of(rule: &ScheduleRule, zone: &Zone, now: EpochMillis) -> Self {
        let cron = rule.cron();
        let (last, next) = zone.around(
            now,
            |at| civil(cron.floor(minute(at)?)?),
            |at| civil(cron.next(minute(at)?)?),
        );
        let end = last.and_then(minute).map(|begin| civil(rule.end(begin)));
        let instant = |civil| zone.first_instant(civil);
        let beyond = EpochMillis(i64::MAX);
        Self {
            begin: last.map_or(EpochMillis(i64::MIN), instant),
            end: end.map_or(EpochMillis(i64::MIN), |end| end.map_or(beyond, instant)),
            next: next.map_or(beyond, instant),
        }
    }
}

/// Returns the minute that contains a local time.
fn minute(at: DateTime) -> Option<ClockMinute> {
    let at = TimeZone::UTC.to_timestamp(at).ok()?;
    Some(ClockMinute(at.as_second().div_euclid(60)))
}

/// Returns the local time at which a minute begins.
fn civil(minute: ClockMinute) -> Option<DateTime> {
    let at = Timestamp::from_second(minute.0.checked_mul(60)?).ok()?;
    Some(TimeZone::UTC.to_datetime(at))
}
