//! Ctrl-C, where there are no signals. A console sends it to all its processes, so to a command too.

use std::process::ExitStatus;

use tokio::process::Child;
use tokio::signal::windows::{CtrlC, ctrl_c};

use crate::failure::Failure;

/// Exit code of a process that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;

/// One Ctrl-C.
#[derive(Debug)]
pub struct Received;

/// Takes each Ctrl-C, from now to the end of this process.
#[derive(Debug)]
pub struct Signals(CtrlC);

impl Signals {
    /// Begins to take them.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Failure> {
        let failed =
            |error| Failure::Failed(format!("Ctrl-C cannot be taken: {error}; run this again"));
        ctrl_c().map(Self).map_err(failed)
    }

    /// Returns the next one.
    pub async fn next(&mut self) -> Received {
        self.0.recv().await;
        Received
    }

    /// Waits for one. Returns the exit code that it leads to.
    pub async fn end(&mut self) -> u8 {
        self.next().await;
        INTERRUPTED
    }
}

/// Leaves it to the console.
pub const fn forward(_: &Child, _: Received) {}

/// Ends a command.
pub fn terminate(child: &mut Child) {
    let _ = child.start_kill();
}

/// Returns the exit code that stands for the end of a command.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(u8::MAX)
}
