//! Serves an empty table `weirgate` in memory at `http://127.0.0.1:8000`, for functions that
//! `cargo lambda watch` runs, until it is stopped.

use std::process::ExitCode;

use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve_at;

const ADDRESS: &str = "127.0.0.1:8000";

#[tokio::main]
async fn main() -> ExitCode {
    let dynamo = Dynamo::new().await;
    match serve_at(&dynamo, ADDRESS) {
        Ok(endpoint) => println!("The table `weirgate` is at {endpoint}. Ctrl-C ends it."),
        Err(error) => {
            eprintln!("local: {ADDRESS} must be free, got {error}; stop what listens there");
            return ExitCode::FAILURE;
        }
    }
    // The signal's default action ends the process, so nothing is left to do here.
    std::future::pending().await
}
