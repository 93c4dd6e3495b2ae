//! The function as Lambda runs it.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::time::Instant;
use weirgate_runtime::{
    ConfigError, Context, Function, Invoked, Invoking, LogBudget, answer, time_left,
};
use weirgate_store::Table;

use crate::config::Config;
use crate::execute::Throttles;
use crate::handle::{Invocation, handle_next};
use crate::report::Summary;

/// Returns the function, configured by the variables that `lookup` returns.
///
/// # Errors
/// [`ConfigError`] for the first one that is missing or wrong.
pub fn function(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Function, ConfigError> {
    let config = Arc::new(Config::read(lookup)?);
    let throttles = Arc::new(Throttles::default());
    let table_name = config.table_name.clone();
    let handler = move |table: Table, event: Box<RawValue>, context: Context| -> Invoking {
        let (config, throttles) = (Arc::clone(&config), Arc::clone(&throttles));
        Box::pin(async move { invoke(&table, &config, &throttles, event.get(), &context).await })
    };
    Ok(Function { name: "aggregator", table_name, handler: Box::new(handler) })
}

async fn invoke(
    table: &Table,
    config: &Config,
    throttles: &Throttles,
    event: &str,
    context: &Context,
) -> Invoked {
    // The only clock read; the table's first response has corrected the clock.
    let (now, instant) = (table.skew().now(), Instant::now());
    let invocation = Invocation { now, deadline: instant + time_left(context, now) };
    let budget = LogBudget::default();
    match handle_next(event, table, config, throttles, invocation, budget).await {
        Ok(handled) => Invoked {
            line: handled.summary.metrics_line(),
            response: handled.response.map_err(Into::into).and_then(|response| answer(&response)),
        },
        Err(error) => {
            Invoked { line: Summary::default().metrics_line(), response: Err(error.into()) }
        }
    }
}
