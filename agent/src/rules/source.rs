//! Rules from files, read again when they change.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use weirgate::FileError;

use super::format::parse;
use super::ruleset::Rules;

/// Shortest interval between checks of the files, 1 s.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Rules from files. They are checked once a second while there are requests. A broken file changes
/// nothing: the last good rules stay, and [`error`](Self::error) and the log report the problem with
/// line and column.
#[derive(Debug)]
pub struct RulesSource {
    paths: Vec<PathBuf>,
    rules: RwLock<Arc<Rules>>,
    started: Instant,
    /// Time of the next check, in ms since the start.
    next_check_ms: AtomicU64,
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Files {
    stamps: Vec<Stamp>,
    error: Option<FileError>,
}

/// Metadata that shows a change of a file without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    bytes: u64,
}

impl RulesSource {
    /// Reads the files. A folder stands for its files that end in `.yaml` or `.yml`.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that a file cannot be read.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self, FileError> {
        let stamps = stamps(&paths)?;
        let rules = read(&stamps)?;
        let files = Files {
            stamps,
            error: None,
        };
        Ok(Self {
            paths,
            rules: RwLock::new(Arc::new(rules)),
            started: Instant::now(),
            next_check_ms: AtomicU64::new(millis(RELOAD_INTERVAL)),
            files: Mutex::new(files),
        })
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<Rules> {
        let now = millis(self.started.elapsed());
        let due = self.next_check_ms.load(Ordering::Relaxed);
        let next = now + millis(RELOAD_INTERVAL);
        // One request checks the files; the others use what is there.
        let is_due = now >= due
            && self
                .next_check_ms
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            self.reload_if_changed();
        }
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&rules)
    }

    /// Returns the error in the current files; the rules are the last good ones.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        self.files().error.clone()
    }

    fn reload_if_changed(&self) {
        let mut files = self.files();
        let found = stamps(&self.paths);
        if found.as_ref().is_ok_and(|found| *found == files.stamps) {
            return;
        }
        let read = found.and_then(|stamps| {
            // Set before the text is read, so a broken file is read once.
            files.stamps = stamps;
            read(&files.stamps)
        });
        match read {
            Ok(rules) => {
                tracing::info!(domains = rules.domains(), "rules reloaded");
                *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
                files.error = None;
            }
            Err(error) => {
                if files.error.as_ref() != Some(&error) {
                    tracing::error!(%error, "rules rejected; keeping the previous rules");
                }
                files.error = Some(error);
            }
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the files that the paths stand for, in the order of their names.
fn stamps(paths: &[PathBuf]) -> Result<Vec<Stamp>, FileError> {
    let mut files = vec![];
    for path in paths {
        if !path.is_dir() {
            files.push(stamp(path)?);
            continue;
        }
        let listed = std::fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
        let mut names = vec![];
        for entry in listed {
            names.push(entry.map_err(|error| unreadable(path, &error))?.path());
        }
        names.retain(|name| {
            let end = name.extension().and_then(|end| end.to_str());
            matches!(end, Some("yaml" | "yml"))
        });
        names.sort();
        for name in names {
            files.push(stamp(&name)?);
        }
    }
    Ok(files)
}

fn stamp(path: &Path) -> Result<Stamp, FileError> {
    let metadata = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    Ok(Stamp {
        path: path.to_owned(),
        modified: metadata.modified().ok(),
        bytes: metadata.len(),
    })
}

fn read(files: &[Stamp]) -> Result<Rules, FileError> {
    let mut rules = Rules::default();
    for Stamp { path, .. } in files {
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        parse(path, &text, &mut rules)?;
    }
    Ok(rules)
}

fn unreadable(path: &Path, error: &std::io::Error) -> FileError {
    FileError {
        path: path.to_owned(),
        place: None,
        message: format!("cannot be read: {error}"),
    }
}
