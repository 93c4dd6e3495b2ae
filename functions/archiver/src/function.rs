//! The function as Lambda runs it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use tokio::time::Instant;
use weirgate_runtime::{ConfigError, Context, Handler, Invoked, Invoking, answer, time_left};
use weirgate_shared::EpochMillis;

use crate::bucket::Bucket;
use crate::config::Config;
use crate::handle::{Invocation, handle};
use crate::report::Summary;

/// Returns the function, configured by the variables that `lookup` returns.
///
/// # Errors
/// [`ConfigError`] for the first one that is missing or wrong.
pub fn function(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Handler, ConfigError> {
    let config = Arc::new(Config::read(lookup)?);
    Ok(Box::new(
        move |event: Box<RawValue>, context: Context| -> Invoking {
            let config = Arc::clone(&config);
            Box::pin(async move { invoke(&config, event.get(), &context).await })
        },
    ))
}

async fn invoke(config: &Config, event: &str, context: &Context) -> Invoked {
    // The only clock reads.
    let (time, instant) = (SystemTime::now(), Instant::now());
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    let invocation = Invocation {
        time,
        deadline: instant + time_left(context, now),
    };
    // A connection of its own: events are rare, and one that was idle while the process was frozen
    // may be dead.
    let bucket = Bucket::new(config);
    match handle(event, &bucket, invocation).await {
        Ok(handled) => Invoked {
            line: handled.summary.metrics_line(),
            response: answer(&handled.response),
        },
        Err(error) => Invoked {
            line: Summary::default().metrics_line(),
            response: Err(error.into()),
        },
    }
}
