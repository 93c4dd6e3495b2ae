//! The clock, read once per invocation in its outermost function.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::Context;
use weirgate_shared::EpochMillis;

/// This machine's time.
#[must_use]
pub fn now() -> EpochMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How long after `now` the invocation is ended by Lambda.
#[must_use]
pub fn time_left(context: &Context, now: EpochMillis) -> Duration {
    Duration::from_millis(context.deadline.saturating_sub(u64::try_from(now.0).unwrap_or_default()))
}
