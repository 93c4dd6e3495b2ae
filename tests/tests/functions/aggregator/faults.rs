//! Bad input and bad answers: skipped, counted, reported or refused; nothing lost, nothing twice.

use crate::fixtures::aggregator;
use std::time::Duration;
use weirgate_tests::{assert_has, fresh, slow};

use crate::fixtures::aggregator::usage::{assert_exact, copied};
use crate::fixtures::aggregator::{
    HOUR, bucket, config, deliver, deliver_by, deliver_until_done, event, sequence_number, take_in,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate_aggregator::parse;
use weirgate_shared::Window;
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault};

const ENTITIES: [&str; 3] = ["a", "b", "c"];

/// Three buckets, each taken from four times, the last time an hour after the others: a final copy
/// of the hour, and one of the day so far.
async fn used() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
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
    let spoil = [
        ("NewImage is missing", "NewImage", Value::Null),
        ("OldImage is missing", "OldImage", Value::Null),
        ("NewImage is missing", "NewImage", json!("text")),
        ("b_tpm_tc", "NewImage/b_tpm_tc/N", json!("12x")),
        ("b_tpm_tc", "OldImage/b_tpm_tc/N", json!("1.5")),
        ("b_tpm_tc", "OldImage/b_tpm_tc", json!({"S": "12"})),
        ("b_rpm_cp", "NewImage/b_rpm_cp", Value::Null),
        ("attribute rf", "NewImage/rf", Value::Null),
        ("ApproximateCreationDateTime is missing", "ApproximateCreationDateTime", Value::Null),
        ("ApproximateCreationDateTime is 0", "ApproximateCreationDateTime", json!(0)),
        ("Keys has no texts", "Keys", Value::Null),
        ("eventName is", "../eventName", json!("UPDATE")),
        ("attribute uh is 600000", "NewImage/uh/N", json!("600000")),
        ("attribute uh is 600000", "OldImage/uh/N", json!("600000")),
        ("attribute birth", "OldImage/birth/N", json!(i64::MAX.to_string())),
        ("b_rpm_bh", "OldImage/b_rpm_bh/N", json!("far")),
        ("attribute uh is missing", "OldImage/uh", Value::Null),
    ];
    for (why, at, value) in spoil {
        let (dynamo, table, mut records) = used().await;
        let last = records.len() - 1;
        set(&mut records[last], at, value);
        let text = event(&records);
        let [undecodable] = &parse::records(&text).unwrap().undecodable[..] else {
            panic!("{why}")
        };
        assert!(undecodable.index == last && undecodable.why.contains(why), "{undecodable:?}");
        let logged = &parse::texts(&text)[last];
        assert_eq!(*logged, records[last].to_string(), "the log has it whole");

        let handled = deliver(&table, &records).await;
        assert_has!(handled.summary, undecodable: 1, skipped: 0; "{why}");
        assert_eq!(handled.response.unwrap(), Default::default(), "no retry can mend it");
        let hours = copied(&dynamo, Window::Hourly);
        let entities: Vec<_> = hours.keys().map(|(key, _)| key.entity.as_str()).collect();
        assert_eq!(entities, ["a", "b"], "{why}");
        assert!(hours.values().all(|usage| usage.acquires == 3), "{hours:?}");
    }
}

/// Sets a part of a record, or removes it. `at` begins below `dynamodb`.
fn set(record: &mut Value, at: &str, value: Value) {
    let place = format!("/dynamodb/{at}").replace("/dynamodb/..", "");
    let (parent, name) = place.rsplit_once('/').unwrap();
    let parent = record.pointer_mut(parent).and_then(Value::as_object_mut);
    let parent = parent.unwrap();
    drop(match value {
        Value::Null => parent.remove(name),
        value => parent.insert(name.to_owned(), value),
    });
}

#[tokio::test]
async fn what_is_not_ours_is_skipped() {
    let (dynamo, table, records) = used().await;
    let mut all = records.clone();
    let foreign = [
        ("../eventSource", json!("aws:kinesis")),
        ("Keys/SK/S", json!("#META")),
        ("Keys/PK/S", json!("default/ENTITY#a")),
        ("Keys/PK/S", json!("default/BUCKET#a#gpt-4#64")),
        ("NewImage/v", Value::Null),
    ];
    let foreign = foreign.map(|(at, value)| {
        let mut record = records[5].clone();
        set(&mut record, at, value);
        record
    });
    let count = foreign.len();
    all.extend(foreign);
    let handled = deliver(&table, &all).await;
    assert_has!(handled.summary, skipped: count, undecodable: 0);
    assert_exact(&dynamo, &records);
}

#[tokio::test]
async fn a_missing_table_or_permission_fails_the_batch_and_is_named() {
    let (dynamo, table, records) = used().await;
    let nothing = Dynamo::empty();
    let handled = deliver(&nothing.table().await, &records).await;
    let error = handled.response.unwrap_err().to_string();
    assert!(error.contains("no such table") && error.contains("\"weirgate\""), "{error}");

    // Nor does a missing permission lose anything.
    dynamo.fail_when(|_| Some(Fault::Forbidden));
    let error = deliver(&table, &records).await.response.unwrap_err().to_string();
    assert!(error.contains("not permitted"), "{error}");
    dynamo.fail_when(|_| None);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_write_is_tried_again_then_reported_and_nothing_is_lost() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_next([Some(Fault::Throttle { key_range: true }), Some(Fault::Conflict)]);
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.summary.failed, 0, "a throttle that passes");
    assert_exact(&dynamo, &records);

    let (dynamo, table, records) = used().await;
    dynamo.fail_when(|request| {
        let hit = request["Key"]["PK"]["S"] == "default/ENTITY#b";
        hit.then_some(Fault::Throttle { key_range: false })
    });
    let handled = deliver(&table, &records).await;
    assert_has!(
        handled.summary, failed: 1, copies_put_off: 0;
        "the hour's copy is its last, the day's the first"
    );
    let failures = handled.response.unwrap().batch_item_failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(
        failures[0].item_identifier.as_deref(),
        Some(sequence_number(&records[1])),
        "the first one of the two"
    );
    dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let all = deliver(&table, &records).await.response.unwrap();
    assert_eq!(all.batch_item_failures.len(), 3, "no error");
    dynamo.fail_when(|_| None);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn the_invocation_ends_before_its_deadline_with_what_is_left_reported() {
    let (dynamo, _, records) = used().await;
    // Each write takes 400 ms, one at a time: two fit into what is left of a second.
    let slow = slow(&dynamo, 400).await;
    let one_by_one = weirgate_aggregator::Config { write_concurrency: 1, ..config() };
    let (began, left) = (Instant::now(), Duration::from_secs(1));
    let handled = deliver_by(&slow, &event(&records), &one_by_one, HOUR, left).await;
    assert!(began.elapsed() < left);
    assert_has!(handled.summary, copied: 2, failed: 2, copies_put_off: 0);
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
    assert_has!(handled.summary, failed: 1, refused: 0);
    assert_eq!(handled.response.unwrap().batch_item_failures.len(), 1);
    deliver_until_done(&table, &records).await;
    assert_exact(&dynamo, &records);
}
