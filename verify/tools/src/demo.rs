//! A deployed stack, driven by the real client, and a report read back from the table.
//!
//! `make e2e` runs it as a test.

mod account;
mod archive;
mod beside;
mod connection;
mod drive;
mod emulator;
mod ledger;
mod options;
mod release;
mod report;
mod stack;

use weirgate_store::{CapacityMeter, Table};

pub(crate) use archive::expired_audit_event;
pub(crate) use connection::{connected, now};
pub use drive::hold;
pub use options::Options;
pub use release::Release;
pub use report::Report;
pub use stack::Stack;

/// Deploys, drives, waits for the functions, and reads the report back.
///
/// # Errors
/// One line that says what failed, and what to do.
pub async fn run(options: &Options, progress: impl Fn(&str)) -> Result<Report, String> {
    let stack = Stack::start(options.port, &progress).await?;
    run_on(&stack, options, progress).await
}

/// Drives a deployed stack, waits for the functions, and reads the report back.
///
/// # Errors
/// One line that says what failed, and what to do.
pub async fn run_on(
    stack: &Stack,
    options: &Options,
    progress: impl Fn(&str),
) -> Result<Report, String> {
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
    Report::read(stack, &table, driven, started).await
}

/// Checks what a stack has only if it is asked for: the archive of audit events, and a second stack
/// on the table of this one.
///
/// # Errors
/// One line that says what failed.
pub async fn check_options(stack: &Stack, progress: impl Fn(&str)) -> Result<(), String> {
    progress("an expired audit event, archived twice");
    archive::check(stack).await?;
    progress("sam deploy, of a second stack on the same table");
    beside::check(stack).await
}
