//! Windows, codes and schedules, against other calendars and in all zones.

#![allow(missing_docs, reason = "tests")]

use weirgate_calendar::Window;
use weirgate_shared::EpochMillis;

mod codes;
mod schedules;
mod windows;
mod zones;

/// Days of the week, as the text of a window names them.
const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];
/// A minute, in milliseconds.
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn window(text: &str) -> Window {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns an instant from its text in UTC, `2026-03-08T05:00`.
fn utc(text: &str) -> EpochMillis {
    let civil: jiff::civil::DateTime = text.parse().unwrap();
    EpochMillis(
        jiff::tz::TimeZone::UTC
            .to_timestamp(civil)
            .unwrap()
            .as_millisecond(),
    )
}
