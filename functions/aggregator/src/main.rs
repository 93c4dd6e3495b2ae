//! The aggregator's Lambda function: wiring only.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_aggregator::{Config, Invocation, handle};
use weirgate_runtime::{Function, answer, serve, time_left};
use weirgate_store::Table;

fn main() -> ExitCode {
    serve("aggregator", |lookup| {
        let config = Arc::new(Config::read(lookup)?);
        let table_name = config.table_name.clone();
        let handler = move |table: Table,
                            event: Box<serde_json::value::RawValue>,
                            context|
              -> weirgate_runtime::Answer {
            let config = Arc::clone(&config);
            Box::pin(async move {
                // The only clock read; the table's first response has corrected the clock.
                let (now, instant) = (table.skew().now(), Instant::now());
                let invocation = Invocation {
                    now,
                    deadline: instant + time_left(&context, now),
                };
                answer(
                    &handle(event.get(), &table, &config, invocation)
                        .await?
                        .response?,
                )
            })
        };
        Ok(Function {
            table_name,
            handler: Box::new(handler),
        })
    })
}
