//! The records of the table's stream, in order. The embedded database has one stream shard.

use dynoxide::actions::get_records::{GetRecordsRequest, Record};
use dynoxide::actions::get_shard_iterator::encode_shard_iterator;
use dynoxide::streams::shard_id;
use dynoxide::{Database, DynoxideError};

/// Reads the records of a table's stream, each once.
#[derive(Clone)]
pub struct StreamReader {
    database: Database,
    iterator: String,
}

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamReader").field("iterator", &self.iterator).finish_non_exhaustive()
    }
}

impl StreamReader {
    /// Returns a reader of what follows `position`, which is 0 or that of an earlier
    /// record.
    #[must_use]
    pub fn after(database: &Database, table: &str, position: i64) -> Self {
        Self {
            database: database.clone(),
            iterator: encode_shard_iterator(table, &shard_id(table), position),
        }
    }

    /// Returns the next records, at most `limit` and at most 1,000; none if there are none yet.
    ///
    /// # Errors
    /// If the table is gone, or the database cannot be read.
    pub fn read(&mut self, limit: usize) -> Result<Vec<Record>, DynoxideError> {
        let found = self.database.get_records(GetRecordsRequest {
            shard_iterator: self.iterator.clone(),
            limit: Some(limit),
        })?;
        if let Some(next) = found.next_shard_iterator {
            self.iterator = next;
        }
        Ok(found.records)
    }
}

/// Returns the position of a record in the stream, which rises. A sequence number is it with a digit
/// before it, filled up with zeros.
pub(crate) fn position_of(record: &Record) -> i64 {
    let digits = record.dynamodb.sequence_number.get(1..);
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}
