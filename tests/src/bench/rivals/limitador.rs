//! The crate limitador on a redis-server, in a process of its own: `verify/rivals/limitador`, which a workspace of
//! its own builds, because its dependencies are others than this project allows.

use std::path::Path;

use tokio::process::Command;

use super::super::scenario::Scenario;
use super::peer::Process;

/// Starts a driver for a scenario.
pub async fn start(redis: &str, scenario: &Scenario) -> Process {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/rivals/limitador");
    let mut command = Command::new(folder.join("target/release/drive-limitador"));
    command.args([redis, scenario.name, &scenario.callers.to_string()]);
    Process::of(command, "make limitador").await
}
