//! A process of a deployed function, on a table of a test.

use std::io::Write;

use serde_json::Value;
use weirgate_runtime::{ConfigError, Context, Function, Runner};
use weirgate_store::Table;

use crate::emf::STACK;
use crate::lines::Lines;

/// Time in ms that an invocation has.
const TIMEOUT_MS: i64 = 60_000;

/// A process of a function, configured by the defaults of its variables.
#[derive(Debug)]
pub struct Process {
    runner: Runner,
    table: Table,
}

impl Process {
    /// Starts a process on the table. Its lines go to `lines`, its other ones to the current
    /// subscriber.
    pub fn start(
        function: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Function, ConfigError>,
        table: Table,
        lines: &Lines,
    ) -> Self {
        let function = function(&|name| (name == "TABLE_NAME").then(|| table.name().to_owned()));
        let function = function.expect("only the table has no default");
        let lines = lines.clone();
        let write = move |line: &str| {
            let written = lines.clone().write_all(line.as_bytes());
            written.expect("memory takes a line");
        };
        Self { runner: Runner::new(function, STACK.to_owned(), table.clone(), write), table }
    }

    /// Has an event handled in an invocation with this request id and trace id. Returns the
    /// response.
    pub async fn invoke(
        &self,
        event: &str,
        request_id: &str,
        trace_id: Option<&str>,
    ) -> Result<Value, String> {
        let mut context = Context::default();
        context.request_id = request_id.to_owned();
        context.xray_trace_id = trace_id.map(str::to_owned);
        let deadline = self.table.skew().now().0 + TIMEOUT_MS;
        context.deadline = u64::try_from(deadline).expect("it is after 1970");
        let event = serde_json::from_str(event).expect("an event is JSON");
        let response = self.runner.invoke(event, context).await;
        let response = response.map_err(|error| error.to_string())?;
        Ok(serde_json::from_str(response.get()).expect("a response is JSON"))
    }
}
