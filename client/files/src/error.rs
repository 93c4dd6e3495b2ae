//! What is wrong in a file.

use std::path::PathBuf;

/// An error in a file of limits or rules, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", path.display(), place.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, both from 1; `None` if the file cannot be read at all.
    pub place: Option<(usize, usize)>,
    /// The error, and the accepted values.
    pub message: String,
}
