//! Rules from files, read again when they change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use weirgate::FileError;
use weirgate_shared::files::{TextFile, Watched, What};

use super::format::parse;
use super::ruleset::Rules;

/// Rules from files. Clones share them.
///
/// The files are read once a second, by [`watch`](Self::watch) or while there are requests. A change
/// counts once two reads found the same. A broken file changes nothing: the last good rules stay, and
/// [`error`](Self::error) and the log report the problem with line and column.
#[derive(Debug, Clone)]
pub struct RulesSource(Watched<Rules>);

const WHAT: What<Rules> = What {
    name: "rules",
    takes_folders: true,
    parse: rules,
};

impl RulesSource {
    /// Reads the files. A folder stands for its files that end in `.yaml` or `.yml`.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that a file cannot be read. A folder without
    /// files is one.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self, FileError> {
        Watched::open(WHAT, paths, wall_ms()).map(Self)
    }

    /// Reads the files, as [`open`](Self::open) does. While there are none, or only empty ones,
    /// there are no rules.
    ///
    /// # Errors
    /// [`FileError`] of a file that is there.
    pub fn open_or_wait(paths: Vec<PathBuf>) -> Result<Self, FileError> {
        Watched::open_or(WHAT, paths, wall_ms(), Rules::default()).map(Self)
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.0.get(wall_ms())
    }

    /// Reads the files once a second, so that a fault is logged also while there are no requests.
    pub async fn watch(self) {
        self.0.watch(wall_ms).await;
    }

    /// Returns the error in the current files; the rules are the last good ones.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        self.0.error()
    }
}

fn rules(files: &[TextFile]) -> Result<Rules, FileError> {
    let mut rules = Rules::default();
    for file in files {
        parse(&file.path, &file.text, &mut rules)?;
    }
    Ok(rules)
}

fn wall_ms() -> i64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0, |time| {
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
    })
}
