//! The aggregator's Lambda function: logging, configuration, connection, run.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::value::RawValue;
use tokio::time::Instant;
use weirgate_aggregator::{Config, Invocation, Response, handle, log};
use weirgate_shared::EpochMillis;
use weirgate_store::{Connection, ErrorKind, Table, connect};

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    log::init(variable("AWS_LAMBDA_LOG_LEVEL").as_deref());
    match start(variable) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the aggregator cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(variable: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let config = Config::read(variable)?;
    // One thread: a small function has less than one CPU.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(config))
}

async fn run(config: Config) -> Result<(), Error> {
    let table = Table::new(connect(Connection::default()).await, &*config.table_name);
    // Opens the connection while the start has more CPU than an invocation. What may pass by itself does not end it.
    match table.warm().await {
        Err(error) if matches!(error.kind, ErrorKind::NoTable | ErrorKind::Forbidden) => return Err(error.into()),
        Err(error) => tracing::warn!("the first read failed: {error}"),
        Ok(()) => {}
    }
    let (table, config) = (&table, &config);
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Box<RawValue>>| -> Result<Response, Error> {
        let (event, context) = event.into_parts();
        let handled = handle(event.get(), table, config, invocation(context.deadline)).await?;
        Ok(handled.response?)
    }))
    .await
}

/// The clock is read here and nowhere else. `deadline` is in epoch milliseconds.
fn invocation(deadline: u64) -> Invocation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_millis(deadline).saturating_sub(now);
    Invocation { now: EpochMillis(i64::try_from(now.as_millis()).unwrap_or(i64::MAX)), deadline: Instant::now() + left }
}
