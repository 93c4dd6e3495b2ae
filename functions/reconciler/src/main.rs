//! The reconciler's Lambda function: logging, configuration, connection, run.

use std::process::ExitCode;

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde::de::IgnoredAny;
use weirgate_reconciler::{Config, Summary, invoke};
use weirgate_store::{Connection, ErrorKind, Table, connect};

fn main() -> ExitCode {
    weirgate_runtime::log_lines();
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the reconciler cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Error> {
    // A value that is no Unicode is wrong, not missing.
    let config = Config::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))?;
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
    lambda_runtime::run(service_fn(async |event: LambdaEvent<IgnoredAny>| -> Result<Summary, Error> {
        Ok(invoke(table, config, event).await?)
    }))
    .await
}
