//! The life of a function: logging, configuration, connection, invocations.
//!
//! Deliberately not generic: the runtime's layers are compiled once, here, for size; the handlers
//! for speed.

use std::pin::Pin;
use std::process::ExitCode;

use lambda_runtime::tracing::Instrument;
use lambda_runtime::{Context, Error, LambdaEvent, service_fn, tracing};
use serde_json::value::RawValue;
use weirgate_store::{ConnectOptions, ErrorKind, Table, connect};

/// The response of an invocation, as JSON.
pub type Answer = Pin<Box<dyn Future<Output = Result<Box<RawValue>, Error>>>>;

/// The parts in which the functions differ.
#[allow(missing_debug_implementations, reason = "it is a closure with a name")]
pub struct Function {
    /// Name of the table.
    pub table_name: String,
    /// Handles one event, given as JSON.
    pub handler: Box<dyn Fn(Table, Box<RawValue>, Context) -> Answer>,
}

/// Handles one event, given as JSON, without a table.
pub type Handler = Box<dyn Fn(Box<RawValue>, Context) -> Answer>;

/// Runs a function until Lambda ends it. `configure` reads the environment. A wrong setting or a
/// missing table ends the start with one line.
pub fn serve(
    name: &str,
    configure: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Function, Error>,
) -> ExitCode {
    launch(name, |lookup| block_on(run(configure(lookup)?)))
}

/// Runs a function that uses no table until Lambda ends it, as [`serve`] does.
pub fn serve_without_table(
    name: &str,
    configure: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Handler, Error>,
) -> ExitCode {
    launch(name, |lookup| block_on(invocations(configure(lookup)?)))
}

fn launch(
    name: &str,
    start: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<(), Error>,
) -> ExitCode {
    crate::log_lines();
    // A value that is not Unicode is wrong, not missing.
    let lookup =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    match start(&lookup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the {name} cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn block_on(life: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    // One thread: a small function has less than one CPU.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(life)
}

async fn run(
    Function {
        table_name,
        handler,
    }: Function,
) -> Result<(), Error> {
    let table = Table::new(connect(ConnectOptions::default()).await, table_name);
    // Opens the connection while the start has more CPU than an invocation. A transient error does
    // not end the start.
    match table.warm().await {
        Err(error)
            if matches!(
                error.kind,
                ErrorKind::TableNotFound | ErrorKind::AccessDenied | ErrorKind::MissingCredentials
            ) =>
        {
            return Err(error.into());
        }
        Err(error) => tracing::warn!("the first read failed: {error}"),
        Ok(()) => {}
    }
    let handler = move |event, context| handler(table.clone(), event, context);
    invocations(Box::new(handler)).await
}

async fn invocations(handler: Handler) -> Result<(), Error> {
    lambda_runtime::run(service_fn(|event: LambdaEvent<Box<RawValue>>| {
        let (event, context) = event.into_parts();
        let span = crate::log::invocation(&context.request_id);
        handler(event, context).instrument(span)
    }))
    .await
}

/// Returns a response as JSON.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn answer(value: &impl serde::Serialize) -> Result<Box<RawValue>, Error> {
    Ok(serde_json::value::to_raw_value(value)?)
}
