//! Limits from a YAML file, read again when it changes.

mod parse;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weirgate_shared::files::{TextFile, Watched, What, read_file};
use weirgate_shared::{Config, ConfigLevel, Entity, EpochMillis};
use weirgate_store::CorrectedClock;

use crate::values::{EffectiveConfig, FileLevels};

pub use weirgate_shared::files::FileError;

/// Limits from a YAML file. Clones share it.
///
/// ```yaml
/// weirgate: 1
/// system:
///   limits:
///     rpm: 60/minute
/// resources:
///   gpt-4:
///     limits:
///       rpm: 600/minute
///       tpm: 100_000/minute,burst=150_000,mode=shadow
///       slots: 20
///   legacy:
///     status: disabled            # or unlimited
/// plans:
///   pro:
///     limits:
///       rpm: 6_000/minute
/// entities:
///   acme:
///     plan: pro
///   team-a:
///     shadow: true
///     limits:
///       rpm: 1/250ms,burst=10
///   user-1:
///     parent: team-a              # what user-1 takes is taken of team-a too
///     resources:
///       gpt-4:
///         limits:
///           rpm: 30/minute
/// ```
///
/// The levels are those of [`ConfigLevel`]: the first of them, narrow to broad, that has a
/// configuration in the file or in the table wins, and the file's where both have one. A parent or a plan
/// in the file takes the place of the one in the table.
///
/// The file is read once a second while there are acquires. A change counts by its content, once
/// two reads found the same. A broken file changes nothing: the last good one stays, and
/// [`error`](Self::error) and the log report the problem with line and column. A file may end with
/// the line `...`; then one without it is half, and changes nothing either.
#[derive(Debug, Clone)]
pub struct LimitsFile(Watched<FileLevels>);

/// Contents of a limits file, as
/// [`Admin::set_config`](crate::Admin::set_config) and
/// [`Admin::set_entity`](crate::Admin::set_entity) take them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsFileContents {
    /// Configurations, in the order of the file.
    pub configs: Vec<(ConfigLevel, Config)>,
    /// All entities of the file, in the order of their names. Those with a parent cascade to it, unless
    /// the file says `cascades: false`.
    pub entities: Vec<Entity>,
}

impl LimitsFileContents {
    /// Reads a limits file once, for limits that are then set in the table.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that the file cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::of(&read_file(path.as_ref())?)
    }

    /// Reads the text of a limits file. Errors name it as `path`.
    ///
    /// # Errors
    /// [`FileError`] with line and column.
    pub fn parse(path: impl Into<PathBuf>, text: impl Into<String>) -> Result<Self, FileError> {
        let (path, text) = (path.into(), text.into());
        Self::of(&TextFile { path, text })
    }

    fn of(file: &TextFile) -> Result<Self, FileError> {
        let mut parsed = parse::parse(file)?;
        let entity = |id| {
            let parent = parsed.parents.remove(&id);
            Entity {
                cascades: parent.is_some() && !parsed.apart.contains(&id),
                plan: parsed.plans.remove(&id),
                id,
                parent,
            }
        };
        Ok(Self {
            configs: parsed.configs,
            entities: parsed.entities.into_iter().map(entity).collect(),
        })
    }
}

impl LimitsFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that the file cannot be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let what = What { name: "limits file", takes_folders: false, parse: levels };
        Watched::open(what, vec![path.into()], wall().0).map(Self)
    }

    /// Returns the error in the current file; the limits are those of the last good one. It may be
    /// two seconds old.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        drop(self.levels(wall()));
        self.0.error()
    }

    /// Returns the levels in force. `wall` is the process's wall clock.
    pub(crate) fn levels(&self, wall: EpochMillis) -> Arc<FileLevels> {
        self.0.get(wall.0)
    }
}

fn wall() -> EpochMillis {
    CorrectedClock::default().local()
}

fn levels(files: &[TextFile]) -> Result<FileLevels, FileError> {
    let mut levels = FileLevels::default();
    for file in files {
        let parsed = parse::parse(file)?;
        if parsed.configs.is_empty() && parsed.parents.is_empty() && parsed.plans.is_empty() {
            return Err(FileError {
                path: file.path.clone(),
                place: Some((1, 1)),
                message: "the file has no limits: add a level, or leave the file out".to_owned(),
            });
        }
        for (level, config) in parsed.configs {
            let config = EffectiveConfig::new(level.clone(), &config, None);
            levels.configs.insert(level, Arc::new(config));
        }
        levels.parents.extend(parsed.parents);
        levels.apart.extend(parsed.apart);
        levels.plans.extend(parsed.plans);
    }
    Ok(levels)
}
