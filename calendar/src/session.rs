//! Windows that begin with the first use.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use weirgate_shared::{EpochMillis, Millis, exact_span, parse_span};

use crate::{CalendarError, code};

/// Minimum length of a session: 1 second, in milliseconds.
const MIN_MS: i64 = 1_000;
/// Maximum length of a session: 366 days, in milliseconds.
const MAX_MS: i64 = 366 * 86_400_000;

/// The length of a window that begins with the first use, 1 second to 366 days.
///
/// ```
/// # use weirgate_calendar::Session;
/// let session: Session = "5h".parse()?;
/// assert_eq!(session.to_string(), "5h");
/// # Ok::<(), weirgate_calendar::CalendarError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(Millis);

impl Session {
    /// Returns a session of a length, rounded up to a millisecond.
    ///
    /// # Errors
    /// [`CalendarError::Field`] outside 1 second to 366 days.
    pub fn new(length: Duration) -> Result<Self, CalendarError> {
        let rounded = Millis::from(length);
        match rounded.0 {
            MIN_MS..=MAX_MS => Ok(Self(rounded)),
            _ => Err(error(&exact_span(length))),
        }
    }

    /// Returns the length.
    #[must_use]
    pub const fn length(self) -> Millis {
        self.0
    }

    /// Returns the end of the session whose first use is at `first_use`.
    #[must_use]
    pub const fn end_after(self, first_use: EpochMillis) -> EpochMillis {
        first_use.plus(self.0)
    }

    /// Returns the number that stands for the session in an item, as
    /// [`Window::code`](crate::Window::code) does for a window.
    #[must_use]
    pub const fn code(self) -> i64 {
        code::of(code::SESSION, self.0.0)
    }
}

fn error(value: &str) -> CalendarError {
    CalendarError::field(
        "session",
        value,
        "a span from 1s to 366d",
        "write for example 5h",
    )
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_span(self.0.into()))
    }
}

impl FromStr for Session {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        Self::new(parse_span(text).ok_or_else(|| error(text))?)
    }
}
