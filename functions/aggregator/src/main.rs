//! The aggregator's Lambda function: wiring only.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_aggregator::execute::Throttles;
use weirgate_aggregator::{Config, Invocation, handle_next};
use weirgate_runtime::{Function, answer, serve, time_left};
use weirgate_store::Table;

fn main() -> ExitCode {
    serve("aggregator", |lookup| {
        let config = Arc::new(Config::read(lookup)?);
        let throttles = Arc::new(Throttles::default());
        let table_name = config.table_name.clone();
        let handler = move |table: Table,
                            event: Box<serde_json::value::RawValue>,
                            context|
              -> weirgate_runtime::Answer {
            let (config, throttles) = (Arc::clone(&config), Arc::clone(&throttles));
            Box::pin(async move {
                // The only clock read; the table's first response has corrected the clock.
                let (now, instant) = (table.skew().now(), Instant::now());
                let invocation = Invocation {
                    now,
                    deadline: instant + time_left(&context, now),
                };
                answer(
                    &handle_next(event.get(), &table, &config, &throttles, invocation)
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
