//! The deployed archiver, with a real S3: the emulator's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weirgate::{ConfigLevel, EntityId, EpochMillis, FakeClock, RateLimiter};
use weirgate_testkit::Dynamo;

use super::account::call;
use super::stack::Stack;

const DAY: Duration = Duration::from_secs(86_400);

/// Gives the archiver an audit event that an embedded table has deleted as expired, twice. The
/// emulator's own time to live leaves no record in the stream.
///
/// # Errors
/// If the archive does not hold that one event, as it was.
pub(super) async fn check(stack: &Stack) -> Result<(), String> {
    let records = expired_audit_event().await?;
    let (function, bucket) = (
        stack.output("ArchiverName")?,
        stack.output("AuditArchiveName")?,
    );
    let invoke = json!(["lambda", "invoke", {
        "FunctionName": function, "Payload": json!({"Records": records}).to_string(),
    }]);
    let list = json!(["s3", "list_objects_v2", {"Bucket": bucket}]);
    // The emulator has no TLS, so the bucket's policy refuses every request, as it should.
    let allow = json!(["s3", "delete_bucket_policy", {"Bucket": bucket}]);
    let answers = call(&stack.endpoint, &json!([allow])).await?;
    if !answers[0].is_object() {
        return Err(format!("the archive has no policy: {}", answers[0]));
    }
    let answers = call(&stack.endpoint, &json!([invoke, list, invoke, list])).await?;
    for at in [0, 2] {
        let answer = answers[at]["Payload"].as_str().unwrap_or_default();
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        if !answers[at]["FunctionError"].is_null() || answer != json!({"batchItemFailures": []}) {
            return Err(format!("the archiver answered {}", answers[at]));
        }
    }
    let lines = stack.logged()?;
    let sum = |field: &str| -> u64 {
        let lines = lines.iter();
        let lines = lines.filter(|line| line["message"] == "audit events archived");
        lines.filter_map(|line| line[field].as_u64()).sum()
    };
    let (archived, already_there) = (sum("archived"), sum("already_there"));
    if (archived, already_there) != (1, 1) {
        return Err(format!(
            "one invocation must archive and one find it there: {archived}, {already_there}"
        ));
    }
    let objects = answers[1]["Contents"].as_array().map(Vec::as_slice);
    let [object] = objects.unwrap_or_default() else {
        return Err(format!(
            "the archive must hold one object, got {}",
            answers[1]
        ));
    };
    if answers[3]["Contents"] != answers[1]["Contents"] {
        return Err(format!("the archive has changed: {}", answers[3]));
    }
    let get = json!(["s3", "get_object", {"Bucket": bucket, "Key": object["Key"]}]);
    let answers = call(&stack.endpoint, &json!([get])).await?;
    let text = answers[0]["Body"].as_str().unwrap_or_default();
    let body: Value = serde_json::from_str(text).map_err(|error| format!("{text}: {error}"))?;
    let image = &records[0]["dynamodb"]["OldImage"];
    if body["item"] == *image && body["event"]["change"]["kind"] == "switch" {
        Ok(())
    } else {
        Err(format!("the object must hold {image}, got {text}"))
    }
}

/// Returns the record of an audit event that an embedded table has deleted as expired.
///
/// # Errors
/// If it has deleted another number of items.
pub async fn expired_audit_event() -> Result<Vec<Value>, String> {
    let told = |error: weirgate::Error| error.to_string();
    let since = (SystemTime::now() - 3 * DAY).duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default().as_millis();
    let then = EpochMillis(i64::try_from(since).unwrap_or_default());
    let dynamo = Dynamo::new().await.with_clock(FakeClock::at(then));
    let limiter = RateLimiter::builder("")
        .table(dynamo.table().await)
        .namespace("prod")
        .audit_retention(DAY)
        .build()
        .await
        .map_err(told)?;
    let entity = EntityId::new("user:1@example.com").map_err(|error| error.to_string())?;
    let level = ConfigLevel::Entity(entity);
    limiter.stop(&level).send().await.map_err(told)?;
    let _ = dynamo.stream();
    dynamo.expire();
    let mut records = dynamo.stream();
    // The key that makes the stop happen once has expired too.
    records.retain(|record| {
        let sk = record["dynamodb"]["Keys"]["SK"]["S"].as_str();
        record["eventName"] == "REMOVE" && sk.is_some_and(|sk| sk.starts_with("#AUDIT#"))
    });
    match records.len() {
        1 => Ok(records),
        _ => Err(format!("one event must have expired, got {records:?}")),
    }
}
