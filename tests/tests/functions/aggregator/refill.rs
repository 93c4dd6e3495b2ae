//! Buckets that would run dry before the next batch are credited, once, and never above their
//! share.

use crate::fixtures::aggregator;
use std::collections::BTreeMap;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::aggregator::{HOUR, bucket, deliver_text, event, name, records, take_at};
use serde_json::Value;
use weirgate_aggregator::Handled;
use weirgate_shared::{BucketKey, EpochMillis, Limit, MilliTokens, Millis};
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault};

/// 100 a second, so 100 at most.
fn limit() -> [Limit; 1] {
    [Limit::per_second("rps", 100).unwrap()]
}

async fn take(table: &Table, key: &BucketKey, requests: i64, at: EpochMillis) {
    let needs = BTreeMap::from([(name("rps"), MilliTokens::from_tokens(requests))]);
    take_at(table, key, &limit(), needs, at).await;
}

/// A bucket of which 90 of 100 are taken at once.
async fn nearly_dry() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    take(&table, &bucket("a", 0), 90, HOUR).await;
    let records = records(&dynamo);
    (dynamo, table, records)
}

async fn deliver_at(table: &Table, records: &[Value], now: EpochMillis) -> Handled {
    deliver_text(table, &event(records), now).await
}

fn number(dynamo: &Dynamo, attribute: &str) -> i64 {
    dynamo.item("default/BUCKET#a#gpt-4#0", "#STATE")[attribute]["N"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_bucket_that_would_not_last_is_credited_and_a_replay_credits_nothing() {
    let (dynamo, table, records) = nearly_dry().await;
    let v = number(&dynamo, "v");
    let now = HOUR.plus(Millis(300));
    let handled = deliver_at(&table, &records, now).await;
    assert_has!(handled.summary, refilled: 1, refills_lost: 0);
    assert_eq!(number(&dynamo, "b_rps_tk"), 10_000 + 30_000);
    assert_eq!(number(&dynamo, "rf"), now.0);
    assert_eq!(number(&dynamo, "b_rps_tc"), 90_000);
    assert_eq!(number(&dynamo, "v"), v + 1);
    let again = deliver_at(&table, &records, now.plus(Millis(300))).await;
    assert_has!(again.summary, refilled: 0, refills_lost: 1);
    assert_eq!(number(&dynamo, "b_rps_tk"), 40_000);
    assert_eq!(number(&dynamo, "rf"), now.0);
}

#[tokio::test]
async fn i1_a_bucket_is_never_credited_above_its_share() {
    let (dynamo, table, records) = nearly_dry().await;
    // An hour late: what the image lacks has long flowed in.
    let handled = deliver_at(&table, &records, HOUR.plus(Millis(3_600_000))).await;
    assert!(number(&dynamo, "b_rps_tk") <= 100_000, "{:?}", handled.summary);
    // Another process filled the bucket since the image was made, without a new `rf`.
    let (dynamo, table, records) = nearly_dry().await;
    let mut item = dynamo.item("default/BUCKET#a#gpt-4#0", "#STATE");
    item["b_rps_tk"]["N"] = "95000".into();
    dynamo.put(&item);
    let handled = deliver_at(&table, &records, HOUR.plus(Millis(300))).await;
    assert_has!(handled.summary, refilled: 0, refills_lost: 1);
    assert_eq!(number(&dynamo, "b_rps_tk"), 95_000);
}

#[tokio::test(start_paused = true)]
async fn i7_a_refill_whose_answer_is_lost_is_made_once() {
    for fault in [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::Repeat,
        Fault::LoseRequest,
        Fault::Conflict,
    ] {
        let (dynamo, table, records) = nearly_dry().await;
        let mut left = 1;
        dynamo.fail_when(move |request| {
            let is_bucket = request["Key"]["SK"]["S"] == "#STATE" && left > 0;
            left -= i32::from(is_bucket);
            is_bucket.then_some(fault)
        });
        let handled = deliver_at(&table, &records, HOUR.plus(Millis(300))).await;
        assert_eq!(handled.summary.failed, 0, "{fault:?}");
        assert_eq!(number(&dynamo, "b_rps_tk"), 40_000, "{fault:?}");
    }
}

#[tokio::test]
async fn refills_end_when_callers_do() {
    let (dynamo, table, mut records) = nearly_dry().await;
    let mut writes = 0;
    for round in 1..20_i64 {
        let now = HOUR.plus(Millis(200 + round * 100));
        writes += deliver_at(&table, &records, now).await.summary.refilled;
        // What a refill writes comes back as a record.
        records = aggregator::records(&dynamo);
        records.retain(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
    }
    assert_eq!(writes, 1, "a refill causes no other");
    assert!(records.is_empty());
}

/// A take that relies on `refilled_at` fails its condition when that moves. At the refill edge,
/// batches in quick succession must not each move it, or no request gets a decision.
#[tokio::test]
async fn a_bucket_that_was_credited_just_now_is_left_to_its_callers() {
    let (dynamo, table, records) = nearly_dry().await;
    let summary = deliver_at(&table, &records, HOUR.plus(Millis(199))).await.summary;
    assert_has!(summary, refilled: 0, refills_lost: 0);
    let summary = deliver_at(&table, &records, HOUR.plus(Millis(200))).await.summary;
    assert_eq!(summary.refilled, 1);
    drop(dynamo);
}
