//! The line of an invocation: its exact shape, and what it says of real invocations.

use std::collections::BTreeSet;

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use weirgate_runtime::Unit;
use weirgate_testkit::emf::points;
use weirgate_testkit::{Dynamo, Fault, Lines};

use super::invocations::{
    NOW, QUOTAS, aggregator, all, lost_life, metrics, names, reconciler, used,
};
use weirgate_tests::aggregator::event;

fn last(lines: &Lines) -> Value {
    serde_json::from_str(lines.text().lines().last().expect("a line")).unwrap()
}

/// The values of a metric in all lines.
fn values(lines: &Lines, name: &str) -> Vec<i64> {
    let of = lines.points().into_iter().filter(|point| point.name == name);
    of.map(|point| point.value).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_line_in_the_embedded_metric_format() {
    let (dynamo, _, event) = used().await;
    let lines = Lines::default();
    let process = aggregator(&dynamo, &lines).await;
    process.invoke(&event, "r-1", Some("Root=1-5f-7e")).await.unwrap();
    // The first record is of the hour's first second, two hours before.
    let expected = concat!(
        r#"{"timestamp":"2026-11-20T20:00:03.500Z","level":"INFO","message":"batch done","#,
        r#""records":3,"skipped":0,"undecodable":0,"acquires":3,"copied":2,"superseded":0,"gaps":0,"#,
        r#""copies_put_off":0,"refilled":0,"refills_lost":0,"refills_put_off":0,"splits":0,"#,
        r#""splits_lost":0,"splits_put_off":0,"refused":0,"failed":0,"batch_age_ms":7203500,"#,
        r#""throttled_key_range":0,"throttled_index":0,"throttled_account":0,"throttled_maximum":0,"#,
        r#""throttled_unnamed":0,"cold_start":1,"duration_ms":0,"stack":"weirgate-test","#,
        r#""function":"aggregator","span":{"requestId":"r-1","xrayTraceId":"Root=1-5f-7e"},"#,
        r#""_aws":{"Timestamp":1795204803500,"CloudWatchMetrics":[{"Namespace":"Weirgate","#,
        r#""Dimensions":[["stack","function"]],"Metrics":[{"Name":"records","Unit":"Count"},"#,
        r#"{"Name":"acquires","Unit":"Count"},{"Name":"copied","Unit":"Count"},"#,
        r#"{"Name":"batch_age_ms","Unit":"Milliseconds"},{"Name":"cold_start","Unit":"Count"},"#,
        r#"{"Name":"duration_ms","Unit":"Milliseconds"}]}]}}"#,
        "\n",
    );
    assert_eq!(lines.text(), expected);
    assert_eq!(lines.points().len(), 6);
}

/// The same batch again, by the same process: nothing new, and no start.
#[tokio::test]
async fn a_replay_says_what_it_dropped_and_is_no_cold_start() {
    let (dynamo, _, event) = used().await;
    let lines = Lines::default();
    let process = aggregator(&dynamo, &lines).await;
    for request in ["r-1", "r-2"] {
        process.invoke(&event, request, None).await.unwrap();
    }
    let line = last(&lines);
    for (name, value) in [("copied", 0), ("superseded", 2), ("cold_start", 0)] {
        assert_eq!(line[name], value, "{line}");
    }
    assert_eq!(line["span"], json!({"requestId": "r-2"}), "there is no trace");
    assert_eq!(values(&lines, "copied"), [2], "a count of 0 is no metric");
    assert_eq!(values(&lines, "cold_start"), [1]);
    assert_eq!(values(&lines, "duration_ms").len(), 2, "a time is one always");
}

#[tokio::test(start_paused = true)]
async fn throttles_are_counted_by_quota_in_their_own_invocation() {
    let (dynamo, _, event) = used().await;
    let lines = Lines::default();
    let process = aggregator(&dynamo, &lines).await;
    dynamo.fail_next(QUOTAS.map(|(reason, _)| Some(Fault::ThrottleFor(reason))));
    process.invoke(&event, "r-1", None).await.unwrap();
    for (reason, metric) in QUOTAS {
        assert_eq!(values(&lines, metric), [1], "{reason}");
    }
    process.invoke(&event, "r-2", None).await.unwrap();
    assert_eq!(last(&lines)["throttled_account"], 0);
}

/// A new life of the bucket finds the earlier one's copy of the day, which is not its last.
#[tokio::test]
async fn an_earlier_life_without_its_final_copy_is_a_gap() {
    let lines = Lines::default();
    lost_life(&lines).await;
    assert_eq!(values(&lines, "gaps"), [1], "{}", lines.text());
    let line = last(&lines);
    assert_eq!((&line["copied"], &line["undecodable"]), (&2.into(), &0.into()));
}

/// Whatever ends it, an invocation has its line, at any level of the log.
#[tokio::test(start_paused = true)]
async fn an_invocation_that_fails_has_a_line_with_its_error() {
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("ERROR", move || writer.clone()).set_default();
    let (dynamo, _, event) = used().await;
    let process = aggregator(&dynamo, &lines).await;
    process.invoke("{}", "r-1", None).await.unwrap_err();
    let line = last(&lines);
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("Records is missing"), "{error}");
    assert_eq!((&line["level"], &line["records"]), (&"ERROR".into(), &0.into()));

    dynamo.fail_when(|_| Some(Fault::Forbidden));
    process.invoke(&event, "r-2", None).await.unwrap_err();
    let line = last(&lines);
    assert!(line["error"].as_str().unwrap().contains("not permitted"), "{line}");
    assert_eq!((&line["records"], &line["failed"]), (&3.into(), &1.into()));

    dynamo.fail_when(|_| None);
    process.invoke(&event, "r-3", None).await.unwrap();
    assert_eq!(last(&lines)["level"], "INFO");
    assert_eq!(values(&lines, "duration_ms").len(), 3);

    let nothing = Dynamo::empty();
    let process = reconciler(&nothing, NOW, &lines).await;
    process.invoke("{}", "r-4", None).await.unwrap_err();
    assert_eq!(last(&lines)["level"], "ERROR");
    let oldest = &last(&lines)["oldest_due_age_ms"];
    assert!(oldest.is_null(), "an index that was not read is not without due buckets");
}

#[tokio::test(start_paused = true)]
async fn a_run_names_its_schedule_and_every_other_line_of_it_has_its_request_id() {
    let lines = all().await;
    for line in lines.text().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let request = line["span"]["requestId"].as_str();
        assert!(request.is_some_and(|id| id.starts_with("r-")), "{line}");
        if line["message"] == "reconciled" {
            assert_eq!(line["schedule_id"], "7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a");
            assert_eq!(line["scheduled_at"], "2026-01-01T00:00:00+00:00");
            assert_eq!(line["late_ms"].as_i64().unwrap() % 60_000, 0);
        }
    }
    let others =
        lines.text().lines().count() - lines.of("batch done").len() - lines.of("reconciled").len();
    assert!(others >= 5, "{}", lines.text());
}

/// Every line keeps to the specification ([`points`] checks it), and every metric is one that the
/// code declares, in its unit.
#[tokio::test(start_paused = true)]
async fn every_metric_is_declared_and_nearly_all_are_seen() {
    let seen = all().await.points();
    let declared: BTreeSet<_> = metrics()
        .into_iter()
        .flat_map(|(function, metrics)| {
            metrics.into_iter().map(|metric| (function.to_owned(), metric.name.to_owned()))
        })
        .collect();
    assert!(declared.len() < 100);
    let is_subset = names(&seen).is_subset(&declared);
    assert!(is_subset, "{seen:?}");
    for point in &seen {
        let unit = match point.name.ends_with("_ms") {
            true => Unit::Milliseconds,
            false => Unit::Count,
        };
        assert_eq!(point.unit, format!("{unit:?}"), "{}", point.name);
    }
}

/// What the alarms watch, from the lines to their metrics.
#[tokio::test(start_paused = true)]
async fn alarms_watch_what_the_functions_skip_and_the_oldest_lease() {
    let lines = all().await;
    for (alarm, values) in [
        ("UndecodableRecordsAlarm", 1),
        ("UndecodableBucketsAlarm", 1),
        ("RefusedWritesAlarm", 1),
        ("OverdueLeasesAlarm", 2),
    ] {
        assert_eq!(lines.watched(alarm).len(), values, "{alarm}");
    }
    assert_eq!(lines.watched("UndecodableBucketsAlarm"), [1]);
    let (dynamo, _, event) = used().await;
    let healthy = Lines::default();
    let process = aggregator(&dynamo, &healthy).await;
    process.invoke(&event, "r-1", None).await.unwrap();
    let process = reconciler(&dynamo, NOW, &healthy).await;
    process.invoke("{}", "r-2", None).await.unwrap();
    assert!(healthy.watched("UndecodableRecordsAlarm").is_empty());
    assert!(healthy.watched("RefusedWritesAlarm").is_empty());
    assert_eq!(healthy.watched("OverdueLeasesAlarm"), [0], "so that a healthy run ends the alarm");
}

/// The text of a line has one object, and only of its own metrics.
#[tokio::test]
async fn a_name_in_an_item_makes_no_metric() {
    let (dynamo, _, text) = used().await;
    let mut records: Value = serde_json::from_str(&text).unwrap();
    let bad = &mut records["Records"][0]["dynamodb"]["NewImage"];
    bad["b_tpm_tc"] = json!({"S": "\"_aws\": {}\n"});
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let process = aggregator(&dynamo, &lines).await;
    let text = event(records["Records"].as_array().unwrap());
    process.invoke(&text, "r-1", None).await.unwrap();
    let told: Value = serde_json::from_str(&lines.of("undecodable record")[0]).unwrap();
    assert_eq!(points(&told), []);
    assert_eq!(values(&lines, "undecodable"), [1]);
}
