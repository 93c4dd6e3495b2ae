//! What the functions did last, from the process that runs them.

use std::fmt;

use serde::Serialize;

/// One thing that a function did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActionLine {
    /// Number of the action; later actions have larger ones.
    pub number: u64,
    /// When it began, epoch ms.
    pub at_ms: i64,
    /// How long it took, in ms.
    pub took_ms: u64,
    /// The function.
    pub function: String,
    /// What it did, in words.
    pub text: String,
    /// Whether it had nothing to write. A later such line stands for all of them in a row.
    pub is_idle: bool,
}

/// A source of the last actions.
pub trait LastActions: fmt::Debug + Send + Sync {
    /// Returns the remembered actions after number `after`, the oldest first.
    fn lines_after(&self, after: u64) -> Vec<ActionLine>;
}
