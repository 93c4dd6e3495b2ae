//! Windows that begin with the first use.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::WindowError;
use crate::{EpochMillis, Millis, exact_span, parse_span};

/// Minimum length of a session: 1 second, in milliseconds.
const MIN_MS: i64 = 1_000;
/// Maximum length of a session: 366 days, in milliseconds.
const MAX_MS: i64 = 366 * 86_400_000;

/// A window that begins with the first use, and lasts 1 second to 366 days.
///
/// ```
/// # use weirgate_shared::SessionWindow;
/// let session: SessionWindow = "5h".parse()?;
/// assert_eq!(session.to_string(), "5h");
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionWindow(Millis);

impl SessionWindow {
    /// Returns a session of a length, rounded up to a millisecond.
    ///
    /// # Errors
    /// [`WindowError::Field`] outside 1 second to 366 days.
    pub fn new(length: Duration) -> Result<Self, WindowError> {
        Self::of(Millis::from(length)).ok_or_else(|| error(&exact_span(length)))
    }

    /// Returns the session with a length; `None` outside 1 second to 366 days.
    pub(super) const fn of(length: Millis) -> Option<Self> {
        match length.0 {
            MIN_MS..=MAX_MS => Some(Self(length)),
            _ => None,
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
}

fn error(value: &str) -> WindowError {
    WindowError::field("session", value, "a span from 1s to 366d", "write for example 5h")
}

impl fmt::Display for SessionWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_span(self.0.into()))
    }
}

impl FromStr for SessionWindow {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        Self::new(parse_span(text).ok_or_else(|| error(text))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_from_a_second_to_366_days() {
        for text in ["1s", "5h", "366d", "1h30m", "1s1ms"] {
            assert_eq!(text.parse::<SessionWindow>().unwrap().to_string(), text);
        }
        for text in ["999ms", "366d1ms", "0s", "5", "", "-1s", "365d24h1s"] {
            let error = text.parse::<SessionWindow>().unwrap_err().to_string();
            let message = "session must be a span from 1s to 366d, got \"";
            assert!(
                error.starts_with(message) && error.ends_with("\"; write for example 5h"),
                "{error}"
            );
        }
        assert!(SessionWindow::new(Duration::MAX).is_err());
    }
}
