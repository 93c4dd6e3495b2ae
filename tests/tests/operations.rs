//! What `docs/operations.md` is read on: the alarms hear what the functions say.

use std::time::Duration;

use lambda_runtime::Context;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use weirgate_reconciler::{Config, Deadline, invoke, reconcile};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_testkit::leased::{NOW, full, holding, key, limits, store};
use weirgate_testkit::template::properties;
use weirgate_testkit::{Dynamo, Lines};

#[test]
fn alarms_hear_of_what_the_functions_pass_over() {
    for (filter, function, alarm) in [
        (
            "UndecodableRecords",
            "Aggregator",
            "UndecodableRecordsAlarm",
        ),
        (
            "UndecodableBuckets",
            "Reconciler",
            "UndecodableRecordsAlarm",
        ),
        ("RefusedWrites", "Aggregator", "RefusedWritesAlarm"),
        ("OverdueLeases", "Reconciler", "OverdueLeasesAlarm"),
    ] {
        let (filter, function, alarm) =
            (properties(filter), properties(function), properties(alarm));
        assert_eq!(
            filter["LogGroupName"],
            function["LoggingConfig"]["LogGroup"]
        );
        let metric = &filter["MetricTransformations"][0];
        assert_eq!(
            (&metric["MetricNamespace"], &metric["MetricName"]),
            (&alarm["Namespace"], &alarm["MetricName"])
        );
    }
}

#[tokio::test]
async fn the_alarm_on_undecodable_buckets_looks_for_what_the_reconciler_logs() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let count = || lines.heard("UndecodableBuckets").len();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    let run = async |now| {
        reconcile(
            &table,
            &config,
            now,
            Deadline::after(Duration::from_secs(50)),
        )
        .await
        .unwrap()
    };

    for name in ["e-1", "e-2"] {
        store(
            &table,
            &holding(
                full(name, &limits()),
                "a",
                EpochMillis(NOW.0 - 1),
                &[("slots", 1)],
            ),
        )
        .await;
    }
    let broken = key("e-1").item_key();
    let mut item = dynamo.item(&broken.pk, &broken.sk);
    item["b_slots_cp"] = json!({"S": "many"});
    dynamo.put(&item);
    assert_eq!(
        (run(NOW).await.leases_restored, count()),
        (1, 1),
        "one line for one bucket, and the other is served"
    );
    assert_eq!(
        (run(NOW).await.undecodable, count()),
        (0, 1),
        "an unreadable item is left alone for an hour"
    );
    assert_eq!(
        lines.metric("OverdueLeases"),
        [1, 0],
        "the reconciler says how long the oldest lease was due"
    );
    let hour = NOW.plus(Millis(3_600_000));
    assert_eq!(
        (run(hour).await.undecodable, count()),
        (1, 2),
        "and named again, until it is mended"
    );
}

/// A run that cannot read the index says nothing of the oldest lease, so its alarm hears no 0.
#[tokio::test]
async fn a_run_names_its_schedule_and_the_age_of_the_oldest_lease_if_it_was_read() {
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    let event = include_str!("../../events/reconciler-schedule.json");
    let run = async |dynamo: Dynamo| {
        let table = dynamo.table().await;
        let mut context = Context::default();
        context.deadline = u64::try_from(table.skew().now().0 + 50_000).unwrap();
        invoke(&table, &config, event, &context).await
    };
    run(Dynamo::new().await).await.unwrap();
    run(Dynamo::empty()).await.expect_err("there is no table");
    let scheduled = lines.text();
    let scheduled: Vec<Value> = scheduled
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["message"] == "reconciled")
        .collect();
    assert_eq!(scheduled.len(), 2);
    for line in &scheduled {
        assert_eq!(line["schedule_id"], "7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a");
        assert_eq!(line["scheduled_at"], "2026-01-01T00:00:00+00:00");
        assert!(line["late_ms"].as_i64().unwrap() > 0);
    }
    assert_eq!(lines.metric("OverdueLeases"), [0], "of the first run alone");
}

/// AWS documents no pause between attempts, so a number of them is no time.
#[test]
fn only_age_ends_the_retries_of_a_batch() {
    let mapping = properties("Aggregator")["Events"]["Stream"]["Properties"].take();
    assert_eq!(mapping["MaximumRetryAttempts"], -1);
    let age = &mapping["MaximumRecordAgeInSeconds"];
    let page = include_str!("../../docs/operations.md");
    assert!(page.contains(&format!(
        "--maximum-retry-attempts -1 --maximum-record-age-in-seconds {age} "
    )));
    assert!(page.contains("Records became 24 hours\nold. Nothing else ends the retries"));
    // Lambda discards every record that is older, also one that was never tried. So no less than
    // the stream keeps.
    assert_eq!(*age, 86_400);
}
