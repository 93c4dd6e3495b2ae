//! How finely a usage report divides time.

use time::{Date, OffsetDateTime, Time};

use crate::{EpochMillis, Window};

/// Length of the intervals of a usage report: hours, days or months in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Granularity {
    /// Hours.
    Hourly,
    /// Days.
    Daily,
    /// Months: each the sum of its days.
    Monthly,
}

impl Granularity {
    /// Returns the windows whose snapshots make up an interval.
    #[must_use]
    pub const fn window(self) -> Window {
        match self {
            Self::Hourly => Window::Hourly,
            Self::Daily | Self::Monthly => Window::Daily,
        }
    }

    /// Returns the first instant of the interval that contains `at`.
    #[must_use]
    pub fn start(self, at: EpochMillis) -> EpochMillis {
        match self {
            Self::Hourly | Self::Daily => self.window().start(at),
            Self::Monthly => first_of_month(at).map_or(at, instant),
        }
    }

    /// Returns the first instant after the interval that starts at `start`.
    #[must_use]
    pub fn end(self, start: EpochMillis) -> EpochMillis {
        match self {
            Self::Hourly | Self::Daily => self.window().end(start),
            Self::Monthly => first_of_month(start).map_or(start, |first| {
                let month = first.month();
                let year = first.year() + i32::from(month == time::Month::December);
                Date::from_calendar_date(year, month.next(), 1).map_or(start, instant)
            }),
        }
    }
}

/// Returns the first day of the month of `at`; `None` outside the years -9999 to 9999.
fn first_of_month(at: EpochMillis) -> Option<Date> {
    let at = OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).ok()?;
    at.date().replace_day(1).ok()
}

fn instant(date: Date) -> EpochMillis {
    EpochMillis(date.with_time(Time::MIDNIGHT).assume_utc().unix_timestamp() * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Iso8601, parse_iso8601};

    #[test]
    fn intervals_start_and_end_on_their_boundary() {
        let at = parse_iso8601("2028-02-29T23:59:59Z").unwrap();
        for (granularity, start, end) in [
            (Granularity::Hourly, "2028-02-29T23:00:00Z", "2028-03-01T00:00:00Z"),
            (Granularity::Daily, "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Granularity::Monthly, "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            let first = granularity.start(at);
            assert_eq!(Iso8601(first).to_string(), start);
            assert_eq!(Iso8601(granularity.end(first)).to_string(), end);
        }
        let december = parse_iso8601("2028-12-01T00:00:00Z").unwrap();
        let january = Granularity::Monthly.end(december);
        assert_eq!(Iso8601(january).to_string(), "2029-01-01T00:00:00Z");
    }

    /// Every interval begins where the one before ends, and contains whole windows.
    #[test]
    fn intervals_divide_time_without_gaps() {
        let first = parse_iso8601("2026-11-20T18:00:00Z").unwrap();
        for granularity in [Granularity::Hourly, Granularity::Daily, Granularity::Monthly] {
            let mut start = granularity.start(first);
            for _ in 0..50 {
                let end = granularity.end(start);
                assert!(end > start);
                assert_eq!(granularity.start(EpochMillis(end.0 - 1)), start);
                assert_eq!(granularity.start(end), end);
                assert_eq!(granularity.window().start(start), start);
                start = end;
            }
        }
    }
}
