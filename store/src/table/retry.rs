//! Which failed requests are sent again, and when.

use std::time::Duration;

use crate::{ErrorKind, StoreError, Table};

/// Which failed requests are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Retries requests that were certainly not applied.
    IfNotApplied,
    /// Also retries unconfirmed requests: only for reads, and for writes whose condition makes a
    /// second time harmless.
    AlsoUnconfirmed,
    /// Like `AlsoUnconfirmed`, but without retries for a throttled key range of the item: the
    /// application has other items to write in the meantime.
    Elsewhere,
}

impl RetryPolicy {
    /// Returns whether a planned write that failed with this kind is sent again.
    pub(crate) fn of_plans(self) -> impl Fn(ErrorKind) -> bool {
        move |kind| match kind {
            ErrorKind::ClockSkew => false,
            ErrorKind::Throttled { key_range: true } => self != Self::Elsewhere,
            kind => kind.is_transient() && (kind.was_not_applied() || self != Self::IfNotApplied),
        }
    }
}

pub(super) const ATTEMPTS: u32 = 4;
const FIRST_DELAY: Duration = Duration::from_millis(25);

impl Table {
    pub(crate) async fn again<T, F>(
        &self,
        may: impl Fn(ErrorKind) -> bool,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut attempt = 1;
        loop {
            match request().await {
                Err(error) if attempt < ATTEMPTS && may(error.kind) => {
                    tracing::debug!(%error, attempt, "retrying");
                    pause(attempt).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }
}

async fn pause(attempt: u32) {
    tokio::time::sleep(backoff(attempt)).await;
}

/// Returns a random pause after so many failures in a row, up to a bound that doubles from 25 ms to 800 ms
/// (full jitter).
#[must_use]
pub fn backoff(failures: u32) -> Duration {
    let most = FIRST_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(5));
    Duration::from_micros(fastrand::u64(0..=u64::try_from(most.as_micros()).unwrap_or(u64::MAX)))
}
