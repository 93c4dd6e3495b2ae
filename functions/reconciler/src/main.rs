//! The reconciler's Lambda function: wiring only.

use std::process::ExitCode;

fn main() -> ExitCode {
    weirgate_runtime::serve("reconciler", weirgate_reconciler::function)
}
