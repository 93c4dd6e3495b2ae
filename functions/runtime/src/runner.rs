//! The invocations of one process, one after the other, each with its line.

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;

use lambda_runtime::tracing::Instrument;
use lambda_runtime::{Context, Error};
use serde_json::value::RawValue;
use tokio::time::Instant;
use weirgate_store::{Table, ThrottleMeter};

use crate::budget::{SHOWN, shorten};
use crate::metrics_line::{MetricsLine, Written};

/// The outcome of one invocation.
#[derive(Debug)]
pub struct Invoked {
    /// What its line says.
    pub line: MetricsLine,
    /// Its response, as JSON.
    pub response: Result<Box<RawValue>, Error>,
}

/// An invocation in progress.
pub type Invoking = Pin<Box<dyn Future<Output = Invoked>>>;

/// The parts in which the functions differ.
#[allow(missing_debug_implementations, reason = "it is a closure with a name")]
pub struct Function {
    /// Its name in metrics and errors.
    pub name: &'static str,
    /// Name of the table.
    pub table_name: String,
    /// Handles one event, given as JSON.
    pub handler: Box<dyn Fn(Table, Box<RawValue>, Context) -> Invoking>,
}

/// One process of a function.
pub struct Runner {
    function: Function,
    stack: String,
    table: Table,
    throttles: ThrottleMeter,
    is_cold: Cell<bool>,
    write: Box<dyn Fn(&str)>,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({})", self.function.name)
    }
}

impl Runner {
    /// Returns a process that has handled no event, of the stack with this name. `write` gets each
    /// line with its end, whatever the log level is: alarms watch its metrics.
    #[must_use]
    pub fn new(
        function: Function,
        stack: String,
        table: Table,
        write: impl Fn(&str) + 'static,
    ) -> Self {
        let throttles = ThrottleMeter::default();
        Self {
            function,
            stack,
            table: table.with_throttle_meter(throttles.clone()),
            throttles,
            is_cold: Cell::new(true),
            write: Box::new(write),
        }
    }

    /// Handles one event, and writes its line.
    ///
    /// # Errors
    /// Those of the function: Lambda then counts the invocation as failed.
    pub async fn invoke(
        &self,
        event: Box<RawValue>,
        context: Context,
    ) -> Result<Box<RawValue>, Error> {
        let (started, is_cold) = (Instant::now(), self.is_cold.replace(false));
        let span = crate::log::invocation(&context);
        let invoking = (self.function.handler)(self.table.clone(), event, context.clone());
        let Invoked { line, response } = invoking.instrument(span).await;
        let error = response.as_ref().err().map(ToString::to_string);
        let line = line
            .of_process(&self.throttles.take(), is_cold, started.elapsed())
            .text("error", error.map(|error| shorten(&error, SHOWN).into_owned()));
        let written = Written {
            at: self.table.skew().now(),
            stack: &self.stack,
            function: self.function.name,
            context: &context,
            is_failed: response.is_err(),
            line: &line,
        };
        // Text, numbers and lists of them: their serialization cannot fail.
        if let Ok(line) = serde_json::to_string(&written) {
            (self.write)(&format!("{line}\n"));
        }
        response
    }
}
