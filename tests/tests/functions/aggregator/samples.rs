//! The sample events in `events/`, one per case, each as the README's `cargo lambda invoke` sends
//! it.

use crate::fixtures::aggregator::{HOUR, deliver_text};
use serde_json::{Value, json};
use weirgate_aggregator::{REFILL_WRITES, Summary};
use weirgate_testkit::{Dynamo, Fault};
use weirgate_tests::assert_has;

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../../../events/aggregator-", $name, ".json"))
    };
}

/// What the function does with the event, on a table with the bucket of its last record if
/// `has_bucket`; and the table after it.
async fn handled(event: &str, has_bucket: bool) -> (Summary, Dynamo) {
    let dynamo = Dynamo::new().await;
    let parsed: Value = serde_json::from_str(event).unwrap();
    let last = parsed["Records"].as_array().unwrap().last().unwrap();
    if has_bucket {
        dynamo.put(&last["dynamodb"]["NewImage"]);
    }
    let handled = deliver_text(&dynamo.table().await, event, HOUR).await;
    assert_eq!(handled.response.unwrap(), Default::default());
    let summary = handled.summary;
    let skipped = summary.skipped + summary.undecodable;
    assert!(summary.batch_age_ms.is_some() || summary.records <= skipped);
    let effects = Summary { acquires: 0, batch_age_ms: None, ..summary };
    (effects, dynamo)
}

/// A snapshot without its keys and `ttl`.
fn snapshot(dynamo: &Dynamo, window: &str) -> Value {
    let sk = format!("#USAGE#gpt-4#{window}:00:00Z");
    let mut item = dynamo.item("default/ENTITY#user-123", &sk);
    for name in ["PK", "SK", "ttl"] {
        item.as_object_mut().unwrap().remove(name);
    }
    item
}

/// A final copy of the first shard, of whose requests each is one acquire.
fn copy(rpm: &str, tpm: &str, v: &str) -> Value {
    let of = |number: &str| json!({"N": number});
    json!({"rpm#0": of(rpm), "tpm#0": of(tpm), "#0": of(rpm), "q0": of(v), "final": {"NS": ["0"]}})
}

#[tokio::test]
async fn each_sample_does_what_its_name_says() {
    let (hour, day) = ("hourly#2026-11-20T17", "daily#2026-11-20T00");
    let mut busy = copy("2", "1999.5", "1795195320000512");
    busy.as_object_mut().unwrap().remove("final");
    let merged = json!({
        "rpm#1": {"N": "2"}, "tpm#1": {"N": "-250"}, "#1": {"N": "2"}, "q1": {"N": "1795195320000010"},
    });
    let next = "hourly#2026-11-20T18";
    let of = |records, copied| Summary { records, copied, ..Summary::default() };
    for (event, has_bucket, expected, snapshots) in [
        // The day then knows the shard.
        (sample!("insert"), false, of(1, 1), vec![]),
        // A take with which `v` becomes a multiple of 4,096, and an adjustment, which the next copy
        // will have.
        (sample!("modify"), false, of(2, 2), vec![(hour, busy.clone()), (day, busy)]),
        (
            sample!("roll"),
            false,
            of(2, 4),
            vec![
                (hour, copy("3", "2499.5", "1795195320000003")),
                (next, copy("1", "750", "1795195320000004")),
                (day, copy("4", "3249.5", "1795195320000004")),
            ],
        ),
        (sample!("remove"), false, of(1, 2), vec![]),
        // The shard that goes, also what came back to it.
        (sample!("merged"), false, of(1, 2), vec![(hour, merged)]),
        // Of another table, of another kind, and of other software, whose buckets do not count
        // their writes.
        (sample!("foreign"), false, Summary { skipped: 3, ..of(3, 0) }, vec![]),
        (sample!("undecodable"), false, Summary { undecodable: 7, ..of(7, 0) }, vec![]),
        (sample!("refill"), true, Summary { refilled: 1, ..of(REFILL_WRITES, 0) }, vec![]),
        (sample!("hot"), true, Summary { splits: 1, ..of(1, 0) }, vec![]),
    ] {
        let (done, dynamo) = handled(event, has_bucket).await;
        assert_eq!(done, expected, "{event}");
        for (window, expected) in snapshots {
            assert_eq!(snapshot(&dynamo, window), expected, "{window}");
        }
        if done.skipped + done.undecodable > 0 {
            assert_eq!(dynamo.items(), Vec::<Value>::new());
        }
    }
}

/// DynamoDB refuses the write of one bucket: its record comes again, and Lambda takes no other one
/// for failed.
#[tokio::test]
async fn partial_names_the_record_behind_the_write_that_failed() {
    let dynamo = Dynamo::new().await;
    dynamo.fail_when(|write| {
        let is_hit = write.to_string().contains("ENTITY#user-b");
        is_hit.then_some(Fault::LoseRequest)
    });
    let handled = deliver_text(&dynamo.table().await, sample!("partial"), HOUR).await;
    assert_has!(handled.summary, copied: 1, failed: 1);
    let response = serde_json::to_value(handled.response.unwrap()).unwrap();
    let failures = json!({"batchItemFailures": [{"itemIdentifier": "100000000000000000301"}]});
    assert_eq!(response, failures);
}
