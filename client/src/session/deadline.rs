//! Deadlines, and waits between attempts.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the instant `span` from now, or a far one on overflow.
pub(crate) fn deadline(span: Duration) -> Instant {
    after(Instant::now(), span)
}

/// Returns the instant `span` after `start`, or a far one on overflow.
pub(crate) fn after(start: Instant, span: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(span).unwrap_or_else(|| start + FAR)
}

/// Returns a quarter of the time that is left: what a request waits for that it can do without.
pub(crate) fn quarter_left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / 4
}

/// Returns a random time up to a bound that doubles from 25 ms to 800 ms (full jitter).
pub(crate) fn backoff(failures: u32) -> Duration {
    let most = 25_000_u64 << failures.saturating_sub(1).min(5);
    Duration::from_micros(fastrand::u64(0..=most))
}
