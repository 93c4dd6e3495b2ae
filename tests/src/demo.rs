//! The demo: a deployed stack, driven by the real client, and a report read back from the table.
//!
//! `make demo` runs it for a minute; `make e2e` runs it shortened, as a test.

mod drive;
mod ledger;
mod report;
mod stack;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weirgate::EpochMillis;
use weirgate_store::{CapacityMeter, ConnectOptions, Connection, Table, connect};

pub use drive::hold;
pub use report::Report;
pub use stack::Stack;

/// How the demo runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long callers drive the stack.
    pub drive: Duration,
    /// The port MiniStack listens on; a free one if not said.
    pub port: Option<u16>,
    /// The program that holds slots and is killed: this package's `demo`.
    pub holder: PathBuf,
}

/// Deploys, drives, waits for the functions, and reads the report back.
///
/// # Errors
/// One line that says what failed, and what to do.
pub async fn run(options: &Options, progress: impl Fn(&str)) -> Result<Report, String> {
    let stack = Stack::start(options.port, &progress).await?;
    let (table_name, meter) = (
        stack.output("TableName")?.to_owned(),
        CapacityMeter::default(),
    );
    let table = Table::new(connected(&stack.endpoint).await, &table_name).with_meter(meter.clone());
    let started = now();
    progress(&format!(
        "driving table {table_name} for {:?}",
        options.drive
    ));
    let driven = drive::drive(&table, &meter, &stack.endpoint, options, &progress).await?;
    progress(
        "callers stopped; waiting until the aggregator has counted everything, and for the reconciler's schedule",
    );
    Report::read(&stack, &table, driven, started).await
}

pub(crate) async fn connected(endpoint: &str) -> Connection {
    connect(ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    })
    .await
}

pub(crate) fn now() -> EpochMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    EpochMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
