//! DynamoDB failing, time running out, and what is said about it.

use std::time::Duration;
use weirgate_tests::{assert_has, fresh, slow};

use crate::fixtures::sharded::{hold, run_for};
use lambda_runtime::tracing;
use serde_json::{Value, json};
use weirgate_reconciler::Summary;
use weirgate_shared::EpochMillis;
use weirgate_store::{ErrorKind, StoreError, Table};
use weirgate_testkit::leased::{NOW, key};
use weirgate_testkit::{Dynamo, Fault, Lines, Process};

const PAST: EpochMillis = EpochMillis(NOW.0 - 1_000);
const THROTTLE: Fault = Fault::Throttle { key_range: false };

async fn run(table: &Table) -> Result<Summary, StoreError> {
    run_for(table, NOW, 100, Duration::from_secs(50)).await
}

/// Buckets `e-0` and up with an expired slot each.
async fn expired(table: &Table, buckets: u32) {
    for at in 0..buckets {
        hold(table, &format!("e-{at}"), PAST).await;
    }
}

fn is_of(write: &Value, entity: &str) -> bool {
    write["Key"]["PK"]["S"] == key(entity).item_key().pk.as_str()
}

#[tokio::test(start_paused = true)]
async fn a_throttled_bucket_is_tried_again_then_left_due_beside_the_rest() {
    let (dynamo, table) = fresh().await;
    expired(&table, 20).await;
    dynamo.fail_when(|write| is_of(write, "e-7").then_some(THROTTLE));
    let _ = dynamo.take_operations();
    let summary = run(&table).await.unwrap();
    assert_eq!(dynamo.take_operations()["UpdateItem"], 19 + 4);
    assert_has!(summary, buckets_seen: 20, leases_restored: 19, left_over: 1);
    assert_has!(summary, lost_races: 0, partitions_unfinished: 0);
    assert!(
        summary.errors[0].contains("e-7") && summary.errors[0].contains("throttled"),
        "{:?}",
        summary.errors
    );

    let mut times = 0;
    dynamo.fail_when(move |_| {
        times += 1;
        (times < 4).then_some(if times == 2 { Fault::Conflict } else { THROTTLE })
    });
    let summary = run(&table).await.unwrap();
    assert_has!(summary, buckets_seen: 1, leases_restored: 1);
    assert_eq!(summary.errors.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_read_does_not_stop_the_others() {
    let (dynamo, table) = fresh().await;
    expired(&table, 64).await;
    let shard = key("e-0").due_shard();
    let failing = shard.clone();
    dynamo.fail_reads(move |operation, request| {
        let fails = operation == "Query"
            && request["ExpressionAttributeValues"][":hash"]["S"] == failing.as_str();
        fails.then_some(THROTTLE)
    });
    let here = (0..64).filter(|at| key(&format!("e-{at}")).due_shard() == shard).count();
    let summary = run(&table).await.unwrap();
    assert_eq!(summary.leases_restored, 64 - u64::try_from(here).unwrap());
    assert_eq!(summary.partitions_unfinished, 1);
    assert_eq!(summary.errors.len(), 1);
    assert!(summary.errors[0].contains(&format!("Query of {shard}")), "{:?}", summary.errors);
}

#[tokio::test(start_paused = true)]
async fn buckets_that_cannot_be_read_are_left_over() {
    let (dynamo, table) = fresh().await;
    expired(&table, 3).await;
    dynamo.fail_reads(|operation, _| (operation == "BatchGetItem").then_some(Fault::ServerError));
    let summary = run(&table).await.unwrap();
    assert_has!(summary, buckets_seen: 3, left_over: 3, leases_restored: 0);
    assert_eq!(summary.errors.len(), 1, "the same text once");
    dynamo.fail_reads(|_, _| None);
    assert_eq!(run(&table).await.unwrap().leases_restored, 3);
}

#[tokio::test]
async fn a_missing_permission_is_an_error_that_names_the_action() {
    for action in ["Query", "BatchGetItem", "UpdateItem"] {
        let (dynamo, table) = fresh().await;
        expired(&table, 5).await;
        if action == "UpdateItem" {
            dynamo.fail_when(|_| Some(Fault::Forbidden));
        }
        dynamo.fail_reads(move |operation, _| (operation == action).then_some(Fault::Forbidden));
        let before = dynamo.items();
        let error = run(&table).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::AccessDenied);
        assert!(
            error.to_string().contains(action) && error.to_string().contains("role"),
            "{error}"
        );
        assert_eq!(dynamo.items(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_that_cannot_be_read_at_all_is_an_error() {
    let dynamo = Dynamo::new().await;
    dynamo.fail_reads(|_, _| Some(THROTTLE));
    let error = run(&dynamo.table().await).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Throttled { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn it_stops_before_its_deadline_and_what_is_left_is_still_due() {
    let dynamo = Dynamo::new().await;
    expired(&dynamo.table().await, 300).await;
    let slow = slow(&dynamo, 1_000).await;

    let started = tokio::time::Instant::now();
    let left = Duration::from_secs(9);
    let summary = run_for(&slow, NOW, 1000, left).await.unwrap();
    assert!(started.elapsed() < left, "{:?}", started.elapsed());
    assert_eq!((summary.buckets_seen, summary.errors.len()), (300, 0));
    assert!(summary.left_over > 0 && summary.leases_restored > 100, "{summary:?}");
    assert_eq!(
        summary.leases_restored + summary.left_over,
        300,
        "what was begun was finished, and counted"
    );

    // Unread pages cannot be counted; the report only says that there are some.
    let summary = run_for(&slow, NOW, 1, left).await.unwrap();
    assert!(summary.partitions_unfinished > 0, "{summary:?}");

    let rest = run(&dynamo.table().await).await.unwrap();
    assert_has!(rest, left_over: 0, partitions_unfinished: 0);
    assert!(dynamo.items().iter().all(|item| item.get("due").is_none()));
}

#[tokio::test(start_paused = true)]
async fn an_invocation_without_time_does_nothing_and_says_so() {
    let (dynamo, table) = fresh().await;
    expired(&table, 2).await;
    let _ = dynamo.take_operations();
    let summary = run_for(&table, NOW, 100, Duration::ZERO).await.unwrap();
    assert_has!(summary, partitions_unfinished: 16, leases_restored: 0);
    assert_eq!(dynamo.take_requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_left_in_time() {
    let dynamo = Dynamo::new().await;
    expired(&dynamo.table().await, 2).await;
    // Longer than one request may take: each attempt times out, and there is time for few.
    let stuck = slow(&dynamo, 600_000).await;
    let started = tokio::time::Instant::now();
    let summary = run_for(&stuck, NOW, 100, Duration::from_secs(10)).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(summary.unwrap().partitions_unfinished, 16);
}

#[tokio::test]
async fn the_summary_is_one_line_of_the_log_and_an_undecodable_item_another() {
    let (dynamo, table) = fresh().await;
    expired(&table, 2).await;
    let broken = key("e-1").item_key();
    let mut item = dynamo.item(&broken.pk, &broken.sk);
    item["rf"] = json!({"S": "soon"});
    item["note"] = json!({"SS": ["of an operator"]});
    dynamo.put(&item);

    let lines = Lines::default();
    let writer = lines.clone();
    let logging = weirgate_runtime::subscriber("", move || writer.clone());
    let guard = tracing::subscriber::util::SubscriberInitExt::set_default(logging);
    let process = Process::start(weirgate_reconciler::function, table, &lines);
    let answer = process.invoke("{}", "r-1", None).await.unwrap();
    drop(guard);
    let text = lines.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |level: &str| lines.iter().filter(|line| line["level"] == level).collect::<Vec<_>>();

    let error = of("ERROR");
    assert_eq!(error.len(), 1, "{text}");
    assert_eq!(&error[0]["message"], &json!("undecodable bucket"), "{text}");
    assert_eq!(
        error[0]["error"],
        json!("attribute rf is \"soon\", must be a whole number within 64 bits")
    );
    for part in ["e-1", "of an operator", "b_slots_tk"] {
        assert!(error[0]["item"].as_str().unwrap().contains(part), "{part}: {text}");
    }
    let info = of("INFO");
    assert_eq!(info.len(), 1, "{text}");
    assert_eq!(&info[0]["message"], &json!("reconciled"), "{text}");
    for (name, value) in answer.as_object().unwrap() {
        let logged = &info[0][name];
        let parsed =
            logged.as_str().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let same = logged == value || parsed.as_ref() == Some(value);
        assert!(same, "{name}: {logged} is not {value}");
    }
}
