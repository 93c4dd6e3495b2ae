//! Usage is counted exactly once (I3), however the stream is delivered.

mod aggregator;

use std::time::Duration;

use aggregator::{
    HOUR, assert_exact, bucket, consumed, counted, deliver, deliver_until_done, limits, moved, name, sequence_number,
    settle, snapshots, take, take_at,
};
use serde_json::{Value, json};
use weirgate_shared::{EpochMillis, MilliTokens, Millis, Window};
use weirgate_store::Table;
use weirgate_tests::{Dynamo, Fault};

/// Three entities, one of them with two shards, used at 18:59:50 to 19:00:10.
async fn used() -> (Dynamo, Table, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for round in 0..6 {
        for (entity, shard) in [("a", 0), ("b", 0), ("b", 1), ("c", 0)] {
            let key = bucket(entity, shard);
            take(&table, &key, 1_250 + round).await;
            if round == 3 {
                settle(&table, &key, -2_001).await;
            }
        }
    }
    let records = dynamo.stream();
    assert_eq!(records.len(), 28);
    let at = |index: usize| HOUR.after(Millis(3_590_000 + 700 * i64::try_from(index).unwrap()));
    let records = records.into_iter().enumerate().map(|(index, record)| moved(record, at(index))).collect();
    (dynamo, table, records)
}

#[tokio::test]
async fn i3_usage_equals_consumption_in_every_window() {
    let (dynamo, table, records) = used().await;
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.response.unwrap(), Default::default());
    // Four shards; two hours, one day, one month.
    assert_eq!((handled.summary.records, handled.summary.counted), (28, 16));
    assert_exact(&dynamo);
    assert_eq!(snapshots(&dynamo, Window::Hourly).len(), 6, "the hour boundary parts three entities' usage");
    assert_eq!(snapshots(&dynamo, Window::Monthly).len(), 3);
    assert_eq!(consumed(&dynamo)["a"]["tpm"], 6 * 1_250 + 15 - 2_001);
}

#[tokio::test]
async fn usage_lies_in_the_hour_of_each_record() {
    let (dynamo, table, records) = used().await;
    deliver(&table, &records).await;
    let hour_of = |record: &Value| record["dynamodb"]["ApproximateCreationDateTime"].as_i64().unwrap() / 3600;
    let tc = |record: &Value, image: &str| {
        record["dynamodb"][image]["b_tpm_tc"]["N"].as_str().map_or(0, |tc| tc.parse::<i128>().unwrap())
    };
    for snapshot in snapshots(&dynamo, Window::Hourly) {
        let start = weirgate_shared::parse_iso(snapshot["window_start"]["S"].as_str().unwrap()).unwrap();
        let of_this = |record: &&Value| {
            hour_of(record) == start.0 / 3_600_000
                && record["dynamodb"]["NewImage"]["entity_id"] == snapshot["entity_id"]
        };
        let expected: i128 =
            records.iter().filter(of_this).map(|record| tc(record, "NewImage") - tc(record, "OldImage")).sum();
        assert_eq!(aggregator::milli(snapshot["tpm"]["N"].as_str().unwrap()), expected);
    }
}

#[tokio::test]
async fn i3_a_batch_delivered_twice_counts_once() {
    let (dynamo, table, records) = used().await;
    deliver(&table, &records).await;
    let again = deliver(&table, &records).await;
    assert_eq!((again.summary.counted, again.summary.already_counted), (0, 16));
    assert_exact(&dynamo);
}

#[tokio::test]
async fn i3_a_record_twice_in_one_batch_counts_once() {
    let (dynamo, table, records) = used().await;
    let doubled: Vec<_> = records.iter().chain(&records).cloned().collect();
    let handled = deliver(&table, &doubled).await;
    assert_eq!(handled.summary.counted, 16, "and costs nothing");
    assert_exact(&dynamo);
}

#[tokio::test]
async fn i3_batches_cut_anew_at_every_point_count_once() {
    let (dynamo, table, records) = used().await;
    for at in 0..=records.len() {
        // The first part was delivered before, with more behind it; now the rest comes with some of it again.
        deliver(&table, &records[..at]).await;
        deliver(&table, &records[at / 2..]).await;
        assert_exact(&dynamo);
        for item in dynamo.items().iter().filter(|item| item["SK"]["S"] != "#STATE") {
            dynamo.delete(item["PK"]["S"].as_str().unwrap(), item["SK"]["S"].as_str().unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i3_a_batch_that_fails_half_way_counts_once() {
    let (dynamo, table, records) = used().await;
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::ServerErrorApplied, Fault::ServerError] {
        let mut writes = 0;
        dynamo.fail_when(move |_| {
            writes += 1;
            (writes > 7).then_some(fault)
        });
        let half = deliver(&table, &records).await;
        assert_eq!((half.summary.counted, half.summary.failed), (7, 9), "{fault:?}");
        assert!(!half.response.unwrap().batch_item_failures.is_empty());
        dynamo.fail_when(|_| None);
        deliver_until_done(&table, &records).await;
        assert_exact(&dynamo);
        for item in dynamo.items().iter().filter(|item| item["SK"]["S"] != "#STATE") {
            dynamo.delete(item["PK"]["S"].as_str().unwrap(), item["SK"]["S"].as_str().unwrap());
        }
    }
}

#[tokio::test]
async fn the_answer_names_the_first_record_behind_each_failed_write() {
    let (dynamo, table, records) = used().await;
    dynamo.fail_when(|request| {
        let sk = request["Key"]["SK"]["S"].as_str().unwrap();
        let hit = request["Key"]["PK"]["S"] == "default/ENTITY#c" && sk.contains("#hourly#2026-11-20T19");
        hit.then_some(Fault::Forbidden)
    });
    let handled = deliver(&table, &records).await;
    assert_eq!((handled.summary.counted, handled.summary.failed), (15, 1));
    let is_it = |record: &&Value| {
        record["dynamodb"]["NewImage"]["entity_id"]["S"] == "c"
            && record["dynamodb"]["ApproximateCreationDateTime"].as_i64().unwrap() >= HOUR.0 / 1000 + 3600
    };
    let first = records.iter().find(is_it).unwrap();
    let failures = handled.response.unwrap().batch_item_failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].item_identifier, sequence_number(first));
}

#[tokio::test]
async fn i3_a_batch_that_was_discarded_counts_once_when_it_is_replayed() {
    let (dynamo, table, records) = used().await;
    let (first, discarded, last) = (&records[..9], &records[9..17], &records[17..]);
    deliver(&table, first).await;
    deliver(&table, last).await;
    assert_ne!(counted(&dynamo, Window::Daily), consumed(&dynamo), "the discarded records are missing");
    // An operator puts them back from the failure bucket, in pieces, and some of it more than once.
    deliver(&table, &discarded[..5]).await;
    deliver(&table, &discarded[3..]).await;
    assert_exact(&dynamo);
    deliver(&table, discarded).await;
    deliver(&table, &records).await;
    assert_exact(&dynamo);
}

#[tokio::test]
async fn i3_the_first_records_of_a_window_may_come_last() {
    let (dynamo, table, records) = used().await;
    deliver(&table, &records[12..]).await;
    deliver(&table, &records[..12]).await;
    deliver(&table, &records[..12]).await;
    assert_exact(&dynamo);
}

#[tokio::test]
async fn i3_records_out_of_order_in_a_batch_count_once() {
    let (dynamo, table, mut records) = used().await;
    records.reverse();
    deliver(&table, &records).await;
    assert_exact(&dynamo);
    records.swap(3, 20);
    deliver(&table, &records).await;
    assert_exact(&dynamo);
}

#[tokio::test]
async fn i3_a_bucket_that_is_deleted_and_made_anew_counts_both_lives() {
    let (dynamo, table, records) = used().await;
    let before = consumed(&dynamo)["a"]["tpm"];
    dynamo.delete("default/BUCKET#a#gpt-4#0", "#STATE");
    let key = bucket("a", 0);
    let later = HOUR.after(Millis(5_000_000));
    let limits = limits();
    let needs = [(name("tpm"), MilliTokens(77))].into();
    take_at(&table, &key, &limits, needs, later).await;
    let anew = dynamo.stream();
    assert_eq!(anew.len(), 2);
    let all: Vec<_> = records.into_iter().chain(anew.into_iter().map(|record| moved(record, later))).collect();
    let handled = deliver(&table, &all).await;
    assert_eq!(handled.summary.skipped, 1, "the REMOVE");
    deliver(&table, &all[20..]).await;
    assert_eq!(counted(&dynamo, Window::Daily)["a"]["tpm"], before + 77);
}

#[tokio::test]
async fn a_record_that_uses_nothing_leaves_no_gap_behind() {
    let (dynamo, table, _) = used().await;
    let key = bucket("a", 0);
    settle(&table, &key, 0).await;
    take(&table, &key, 1).await;
    let records = dynamo.stream();
    deliver(&table, &records[..1]).await;
    let handled = deliver(&table, &records[1..]).await;
    assert_eq!(handled.summary.counted, 3);
    let day = &snapshots(&dynamo, Window::Daily)[0];
    assert!(day["g0"]["S"].as_str().unwrap().starts_with("0-"), "only what came before the first: {}", day["g0"]);
    assert!(!day["g0"]["S"].as_str().unwrap().contains(' '));
}

#[tokio::test]
async fn a_snapshot_has_the_attributes_that_readers_expect_and_no_others() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let (zero, one) = (bucket("user-1", 0), bucket("user-1", 1));
    take(&table, &zero, 1_001).await;
    take(&table, &zero, 2_000_000).await;
    take(&table, &one, 5).await;
    let records: Vec<_> = dynamo.stream().into_iter().map(|record| moved(record, HOUR)).collect();
    deliver(&table, &records).await;
    let v = HOUR.0 * 1000;
    let snapshot = dynamo.item("default/ENTITY#user-1", "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z");
    assert_eq!(
        snapshot,
        json!({
            "PK": {"S": "default/ENTITY#user-1"},
            "SK": {"S": "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z"},
            "entity_id": {"S": "user-1"},
            "resource": {"S": "gpt-4"},
            "window": {"S": "hourly"},
            "window_start": {"S": "2026-11-20T18:00:00Z"},
            "window_end": {"S": "2026-11-20T19:00:00Z"},
            "rpm": {"N": "3"},
            "tpm": {"N": "2001.006"},
            "total_events": {"N": "3"},
            "q0": {"N": (v + 1).to_string()},
            "g0": {"S": format!("0-{}", v - 1)},
            "q1": {"N": v.to_string()},
            "g1": {"S": format!("0-{}", v - 1)},
            "ttl": {"N": ((HOUR.0 + 3_600_000) / 1000 + 90 * 86_400).to_string()},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn two_batches_of_one_bucket_at_the_same_time_count_once() {
    let (dynamo, _, records) = used().await;
    let table = dynamo.clone().with_latency(Duration::from_millis(1)).table().await;
    tokio::join!(deliver(&table, &records[..20]), deliver(&table, &records[10..]), deliver(&table, &records));
    assert_exact(&dynamo);
}

#[tokio::test]
async fn a_later_instant_than_any_record_does_not_move_usage() {
    let (dynamo, table, records) = used().await;
    let next_year = EpochMillis(HOUR.0 + 366 * 86_400_000);
    aggregator::deliver_text(&table, &aggregator::event(&records), next_year).await;
    assert_eq!(snapshots(&dynamo, Window::Daily).len(), 3);
    assert_exact(&dynamo);
}
