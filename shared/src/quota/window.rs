//! The window of a quota, and its text.

use std::fmt;
use std::str::FromStr;

use super::error::WindowError;
use super::every::{Every, Period, weekday_name};
use super::session::SessionWindow;
use super::zone::ZoneName;

/// The window of a quota: at its end, the next one begins full.
///
/// ```
/// # use weirgate_shared::{Every, QuotaWindow};
/// let window: QuotaWindow = "month,day=15,at=09:00,tz=Europe/Berlin".parse()?;
/// let every = Every::month().on_day(15).at(9, 0).zone("Europe/Berlin")?;
/// assert_eq!(window, every.try_into()?);
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaWindow {
    /// A window on the calendar, the same for all buckets.
    Calendar(CalendarWindow),
    /// A window that begins with the first use.
    Session(SessionWindow),
}

/// A window on the calendar of a zone. [`Every`] builds it.
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

    /// Returns the fields that differ from their defaults with their texts, which [`Every::set`]
    /// reads.
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

impl From<CalendarWindow> for QuotaWindow {
    fn from(window: CalendarWindow) -> Self {
        Self::Calendar(window)
    }
}

impl From<SessionWindow> for QuotaWindow {
    fn from(session: SessionWindow) -> Self {
        Self::Session(session)
    }
}

impl TryFrom<Every> for CalendarWindow {
    type Error = WindowError;

    fn try_from(every: Every) -> Result<Self, WindowError> {
        every.window()
    }
}

impl TryFrom<Every> for QuotaWindow {
    type Error = WindowError;

    fn try_from(every: Every) -> Result<Self, WindowError> {
        every.window().map(Self::Calendar)
    }
}

/// The one text of a window, without what is the default: `month,day=15,tz=Europe/Berlin`.
impl fmt::Display for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.period.as_str())?;
        self.fields()
            .iter()
            .try_for_each(|(field, value)| write!(f, ",{field}={value}"))
    }
}

/// Reads the text of a window: `month`, `week,day=sunday,at=18:00`, `hour,at=:30`,
/// `year,month=4,day=6,tz=Europe/London`.
impl FromStr for CalendarWindow {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let mut parts = text.split(',');
        let every = Every::parse(parts.next().unwrap_or_default())?;
        let every = parts.try_fold(every, |every, part| {
            let (field, value) = part.split_once('=').unwrap_or((part, ""));
            every.set(field, value)
        });
        every?.window()
    }
}

/// The one text of a window: that of its kind.
impl fmt::Display for QuotaWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar(window) => window.fmt(f),
            Self::Session(session) => session.fmt(f),
        }
    }
}

/// Reads the text of a window: that of a session begins with a digit.
impl FromStr for QuotaWindow {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        match text.starts_with(|first: char| first.is_ascii_digit()) {
            true => text.parse().map(Self::Session),
            false => text.parse().map(Self::Calendar),
        }
    }
}
