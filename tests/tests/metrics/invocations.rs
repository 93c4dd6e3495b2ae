//! Invocations of the aggregator and the reconciler, in good and in bad minutes, and the metrics
//! that all functions can report.

use std::collections::BTreeSet;
use std::time::Duration;

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use weirgate_runtime::{Metric, MetricsLine};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::{Clock, Table};
use weirgate_testkit::emf::Point;
use weirgate_testkit::leased::{full, holding, key, limits, store};
use weirgate_testkit::{Dynamo, Fault, Lines, Process};

use weirgate_tests::aggregator::{HOUR, bucket, event, later, records, take_in};
use weirgate_tests::sharded::{DUE, sharded};

/// A clock that stands still.
#[derive(Debug, Clone, Copy)]
pub struct At(pub EpochMillis);

impl Clock for At {
    fn now(&self) -> EpochMillis {
        self.0
    }
}

/// The sample of a hot shard.
const HOT: &str = include_str!("../../../events/aggregator-hot.json");

/// Half a second after the third one of an hour.
pub const NOW: EpochMillis = EpochMillis(HOUR.0 + 2 * 3_600_000 + 3_500);

/// Reasons of throttles in DynamoDB's words, and their metrics.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_ThrottlingReason.html>
pub const QUOTAS: [(&str, &str); 5] = [
    ("TableWriteKeyRangeThroughputExceeded", "throttled_key_range"),
    ("IndexWriteKeyRangeThroughputExceeded", "throttled_index"),
    ("TableWriteAccountLimitExceeded", "throttled_account"),
    ("TableWriteMaxOnDemandThroughputExceeded", "throttled_maximum"),
    ("SomethingNew", "throttled_unnamed"),
];

/// A process of the aggregator at [`NOW`].
pub async fn aggregator(dynamo: &Dynamo, lines: &Lines) -> Process {
    aggregator_at(NOW, dynamo, lines).await
}

async fn aggregator_at(now: EpochMillis, dynamo: &Dynamo, lines: &Lines) -> Process {
    Process::start(weirgate_aggregator::function, dynamo.table_by(At(now)).await, lines)
}

/// A process of the reconciler at `now`.
pub async fn reconciler(dynamo: &Dynamo, now: EpochMillis, lines: &Lines) -> Process {
    Process::start(weirgate_reconciler::function, dynamo.table_by(At(now)).await, lines)
}

/// A bucket that was taken from twice in an hour and once in the next, and the event of it: final
/// copies for the hour, and one of the day so far.
pub async fn used() -> (Dynamo, Table, String) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for hours in [0, 0, 1] {
        take_in(&table, &bucket("a", 0), 1_500, hours).await;
    }
    let event = event(&records(&dynamo));
    (dynamo, table, event)
}

/// A table with the bucket of a sample event as its last record shows it.
async fn with_bucket_of(event: &str) -> Dynamo {
    let dynamo = Dynamo::new().await;
    let event: Value = serde_json::from_str(event).unwrap();
    let records = event["Records"].as_array().unwrap();
    dynamo.put(&records.last().unwrap()["dynamodb"]["NewImage"]);
    dynamo
}

/// Has a new process of the aggregator handle the sample of a hot shard, a second after its record.
async fn aggregate_hot(dynamo: &Dynamo, lines: &Lines) {
    let process = aggregator_at(EpochMillis(1_795_195_342_000), dynamo, lines).await;
    process.invoke(HOT, "r-1", None).await.unwrap();
}

/// Has a new process of the aggregator handle one event.
async fn aggregate(dynamo: &Dynamo, event: &str, lines: &Lines) {
    let process = aggregator(dynamo, lines).await;
    process.invoke(event, "r-1", None).await.unwrap();
}

/// The lines of all invocations below: every count of the dashboard is above 0 in one of them.
pub async fn all() -> Lines {
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    batches(&lines).await;
    faults(&lines).await;
    lost_life(&lines).await;
    runs(&lines).await;
    lines
}

/// Copies, replays, refills, splits.
async fn batches(lines: &Lines) {
    let (dynamo, _, event) = used().await;
    let process = aggregator(&dynamo, lines).await;
    for request in ["r-1", "r-2"] {
        process.invoke(&event, request, None).await.unwrap();
    }
    let refill = include_str!("../../../events/aggregator-refill.json");
    aggregate(&with_bucket_of(refill).await, refill, lines).await;
    aggregate_hot(&with_bucket_of(HOT).await, lines).await;
    let undecodable = include_str!("../../../events/aggregator-undecodable.json");
    aggregate(&Dynamo::new().await, undecodable, lines).await;
}

/// Throttles of each reason, a copy that fails, one that is refused, a split that is put off.
async fn faults(lines: &Lines) {
    let (dynamo, _, event) = used().await;
    dynamo.fail_next(QUOTAS.map(|(reason, _)| Some(Fault::ThrottleFor(reason))));
    aggregate(&dynamo, &event, lines).await;
    let [partition, account] = [true, false].map(|key_range| Fault::Throttle { key_range });

    let (dynamo, _, event) = used().await;
    dynamo.fail_when(move |_| Some(account));
    aggregate(&dynamo, &event, lines).await;

    let (dynamo, _, event) = used().await;
    let snapshot = "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z";
    dynamo
        .put(&json!({"PK": {"S": "default/ENTITY#a"}, "SK": {"S": snapshot}, "q0": {"S": "far"}}));
    aggregate(&dynamo, &event, lines).await;

    let dynamo = with_bucket_of(HOT).await;
    dynamo.fail_when(move |_| Some(partition));
    aggregate_hot(&dynamo, lines).await;
}

/// A bucket is deleted, and the record of it is lost; then the bucket is used again.
pub async fn lost_life(lines: &Lines) {
    let (dynamo, table, event_of_first) = used().await;
    aggregate(&dynamo, &event_of_first, lines).await;
    let first = bucket("a", 0).item_key();
    dynamo.delete(&first.pk, &first.sk);
    for hours in [2, 3] {
        take_in(&table, &bucket("a", 0), 1_500, hours).await;
    }
    let mut records = records(&dynamo);
    records.retain(|record| record["eventName"] != "REMOVE");
    let process =
        Process::start(weirgate_aggregator::function, dynamo.table_by(At(later(4))).await, lines);
    process.invoke(&event(&records), "r-1", None).await.unwrap();
}

/// Runs of the reconciler: an expired lease, cold shards, a damaged item, no table, no time.
async fn runs(lines: &Lines) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    sharded(&table, 2).await;
    let expired = EpochMillis(DUE.0 - 1);
    for entity in ["e-1", "e-2", "e-3"] {
        let held = holding(full(entity, &limits()), "a", expired, &[("slots", 1)]);
        store(&table, &held).await;
    }
    let broken = key("e-1").item_key();
    let mut item = dynamo.item(&broken.pk, &broken.sk);
    item["b_slots_cp"] = json!({"S": "many"});
    dynamo.put(&item);
    let [partition, account] = [true, false].map(|key_range| Fault::Throttle { key_range });
    let busy = key("e-2").item_key().pk;
    dynamo.fail_when(move |write| (write["Key"]["PK"]["S"] == *busy).then_some(partition));
    let mut throttled = false;
    dynamo
        .fail_transactions(move |_| (!std::mem::replace(&mut throttled, true)).then_some(account));
    let scheduled = include_str!("../../../events/reconciler-schedule.json");
    let process = reconciler(&dynamo, DUE, lines).await;
    process.invoke(scheduled, "r-1", None).await.unwrap();
    dynamo.fail_reads(move |operation, _| (operation == "Query").then_some(account));
    let process = reconciler(&dynamo, DUE.plus(Millis(60_000)), lines).await;
    process.invoke(scheduled, "r-2", None).await.unwrap_err();

    let cold = Dynamo::new().await;
    sharded(&cold.table().await, 2).await;
    let process = reconciler(&cold, DUE, lines).await;
    process.invoke(scheduled, "r-3", None).await.unwrap();
}

/// The metrics that a function can report.
fn declared(line: MetricsLine) -> Vec<Metric> {
    let line = line.of_process(&[].into(), false, Duration::ZERO);
    line.metrics().collect()
}

/// The metrics that the functions can report, by function.
pub fn metrics() -> [(&'static str, Vec<Metric>); 2] {
    [
        ("aggregator", declared(weirgate_aggregator::Summary::default().metrics_line())),
        ("reconciler", declared(weirgate_reconciler::Summary::default().metrics_line())),
    ]
}

/// The names of a list's points, with their functions.
pub fn names(points: &[Point]) -> BTreeSet<(String, String)> {
    let name = |point: &Point| (point.dimensions["function"].clone(), point.name.clone());
    points.iter().map(name).collect()
}
