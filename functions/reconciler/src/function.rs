//! The function as Lambda runs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::value::RawValue;
use weirgate_runtime::{ConfigError, Context, Function, Invoked, Invoking, answer, time_left};
use weirgate_store::Table;

use crate::config::Config;
use crate::deadline::Deadline;
use crate::run;
use crate::schedule::Schedule;

/// Returns the function, configured by the variables that `lookup` returns. It runs once for an
/// event of any content; its line names the event of a schedule.
///
/// # Errors
/// [`ConfigError`] for the first one that is missing or wrong.
pub fn function(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Function, ConfigError> {
    let config = Arc::new(Config::read(lookup)?);
    let table_name = config.table_name.clone();
    let is_marked = Arc::new(AtomicBool::default());
    let handler = move |table: Table, event: Box<RawValue>, context: Context| -> Invoking {
        let (config, is_marked) = (Arc::clone(&config), Arc::clone(&is_marked));
        Box::pin(async move {
            mark(&table, &is_marked).await;
            invoke(&table, &config, event.get(), &context).await
        })
    };
    Ok(Function { name: "reconciler", table_name, handler: Box::new(handler) })
}

/// Marks once in a process what the functions know: clients write no quota before. The stack updates
/// the aggregator first, so the mark speaks for both.
async fn mark(table: &Table, is_marked: &AtomicBool) {
    if is_marked.load(Ordering::Relaxed) {
        return;
    }
    match table.mark_functions().await {
        Ok(()) => is_marked.store(true, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!(%error, "what the functions know is not marked: the next run tries again")
        }
    }
}

async fn invoke(table: &Table, config: &Config, event: &str, context: &Context) -> Invoked {
    let clock = || table.skew().now();
    let now = clock();
    let deadline = Deadline::after(time_left(context, now));
    let summary = run(table, config, &clock, deadline).await;
    let schedule = Schedule::of(event, now);
    let late_ms = schedule.as_ref().map(|schedule| schedule.late_ms);
    let (id, at) = schedule.map_or((None, None), |schedule| (schedule.id, Some(schedule.at)));
    let line = summary
        .metrics_line()
        .text("schedule_id", id)
        .text("scheduled_at", at)
        .number("late_ms", late_ms);
    let response = summary.answer().map_err(Into::into).and_then(|summary| answer(&summary));
    Invoked { line, response }
}
