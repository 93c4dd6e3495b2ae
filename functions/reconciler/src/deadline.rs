//! The deadline of a run, on a monotonic clock.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Time reserved for the response and its log line.
const ANSWER: Duration = Duration::from_secs(1);
/// Time reserved for work in progress: one request with its timeout.
const UNDER_WAY: Duration = Duration::from_secs(3);

/// The instants after which no work begins, and after which work in progress is dropped.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    begin: Instant,
    end: Instant,
}

impl Deadline {
    /// Returns the deadline of an invocation that ends after `left`.
    #[must_use]
    pub fn after(left: Duration) -> Self {
        let end = left.saturating_sub(ANSWER);
        let now = Instant::now();
        Self { begin: now + end.saturating_sub(UNDER_WAY), end: now + end }
    }

    /// Returns the output of `work` if there is time to begin it and it ends in time. Otherwise
    /// drops it: DynamoDB applies a dropped write entirely or not at all.
    pub async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if Instant::now() >= self.begin {
            return None;
        }
        timeout_at(self.end, work).await.ok()
    }
}
