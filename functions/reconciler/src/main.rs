//! The reconciler's Lambda function: wiring only.

use std::process::ExitCode;
use std::sync::Arc;

use weirgate_reconciler::{Config, invoke};
use weirgate_runtime::{Answer, Function, answer, serve};

fn main() -> ExitCode {
    serve("reconciler", |lookup| {
        let config = Arc::new(Config::read(lookup)?);
        let table_name = config.table_name.clone();
        let handler = move |table, event: Box<serde_json::value::RawValue>, context| -> Answer {
            let config = Arc::clone(&config);
            Box::pin(async move { answer(&invoke(&table, &config, event.get(), &context).await?) })
        };
        Ok(Function {
            table_name,
            handler: Box::new(handler),
        })
    })
}
