//! Progress of long work, in one line of a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two updates of the line.
const PAUSE: Duration = Duration::from_millis(100);
/// Moves to the begin of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// A line on standard error, while the work takes longer than a moment.
#[derive(Debug)]
pub struct Progress {
    is_wanted: bool,
    shown_at: Instant,
    is_shown: bool,
}

impl Progress {
    /// Begins a line, which is for people at a terminal only.
    pub fn new(is_json: bool) -> Self {
        Self {
            is_wanted: !is_json && std::io::stderr().is_terminal(),
            shown_at: Instant::now(),
            is_shown: false,
        }
    }

    /// Replaces the line.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.is_wanted && self.shown_at.elapsed() >= PAUSE {
            eprint!("{CLEAR}{}", text());
            (self.shown_at, self.is_shown) = (Instant::now(), true);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("{CLEAR}");
        }
    }
}
