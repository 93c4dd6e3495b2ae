//! What a window of a quota is built from.

use std::str::FromStr;

use super::calendar::CalendarWindow;
use super::error::WindowError;
use super::period::{Period, Weekday, weekday_name};
use super::zone::ZoneName;

const DAY: &str = "1 to 31";
const MONTH: &str = "1 to 12";
const WEEKDAY: &str = "a day of the week";
const TIME: &str = "a time from 00:00 to 23:59";
const MINUTE: &str = "a minute from :00 to :59";

/// What a field must be, and what to do.
type Takes = (&'static str, &'static str);
const NO_DAY: Takes = ("left out of an hour or a day", "remove it");
const NO_MONTH: Takes = ("left out, except in a year", "remove it");

/// A window under construction: [`window`](Self::window) checks it.
///
/// ```
/// # use weirgate_shared::{Every, Weekday};
/// let window = Every::month().on_day(15).at(9, 0).zone("Europe/Berlin")?.window()?;
/// assert_eq!(window.to_string(), "month,day=15,at=09:00,tz=Europe/Berlin");
/// let error = Every::month().on(Weekday::Monday).window().unwrap_err();
/// assert_eq!(error.to_string(), r#"day must be 1 to 31, got "monday"; write for example 15"#);
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Every {
    period: Period,
    day: Option<Day>,
    month: Option<u8>,
    at: Option<At>,
    zone: Option<ZoneName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Day {
    OfMonth(u8),
    OfWeek(Weekday),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Time(u8, u8),
    Minute(u8),
}

impl Every {
    /// Returns a window of each `period`, from its start in UTC.
    #[must_use]
    pub const fn period(period: Period) -> Self {
        Self { period, day: None, month: None, at: None, zone: None }
    }

    /// Returns a window of each hour, from minute 0.
    #[must_use]
    pub const fn hour() -> Self {
        Self::period(Period::Hour)
    }

    /// Returns a window of each day, from 00:00.
    #[must_use]
    pub const fn day() -> Self {
        Self::period(Period::Day)
    }

    /// Returns a window of each week, from Monday.
    #[must_use]
    pub const fn week() -> Self {
        Self::period(Period::Week)
    }

    /// Returns a window of each month, from day 1.
    #[must_use]
    pub const fn month() -> Self {
        Self::period(Period::Month)
    }

    /// Returns a window of each year, from 1 January.
    #[must_use]
    pub const fn year() -> Self {
        Self::period(Period::Year)
    }

    /// Begins a month or a year on a day, 1 to 31. A month that lacks the day begins on its last
    /// day.
    #[must_use]
    pub const fn on_day(mut self, day: u8) -> Self {
        self.day = Some(Day::OfMonth(day));
        self
    }

    /// Begins a week on a day.
    #[must_use]
    pub const fn on(mut self, day: Weekday) -> Self {
        self.day = Some(Day::OfWeek(day));
        self
    }

    /// Begins a year in a month, 1 to 12.
    #[must_use]
    pub const fn in_month(mut self, month: u8) -> Self {
        self.month = Some(month);
        self
    }

    /// Begins a day or longer at a local time, 00:00 to 23:59.
    #[must_use]
    pub const fn at(mut self, hour: u8, minute: u8) -> Self {
        self.at = Some(At::Time(hour, minute));
        self
    }

    /// Begins an hour at a minute, 0 to 59.
    #[must_use]
    pub const fn at_minute(mut self, minute: u8) -> Self {
        self.at = Some(At::Minute(minute));
        self
    }

    /// Reads the calendar of a zone, by its IANA name.
    ///
    /// # Errors
    /// [`WindowError::UnknownZone`] for a name that the zone data of this release does not have.
    pub fn zone(mut self, name: &str) -> Result<Self, WindowError> {
        self.zone = Some(ZoneName::new(name)?);
        Ok(self)
    }

    /// Reads the calendar of a zone.
    #[must_use]
    pub const fn in_zone(mut self, zone: ZoneName) -> Self {
        self.zone = Some(zone);
        self
    }

    /// Reads the name of a period: `hour`, `day`, `week`, `month` or `year`.
    ///
    /// # Errors
    /// [`WindowError::Field`] for another name.
    pub fn parse(period: &str) -> Result<Self, WindowError> {
        let known = Period::ALL.into_iter().find(|known| known.as_str() == period);
        known.map(Self::period).ok_or_else(|| {
            let takes = "hour, day, week, month or year";
            WindowError::field("every", period, takes, "write for example month")
        })
    }

    /// Sets a field by its text, as in every notation: `day`, `month`, `at` or `tz`.
    ///
    /// # Errors
    /// [`WindowError`] for another field, one that is set already, or a value that it never takes.
    pub fn set(mut self, field: &str, value: &str) -> Result<Self, WindowError> {
        let (name, is_set) = match field {
            "day" => ("day", self.day.is_some()),
            "month" => ("month", self.month.is_some()),
            "at" => ("at", self.at.is_some()),
            "tz" => ("tz", self.zone.is_some()),
            _ => {
                let takes = "day, month, at or tz, each with = and its value";
                let remedy = "correct the window's fields";
                return Err(WindowError::field("field", field, takes, remedy));
            }
        };
        if is_set {
            return Err(WindowError::field(name, value, "given once", "remove one"));
        }
        match name {
            "day" => {
                let weekday = Weekday::NAMES.iter().find(|(_, name)| *name == value);
                let weekday = weekday.map(|(day, _)| Day::OfWeek(*day));
                let day = weekday.or_else(|| number(value).map(Day::OfMonth));
                self.day = Some(day.ok_or_else(|| self.day_error(value))?);
            }
            "month" => self.month = Some(number(value).ok_or_else(|| self.month_error(value))?),
            "at" => {
                let at = value.split_once(':').and_then(|(hour, minute)| {
                    let minute = two_digits(minute)?;
                    match hour {
                        "" => Some(At::Minute(minute)),
                        hour => Some(At::Time(two_digits(hour)?, minute)),
                    }
                });
                self.at = Some(at.ok_or_else(|| self.at_error(value))?);
            }
            _ => self.zone = Some(ZoneName::new(value)?),
        }
        Ok(self)
    }

    /// Returns the window.
    ///
    /// # Errors
    /// [`WindowError::Field`] for a number out of its range, a field that the period does not have,
    /// or a date that no year has.
    pub fn window(self) -> Result<CalendarWindow, WindowError> {
        let day = match (self.period, self.day) {
            (Period::Hour | Period::Day, None) => 0,
            (Period::Week, None) => Weekday::Monday.number(),
            (Period::Week, Some(Day::OfWeek(day))) => day.number(),
            (Period::Month | Period::Year, None) => 1,
            (Period::Month | Period::Year, Some(Day::OfMonth(day @ 1..=31))) => day,
            (_, Some(Day::OfMonth(day))) => return Err(self.day_error(day)),
            (_, Some(Day::OfWeek(day))) => return Err(self.day_error(weekday_name(day.number()))),
        };
        let month = match (self.period, self.month) {
            (Period::Year, None) => 1,
            (Period::Year, Some(month @ 1..=12)) => month,
            (_, Some(month)) => return Err(self.month_error(month)),
            (_, None) => 0,
        };
        let days = match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if day > days {
            let takes = "a day that the month has in some year";
            let remedy = "write the month's last day";
            let value = format!("{day} of month {month}");
            return Err(WindowError::field("day", value, takes, remedy));
        }
        let (hour, minute) = match (self.period, self.at) {
            (_, None) => (0, 0),
            (Period::Hour, Some(At::Minute(minute @ 0..=59))) => (0, minute),
            (
                Period::Day | Period::Week | Period::Month | Period::Year,
                Some(At::Time(hour @ 0..=23, minute @ 0..=59)),
            ) => (hour, minute),
            (_, Some(At::Minute(minute))) => return Err(self.at_error(format!(":{minute:02}"))),
            (_, Some(At::Time(hour, minute))) => {
                return Err(self.at_error(format!("{hour:02}:{minute:02}")));
            }
        };
        Ok(CalendarWindow {
            period: self.period,
            month,
            day,
            hour,
            minute,
            zone: self.zone.unwrap_or_default(),
        })
    }

    fn day_error(&self, value: impl ToString) -> WindowError {
        let (takes, remedy) = match self.period {
            Period::Hour | Period::Day => NO_DAY,
            Period::Week => (WEEKDAY, "write for example sunday"),
            Period::Month | Period::Year => (DAY, "write for example 15"),
        };
        WindowError::field("day", value, takes, remedy)
    }

    fn month_error(&self, value: impl ToString) -> WindowError {
        let (takes, remedy) = match self.period {
            Period::Year => (MONTH, "write for example 4"),
            Period::Hour | Period::Day | Period::Week | Period::Month => NO_MONTH,
        };
        WindowError::field("month", value, takes, remedy)
    }

    fn at_error(&self, value: impl ToString) -> WindowError {
        let (takes, remedy) = match self.period {
            Period::Hour => (MINUTE, "write for example :30"),
            Period::Day | Period::Week | Period::Month | Period::Year => {
                (TIME, "write for example 09:00")
            }
        };
        WindowError::field("at", value, takes, remedy)
    }
}

impl TryFrom<Every> for CalendarWindow {
    type Error = WindowError;

    fn try_from(every: Every) -> Result<Self, WindowError> {
        every.window()
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

/// Reads digits alone: a sign is none.
fn number(text: &str) -> Option<u8> {
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

fn two_digits(text: &str) -> Option<u8> {
    number(text).filter(|_| text.len() == 2)
}
