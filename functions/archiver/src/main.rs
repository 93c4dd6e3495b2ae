//! The archiver's Lambda function: wiring only.

use std::process::ExitCode;

fn main() -> ExitCode {
    weirgate_runtime::serve_without_table("archiver", weirgate_archiver::function)
}
