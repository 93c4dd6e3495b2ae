//! What the environment of a function says, and when Lambda ends an invocation.

use lambda_runtime::Context;
use weirgate_aggregator as aggregator;
use weirgate_reconciler as reconciler;
use weirgate_runtime::{ConfigError, time_left};
use weirgate_shared::EpochMillis;

use crate::numbers::Bytes;

/// Reads variables, whose values stand in a row with NULs between, and an invocation's end.
///
/// # Panics
/// If what is refused is not told in one line.
pub fn environment(bytes: &[u8]) {
    let names =
        ["TABLE_NAME", "SNAPSHOT_WINDOWS", "SNAPSHOT_TTL_DAYS", "WRITE_CONCURRENCY", "MAX_SHARDS", "RECONCILE_PAGE"];
    let values: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let lookup = |wanted: &str| {
        let at = names.iter().position(|name| *name == wanted)?;
        values.get(at).map(|value| value.clone().into_owned())
    };
    match aggregator::Config::read(lookup) {
        Ok(config) => {
            assert!(!config.snapshots.windows.is_empty() && (1..=256).contains(&config.write_concurrency));
            assert!(config.max_shards.is_power_of_two() && config.max_shards <= 64);
        }
        Err(error) => told(&error),
    }
    match reconciler::Config::read(lookup) {
        Ok(config) => assert!((1..=1000).contains(&config.page)),
        Err(error) => told(&error),
    }

    let mut bytes = Bytes(bytes);
    let mut context = Context::default();
    context.deadline = u64::try_from(bytes.number()).unwrap_or(u64::MAX);
    let _ = reconciler::Deadline::after(time_left(&context, EpochMillis(bytes.number())));
}

fn told(error: &ConfigError) {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.contains(error.name), "{line:?}");
}
