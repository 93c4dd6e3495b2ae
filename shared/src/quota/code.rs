//! Codes: numbers that stand for windows in items.

use std::fmt;

use super::calendar::CalendarWindow;
use super::every::Every;
use super::period::{Period, Weekday};
use super::session::SessionWindow;
use super::window::QuotaWindow;
use super::zone::ZoneName;
use crate::Millis;

/// The number that stands for a quota's window in an item: negative, the same in every process, and
/// different from those of all other windows unless the names of two zones have the same hash, which
/// no two zones of the database have.
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
/// # use weirgate_shared::QuotaWindow;
/// let [one, other] = ["month,tz=Europe/Berlin", "month,tz=europe/berlin"].map(|text| {
///     let window: Result<QuotaWindow, _> = text.parse();
///     window.map(|window| window.code())
/// });
/// assert_eq!(one, other);
/// assert_eq!(one?.decode(), Some("month,tz=Europe/Berlin".parse()?));
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowCode(pub i64);

/// Lowest bits of what a code has beside the hash of its zone.
const MINUTE: u32 = 32;
const MONTH: u32 = 43;
const DAY: u32 = 47;
const KIND: u32 = 52;
/// The kind of a session.
const SESSION: i64 = 6;

impl WindowCode {
    /// Returns the length of a session; `None` for other windows.
    #[must_use]
    pub const fn session(self) -> Option<Millis> {
        match self.0.checked_neg() {
            Some(magnitude) if magnitude >> KIND == SESSION => {
                match SessionWindow::of(Millis(magnitude & ((1 << KIND) - 1))) {
                    Some(session) => Some(session.length()),
                    None => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the window; `None` for a code that this release does not know, such as one of a zone
    /// that only a newer release has.
    #[must_use]
    pub fn decode(self) -> Option<QuotaWindow> {
        if let Some(session) = self.session().and_then(SessionWindow::of) {
            return Some(QuotaWindow::Session(session));
        }
        let magnitude = self.0.checked_neg()?;
        let bits = |first: u32, end: u32| magnitude >> first & ((1 << (end - first)) - 1);
        let number = |first, end| u8::try_from(bits(first, end)).ok();
        let period = match magnitude >> KIND {
            1 => Period::Hour,
            2 => Period::Day,
            3 => Period::Week,
            4 => Period::Month,
            5 => Period::Year,
            _ => return None,
        };
        let zone = ZoneName::of_hash(u32::try_from(bits(0, MINUTE)).ok()?)?;
        let minute = bits(MINUTE, MONTH);
        let (hour, minute) = (u8::try_from(minute / 60).ok()?, u8::try_from(minute % 60).ok()?);
        let (month, day) = (number(MONTH, DAY)?, number(DAY, KIND)?);
        let every = Every::period(period).in_zone(zone);
        let every = match period {
            Period::Hour if hour == 0 => every.at_minute(minute),
            Period::Hour | Period::Day => every.at(hour, minute),
            Period::Week => every.at(hour, minute).on(Weekday::numbered(day)?),
            Period::Month => every.at(hour, minute).on_day(day),
            Period::Year => every.at(hour, minute).on_day(day).in_month(month),
        };
        let window = QuotaWindow::Calendar(every.window().ok()?);
        // A code has no other bits.
        (window.code() == self).then_some(window)
    }
}

/// The text of the window, or `unknown window (-123)`.
impl fmt::Display for WindowCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Some(window) => window.fmt(f),
            None => write!(f, "unknown window ({})", self.0),
        }
    }
}

impl QuotaWindow {
    /// Returns the number that stands for the window in an item.
    #[must_use]
    pub fn code(self) -> WindowCode {
        match self {
            Self::Calendar(window) => code_of(&window),
            Self::Session(session) => of(SESSION, session.length().0),
        }
    }
}

fn code_of(window: &CalendarWindow) -> WindowCode {
    let kind = match window.period() {
        Period::Hour => 1,
        Period::Day => 2,
        Period::Week => 3,
        Period::Month => 4,
        Period::Year => 5,
    };
    let minute = i64::from(window.hour()) * 60 + i64::from(window.minute());
    let (day, month) = (i64::from(window.day()), i64::from(window.month()));
    let hash = i64::from(window.zone().hash());
    of(kind, day << DAY | month << MONTH | minute << MINUTE | hash)
}

/// Returns the code of a kind with what belongs to it, below 2^52.
const fn of(kind: i64, rest: i64) -> WindowCode {
    WindowCode(-(kind << KIND | rest))
}
