//! Limits from a YAML file, read again when it changes.

mod load;
mod nodes;
mod parse;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use weirgate_shared::{Config, ConfigLevel, Entity, EntityId, EpochMillis, Resource};
use weirgate_store::CorrectedClock;

use crate::values::{EffectiveConfig, Locked};

pub use nodes::FileError;

/// Shortest interval between checks of the file, 1 s.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Limits from a YAML file. Clones share it.
///
/// ```yaml
/// weirgate: 1
/// system:
///   limits:
///     rpm: {per_minute: 60}
/// resources:
///   gpt-4:
///     limits:
///       rpm: {per_minute: 600}
///       tpm: {per_minute: 100000, burst: 150000, mode: shadow}
///       slots: {concurrent: 20}
///   legacy:
///     status: disabled            # or unlimited
/// entities:
///   team-a:
///     shadow: true
///     limits:
///       rpm: {capacity: 10, refill_amount: 1, refill_period_ms: 250}
///   user-1:
///     parent: team-a              # what user-1 takes is taken of team-a too
///     resources:
///       gpt-4:
///         limits:
///           rpm: {per_minute: 30}
/// ```
///
/// The levels are those of [`ConfigLevel`]. Where the file configures a level, the table is not
/// read. The file is checked once a second while there are acquires. A broken file changes nothing:
/// the last good one stays, and [`error`](Self::error) and the log report the problem with line and
/// column.
#[derive(Debug, Clone)]
pub struct LimitsFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Locked<State>,
}

#[derive(Debug)]
struct State {
    rules: Arc<Levels>,
    stamp: Option<FileStamp>,
    /// Time of the last check by both clocks, because the monotonic one stops in a frozen process.
    checked_at: (Instant, EpochMillis),
    error: Option<FileError>,
}

/// Metadata that shows a change of the file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// Configurations of a file, by level.
#[derive(Debug, Default)]
struct Levels {
    entity_resource: HashMap<EntityId, HashMap<Resource, Arc<EffectiveConfig>>>,
    entities: HashMap<EntityId, Arc<EffectiveConfig>>,
    resources: HashMap<Resource, Arc<EffectiveConfig>>,
    system: Option<Arc<EffectiveConfig>>,
    parents: HashMap<EntityId, EntityId>,
}

/// Contents of a limits file, as
/// [`RateLimiter::set_config`](crate::RateLimiter::set_config) and
/// [`RateLimiter::set_entity`](crate::RateLimiter::set_entity) take them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsFileContents {
    /// Configurations, in the order of the file.
    pub configs: Vec<(ConfigLevel, Config)>,
    /// Entities with a parent, in the order of their names. All of them cascade.
    pub entities: Vec<Entity>,
}

impl LimitsFileContents {
    /// Reads a limits file once, for limits that are then set in the table.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that the file cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let parsed = parse_file(path.as_ref())?;
        let entity = |(id, parent)| Entity {
            id,
            parent: Some(parent),
            cascades: true,
        };
        let mut entities: Vec<_> = parsed.parents.into_iter().map(entity).collect();
        entities.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(Self {
            configs: parsed.configs,
            entities,
        })
    }
}

impl LimitsFile {
    /// Reads the file.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that the file cannot be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let (rules, stamp) = read(&path)?;
        let checked_at = (Instant::now(), CorrectedClock::default().local());
        let state = State {
            rules: Arc::new(rules),
            stamp,
            checked_at,
            error: None,
        };
        Ok(Self(Arc::new(Shared {
            path,
            state: Locked::new(state),
        })))
    }

    /// Returns the error in the current file; the limits are those of the last good one.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        self.reload_if_changed(CorrectedClock::default().local());
        self.state().error.clone()
    }

    /// Returns the configuration for an entity on a resource, and the parent it cascades to; `None`
    /// if the file has no level for it. `wall` is the process's wall clock.
    pub(crate) fn rules(
        &self,
        (entity, resource): (&EntityId, &Resource),
        wall: EpochMillis,
    ) -> Option<(Arc<EffectiveConfig>, Option<EntityId>)> {
        self.reload_if_changed(wall);
        let levels = Arc::clone(&self.state().rules);
        let own = levels
            .entity_resource
            .get(entity)
            .and_then(|resources| resources.get(resource));
        let config = own
            .or_else(|| levels.entities.get(entity))
            .or_else(|| levels.resources.get(resource));
        let config = config.or(levels.system.as_ref())?;
        Some((Arc::clone(config), levels.parents.get(entity).cloned()))
    }

    /// Reloads the file if it has changed.
    fn reload_if_changed(&self, wall: EpochMillis) {
        let mut state = self.state();
        let (at, at_wall) = state.checked_at;
        if at.elapsed().max(wall.since(at_wall).into()) < RELOAD_INTERVAL {
            return;
        }
        state.checked_at = (Instant::now(), wall);
        let stamp = stamp(&self.0.path);
        if stamp.is_some() && stamp == state.stamp {
            return;
        }
        match read(&self.0.path) {
            Ok((rules, stamp)) => {
                tracing::info!(path = %self.0.path.display(), "limits file reloaded");
                (state.rules, state.stamp, state.error) = (Arc::new(rules), stamp, None);
            }
            Err(error) => {
                state.stamp = stamp;
                if state.error.as_ref() != Some(&error) {
                    tracing::error!(%error, "limits file rejected; keeping the previous limits");
                }
                state.error = Some(error);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileStamp {
        modified: metadata.modified().ok(),
        bytes: metadata.len(),
    })
}

fn read(path: &Path) -> Result<(Levels, Option<FileStamp>), FileError> {
    // Read before the text, so a change in between is seen at the next check.
    let stamp = stamp(path);
    let parsed = parse_file(path)?;
    let mut levels = Levels {
        parents: parsed.parents,
        ..Levels::default()
    };
    for (level, config) in parsed.configs {
        let config = Arc::new(EffectiveConfig::new(level.clone(), &config, None));
        match level {
            ConfigLevel::EntityResource(entity, resource) => {
                levels
                    .entity_resource
                    .entry(entity)
                    .or_default()
                    .insert(resource, config);
            }
            ConfigLevel::Entity(entity) => drop(levels.entities.insert(entity, config)),
            ConfigLevel::Resource(resource) => drop(levels.resources.insert(resource, config)),
            ConfigLevel::System => levels.system = Some(config),
        }
    }
    Ok((levels, stamp))
}

fn parse_file(path: &Path) -> Result<parse::ParsedFile, FileError> {
    let unreadable = |error| FileError {
        path: path.to_owned(),
        place: None,
        message: format!("cannot be read: {error}"),
    };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse::parse(path, &text)
}
