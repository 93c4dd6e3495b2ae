//! The sample events in `events/`, one per case, each as the README's `cargo lambda invoke` sends
//! it.

use crate::fixtures::aggregator::{HOUR, deliver_text};
use serde_json::{Value, json};
use weirgate_aggregator::{REFILL_WRITES, Summary, parse};
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault};

fn summary(records: usize) -> Summary {
    Summary {
        records,
        ..Summary::default()
    }
}

/// The summary without what it says of the records themselves.
fn effects(summary: Summary) -> Summary {
    assert!(
        summary.batch_age_ms.is_some() || summary.records <= summary.skipped + summary.undecodable
    );
    Summary {
        acquires: 0,
        batch_age_ms: None,
        ..summary
    }
}

/// What the function does with the event, and the table after it.
async fn handled(event: &str) -> (Summary, Dynamo) {
    let dynamo = Dynamo::new().await;
    let handled = deliver_text(&dynamo.table().await, event, HOUR).await;
    assert_eq!(handled.response.unwrap(), Default::default());
    (effects(handled.summary), dynamo)
}

/// A snapshot without its keys and `ttl`.
fn snapshot(dynamo: &Dynamo, window: &str) -> Value {
    let mut item = dynamo.item(
        "default/ENTITY#user-123",
        &format!("#USAGE#gpt-4#{window}:00:00Z"),
    );
    for name in ["PK", "SK", "ttl"] {
        item.as_object_mut().unwrap().remove(name);
    }
    item
}

#[tokio::test]
async fn insert_copies_the_day_which_then_knows_the_shard() {
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-insert.json")).await;
    assert_eq!(
        done,
        Summary {
            copied: 1,
            ..summary(1)
        }
    );
    assert_eq!(dynamo.items().len(), 1);
}

#[tokio::test]
async fn modify_copies_a_busy_shard_now_and_then() {
    // A take with which `v` becomes a multiple of 4,096, and an adjustment, which the next copy
    // will have.
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-modify.json")).await;
    assert_eq!(
        done,
        Summary {
            copied: 2,
            ..summary(2)
        }
    );
    let used = json!({"rpm#0": {"N": "2"}, "tpm#0": {"N": "1999.5"}, "#0": {"N": "2"}, "q0": {"N": "1795195320000512"}});
    assert_eq!(
        [
            snapshot(&dynamo, "hourly#2026-11-20T17"),
            snapshot(&dynamo, "daily#2026-11-20T00")
        ],
        [used.clone(), used]
    );
}

#[tokio::test]
async fn a_roll_copies_the_hour_and_the_day_that_are_over() {
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-roll.json")).await;
    assert_eq!(
        done,
        Summary {
            copied: 4,
            ..summary(2)
        }
    );
    for (window, rpm, tpm, v) in [
        ("hourly#2026-11-20T17", "3", "2499.5", "1795195320000003"),
        ("hourly#2026-11-20T18", "1", "750", "1795195320000004"),
        ("daily#2026-11-20T00", "4", "3249.5", "1795195320000004"),
    ] {
        let used = json!({"rpm#0": {"N": rpm}, "tpm#0": {"N": tpm}, "#0": {"N": rpm}, "q0": {"N": v}, "final": {"NS": ["0"]}});
        assert_eq!(snapshot(&dynamo, window), used, "{window}");
    }
}

#[tokio::test]
async fn remove_copies_what_the_item_said_last() {
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-remove.json")).await;
    assert_eq!(
        done,
        Summary {
            copied: 2,
            ..summary(1)
        }
    );
    let hour = snapshot(&dynamo, "hourly#2026-11-20T18");
    assert_eq!(
        (&hour["tpm#0"]["N"], &hour["final"]["NS"]),
        (&"750".into(), &json!(["0"]))
    );
    assert_eq!(
        snapshot(&dynamo, "daily#2026-11-20T00")["tpm#0"]["N"],
        "3249.5"
    );
}

#[tokio::test]
async fn a_merge_copies_the_shard_that_goes_also_what_came_back_to_it() {
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-merged.json")).await;
    assert_eq!(
        done,
        Summary {
            copied: 2,
            ..summary(1)
        }
    );
    let used = json!({
        "rpm#1": {"N": "2"}, "tpm#1": {"N": "-250"}, "#1": {"N": "2"}, "q1": {"N": "1795195320000010"},
    });
    assert_eq!(snapshot(&dynamo, "hourly#2026-11-20T17"), used);
}

/// Of another table, of another kind, and of other software, whose buckets do not count their
/// writes.
#[tokio::test]
async fn foreign_is_skipped() {
    let (done, dynamo) = handled(include_str!("../../../events/aggregator-foreign.json")).await;
    assert_eq!(
        (done, dynamo.items()),
        (
            Summary {
                skipped: 3,
                ..summary(3)
            },
            vec![]
        )
    );
}

#[tokio::test]
async fn undecodable_is_told_and_skipped() {
    let event = include_str!("../../../events/aggregator-undecodable.json");
    let (done, dynamo) = handled(event).await;
    assert_eq!(
        (done, dynamo.items()),
        (
            Summary {
                undecodable: 7,
                ..summary(7)
            },
            vec![]
        )
    );
    let undecodable = parse::records(event).unwrap().undecodable;
    for (record, why) in undecodable.iter().zip([
        "b_tpm_tc is \"1e6 tokens\"",
        "OldImage is missing",
        "uh is 70000000, must be an hour that has begun",
        "birth is \"1795195320000513\", must be a whole number from 0 to the `v` of the item",
        "b_rpm_bh is \"none\"",
        "uh is missing",
        "OldImage: attribute uh is missing",
    ]) {
        assert!(
            record.why.contains(why),
            "{} says {}",
            record.index,
            record.why
        );
    }
}

/// A table with the bucket of a sample as its last record shows it.
async fn with_bucket(event: &str) -> (Dynamo, Table) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let records: Value = serde_json::from_str(event).unwrap();
    dynamo.put(&records["Records"].as_array().unwrap().last().unwrap()["dynamodb"]["NewImage"]);
    (dynamo, table)
}

#[tokio::test]
async fn refill_credits_a_bucket_that_would_not_last() {
    let event = include_str!("../../../events/aggregator-refill.json");
    let (dynamo, table) = with_bucket(event).await;
    let done = effects(deliver_text(&table, event, HOUR).await.summary);
    assert_eq!(
        done,
        Summary {
            refilled: 1,
            ..summary(REFILL_WRITES)
        }
    );
    assert_eq!(
        dynamo.item("default/BUCKET#user-456#gpt-4#0", "#STATE")["b_rpm_tk"]["N"],
        "600000",
        "of 1 left"
    );
}

#[tokio::test]
async fn hot_splits_the_shard() {
    let event = include_str!("../../../events/aggregator-hot.json");
    let (dynamo, table) = with_bucket(event).await;
    let done = effects(deliver_text(&table, event, HOUR).await.summary);
    assert_eq!(
        done,
        Summary {
            splits: 1,
            ..summary(1)
        }
    );
    for shard in [0, 1] {
        let item = dynamo.item(&format!("default/BUCKET#user-789#gpt-4#{shard}"), "#STATE");
        assert_eq!(item["shard_count"]["N"], "2", "{item}");
    }
}

/// DynamoDB refuses the write of one bucket: its record comes again, and Lambda takes no other one
/// for failed.
#[tokio::test]
async fn partial_names_the_record_behind_the_write_that_failed() {
    let event = include_str!("../../../events/aggregator-partial.json");
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    dynamo.fail_when(|write| {
        write
            .to_string()
            .contains("ENTITY#user-b")
            .then_some(Fault::LoseRequest)
    });
    let handled = deliver_text(&table, event, HOUR).await;
    assert_eq!((handled.summary.copied, handled.summary.failed), (1, 1));
    let response = serde_json::to_value(handled.response.unwrap()).unwrap();
    assert_eq!(
        response,
        json!({"batchItemFailures": [{"itemIdentifier": "100000000000000000301"}]})
    );
}
