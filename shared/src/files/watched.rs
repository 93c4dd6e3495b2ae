//! A value from files, read again when they change.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::FileError;
use super::read::{TextFile, Unread, read_all};

/// Time between two reads of the files, 1 s. Changed files count once two reads were equal.
const INTERVAL: Duration = Duration::from_secs(1);

/// What files are for.
#[derive(Debug)]
pub struct What<T> {
    /// Their name in the log.
    pub name: &'static str,
    /// Whether a path may be a folder, which stands for its files.
    pub takes_folders: bool,
    /// Reads the value from the texts.
    pub parse: fn(&[TextFile]) -> Result<T, FileError>,
}

/// A value from files. Clones share it.
///
/// A change counts by its content, whatever the stamps of the files are, and once a second read an
/// interval later found the same. Files that cannot be read, or not parsed, change nothing: the last
/// good value stays, and [`error`](Self::error) and the log have the reason. So it is if a file of the
/// value in force is gone. A file whose last line was `...` must end with it again, or it is taken for
/// half of one.
#[derive(Debug)]
pub struct Watched<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    what: What<T>,
    paths: Vec<PathBuf>,
    state: Mutex<State<T>>,
    /// Locked while the files are read, so never on the way of a request.
    reads: Mutex<Reads>,
}

#[derive(Debug)]
struct State<T> {
    value: Arc<T>,
    error: Option<FileError>,
    /// Time of the last check by both clocks, because the monotonic one stops in a frozen process.
    checked_at: (Instant, i64),
}

type Read = Result<Vec<TextFile>, Unread>;

#[derive(Debug)]
struct Reads {
    /// The last one that counted, with a value or an error.
    counted: Read,
    /// A later one that differs, and its time.
    seen: Option<(Instant, Read)>,
    /// The files of the value in force, and whether they end with `...`.
    in_force: HashMap<PathBuf, bool>,
}

impl<T> Clone for Watched<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads the files; `wall_ms` is the time by the wall clock. A folder stands for its files that
    /// end in `.yaml` or `.yml`.
    ///
    /// # Errors
    /// [`FileError`] with line and column, or the reason that a file cannot be read.
    pub fn open(what: What<T>, paths: Vec<PathBuf>, wall_ms: i64) -> Result<Self, FileError> {
        Self::start(what, paths, wall_ms, None)
    }

    /// Reads the files, as [`open`](Self::open) does. While there are none, or only empty ones, the
    /// value is `nothing`.
    ///
    /// # Errors
    /// As of [`open`](Self::open), for files that are there.
    pub fn open_or(
        what: What<T>,
        paths: Vec<PathBuf>,
        wall_ms: i64,
        nothing: T,
    ) -> Result<Self, FileError> {
        Self::start(what, paths, wall_ms, Some(nothing))
    }

    fn start(
        what: What<T>,
        paths: Vec<PathBuf>,
        wall_ms: i64,
        nothing: Option<T>,
    ) -> Result<Self, FileError> {
        let counted = read_all(&paths, what.takes_folders);
        let mut in_force = HashMap::new();
        let is_nothing =
            |path: &PathBuf| is_nothing(std::slice::from_ref(path), what.takes_folders);
        let value = match nothing.filter(|_| paths.iter().all(is_nothing)) {
            Some(nothing) => {
                tracing::warn!("there are no {} yet", what.name);
                nothing
            }
            None => evaluate(&what, &counted, &mut in_force)?,
        };
        let state =
            State { value: Arc::new(value), error: None, checked_at: (Instant::now(), wall_ms) };
        let reads = Reads { counted, seen: None, in_force };
        Ok(Self(Arc::new(Shared {
            what,
            paths,
            state: Mutex::new(state),
            reads: Mutex::new(reads),
        })))
    }

    /// Returns the value in force. If the last check is an interval old, another one begins beside
    /// the caller. `wall_ms` is the time by the wall clock.
    #[must_use]
    pub fn get(&self, wall_ms: i64) -> Arc<T> {
        let mut state = self.state();
        let (at, at_wall) = state.checked_at;
        let interval = i64::try_from(INTERVAL.as_millis()).unwrap_or(i64::MAX);
        let is_due = at.elapsed() >= INTERVAL || wall_ms.saturating_sub(at_wall) >= interval;
        if is_due {
            state.checked_at = (Instant::now(), wall_ms);
        }
        let value = Arc::clone(&state.value);
        drop(state);
        if is_due {
            self.check_aside();
        }
        value
    }

    /// Returns the error in the current files; the value is of the last good ones.
    #[must_use]
    pub fn error(&self) -> Option<FileError> {
        self.state().error.clone()
    }

    /// Checks the files once an interval, also while no caller asks.
    pub async fn watch(&self, wall_ms: impl Fn() -> i64) {
        loop {
            sleep(INTERVAL).await;
            drop(self.get(wall_ms()));
        }
    }

    /// Checks the files on a thread of their own, and again if they are changing. Without a runtime
    /// it checks them here.
    fn check_aside(&self) {
        let Ok(runtime) = Handle::try_current() else {
            self.check();
            return;
        };
        let this = self.clone();
        drop(runtime.spawn(async move {
            if this.check_on_thread().await {
                sleep(INTERVAL).await;
                this.check_on_thread().await;
            }
        }));
    }

    async fn check_on_thread(&self) -> bool {
        let this = self.clone();
        spawn_blocking(move || this.check()).await.unwrap_or(false)
    }

    /// Reads the files once. Returns whether they are changing.
    fn check(&self) -> bool {
        let mut reads = match self.0.reads.try_lock() {
            Ok(reads) => reads,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another check is under way.
            Err(TryLockError::WouldBlock) => return false,
        };
        let read = read_all(&self.0.paths, self.0.what.takes_folders);
        if read == reads.counted {
            reads.seen = None;
            return false;
        }
        match &reads.seen {
            Some((at, seen)) if *seen == read => {
                if at.elapsed() < INTERVAL {
                    return true;
                }
            }
            _ => {
                reads.seen = Some((Instant::now(), read));
                return true;
            }
        }
        reads.seen = None;
        let value = evaluate(&self.0.what, &read, &mut reads.in_force);
        reads.counted = read;
        self.count(value);
        false
    }

    fn count(&self, value: Result<T, FileError>) {
        let name = self.0.what.name;
        let mut state = self.state();
        match value {
            Ok(value) => {
                (state.value, state.error) = (Arc::new(value), None);
                drop(state);
                tracing::info!("{name} reloaded");
            }
            Err(error) => {
                let is_new = state.error.as_ref() != Some(&error);
                state.error = Some(error.clone());
                drop(state);
                if is_new {
                    tracing::error!(%error, "{name} rejected; keeping the previous ones");
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether there are no files, or only empty ones.
fn is_nothing(paths: &[PathBuf], takes_folders: bool) -> bool {
    match read_all(paths, takes_folders) {
        Ok(files) => files.iter().all(|file| file.text.trim().is_empty()),
        Err(unread) => unread.is_missing,
    }
}

/// Returns the value of the files. If they have one, they are those in force from then on.
fn evaluate<T>(
    what: &What<T>,
    read: &Read,
    in_force: &mut HashMap<PathBuf, bool>,
) -> Result<T, FileError> {
    let files = read.as_ref().map_err(|unread| unread.error.clone())?;
    let is_there = |path: &PathBuf| files.iter().any(|file| file.path == *path);
    if let Some(gone) = in_force.keys().filter(|path| !is_there(path)).min() {
        return Err(FileError {
            path: gone.clone(),
            place: None,
            message: "is gone: put it back, or start again without it".to_owned(),
        });
    }
    let had_end = |file: &&TextFile| in_force.get(&file.path) == Some(&true);
    if let Some(half) = files.iter().filter(had_end).find(|file| !file.has_end()) {
        let message = "the last line must be `...`, as it was before: the file is half; write all of it, or \
                       start again without that line";
        return Err(FileError {
            path: half.path.clone(),
            place: Some((half.text.lines().count().max(1), 1)),
            message: message.to_owned(),
        });
    }
    let value = (what.parse)(files)?;
    let all = files.iter().map(|file| (file.path.clone(), file.has_end()));
    *in_force = all.collect();
    Ok(value)
}
