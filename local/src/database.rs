//! The embedded database, in memory or in a folder.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use dynoxide::{Database, DynoxideError};

/// Without this index, every write looks at all records of the stream for its next number.
const STREAM_INDEX: &str = "CREATE INDEX IF NOT EXISTS stream_numbers
    ON _stream_records (table_name, CAST(sequence_number AS INTEGER))";
/// The database's file in its folder.
const FILE: &str = "weirgate.sqlite";
/// The file that the process with the database has locked.
const LOCK: &str = "weirgate.lock";
/// Fails for what is no database of SQLite, and changes nothing.
const READ_HEADER: &str = "PRAGMA schema_version";

/// A database that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The folder cannot be made, or its lock cannot be opened.
    #[error("{} must be a folder that this process can write to, got {error}; choose another", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// Another process has the folder.
    #[error("{} is in use by another process: stop that process, or choose another folder", .0.display())]
    InUse(PathBuf),
    /// SQLite takes no such path.
    #[error("{0:?} must be a path in UTF-8; choose another folder")]
    NoText(PathBuf),
    /// SQLite refuses.
    #[error("{place} must be a database that Weirgate made, got {error}; choose another folder")]
    Sqlite {
        /// Its file, or its name in memory.
        place: String,
        /// The reason.
        error: rusqlite::Error,
    },
    /// The database refuses.
    #[error("{place} must be a database that Weirgate made, got {error}; choose another folder")]
    Database {
        /// As of SQLite.
        place: String,
        /// The reason.
        error: DynoxideError,
    },
}

/// An embedded database. One in a folder has the folder locked until this is dropped.
pub struct Embedded {
    database: Database,
    /// What a second connection opens.
    uri: String,
    _lock: Option<File>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("uri", &self.uri).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Returns an empty database in memory. It ends with the last clone of [`Self::database`].
    ///
    /// # Errors
    /// If SQLite has no memory.
    pub fn in_memory() -> Result<Self, DatabaseError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = COUNT.fetch_add(1, Ordering::Relaxed);
        // Both connections see the same database in memory by its name, as long as one of them is
        // open.
        let uri = format!("file:weirgate-{}-{name}?mode=memory&cache=shared", std::process::id());
        Self::indexed(uri, None)
    }

    /// Opens the database in a folder, and makes both if they do not exist.
    ///
    /// A write survives a crash of the process, but not of the machine: the database does not wait
    /// for the disk.
    ///
    /// # Errors
    /// [`DatabaseError`] if the folder cannot be written to, another process has it, or its file is
    /// no database. Nothing in the folder is changed then.
    pub fn in_folder(path: &Path) -> Result<Self, DatabaseError> {
        let refused = |error| DatabaseError::Folder { path: path.to_owned(), error };
        let file = path.join(FILE);
        let Some(uri) = file.to_str() else {
            return Err(DatabaseError::NoText(path.to_owned()));
        };
        std::fs::create_dir_all(path).map_err(refused)?;
        let mut lock = File::options();
        let lock = lock.write(true).create(true).truncate(false);
        let lock = lock.open(path.join(LOCK)).map_err(refused)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DatabaseError::InUse(path.to_owned()),
            TryLockError::Error(error) => refused(error),
        })?;
        let refused = |error| sqlite(uri, error);
        let header = rusqlite::Connection::open(uri).map_err(refused)?;
        let version = header.query_row(READ_HEADER, [], |row| row.get::<_, i64>(0));
        version.map_err(refused)?;
        drop(header);
        let embedded = Self::indexed(uri.to_owned(), Some(lock))?;
        // What it calls normal is `synchronous = NORMAL`: no wait for the disk at each commit.
        let normal = embedded.database.disable_bulk_loading();
        normal.map_err(|error| foreign(uri, error))?;
        Ok(embedded)
    }

    fn indexed(uri: String, lock: Option<File>) -> Result<Self, DatabaseError> {
        let database = Database::new(&uri).map_err(|error| foreign(&uri, error))?;
        let embedded = Self { database, uri, _lock: lock };
        embedded.run_sql(STREAM_INDEX)?;
        Ok(embedded)
    }

    /// The database itself.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// Runs statements by a second connection. Only before the database is in use: one in memory
    /// fails requests instead of letting them wait for the other connection.
    pub(crate) fn run_sql(&self, statements: &str) -> Result<(), DatabaseError> {
        let run = rusqlite::Connection::open(&self.uri);
        let run = run.and_then(|connection| connection.execute_batch(statements));
        run.map_err(|error| sqlite(&self.uri, error))
    }
}

impl Embedded {
    /// Returns the error of a database that refuses what is ours.
    pub(crate) fn refused(&self, error: DynoxideError) -> DatabaseError {
        foreign(&self.uri, error)
    }
}

fn sqlite(place: &str, error: rusqlite::Error) -> DatabaseError {
    let place = place.to_owned();
    DatabaseError::Sqlite { place, error }
}

fn foreign(place: &str, error: DynoxideError) -> DatabaseError {
    let place = place.to_owned();
    DatabaseError::Database { place, error }
}
