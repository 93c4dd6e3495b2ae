//! A window on the calendar, and its text.

use std::fmt;

use super::period::{Period, weekday_name};
use super::zone::ZoneName;

/// A window on the calendar of a zone. [`Every`](crate::Every) builds it.
///
/// Windows are half-open: an end belongs to the next window. Each local period has exactly one
/// window, from the first instant at which the zone's clock shows the period's begin or later:
///
/// - At a gap, a window begins at the first instant after it. A period that the zone skips entirely
///   has no window: neither 2:00 of a spring day, nor 30 December 2011 in Apia.
/// - At an overlap, a window begins at the first of the two instants. An hour that the clock shows
///   twice is one window of two hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    pub(super) period: Period,
    pub(super) month: u8,
    pub(super) day: u8,
    pub(super) hour: u8,
    pub(super) minute: u8,
    pub(super) zone: ZoneName,
}

impl CalendarWindow {
    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// Returns the month in which a year begins, 1 to 12; 0 for other periods.
    #[must_use]
    pub const fn month(&self) -> u8 {
        self.month
    }

    /// Returns the day on which it begins: 1 to 31 for a month or a year, 1 (Monday) to 7 for a week,
    /// otherwise 0.
    #[must_use]
    pub const fn day(&self) -> u8 {
        self.day
    }

    /// Returns the hour of the clock at which it begins; 0 for an hour.
    #[must_use]
    pub const fn hour(&self) -> u8 {
        self.hour
    }

    /// Returns the minute at which it begins.
    #[must_use]
    pub const fn minute(&self) -> u8 {
        self.minute
    }

    /// Returns the zone.
    #[must_use]
    pub const fn zone(&self) -> ZoneName {
        self.zone
    }

    /// Returns the fields that differ from their defaults with their texts, which
    /// [`Every::set`](crate::Every::set) reads.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = Vec::new();
        if self.month > 1 {
            fields.push(("month", self.month.to_string()));
        }
        if self.day > 1 {
            let day = match self.period {
                Period::Week => weekday_name(self.day).to_owned(),
                Period::Hour | Period::Day | Period::Month | Period::Year => self.day.to_string(),
            };
            fields.push(("day", day));
        }
        match self.period {
            _ if (self.hour, self.minute) == (0, 0) => {}
            Period::Hour => fields.push(("at", format!(":{:02}", self.minute))),
            Period::Day | Period::Week | Period::Month | Period::Year => {
                fields.push(("at", format!("{:02}:{:02}", self.hour, self.minute)));
            }
        }
        if self.zone != ZoneName::UTC {
            fields.push(("tz", self.zone.to_string()));
        }
        fields
    }
}

/// The one text of a window, without what is the default: `month,day=15,tz=Europe/Berlin`.
impl fmt::Display for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.period.as_str())?;
        self.fields().iter().try_for_each(|(field, value)| write!(f, ",{field}={value}"))
    }
}
