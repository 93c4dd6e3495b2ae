//! A request of DynamoDB's JSON protocol, run by the embedded database.

use bytes::Bytes;
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What the header `x-amz-target` has before the operation.
const TARGETS: [&str; 2] = ["DynamoDB_20120810.", "DynamoDBStreams_20120810."];

/// Body of the response to a request for an operation that there is not.
pub(crate) const UNKNOWN_OPERATION: &[u8] =
    br#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#;

/// Returns the operation that a header `x-amz-target` names.
pub(crate) fn operation_of(target: &str) -> Option<&str> {
    TARGETS.iter().find_map(|service| target.strip_prefix(service))
}

/// Runs one operation. Returns the status and the body of its response.
pub(crate) fn run(database: &Database, operation: &str, body: &[u8]) -> (u16, Bytes) {
    match answer(database, operation, body) {
        Some(Ok(body)) => (200, body.into()),
        Some(Err(error)) => (error.status_code(), error.to_json().into()),
        None => (400, Bytes::from_static(UNKNOWN_OPERATION)),
    }
}

/// Returns the answer to an operation, if it is one that callers, functions and tools for tables
/// need. Not among them are SQL, tags and changes of a table: they would be a large part of the
/// binary.
fn answer(db: &Database, operation: &str, body: &[u8]) -> Option<Result<Vec<u8>, DynoxideError>> {
    Some(match operation {
        "UpdateItem" => with(body, |request| db.update_item(request)),
        "GetItem" => with(body, |request| db.get_item(request)),
        "PutItem" => with(body, |request| db.put_item(request)),
        "DeleteItem" => with(body, |request| db.delete_item(request)),
        "BatchGetItem" => with(body, |request| db.batch_get_item(request)),
        "BatchWriteItem" => with(body, |request| db.batch_write_item(request)),
        "TransactGetItems" => with(body, |request| db.transact_get_items(request)),
        "TransactWriteItems" => with(body, |request| db.transact_write_items(request)),
        "Query" => with(body, |request| db.query(request)),
        "Scan" => with(body, |request| db.scan(request)),
        "CreateTable" => with(body, |request| db.create_table(request)),
        "DeleteTable" => with(body, |request| db.delete_table(request)),
        "DescribeTable" => with(body, |request| db.describe_table(request)),
        "ListTables" => with(body, |request| db.list_tables(request)),
        "DescribeTimeToLive" => with(body, |request| db.describe_time_to_live(request)),
        "UpdateTimeToLive" => with(body, |request| db.update_time_to_live(request)),
        "ListStreams" => with(body, |request| db.list_streams(request)),
        "DescribeStream" => with(body, |request| db.describe_stream(request)),
        "GetShardIterator" => with(body, |request| db.get_shard_iterator(request)),
        "GetRecords" => with(body, |request| db.get_records(request)),
        _ => return None,
    })
}

/// Reads a request, runs it, and writes its answer.
fn with<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    run: impl FnOnce(Q) -> Result<A, DynoxideError>,
) -> Result<Vec<u8>, DynoxideError> {
    let request = serde_json::from_slice(body).map_err(|error| refused(&error.to_string()))?;
    serde_json::to_vec(&run(request)?)
        .map_err(|error| DynoxideError::InternalServerError(error.to_string()))
}

/// Returns the error of a body that could not be read. The database marks reasons of DynamoDB's own
/// with their kind: `VALIDATION:` and `VALIDATION_REQUEST:` before the reason.
fn refused(reason: &str) -> DynoxideError {
    match reason.split_once(':') {
        Some((kind, reason)) if kind.starts_with("VALIDATION") => {
            let place = reason.rsplit_once(" at line ");
            let reason = place.map_or(reason, |(reason, _)| reason);
            DynoxideError::ValidationException(reason.to_owned())
        }
        _ => DynoxideError::SerializationException(reason.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Embedded;

    fn asked(database: &Database, operation: &str, body: &Value) -> (u16, Value) {
        let (status, body) = run(database, operation, body.to_string().as_bytes());
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn requests_that_cannot_be_read_or_run_say_why_in_the_words_of_dynamodb() {
        let embedded = Embedded::in_memory().unwrap();
        let database = embedded.database();
        let kind = |error: &Value| error["__type"].as_str().unwrap().to_owned();

        let (status, body) = run(database, "PutItem", b"{\"TableName\": ");
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 400);
        assert!(kind(&error).ends_with("SerializationException"), "{error}");

        let (status, error) = asked(database, "UpdateItem", &json!({"TableName": "missing"}));
        assert_eq!(status, 400);
        assert!(kind(&error).ends_with("ValidationException"), "{error}");
        let reason = error["message"].as_str().unwrap();
        assert!(reason.contains("'key'"), "{error}");
        assert!(!reason.contains("VALIDATION") && !reason.contains("line"));

        let key = json!({"TableName": "missing", "Key": {"PK": {"S": "a"}}});
        let (status, error) = asked(database, "GetItem", &key);
        assert_eq!(status, 400);
        let expected = "ResourceNotFoundException";
        assert!(kind(&error).ends_with(expected), "{error}");

        let (status, error) = asked(database, "CreateBackup", &json!({}));
        assert_eq!(status, 400);
        assert!(kind(&error).ends_with("UnknownOperationException"));
    }

    #[test]
    fn a_target_names_an_operation_of_the_table_or_of_its_stream() {
        assert_eq!(operation_of("DynamoDB_20120810.GetItem"), Some("GetItem"));
        let records = operation_of("DynamoDBStreams_20120810.GetRecords");
        assert_eq!(records, Some("GetRecords"));
        assert_eq!(operation_of("DynamoDB_20111205.GetItem"), None);
    }
}
