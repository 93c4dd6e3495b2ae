//! The window of a quota, and its text.

use std::fmt;
use std::str::FromStr;

use super::calendar::CalendarWindow;
use super::error::WindowError;
use super::every::Every;
use super::session::SessionWindow;

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

impl TryFrom<Every> for QuotaWindow {
    type Error = WindowError;

    fn try_from(every: Every) -> Result<Self, WindowError> {
        every.window().map(Self::Calendar)
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
