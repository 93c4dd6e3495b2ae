//! Windows and schedules, against other calendars and in all zones.

use weirgate_shared::{CalendarWindow, EpochMillis, QuotaWindow, calendar};

mod schedules;
mod windows;
mod zones;

/// A minute, in milliseconds.
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn window(text: &str) -> CalendarWindow {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns an instant from its text in UTC, `2026-03-08T05:00`.
fn utc(text: &str) -> EpochMillis {
    let civil: jiff::civil::DateTime = text.parse().unwrap();
    EpochMillis(jiff::tz::TimeZone::UTC.to_timestamp(civil).unwrap().as_millisecond())
}

/// The boundaries of a window whose zone the database has.
trait Boundaries {
    fn bounds(&self, now: EpochMillis) -> (EpochMillis, EpochMillis);
    fn end_after(&self, now: EpochMillis) -> EpochMillis;
}

impl Boundaries for CalendarWindow {
    fn bounds(&self, now: EpochMillis) -> (EpochMillis, EpochMillis) {
        calendar::bounds(self, now).unwrap()
    }

    fn end_after(&self, now: EpochMillis) -> EpochMillis {
        calendar::end_after(QuotaWindow::Calendar(*self).code(), now).unwrap()
    }
}
