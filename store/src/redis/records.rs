//! The stream of images of shards, from which usage is copied: see `apply.lua` for which writes are in it.
//!
//! One group of readers with one name: what was read and not finished comes again to whichever process has the
//! lock.

use std::ops::Range;
use std::time::Duration;

use redis::{ErrorKind as RedisKind, RedisError, cmd};
use serde_json::Map;
use weirgate_shared::{ARRIVAL, EpochMillis, ItemKey, Millis};

use super::{RedisTable, field};
use crate::{Item, StoreError, Table, random_id};

/// Name of the group, and of its only reader.
const GROUP: &str = "functions";
/// Takes the lock, or keeps it. Returns whether this process has it.
const LOCK: &str = "#!lua flags=allow-oom
local reader = redis.call('GET', KEYS[1])
if reader == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif reader then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";
/// Gives the lock back, if this process has it.
const UNLOCK: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";

/// How some of the scripts below begin: with the time in ms.
const NOW: &str = "
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))";
/// What some of them read of a stream that exists: its facts, and how many of its records are gone.
const STREAM: &str = "
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  info[info[i]] = info[i + 1]
end
local gone = info['entries-added'] - info['length']";

/// Makes the stream and its group, unless they exist, and notes from when on it has all records.
const OPEN: &str = "#!lua flags=allow-oom{NOW}
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if not made.err then
  redis.call('HSET', KEYS[2], 'gone', 0, 'since', now)
elseif not string.find(made.err, 'BUSYGROUP', 1, true) then
  return made
elseif not redis.call('HGET', KEYS[2], 'since') then
  redis.call('HSET', KEYS[2], 'since', now)
end
return 1";

/// Returns from when on the stream has all records, and its first one, if there is one. Nothing without a stream,
/// or if it was full since the last finish.
const DELIVERED: &str = "
local facts = redis.call('HMGET', KEYS[2], 'since', 'gone')
if redis.call('EXISTS', KEYS[1]) == 0 or not facts[1] or not facts[2] then
  return {}
end
{STREAM}
if gone > tonumber(facts[2]) then
  return {}
end
return { facts[1], info['first-entry'] and info['first-entry'][1] or nil }";

/// Lets records not come again, deletes and counts them. They are at most as many as Lua's stack takes. Returns how many
/// others are gone since the last call: the full stream has dropped them, unread or before they were finished. From
/// then on the stream has all records again.
const FINISH: &str = "{NOW}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local known = redis.call('HGET', KEYS[2], 'gone')
local finished = redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
{STREAM}
redis.call('HSET', KEYS[2], 'gone', gone)
local dropped = known and math.max(gone - known - finished, 0) or 0
if dropped > 0 then
  redis.call('HSET', KEYS[2], 'since', now)
end
return dropped";

/// The stream of images of a table's shards in Redis, as one process reads it.
#[derive(Debug, Clone)]
pub struct RecordStream {
    table: RedisTable,
    /// Value of the lock of this process.
    reader: String,
    /// Hash with the number of records of the stream that were there once, and from when on it has all.
    facts: String,
}

/// Which records to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Those that were read and not finished, by whichever process.
    Again,
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
            facts: table.facts_of_records(),
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
        let mut open = script(OPEN);
        open.arg(&self.table.0.keys.records).arg(&self.facts);
        open.arg(GROUP);
        let request = || self.request("EVAL");
        let connection = &self.table.0.connection;
        connection.send(&request, async |connection| open.exec_async(connection).await).await
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
        command.arg(script).arg(1).arg(&self.table.0.keys.lock);
        command.arg(&self.reader).arg(argument);
        let request = || self.request("EVAL");
        let connection = &self.table.0.connection;
        connection.send(&request, async |connection| command.query_async(connection).await).await
    }

    /// Reads the next records, at most so many, in their order. They come again until they are finished.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer, or the stream is gone.
    pub async fn read(&self, unread: Unread, most: usize) -> Result<Vec<StreamRecord>, StoreError> {
        let from = match unread {
            Unread::Again => "0",
            Unread::New => ">",
        };
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(GROUP);
        read.arg("COUNT").arg(most);
        read.arg("STREAMS").arg(&self.table.0.keys.records).arg(from);
        let request = || self.request("XREADGROUP");
        let connection = &self.table.0.connection;
        loop {
            let found: Streams = connection
                .send(&request, async |connection| read.query_async(connection).await)
                .await?;
            let (mut records, mut dropped) = (vec![], vec![]);
            for (id, fields) in found.into_iter().flatten().flat_map(|(_, entries)| entries) {
                match fields {
                    Some(fields) => {
                        let record = record(id, fields);
                        records.push(record.map_err(|error| connection.failed(request(), error))?);
                    }
                    None => dropped.push(id),
                }
            }
            if dropped.is_empty() {
                return Ok(records);
            }
            // They do not come again and were not finished, so the next finish tells them.
            let mut acknowledge = cmd("XACK");
            let key = &self.table.0.keys.records;
            acknowledge.arg(key).arg(GROUP).arg(dropped);
            let request = || self.request("XACK");
            connection
                .send(&request, async |connection| acknowledge.exec_async(connection).await)
                .await?;
            if !records.is_empty() {
                return Ok(records);
            }
        }
    }

    /// Finishes records, at most a thousand: they do not come again, and are deleted. Returns the number of records
    /// that the full stream has dropped since the last call, at most: those that wait to be finished count too.
    ///
    /// # Errors
    /// [`StoreError`] if the server does not answer.
    pub async fn finish(&self, ids: &[String]) -> Result<u64, StoreError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let mut finish = script(FINISH);
        finish.arg(&self.table.0.keys.records).arg(&self.facts);
        finish.arg(GROUP).arg(ids);
        let request = || self.request("EVAL");
        let connection = &self.table.0.connection;
        connection.send(&request, async |connection| finish.query_async(connection).await).await
    }

    fn request(&self, command: &str) -> String {
        self.table.request_of_records(command)
    }
}

impl RedisTable {
    /// Returns when windows were used of which no record is on its way any more at `now`. Records are finished in
    /// their order, so all before the first one are copied.
    pub(crate) async fn delivered(
        &self,
        now: EpochMillis,
    ) -> Result<Range<EpochMillis>, StoreError> {
        let mut delivered = script(DELIVERED);
        delivered.arg(&self.0.keys.records);
        delivered.arg(self.facts_of_records());
        let (connection, request) = (&self.0.connection, || self.request_of_records("XINFO"));
        let facts: Vec<String> = connection
            .send(&request, async |connection| delivered.query_async(connection).await)
            .await?;
        let mut times = facts.iter().map(|fact| milliseconds(fact));
        let Some(Some(since)) = times.next() else {
            return Ok(EpochMillis(i64::MAX)..EpochMillis(0));
        };
        let first = times.next().flatten().unwrap_or(now);
        Ok(since..first.min(now).plus(Millis(-ARRIVAL.0)))
    }

    fn facts_of_records(&self) -> String {
        format!("{}:gone", self.0.keys.records)
    }

    fn request_of_records(&self, command: &str) -> String {
        format!("{command} of {}", self.0.keys.records)
    }
}

/// Returns a script with the stream and its facts as keys, which follow.
fn script(text: &str) -> redis::Cmd {
    let mut script = cmd("EVAL");
    script.arg(text.replace("{NOW}", NOW).replace("{STREAM}", STREAM)).arg(2);
    script
}

/// Returns the time of an id, or of a number of milliseconds.
fn milliseconds(text: &str) -> Option<EpochMillis> {
    let at = text.split('-').next()?.parse().ok()?;
    Some(EpochMillis(at))
}

/// An answer: of each stream its entries. One that the full stream dropped before it was finished has no fields.
type Streams = Option<Vec<(String, Vec<(String, Option<Vec<(String, String)>>)>)>>;

/// Reads an entry. An image that cannot be read counts as missing.
fn record(id: String, fields: Vec<(String, String)>) -> Result<StreamRecord, RedisError> {
    let Some(at) = milliseconds(&id) else {
        let expected = "expected an id of milliseconds and a number";
        return Err((RedisKind::UnexpectedReturnType, expected, id).into());
    };
    let mut record = StreamRecord {
        id,
        at,
        key: ItemKey { pk: String::new(), sk: String::new() },
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
