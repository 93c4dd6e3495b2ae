//! When a run must stop, on a clock that only goes forward.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// For the answer and its log line.
const ANSWER: Duration = Duration::from_secs(1);
/// For what is under way: one request with its timeout.
const UNDER_WAY: Duration = Duration::from_secs(3);

/// When nothing new is begun any more, and when what is under way is left.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    begin: Instant,
    end: Instant,
}

impl Deadline {
    /// The deadline of an invocation that is ended after `left`.
    #[must_use]
    pub fn after(left: Duration) -> Self {
        let end = left.saturating_sub(ANSWER);
        let now = Instant::now();
        Self {
            begin: now + end.saturating_sub(UNDER_WAY),
            end: now + end,
        }
    }

    /// What `work` makes, if there is time to begin it and it ends in time. It is left in the
    /// middle otherwise: a write that is never heard of again is either made whole or not at all.
    pub async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if Instant::now() >= self.begin {
            return None;
        }
        timeout_at(self.end, work).await.ok()
    }
}
