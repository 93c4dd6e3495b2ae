//! The stream of images of shards, from which usage is copied: see `apply.lua` for which writes are in it.
//!
//! One group of readers with one name: what was read and not finished comes again to whichever process has the
//! lock next.

use std::time::Duration;

use redis::{ErrorKind as RedisKind, RedisError, cmd};
use serde_json::Map;
use weirgate_shared::{EpochMillis, ItemKey};

use super::{RedisTable, field};
use crate::{Item, StoreError, Table, random_id};

/// Name of the group, and of its only reader.
const GROUP: &str = "functions";
/// Takes the lock, or keeps it. Returns whether this process has it.
const LOCK: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0";
/// Gives the lock back, if this process has it.
const UNLOCK: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";

/// Lets records not come again, and deletes them. They are at most as many as Lua's stack takes.
const FINISH: &str = "
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))";

/// The stream of images of a table's shards in Redis, as one process reads it.
#[derive(Debug, Clone)]
pub struct RecordStream {
    table: RedisTable,
    /// Value of the lock of this process.
    reader: String,
    lock: String,
}

/// Which records to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread<'a> {
    /// Those that were read after this one and not finished; `None` for all.
    Again(Option<&'a str>),
    /// Those that were never read.
    New,
}

/// A write to a shard.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamRecord {
    /// Its position in the stream.
    pub id: String,
    /// Time of the write.
    pub at: EpochMillis,
    /// The item.
    pub key: ItemKey,
    /// Item before the write, without its maps; `None` if there was none.
    pub old: Option<Item>,
    /// Item after the write, without its maps; `None` if it was deleted.
    pub new: Option<Item>,
}

impl Table {
    /// Returns the stream of images of a table in Redis; `None` for other tables.
    #[must_use]
    pub fn records(&self) -> Option<RecordStream> {
        let crate::table::Backend::Redis(table) = &self.backend else {
            return None;
        };
        Some(RecordStream {
            lock: format!("{}:lock", table.0.keys.records),
            table: table.clone(),
            reader: random_id().to_string(),
        })
    }

    /// Removes expired items of a table in Redis, at most so many, and returns their number. Each write removes
    /// some too, so this is for tables that rest. Other tables delete theirs themselves.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub async fn remove_expired(&self, most: usize) -> Result<usize, StoreError> {
        match &self.backend {
            crate::table::Backend::Redis(table) => table.remove_expired(most).await,
            _ => Ok(0),
        }
    }
}

impl RecordStream {
    /// Makes the stream and its group, unless they exist. Writes before are not in it.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer, or the key is of another application.
    pub async fn open(&self) -> Result<(), StoreError> {
        let mut create = cmd("XGROUP");
        let key = &self.table.0.keys.records;
        create.arg("CREATE").arg(key).arg(GROUP).arg(0);
        create.arg("MKSTREAM");
        let request = || self.request("XGROUP");
        let connection = &self.table.0.connection;
        connection
            .send(&request, async |connection| {
                match create.exec_async(connection).await {
                    Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
                    made => made,
                }
            })
            .await
    }

    /// Takes the lock of the stream for this time, or keeps it so long from now on. Returns whether this process
    /// has it.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub async fn lock(&self, time: Duration) -> Result<bool, StoreError> {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.script(LOCK, Some(ms)).await
    }

    /// Gives the lock back, if this process has it.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub async fn unlock(&self) -> Result<(), StoreError> {
        self.script(UNLOCK, None).await.map(drop)
    }

    async fn script(&self, script: &str, argument: Option<u64>) -> Result<bool, StoreError> {
        let mut command = cmd("EVAL");
        command.arg(script).arg(1).arg(&self.lock);
        command.arg(&self.reader).arg(argument);
        let request = || self.request("EVAL");
        let connection = &self.table.0.connection;
        connection
            .send(&request, async |connection| {
                command.query_async(connection).await
            })
            .await
    }

    /// Reads the next records, at most so many, in their order. They come again until they are finished.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer, or the stream is gone.
    pub async fn read(
        &self,
        unread: Unread<'_>,
        most: usize,
    ) -> Result<Vec<StreamRecord>, StoreError> {
        let from = match unread {
            Unread::Again(after) => after.unwrap_or("0"),
            Unread::New => ">",
        };
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(GROUP);
        read.arg("COUNT").arg(most);
        read.arg("STREAMS")
            .arg(&self.table.0.keys.records)
            .arg(from);
        let request = || self.request("XREADGROUP");
        let connection = &self.table.0.connection;
        let found: Streams = connection
            .send(&request, async |connection| {
                read.query_async(connection).await
            })
            .await?;
        let entries = found.into_iter().flatten().flat_map(|(_, entries)| entries);
        let records = entries.map(|(id, fields)| record(id, fields.unwrap_or_default()));
        let records = records.collect::<Result<_, _>>();
        records.map_err(|error| connection.failed(request(), error))
    }

    /// Finishes records, at most a thousand: they do not come again, and are deleted.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub async fn finish(&self, ids: &[String]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut finish = cmd("EVAL");
        finish.arg(FINISH).arg(1).arg(&self.table.0.keys.records);
        finish.arg(GROUP).arg(ids);
        let request = || self.request("EVAL");
        let connection = &self.table.0.connection;
        connection
            .send(&request, async |connection| {
                finish.exec_async(connection).await
            })
            .await
    }

    fn request(&self, command: &str) -> String {
        format!("{command} of {}", self.table.0.keys.records)
    }
}

/// An answer: of each stream its entries. One that was deleted before it was finished has no fields.
type Streams = Option<Vec<(String, Vec<(String, Option<Vec<(String, String)>>)>)>>;

/// Reads an entry. An image that cannot be read counts as missing.
fn record(id: String, fields: Vec<(String, String)>) -> Result<StreamRecord, RedisError> {
    let at = id.split('-').next().and_then(|at| at.parse().ok());
    let Some(at) = at.map(EpochMillis) else {
        let expected = "expected an id of milliseconds and a number";
        return Err((RedisKind::UnexpectedReturnType, expected, id).into());
    };
    let mut record = StreamRecord {
        id,
        at,
        key: ItemKey {
            pk: String::new(),
            sk: String::new(),
        },
        old: None,
        new: None,
    };
    for (field, text) in fields {
        match field.as_str() {
            "PK" => record.key.pk = text,
            "SK" => record.key.sk = text,
            "old" => record.old = image(&text),
            "new" => record.new = image(&text),
            _ => {}
        }
    }
    Ok(record)
}

fn image(text: &str) -> Option<Item> {
    let fields: Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    let text = |(field, value)| match value {
        serde_json::Value::String(text) => Some((field, text)),
        _ => None,
    };
    field::item(fields.into_iter().map(text).collect::<Option<Vec<_>>>()?)
}
