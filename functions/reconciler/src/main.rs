//! The reconciler on Lambda: wiring only.

use std::process::ExitCode;

use lambda_runtime::{LambdaEvent, service_fn};
use serde::de::IgnoredAny;
use weirgate_reconciler::{Config, invoke};
use weirgate_store::{Connection, Table, connect};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    weirgate_runtime::log_lines();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), lambda_runtime::Error> {
    let config = Config::from(|name| std::env::var(name).ok())?;
    let table = Table::new(connect(Connection::default()).await, &config.table_name);
    // The init phase has the full CPU: the handshake belongs here, and so does a table that is not there.
    table.warm().await?;
    let (table, config) = (&table, &config);
    let handler =
        async |event: LambdaEvent<IgnoredAny>| Ok::<_, lambda_runtime::Error>(invoke(table, config, event).await?);
    lambda_runtime::run(service_fn(handler)).await
}
