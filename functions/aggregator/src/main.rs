//! The aggregator's Lambda function: wiring only.

use std::process::ExitCode;

fn main() -> ExitCode {
    weirgate_runtime::serve("aggregator", weirgate_aggregator::function)
}
