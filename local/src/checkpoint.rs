//! How far the stream was handled, in an item of a table of its own. A restart continues there.
//!
//! The stream keeps every record, so it would fill the memory. A trigger therefore deletes the
//! handled records in the write of the checkpoint, by the connection that all requests use.

use dynoxide::{AttributeValue, Database, DynoxideError};
use serde_json::{Value, json};

use crate::database::{DatabaseError, Embedded};

/// The table with the checkpoint.
pub(crate) const TABLE: &str = "weirgate-local";
const KEY: &str = "PK";
const POSITION: &str = "position";

/// The checkpoint of a table's stream.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    database: Database,
    table: String,
}

impl Checkpoint {
    /// Makes what the checkpoint needs, if it does not exist. Only before the database is in use.
    pub(crate) fn open(embedded: &Embedded, table: &str) -> Result<Self, DatabaseError> {
        let database = embedded.database();
        make_table(database).map_err(|error| embedded.refused(error))?;
        // The last handled record stays: the next number of the stream is above the last one's.
        let trim = |event| {
            format!(
                "CREATE TRIGGER IF NOT EXISTS trim_after_{event} AFTER {event} ON \"{TABLE}\" BEGIN
                    DELETE FROM _stream_records
                    WHERE table_name = json_extract(NEW.item_json, '$.{KEY}.S')
                    AND CAST(sequence_number AS INTEGER)
                        < CAST(json_extract(NEW.item_json, '$.{POSITION}.N') AS INTEGER);
                END;"
            )
        };
        embedded.run_sql(&format!("{}{}", trim("INSERT"), trim("UPDATE")))?;
        Ok(Self { database: database.clone(), table: table.to_owned() })
    }

    /// Returns the position of the last handled record; 0 if there is none.
    pub(crate) fn read(&self) -> Result<i64, DynoxideError> {
        let found = self.database.get_item(request(json!({
            "TableName": TABLE, "Key": {KEY: {"S": self.table}}, "ConsistentRead": true,
        }))?)?;
        Ok(match found.item.and_then(|mut item| item.remove(POSITION)) {
            Some(AttributeValue::N(position)) => position.parse().unwrap_or_default(),
            _ => 0,
        })
    }

    /// Writes the position of the last handled record, and so deletes the records before it.
    pub(crate) fn write(&self, position: i64) -> Result<(), DynoxideError> {
        let item = json!({KEY: {"S": self.table}, POSITION: {"N": position.to_string()}});
        let put = request(json!({"TableName": TABLE, "Item": item}))?;
        self.database.put_item(put).map(drop)
    }
}

/// Makes the table with the checkpoint, if it does not exist.
fn make_table(database: &Database) -> Result<(), DynoxideError> {
    if database.get_table_metadata(TABLE)?.is_none() {
        database.create_table(request(json!({
            "TableName": TABLE,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        }))?)?;
    }
    Ok(())
}

fn request<T: serde::de::DeserializeOwned>(request: Value) -> Result<T, DynoxideError> {
    serde_json::from_value(request)
        .map_err(|error| DynoxideError::InternalServerError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamReader;

    #[test]
    fn handled_records_are_deleted_and_the_next_ones_come_after_a_restart() {
        let embedded = Embedded::in_memory().unwrap();
        let (database, name) = (embedded.database().clone(), "limits");
        database
            .create_table(
                request(json!({
                    "TableName": name,
                    "BillingMode": "PAY_PER_REQUEST",
                    "AttributeDefinitions": [{"AttributeName": "PK", "AttributeType": "S"}],
                    "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}],
                    "StreamSpecification": {"StreamEnabled": true, "StreamViewType": "NEW_IMAGE"},
                }))
                .unwrap(),
            )
            .unwrap();
        let put = |pk: usize| {
            let item = json!({"TableName": name, "Item": {"PK": {"S": pk.to_string()}}});
            database.put_item(request(item).unwrap()).unwrap();
        };
        let stored = || StreamReader::after(&database, name, 0).read(100).unwrap();
        let checkpoint = Checkpoint::open(&embedded, name).unwrap();
        assert_eq!(checkpoint.read().unwrap(), 0);
        (0..10).for_each(put);
        for handled in [4, 7] {
            let at = crate::stream::position_of(&stored()[if handled == 4 { 4 } else { 3 }]);
            checkpoint.write(at).unwrap();
            // The second time it is the same item, so another trigger.
            assert_eq!(stored().len(), 10 - handled);
            let again = Checkpoint::open(&embedded, name).unwrap();
            assert_eq!(again.read().unwrap(), at);
            let mut next = StreamReader::after(&database, name, at);
            assert_eq!(next.read(100).unwrap().len(), 9 - handled);
        }
        put(10);
        assert_eq!(stored().len(), 4, "a new record has a higher number");
    }
}
