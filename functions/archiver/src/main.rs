//! The archiver's Lambda function: wiring only.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use weirgate_archiver::{Bucket, Config, Invocation, handle};
use weirgate_runtime::{Answer, answer, serve_without_table, time_left};
use weirgate_shared::EpochMillis;

fn main() -> ExitCode {
    serve_without_table("archiver", |lookup| {
        let config = Arc::new(Config::read(lookup)?);
        let handler = move |event: Box<serde_json::value::RawValue>, context| -> Answer {
            let config = Arc::clone(&config);
            Box::pin(async move {
                // The only clock reads.
                let (time, instant) = (SystemTime::now(), Instant::now());
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
                let invocation = Invocation {
                    time,
                    deadline: instant + time_left(&context, now),
                };
                // A connection of its own: events are rare, and one that was idle while the process
                // was frozen may be dead.
                let bucket = Bucket::new(&config);
                answer(&handle(event.get(), &bucket, invocation).await?.response)
            })
        };
        Ok(Box::new(handler))
    })
}
