//! Files of limits and rules: YAML whose errors have line and column, and files that are read again
//! when they change. Reading them is the one I/O of this crate.
//!
//! - `yaml`: [`Node`]s of a document, read by what they must be
//! - `limit`: a limit, as its text or as a map
//! - `read`: the text of a file, or of each file in a folder
//! - `watched`: [`Watched`]: a value from files, the last good one

mod limit;
mod read;
mod watched;
mod yaml;

use std::path::PathBuf;

pub use limit::read_limit;
pub use read::{MAX_BYTES, TextFile, read_file};
pub use watched::{Watched, What};
pub use yaml::{Format, Node, Source, with_document};

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
