//! Usage windows: hours and days in UTC.

use std::fmt;
use std::str::FromStr;

use time::{Date, Month, OffsetDateTime, Time};

use crate::EpochMillis;

/// Length of a usage snapshot's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Window {
    /// One hour.
    Hourly,
    /// One day.
    Daily,
}

impl Window {
    /// All windows, shortest first.
    pub const ALL: [Self; 2] = [Self::Hourly, Self::Daily];

    /// Returns the name in keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Daily => "daily",
        }
    }

    /// Returns the first instant of the window that contains `at`.
    #[must_use]
    pub const fn start(self, at: EpochMillis) -> EpochMillis {
        EpochMillis(at.0.saturating_sub(at.0.rem_euclid(self.length_ms())))
    }

    /// Returns the first instant after the window that starts at `start`.
    #[must_use]
    pub const fn end(self, start: EpochMillis) -> EpochMillis {
        EpochMillis(start.0.saturating_add(self.length_ms()))
    }

    const fn length_ms(self) -> i64 {
        match self {
            Self::Hourly => HOUR_MS,
            Self::Daily => 24 * HOUR_MS,
        }
    }
}

const HOUR_MS: i64 = 3_600_000;

/// An hour: hours since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(pub i64);

impl Hour {
    /// Returns the hour that contains `at`.
    #[must_use]
    pub const fn of(at: EpochMillis) -> Self {
        Self(at.0.div_euclid(HOUR_MS))
    }

    /// Returns the first instant of the hour.
    #[must_use]
    pub const fn start(self) -> EpochMillis {
        EpochMillis(self.0.saturating_mul(HOUR_MS))
    }

    /// Returns whether both hours are in the same day.
    #[must_use]
    pub const fn is_same_day(self, other: Self) -> bool {
        self.0.div_euclid(24) == other.0.div_euclid(24)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Window {
    type Err = ();
    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|window| window.as_str() == name).ok_or(())
    }
}

/// An instant as `2026-11-20T18:00:00Z`, to the second.
#[derive(Debug, Clone, Copy)]
pub struct Iso8601(pub EpochMillis);

impl fmt::Display for Iso8601 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = utc(self.0);
        let (y, m, d) = (at.year(), u8::from(at.month()), at.day());
        write!(f, "{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", at.hour(), at.minute(), at.second())
    }
}

/// Returns the instant that [`Iso8601`] formats as `text`.
#[must_use]
pub fn parse_iso8601(text: &str) -> Option<EpochMillis> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u8>().ok();
    let year: i32 = text.get(0..4)?.parse().ok()?;
    let date = Date::from_calendar_date(year, Month::try_from(number(5..7)?).ok()?, number(8..10)?)
        .ok()?;
    let time = Time::from_hms(number(11..13)?, number(14..16)?, number(17..19)?).ok()?;
    let at = EpochMillis(date.with_time(time).assume_utc().unix_timestamp().checked_mul(1000)?);
    (Iso8601(at).to_string() == text).then_some(at)
}

fn utc(at: EpochMillis) -> OffsetDateTime {
    // Instants outside the years -9999 to 9999 do not occur; they would be shown as 1970.
    OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_start_and_end_on_their_boundary() {
        let at = parse_iso8601("2028-02-29T23:59:59Z").unwrap().plus(crate::Millis(999));
        for (window, start, end) in [
            (Window::Hourly, "2028-02-29T23:00:00Z", "2028-03-01T00:00:00Z"),
            (Window::Daily, "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            assert_eq!(Iso8601(window.start(at)).to_string(), start);
            assert_eq!(Iso8601(window.end(window.start(at))).to_string(), end);
            assert_eq!(window.as_str().parse(), Ok(window));
        }
    }

    #[test]
    fn only_the_one_spelling_of_an_instant_parses() {
        for bad in [
            "2026-11-20T18:00:00",
            "2026-11-20 18:00:00Z",
            "2026-13-20T18:00:00Z",
            "x",
            "２026-11-20T18:00:00Z",
        ] {
            assert_eq!(parse_iso8601(bad), None, "{bad}");
        }
    }
}
