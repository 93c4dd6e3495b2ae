//! The stream of an embedded table whose time to live deletes real audit events.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use weirgate::{
    AuditSubject, Config as Limits, ConfigLevel, EpochMillis, FakeClock, Limit, RateLimiter,
};
use weirgate_testkit::Dynamo;
use weirgate_testkit::template::properties;

use crate::deliver;
use crate::s3::serve;

const DAY: Duration = Duration::from_secs(86_400);

/// A limiter three days ago, whose audit events are kept for one.
async fn limiter(dynamo: &Dynamo) -> RateLimiter {
    RateLimiter::builder("")
        .table(dynamo.table().await)
        .namespace("prod")
        .owner("ops")
        .principal("ops@example.com")
        .audit_retention(DAY)
        .build()
        .await
        .unwrap()
}

fn three_days_ago() -> EpochMillis {
    let since = (SystemTime::now() - 3 * DAY).duration_since(UNIX_EPOCH);
    EpochMillis(i64::try_from(since.unwrap().as_millis()).unwrap())
}

/// Whether an event source filter takes a record: every leaf of the pattern lists values, or
/// beginnings of them.
fn matches(pattern: &Value, record: &Value) -> bool {
    match pattern {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, pattern)| matches(pattern, &record[name])),
        Value::Array(values) => values.iter().any(|value| match value["prefix"].as_str() {
            Some(prefix) => record.as_str().is_some_and(|text| text.starts_with(prefix)),
            None => value == record,
        }),
        other => panic!("a filter's leaf is a list, not {other}"),
    }
}

/// Returns whether the template's mapping lets a record through.
fn is_taken(record: &Value) -> bool {
    let filters =
        &properties("Archiver")["Events"]["Expired"]["Properties"]["FilterCriteria"]["Filters"];
    let pattern = |filter: &Value| -> Value {
        serde_json::from_str(filter["Pattern"].as_str().unwrap()).unwrap()
    };
    let filters = filters.as_array().unwrap().iter();
    filters
        .map(pattern)
        .any(|pattern| matches(&pattern, record))
}

#[tokio::test]
async fn every_audit_event_that_expires_is_archived_once_and_nothing_else_is() {
    let clock = FakeClock::at(three_days_ago());
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let limiter = limiter(&dynamo).await;
    let entity = ConfigLevel::Entity("user:1@example.com".try_into().unwrap());
    let levels = [
        entity.clone(),
        ConfigLevel::Resource("api/search".try_into().unwrap()),
        ConfigLevel::System,
    ];
    let limit = Limit::per_minute("rpm", 600).unwrap();
    for level in &levels {
        limiter
            .set_config(level, &Limits::of([limit.clone()]))
            .await
            .unwrap();
    }
    assert!(limiter.delete_config(&entity).await.unwrap());
    // A bucket that expires too, and an event that an operator deletes.
    let acquire = limiter.acquire("user-2", "gpt-4").take("rpm", 1);
    assert!(acquire.send().await.unwrap().is_granted());
    limiter.stop(&ConfigLevel::System).send().await.unwrap();
    let stop = limiter
        .audit(&AuditSubject::System, None)
        .await
        .unwrap()
        .items
        .remove(0);
    let mut events = vec![];
    for level in &levels {
        events.extend(limiter.audit(&level.into(), None).await.unwrap().items);
    }
    dynamo.delete("prod/AUDIT##SYSTEM", &format!("#AUDIT#{}", stop.id));
    events.retain(|event| event.id != stop.id);
    assert_eq!(events.len(), 4);

    dynamo.expire();
    let records = dynamo.stream();
    let removed = records
        .iter()
        .filter(|record| record["eventName"] == "REMOVE");
    assert!(
        removed.count() > events.len() + 1,
        "the bucket's, and the operator's"
    );
    let taken: Vec<_> = records.iter().filter(|record| is_taken(record)).collect();
    assert_eq!(taken.len(), events.len());

    // The function finds the same without the filter.
    let (stored, config) = serve().await;
    let all = json!({"Records": records}).to_string();
    for (archived, already_there) in [(4, 0), (0, 4)] {
        let summary = deliver(&all, &config).await.summary;
        assert_eq!(
            (summary.archived, summary.already_there),
            (archived, already_there)
        );
        assert_eq!((summary.skipped, summary.failed), (records.len() - 4, 0));
        assert_eq!(summary.unreadable, 0);
    }
    let filtered = deliver(&json!({"Records": taken}).to_string(), &config)
        .await
        .summary;
    assert_eq!((filtered.records, filtered.already_there), (4, 4));

    // What is archived is what `weirgate audit` printed before, under the event's subject and id.
    let stored = stored.lock().unwrap();
    assert_eq!(stored.writes, 4);
    let bodies = stored.objects.iter().map(|(path, body)| {
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(path.ends_with(&format!("/{}.json", body["event"]["id"].as_str().unwrap())));
        assert_eq!(
            (&body["namespace"], &body["item"]["principal"]["S"]),
            (&json!("prod"), &json!("ops@example.com"))
        );
        body["event"].to_string()
    });
    let printed = events
        .iter()
        .map(|event| serde_json::to_value(event).unwrap().to_string());
    assert_eq!(bodies.collect::<BTreeSet<_>>(), printed.collect());
    let folders: BTreeSet<_> = stored
        .objects
        .keys()
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(folder, _)| folder)
        .collect();
    let expected = [
        "entity/user%253A1%2540example.com",
        "resource/api%252Fsearch",
        "system",
    ];
    let expected = expected.map(|subject| format!("/archive/audit/prod/{subject}"));
    assert_eq!(folders, expected.iter().map(String::as_str).collect());
}
