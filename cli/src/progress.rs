//! Progress of long work, in one line of a terminal.

use std::time::{Duration, Instant};

use crate::streams::replace_line;

/// Time between two updates of the line.
const PAUSE: Duration = Duration::from_millis(100);

/// A line on standard error, while the work takes longer than a moment.
#[derive(Debug)]
pub struct Progress {
    is_wanted: bool,
    shown_at: Instant,
    is_shown: bool,
}

impl Progress {
    /// Begins a line, if it is wanted: only people at a terminal read it.
    pub fn new(is_wanted: bool) -> Self {
        Self { is_wanted, shown_at: Instant::now(), is_shown: false }
    }

    /// Replaces the line.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.is_wanted && self.shown_at.elapsed() >= PAUSE {
            replace_line(&text());
            (self.shown_at, self.is_shown) = (Instant::now(), true);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            replace_line("");
        }
    }
}
