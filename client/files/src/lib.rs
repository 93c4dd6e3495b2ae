//! Files of limits and rules: YAML whose errors have line and column, and files that are read again
//! when they change.
//!
//! # Layout
//!
//! - `error`: [`FileError`]: what is wrong in a file, and where
//! - `yaml`: [`Node`]s of a document, read by what they must be
//! - `read`: the text of a file, or of each file in a folder
//! - `watched`: [`Watched`]: a value from files, the last good one

mod error;
mod read;
mod watched;
mod yaml;

pub use error::FileError;
pub use read::{MAX_BYTES, TextFile, read_file};
pub use watched::{Watched, What};
pub use yaml::{Format, Node, Source, with_document};
