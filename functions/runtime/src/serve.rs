//! The life of a function: logging, configuration, connection, invocations.
//!
//! Deliberately not generic: the runtime's layers are compiled once, here, for size; the handlers
//! for speed.

use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;

use lambda_runtime::{Error, LambdaEvent, service_fn, tracing};
use serde_json::value::RawValue;
use weirgate_store::{ConnectOptions, ErrorKind, Table, connect};

use crate::runner::{Function, Runner};
use crate::settings::Settings;
use crate::variable::ConfigError;

/// Runs a function until Lambda ends it. `configure` reads the environment. A wrong setting or a
/// missing table ends the start with one line.
pub fn serve(
    name: &str,
    configure: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Function, ConfigError>,
) -> ExitCode {
    // A value that is not Unicode is wrong, not missing.
    let lookup =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let settings = Settings::read(lookup);
    crate::log_lines(settings.as_ref().map_or("", |settings| &settings.log_level));
    let configured =
        settings.and_then(|settings| configure(&lookup).map(|function| (settings, function)));
    match configured
        .map_err(Error::from)
        .and_then(|(settings, function)| block_on(run(settings.stack, function)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the {name} cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn block_on(life: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    // One thread: a small function has less than one CPU.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(life)
}

async fn run(stack: String, function: Function) -> Result<(), Error> {
    let table = Table::new(connect(ConnectOptions::default()).await, function.table_name.clone());
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
    let runner = Rc::new(Runner::new(function, stack, table, write));
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Box<RawValue>>| {
        let (runner, (event, context)) = (Rc::clone(&runner), event.into_parts());
        async move { runner.invoke(event, context).await }
    }))
    .await
}

/// One write, so that a line stays whole. There is nowhere to report that it failed.
fn write(line: &str) {
    drop(std::io::stdout().lock().write_all(line.as_bytes()));
}

/// Returns a response as JSON.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn answer(value: &impl serde::Serialize) -> Result<Box<RawValue>, Error> {
    Ok(serde_json::value::to_raw_value(value)?)
}
