//! How the demo runs.

use std::path::PathBuf;
use std::time::Duration;

/// How the demo runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long callers drive the stack.
    pub drive: Duration,
    /// The port MiniStack listens on; a free one if not said.
    pub port: Option<u16>,
    /// The program that holds slots and is killed: this package's `demo`.
    pub holder: PathBuf,
}
