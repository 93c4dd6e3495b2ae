//! Lambda's clock: the time that an invocation has left.

use std::time::Duration;

use lambda_runtime::Context;
use weirgate_shared::EpochMillis;

/// Maximum duration of a function on Lambda: 15 minutes.
/// <https://docs.aws.amazon.com/lambda/latest/dg/configuration-timeout.html>
const LONGEST_MS: u64 = 900_000;

/// Returns the time from `now` until Lambda ends the invocation.
///
/// A deadline is a time since 1970. `cargo lambda watch` instead gives the time left, which would
/// be a deadline in 1970.
#[must_use]
pub fn time_left(context: &Context, now: EpochMillis) -> Duration {
    let since = match context.deadline {
        0..=LONGEST_MS => 0,
        _ => u64::try_from(now.0).unwrap_or_default(),
    };
    Duration::from_millis(context.deadline.saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_time_and_a_development_server_gives_what_is_left() {
        let now = EpochMillis(1_795_195_341_000);
        let left = |deadline| {
            let mut context = Context::default();
            context.deadline = deadline;
            time_left(&context, now).as_millis()
        };
        assert_eq!(left(1_795_195_401_000), 60_000);
        assert_eq!(left(1_795_195_340_000), 0);
        assert_eq!(left(600_000), 600_000);
        assert_eq!(left(900_001), 0);
    }
}
