//! Lambda's clock: how long an invocation has left.

use std::time::Duration;

use lambda_runtime::Context;
use weirgate_shared::EpochMillis;

/// How long after `now` the invocation is ended by Lambda.
#[must_use]
pub fn time_left(context: &Context, now: EpochMillis) -> Duration {
    Duration::from_millis(
        context
            .deadline
            .saturating_sub(u64::try_from(now.0).unwrap_or_default()),
    )
}
