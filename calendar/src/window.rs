//! Windows of quotas: their boundaries, and their text.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::{Span, ToSpan};
use weirgate_shared::EpochMillis;

use crate::every::weekday_name;
use crate::{CalendarError, Every, Period, Zone, code};

/// The calendar of a quota: when its window ends, and the next one begins.
///
/// Windows are half-open: an end belongs to the next window. Each local period has exactly one
/// window, from the first instant at which the zone's clock shows the period's begin or later:
///
/// - At a gap, a window begins at the first instant after it. A period that the zone skips entirely
///   has no window: neither 2:00 of a spring day, nor 30 December 2011 in Apia.
/// - At an overlap, a window begins at the first of the two instants. An hour that the clock shows
///   twice is one window of two hours.
///
/// ```
/// # use weirgate_calendar::Window;
/// # use weirgate_shared::EpochMillis;
/// let window: Window = "day,tz=America/New_York".parse()?;
/// let noon = EpochMillis(1_772_989_200_000); // 8 March 2026, 13:00 there: the clock skipped an hour
/// let (start, end) = window.bounds(noon);
/// assert_eq!(end.since(start).0, 23 * 3_600_000);
/// # Ok::<(), weirgate_calendar::CalendarError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    pub(crate) period: Period,
    /// 1 to 12 for a year, otherwise 0.
    pub(crate) month: u8,
    /// 1 to 31 for a month or a year, 1 (Monday) to 7 for a week, otherwise 0.
    pub(crate) day: u8,
    /// 0 for an hour.
    pub(crate) hour: u8,
    pub(crate) minute: u8,
    pub(crate) zone: Zone,
}

impl Window {
    /// Returns the end of the window that contains `now`.
    ///
    /// It never panics: a window that ends after the year 9999 ends at `i64::MAX`, and times before
    /// the year -9999 belong to the first window that ends within these years.
    #[must_use]
    pub fn end_after(&self, now: EpochMillis) -> EpochMillis {
        self.bounds(now).1
    }

    /// Returns the start and the end of the window that contains `now`, as
    /// [`end_after`](Self::end_after) does. A window that begins before the year -9999 begins at
    /// `i64::MIN`.
    #[must_use]
    pub fn bounds(&self, now: EpochMillis) -> (EpochMillis, EpochMillis) {
        let (start, end) = self
            .zone
            .around(now, |at| self.floor(at), |at| self.next(at));
        let instant = |civil: Option<DateTime>, beyond| {
            civil.map_or(EpochMillis(beyond), |civil| self.zone.first_instant(civil))
        };
        (instant(start, i64::MIN), instant(end, i64::MAX))
    }

    /// Returns the last begin of a period at or before a local time.
    fn floor(&self, at: DateTime) -> Option<DateTime> {
        self.begin(at, 0)
            .filter(|begin| *begin <= at)
            .or_else(|| self.begin(at, -1))
    }

    /// Returns the first begin of a period after a local time.
    fn next(&self, at: DateTime) -> Option<DateTime> {
        self.begin(at, 0)
            .filter(|begin| *begin > at)
            .or_else(|| self.begin(at, 1))
    }

    /// Returns the begin within the calendar's hour, day, week, month or year of a local time, or
    /// that many later.
    fn begin(&self, at: DateTime, later: i64) -> Option<DateTime> {
        let move_by = |date: Date, span: Span| date.checked_add(span).ok();
        let date = match self.period {
            Period::Hour => {
                let hour = at.date().at(at.hour(), i8_of(self.minute), 0, 0);
                return hour.checked_add(later.hours()).ok();
            }
            Period::Day => move_by(at.date(), later.days())?,
            Period::Week => {
                let since = at.date().weekday().since(jiff::civil::Weekday::Monday);
                let back = (i64::from(since) + 1 - i64::from(self.day)).rem_euclid(7);
                move_by(at.date(), (later * 7 - back).days())?
            }
            Period::Month => self.day_of(move_by(at.date().first_of_month(), later.months())?)?,
            Period::Year => {
                let first = move_by(at.date().first_of_year(), later.years())?;
                self.day_of(move_by(first, (i64::from(self.month) - 1).months())?)?
            }
        };
        Some(date.at(i8_of(self.hour), i8_of(self.minute), 0, 0))
    }

    /// Returns the window's day in the month that begins on `first`, or its last day.
    fn day_of(&self, first: Date) -> Option<Date> {
        let day = i8_of(self.day).min(first.days_in_month());
        first.with().day(day).build().ok()
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// Returns the zone.
    #[must_use]
    pub const fn zone(&self) -> &Zone {
        &self.zone
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
        if self.zone != Zone::UTC {
            fields.push(("tz", self.zone.to_string()));
        }
        fields
    }

    /// Returns the number that stands for the window in an item: negative, the same in every
    /// process, and different from those of all other windows and sessions unless the names of two
    /// zones have the same hash, which no two zones of the database have.
    ///
    /// Its magnitude, from the lowest bit:
    ///
    /// | bits | value |
    /// |---|---|
    /// | 0 to 31 | hash of the zone's name in the database's spelling, by FNV-1a |
    /// | 32 to 42 | minute of the day, 0 to 1439 |
    /// | 43 to 46 | month of a year, 1 to 12, otherwise 0 |
    /// | 47 to 51 | day: 1 to 31 of a month or a year, 1 to 7 of a week, otherwise 0 |
    /// | 52 to 54 | 1 hour, 2 day, 3 week, 4 month, 5 year; 6 is a session, with its length in ms in bits 0 to 34 |
    ///
    /// ```
    /// # use weirgate_calendar::Window;
    /// let [one, other] = ["month,tz=Europe/Berlin", "month,tz=europe/berlin"].map(|text| {
    ///     let window: Result<Window, _> = text.parse();
    ///     window.map(|window| window.code())
    /// });
    /// assert_eq!(one?, other?);
    /// # Ok::<(), weirgate_calendar::CalendarError>(())
    /// ```
    #[must_use]
    pub fn code(&self) -> i64 {
        let kind = match self.period {
            Period::Hour => 1,
            Period::Day => 2,
            Period::Week => 3,
            Period::Month => 4,
            Period::Year => 5,
        };
        let minute = i64::from(self.hour) * 60 + i64::from(self.minute);
        let (day, month) = (i64::from(self.day), i64::from(self.month));
        let hash = i64::from(code::fnv1a(self.zone.name()));
        code::of(kind, day << 47 | month << 43 | minute << 32 | hash)
    }
}

/// Numbers of the calendar are below 60.
fn i8_of(number: u8) -> i8 {
    i8::try_from(number).unwrap_or(i8::MAX)
}

impl TryFrom<Every> for Window {
    type Error = CalendarError;

    fn try_from(every: Every) -> Result<Self, CalendarError> {
        every.window()
    }
}

/// The one text of a window, without what is the default: `month,day=15,tz=Europe/Berlin`.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.period.as_str())?;
        self.fields()
            .iter()
            .try_for_each(|(field, value)| write!(f, ",{field}={value}"))
    }
}

/// Reads the text of a window: `month`, `week,day=sunday,at=18:00`, `hour,at=:30`,
/// `year,month=4,day=6,tz=Europe/London`.
impl FromStr for Window {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        let mut parts = text.split(',');
        let every = Every::parse(parts.next().unwrap_or_default())?;
        let every = parts.try_fold(every, |every, part| {
            let (field, value) = part.split_once('=').unwrap_or((part, ""));
            every.set(field, value)
        });
        every?.window()
    }
}
