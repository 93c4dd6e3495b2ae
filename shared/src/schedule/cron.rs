//! Cron expressions of five fields.

use std::fmt;
use std::str::FromStr;

use time::{Date, Duration, Month, OffsetDateTime};

use crate::WindowError;

/// Maximum years to look for the next day: 29 February occurs on each day of the week every 28 years,
/// or within 40 where a century is no leap year.
const MAX_YEARS: i32 = 41;
const DAY_MINUTES: i64 = 24 * 60;

/// A minute that a clock shows, counted from 1970-01-01 00:00 on that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockMinute(pub i64);

/// Minutes of the calendar by five fields: minute, hour, day of the month, month, day of the week.
///
/// A field is `*`, or a list of numbers, ranges and steps: `0,30`, `8-17`, `*/15`, `8-18/2`. Months
/// and days of the week also have names of three letters; Sunday is 0 or 7. As in Vixie cron, a day
/// must be in both day fields if one of them begins with `*`, otherwise in one of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cron {
    text: String,
    /// One bit for each number that the field takes.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether one of the day fields is enough.
    either: bool,
}

impl Cron {
    /// Returns the last minute of the fields at or before another one; `None` if it is outside the
    /// years -9999 to 9999.
    #[must_use]
    pub fn floor(&self, at: ClockMinute) -> Option<ClockMinute> {
        let (date, minute) = at.split()?;
        let today = self.has_day(date).then(|| self.last_minute(minute));
        match today.flatten() {
            Some(minute) => Some(ClockMinute::of(date, minute)),
            None => {
                let day = self.day_from(date.previous_day()?, false)?;
                Some(ClockMinute::of(day, self.last_minute(DAY_MINUTES - 1)?))
            }
        }
    }

    /// Returns the first minute of the fields after another one; `None` if it is outside the years
    /// -9999 to 9999.
    #[must_use]
    pub fn next(&self, at: ClockMinute) -> Option<ClockMinute> {
        let (date, minute) = at.split()?;
        let today = self.has_day(date).then(|| self.first_minute(minute + 1));
        match today.flatten() {
            Some(minute) => Some(ClockMinute::of(date, minute)),
            None => {
                let day = self.day_from(date.next_day()?, true)?;
                Some(ClockMinute::of(day, self.first_minute(0)?))
            }
        }
    }

    /// Returns the first day of the fields from `date` on, forwards or backwards.
    fn day_from(&self, date: Date, forwards: bool) -> Option<Date> {
        let mut day = date;
        while (day.year() - date.year()).abs() <= MAX_YEARS {
            let has_month = has(self.months, u8::from(day.month()));
            if has_month && self.has_day(day) {
                return Some(day);
            }
            let days = match (has_month, forwards) {
                (true, _) => 1,
                (false, true) => day.month().length(day.year()) - day.day() + 1,
                (false, false) => day.day(),
            };
            let days = Duration::days(days.into());
            day = match forwards {
                true => day.checked_add(days),
                false => day.checked_sub(days),
            }?;
        }
        None
    }

    fn has_day(&self, date: Date) -> bool {
        let of_month = has(self.days, date.day());
        let of_week = has(self.weekdays, date.weekday().number_days_from_sunday());
        let day = match self.either {
            true => of_month || of_week,
            false => of_month && of_week,
        };
        day && has(self.months, u8::from(date.month()))
    }

    /// Returns the first minute of the day from `minute` on.
    fn first_minute(&self, minute: i64) -> Option<i64> {
        (minute / 60..24).filter(|hour| has(self.hours, *hour)).find_map(|hour| {
            let first = (minute - hour * 60).max(0);
            let minute = (first..60).find(|minute| has(self.minutes, *minute))?;
            Some(hour * 60 + minute)
        })
    }

    /// Returns the last minute of the day up to `minute`.
    fn last_minute(&self, minute: i64) -> Option<i64> {
        (0..=minute / 60).rev().filter(|hour| has(self.hours, *hour)).find_map(|hour| {
            let last = (minute - hour * 60).min(59);
            let minute = (0..=last).rev().find(|minute| has(self.minutes, *minute))?;
            Some(hour * 60 + minute)
        })
    }

    /// Returns whether some year has a day of the fields.
    fn ever_occurs(&self) -> bool {
        const LEAP_YEAR: i32 = 2000;
        let months = (1..=12).filter_map(|month| Month::try_from(month).ok());
        let mut months = months.filter(|month| has(self.months, u8::from(*month)));
        let has_day = |month: Month| (1..=month.length(LEAP_YEAR)).any(|day| has(self.days, day));
        self.either || months.any(has_day)
    }
}

impl ClockMinute {
    fn split(self) -> Option<(Date, i64)> {
        let day = OffsetDateTime::UNIX_EPOCH.date();
        let day = day.checked_add(Duration::days(self.0.div_euclid(DAY_MINUTES)))?;
        Some((day, self.0.rem_euclid(DAY_MINUTES)))
    }

    fn of(date: Date, minute: i64) -> Self {
        let since = date - OffsetDateTime::UNIX_EPOCH.date();
        Self(since.whole_days() * DAY_MINUTES + minute)
    }
}

/// The minute as `2026-03-08 02:30`.
impl fmt::Display for ClockMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((date, minute)) = self.split() else {
            return write!(f, "minute {}", self.0);
        };
        write!(f, "{date} {:02}:{:02}", minute / 60, minute % 60)
    }
}

fn has(bits: u64, number: impl Into<i64>) -> bool {
    let bit = u32::try_from(number.into()).unwrap_or(u32::MAX);
    bits.checked_shr(bit).is_some_and(|shifted| shifted & 1 == 1)
}

/// One of the five fields.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
    takes: &'static str,
}

const MINUTE: Field = Field {
    name: "minute of cron",
    min: 0,
    max: 59,
    names: &[],
    takes: "*, or numbers, rising ranges and steps of 0 to 59",
};
const HOUR: Field = Field {
    name: "hour of cron",
    min: 0,
    max: 23,
    names: &[],
    takes: "*, or numbers, rising ranges and steps of 0 to 23",
};
const DAY: Field = Field {
    name: "day of the month of cron",
    min: 1,
    max: 31,
    names: &[],
    takes: "*, or numbers, rising ranges and steps of 1 to 31",
};
const MONTH: Field = Field {
    name: "month of cron",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    takes: "*, or numbers, rising ranges and steps of 1 to 12 or JAN to DEC",
};
const WEEKDAY: Field = Field {
    name: "day of the week of cron",
    min: 0,
    max: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    takes: "*, or numbers, rising ranges and steps of 0 to 7 or SUN to SAT",
};

impl Field {
    fn parse(&self, text: &str) -> Result<u64, WindowError> {
        let bits = text.split(',').try_fold(0, |bits, part| Some(bits | self.part(part)?));
        bits.ok_or_else(|| {
            WindowError::field(self.name, text, self.takes, "write for example 0 8 * * 1-5")
        })
    }

    /// Reads one part of a list.
    fn part(&self, text: &str) -> Option<u64> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(digits(step)?)),
            None => (text, None),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            None if range == "*" => (self.min, self.max),
            // A step of one number would be ambiguous: cron programs differ.
            None if step.is_some() => return None,
            None => (self.number(range)?, self.number(range)?),
        };
        let step = step.unwrap_or(1);
        if first > last || step == 0 || step > self.max {
            return None;
        }
        let numbers = (first..=last).step_by(usize::try_from(step).ok()?);
        Some(numbers.fold(0, |bits, number| bits | 1 << number))
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = (self.min..).zip(self.names).find(|(_, name)| name.eq_ignore_ascii_case(text));
        let number = named.map(|(number, _)| number).or_else(|| digits(text));
        number.filter(|number| (self.min..=self.max).contains(number))
    }
}

fn digits(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The fields as they were written, each separated by one space.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Cron {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            let takes = "five fields, so that it changes at most once a minute";
            let remedy =
                "write minute, hour, day, month and day of the week, for example 0 8 * * 1-5";
            return Err(WindowError::field("cron", text, takes, remedy));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let cron = Self {
            text: fields.join(" "),
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            // Sunday is 7 as well.
            weekdays: (weekdays | weekdays >> 7) & 0b111_1111,
            either: !day.starts_with('*') && !weekday.starts_with('*'),
        };
        match cron.ever_occurs() {
            true => Ok(cron),
            false => {
                let takes = "a day that some month of the fields has";
                let remedy = "correct the day or the month";
                Err(WindowError::field("cron", text, takes, remedy))
            }
        }
    }
}
