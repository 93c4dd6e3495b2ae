//! Bad input and bad answers: skipped, counted, reported or refused; nothing lost, nothing twice.

use crate::fixtures::aggregator;
use std::collections::HashSet;
use std::time::Duration;

use crate::fixtures::aggregator::usage::{assert_exact, copied, hourly, snapshots};
use crate::fixtures::aggregator::{
    HOUR, bucket, config, deliver, deliver_until_done, event, sequence_number, take_in,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate_aggregator::{Invocation, Summary, handle, parse};
use weirgate_shared::Window;
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault};

const ENTITIES: [&str; 3] = ["a", "b", "c"];

/// Three buckets, each taken from four times, the last time an hour after the others: a final copy
/// of the hour, and one of the day so far.
async fn used() -> (Dynamo, Table, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for hours in [0, 0, 0, 1] {
        for entity in ENTITIES {
            take_in(&table, &bucket(entity, 0), 1_500, hours).await;
        }
    }
    let records = aggregator::records(&dynamo);
    (dynamo, table, records)
}

#[tokio::test]
async fn a_bad_record_is_skipped_and_the_others_count() {
    type Spoil = fn(&mut Value);
    let spoil: [(&str, Spoil); 17] = [
        ("NewImage is missing", |r| {
            drop(r["dynamodb"].as_object_mut().unwrap().remove("NewImage"))
        }),
        ("OldImage is missing", |r| {
            drop(r["dynamodb"].as_object_mut().unwrap().remove("OldImage"))
        }),
        ("NewImage is missing", |r| {
            r["dynamodb"]["NewImage"] = json!("text")
        }),
        ("b_tpm_tc", |r| {
            r["dynamodb"]["NewImage"]["b_tpm_tc"]["N"] = "12x".into()
        }),
        ("b_tpm_tc", |r| {
            r["dynamodb"]["OldImage"]["b_tpm_tc"]["N"] = "1.5".into()
        }),
        ("b_tpm_tc", |r| {
            r["dynamodb"]["OldImage"]["b_tpm_tc"] = json!({"S": "12"})
        }),
        ("b_rpm_cp", |r| {
            drop(
                r["dynamodb"]["NewImage"]
                    .as_object_mut()
                    .unwrap()
                    .remove("b_rpm_cp"),
            )
        }),
        ("attribute rf", |r| {
            drop(
                r["dynamodb"]["NewImage"]
                    .as_object_mut()
                    .unwrap()
                    .remove("rf"),
            )
        }),
        ("ApproximateCreationDateTime is missing", |r| {
            drop(
                r["dynamodb"]
                    .as_object_mut()
                    .unwrap()
                    .remove("ApproximateCreationDateTime"),
            );
        }),
        ("ApproximateCreationDateTime is 0", |r| {
            r["dynamodb"]["ApproximateCreationDateTime"] = json!(0)
        }),
        ("Keys has no texts", |r| {
            drop(r["dynamodb"].as_object_mut().unwrap().remove("Keys"))
        }),
        ("eventName is", |r| r["eventName"] = json!("UPDATE")),
        ("attribute uh is 600000", |r| {
            r["dynamodb"]["NewImage"]["uh"]["N"] = "600000".into()
        }),
        ("attribute uh is 600000", |r| {
            r["dynamodb"]["OldImage"]["uh"]["N"] = "600000".into()
        }),
        ("attribute birth", |r| {
            r["dynamodb"]["OldImage"]["birth"]["N"] = i64::MAX.to_string().into()
        }),
        ("b_rpm_bh", |r| {
            r["dynamodb"]["OldImage"]["b_rpm_bh"]["N"] = "far".into()
        }),
        ("attribute uh is missing", |r| {
            drop(
                r["dynamodb"]["OldImage"]
                    .as_object_mut()
                    .unwrap()
                    .remove("uh"),
            )
        }),
    ];
    for (why, spoil) in spoil {
        let (dynamo, table, mut records) = used().await;
        let last = records.len() - 1;
        spoil(&mut records[last]);
        let text = event(&records);
        let undecodable = parse::records(&text).unwrap().undecodable;
        assert_eq!(undecodable.len(), 1, "{why}");
        assert!(
            undecodable[0].index == last && undecodable[0].why.contains(why),
            "{undecodable:?}"
        );
        assert_eq!(
            parse::texts(&text)[last],
            records[last].to_string(),
            "the log has it whole"
        );

        let handled = deliver(&table, &records).await;
        assert_eq!(
            (handled.summary.undecodable, handled.summary.skipped),
            (1, 0),
            "{why}"
        );
        assert_eq!(
            handled.response.unwrap(),
            Default::default(),
            "no retry can mend it"
        );
        let hours = copied(&dynamo, Window::Hourly);
        assert_eq!(
            hours
                .keys()
                .map(|(key, _)| key.entity.as_str())
                .collect::<Vec<_>>(),
            ["a", "b"],
            "{why}"
        );
        assert!(hours.values().all(|usage| usage.acquires == 3), "{hours:?}");
    }
}

#[tokio::test]
async fn what_was_undecodable_counts_once_it_is_mended() {
    let (dynamo, table, records) = used().await;
    let mut bad = records.clone();
    bad[10]["dynamodb"]["NewImage"]["b_tpm_tc"]["N"] = "12x".into();
    deliver(&table, &bad).await;
    deliver(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test]
async fn what_is_not_ours_is_skipped() {
    let (dynamo, table, records) = used().await;
    let mut all = records.clone();
    let other = |change: fn(&mut Value)| {
        let mut record = records[5].clone();
        change(&mut record);
        record
    };
    let foreign = [
        other(|r| r["eventSource"] = json!("aws:kinesis")),
        other(|r| r["dynamodb"]["Keys"]["SK"]["S"] = "#META".into()),
        other(|r| r["dynamodb"]["Keys"]["PK"]["S"] = "default/ENTITY#a".into()),
        other(|r| r["dynamodb"]["Keys"]["PK"]["S"] = "default/BUCKET#a#gpt-4#64".into()),
        other(|r| {
            drop(
                r["dynamodb"]["NewImage"]
                    .as_object_mut()
                    .unwrap()
                    .remove("v"),
            )
        }),
    ];
    let count = foreign.len();
    all.extend(foreign);
    let handled = deliver(&table, &all).await;
    assert_eq!(
        (handled.summary.skipped, handled.summary.undecodable),
        (count, 0)
    );
    assert_exact(&dynamo, &records);
}

#[tokio::test]
async fn an_event_that_is_not_ours_is_an_error_that_says_what_was_expected() {
    let (dynamo, table, _) = used().await;
    let _ = dynamo.take_requests();
    for text in [
        "{}",
        "null",
        "[]",
        "7",
        "\"Records\"",
        r#"{"Records": null}"#,
        r#"{"Records": {"a": 1}}"#,
        r#"{"source": "aws.events", "detail": {}}"#,
    ] {
        let invocation = Invocation {
            now: HOUR,
            deadline: Instant::now() + Duration::from_secs(60),
        };
        let error = handle(text, &table, &config(), invocation)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("DynamoDB stream") && error.contains("Records"),
            "{text}: {error}"
        );
    }
    assert_eq!(dynamo.take_requests(), 0);
    let empty = deliver(&table, &[]).await;
    assert_eq!(empty.response.unwrap(), Default::default());
}

#[tokio::test]
async fn a_table_that_is_not_there_fails_the_batch_and_is_named() {
    let (_, _, records) = used().await;
    let nothing = Dynamo::empty();
    let handled = deliver(&nothing.table().await, &records).await;
    let error = handled.response.unwrap_err().to_string();
    assert!(
        error.contains("no such table") && error.contains("\"weirgate\""),
        "{error}"
    );
}

#[tokio::test]
async fn a_missing_permission_fails_the_batch_and_nothing_is_lost() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_when(|_| Some(Fault::Forbidden));
    let error = deliver(&table, &records)
        .await
        .response
        .unwrap_err()
        .to_string();
    assert!(error.contains("not permitted"), "{error}");
    dynamo.fail_when(|_| None);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_write_is_tried_again_then_reported_and_nothing_is_lost() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_next([
        Some(Fault::Throttle { key_range: true }),
        Some(Fault::Conflict),
    ]);
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.summary.failed, 0, "a throttle that passes");
    assert_exact(&dynamo, &records);

    let (dynamo, table, records) = used().await;
    dynamo.fail_when(|request| {
        let hit = request["Key"]["PK"]["S"] == "default/ENTITY#b";
        hit.then_some(Fault::Throttle { key_range: false })
    });
    let handled = deliver(&table, &records).await;
    assert_eq!(
        (handled.summary.failed, handled.summary.copies_put_off),
        (1, 0),
        "the hour's copy is its last, the day's the first"
    );
    let failures = handled.response.unwrap().batch_item_failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(
        failures[0].item_identifier.as_deref(),
        Some(sequence_number(&records[1])),
        "the first one of the two"
    );
    dynamo.fail_when(|_| None);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn all_throttled_is_a_partial_failure_and_not_an_error() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let failures = deliver(&table, &records)
        .await
        .response
        .unwrap()
        .batch_item_failures;
    assert_eq!(failures.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn i7_a_lost_answer_counts_once() {
    for fault in [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::Repeat,
        Fault::LoseRequest,
        Fault::ServerError,
    ] {
        let (dynamo, table, records) = used().await;
        // The first attempt at each snapshot.
        let mut seen = HashSet::new();
        dynamo.fail_when(move |request| seen.insert(request["Key"].to_string()).then_some(fault));
        let handled = deliver(&table, &records).await;
        assert_eq!(handled.summary.failed, 0, "{fault:?}");
        assert_exact(&dynamo, &records);
    }
}

#[tokio::test(start_paused = true)]
async fn the_invocation_ends_before_its_deadline_with_what_is_left_reported() {
    let (dynamo, _, records) = used().await;
    // Each write takes 400 ms, one at a time: two fit into what is left of a second.
    let slow = dynamo
        .clone()
        .with_latency(Duration::from_millis(400))
        .table()
        .await;
    let one_by_one = weirgate_aggregator::Config {
        write_concurrency: 1,
        ..config()
    };
    let deadline = Instant::now() + Duration::from_secs(1);
    let handled = handle(
        &event(&records),
        &slow,
        &one_by_one,
        Invocation {
            now: HOUR,
            deadline,
        },
    )
    .await
    .unwrap();
    assert!(Instant::now() < deadline);
    let Summary {
        copied,
        failed,
        copies_put_off,
        ..
    } = handled.summary;
    assert_eq!((copied, failed, copies_put_off), (2, 2, 0));
    assert_eq!(handled.response.unwrap().batch_item_failures.len(), 2);
    deliver_until_done(&dynamo.table().await, &records).await;
    assert_exact(&dynamo, &records);
}

/// Such an answer says nothing of the snapshot, so nothing is passed over.
#[tokio::test]
async fn a_final_copy_that_is_refused_for_an_unknown_reason_comes_again() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_next([Some(Fault::Rejected)]);
    let handled = deliver(&table, &records).await;
    assert_eq!((handled.summary.failed, handled.summary.refused), (1, 0));
    assert_eq!(handled.response.unwrap().batch_item_failures.len(), 1);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test]
async fn a_failed_record_without_a_sequence_number_fails_the_whole_batch() {
    let (dynamo, table, mut records) = used().await;
    records[0]["dynamodb"]
        .as_object_mut()
        .unwrap()
        .remove("SequenceNumber");
    dynamo.fail_next([Some(Fault::Forbidden)]);
    let error = deliver(&table, &records)
        .await
        .response
        .unwrap_err()
        .to_string();
    assert!(error.contains("record 0 has no SequenceNumber"), "{error}");
}

/// A tenant that writes other limits into its item each time spoils its own snapshot at the worst.
#[tokio::test(start_paused = true)]
async fn records_of_ever_other_limits_are_copied_in_writes_that_fit() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for hours in 0..20 {
        take_in(&table, &bucket("a", 0), 1_500, hours).await;
    }
    let mut records = aggregator::records(&dynamo);
    for (round, record) in records.iter_mut().enumerate() {
        for limit in 0..38 {
            for field in ["tk", "tc", "cp", "ra", "rp", "bh", "bd"] {
                for image in ["OldImage", "NewImage"] {
                    if record["dynamodb"][image].is_object() {
                        record["dynamodb"][image][format!("b_l{round}-{limit}_{field}")] =
                            json!({"N": "9000"});
                    }
                }
            }
        }
    }
    let handled = deliver(&table, &records).await;
    assert_eq!(
        (
            handled.summary.undecodable,
            handled.summary.failed,
            handled.summary.refused
        ),
        (0, 0, 0)
    );
    assert!(snapshots(&dynamo)[&hourly(&bucket("a", 0), HOUR)].shards[&0].is_final);
}
