//! Usage is exact in every window (I3), however the stream is delivered.

use weirgate_tests::{assert_has, fresh};

use crate::fixtures::aggregator::usage::{
    assert_exact, copied, hourly, of, read, snapshots, streamed,
};
use crate::fixtures::aggregator::{
    HOUR, bucket, deliver, deliver_text, event, later, limits, name, records, settle, take,
    take_at, take_in,
};
use serde_json::Value;
use weirgate_shared::{EpochMillis, MilliTokens, MilliTotal, Window};
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault};

/// Hours after [`HOUR`] in which the buckets of [`used`] are used: the last one is the first of the
/// next day.
const HOURS: [i64; 4] = [0, 0, 1, 6];

/// Three entities, one of them with two shards, used in three hours of two days.
async fn used() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    for (round, hours) in (0..).zip(HOURS) {
        for (entity, shard) in [("a", 0), ("b", 0), ("b", 1), ("c", 0)] {
            let key = bucket(entity, shard);
            take_in(&table, &key, 1_250 + round, hours).await;
            if round == 1 {
                settle(&table, &key, -2_001).await;
            }
        }
    }
    let records = records(&dynamo);
    assert_eq!(records.len(), 20);
    (dynamo, table, records)
}

#[tokio::test]
async fn i3_usage_equals_consumption_in_every_window() {
    let (dynamo, table, records) = used().await;
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.response.unwrap(), Default::default());
    // Four shards, two hours, a day that ended and one that began.
    assert_has!(handled.summary, records: 20, copied: 16);
    assert_exact(&dynamo, &records);
    for window in Window::ALL {
        let now = window.start(later(6));
        let (mut ended, mut all) = (copied(&dynamo, window), streamed(&records, window));
        ended.retain(|(_, start), _| *start < now);
        all.retain(|(_, start), _| *start < now);
        assert_eq!(ended, all, "a window that is over is in its snapshot: {window}");
        assert!(!all.is_empty());
    }
    let hour = &read(&dynamo, Window::Hourly)[&(bucket("a", 0), HOUR)];
    assert_eq!(hour.acquires, 2);
    assert_eq!(hour.tokens["tpm"], MilliTotal(1_250 + 1_251 - 2_001));
}

/// A copy in the last hour of a snapshot could arrive after its deletion. It would then make it again, with
/// one shard of several.
#[tokio::test]
async fn no_copy_makes_a_snapshot_again_that_may_be_deleted() {
    const TTL: i64 = 90 * 86_400_000;
    for (left_ms, is_made) in
        [(3_600_001, true), (3_600_000, false), (0, false), (-86_400_000, false)]
    {
        for window in Window::ALL {
            let (dynamo, table, records) = used().await;
            let start = window.start(HOUR);
            let now = EpochMillis(window.end(start).0 + TTL - left_ms);
            let handled = deliver_text(&table, &event(&records), now).await;
            assert_eq!(handled.response.unwrap(), Default::default());
            for entity in ["a", "b", "c"] {
                let key = of(&bucket(entity, 0), window, start);
                let is_there = snapshots(&dynamo).contains_key(&key);
                assert_eq!(is_there, is_made, "{window}, {left_ms} ms left");
            }
        }
    }
}

/// The hour and the day in progress are exact without the stream.
#[tokio::test]
async fn i3_a_window_in_progress_is_exact_before_anything_is_delivered() {
    let (dynamo, table) = fresh().await;
    take(&table, &bucket("a", 0), 1_500).await;
    take(&table, &bucket("a", 0), 700).await;
    settle(&table, &bucket("a", 0), -300).await;
    assert_exact(&dynamo, &records(&dynamo));
    // Hours later the day in progress is as exact.
    take_in(&table, &bucket("a", 0), 9, 5).await;
    let day = &read(&dynamo, Window::Daily)[&(bucket("a", 0), Window::Daily.start(HOUR))];
    assert_eq!((day.acquires, day.tokens["tpm"]), (3, MilliTotal(1_909)));
}

/// `v` counts from the creation's milliseconds on; some millisecond comes shortly before an interim
/// copy.
async fn crossing() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    let at =
        (0..).map(|ms| EpochMillis(HOUR.0 + ms)).find(|at| at.0 * 1000 % 4096 == 4088).unwrap();
    for _ in 0..10 {
        let needs = [(name("rpm"), MilliTokens::from_tokens(1))].into();
        take_at(&table, &bucket("a", 0), &limits(), needs, at).await;
    }
    let records = records(&dynamo);
    (dynamo, table, records)
}

#[tokio::test]
async fn a_busy_bucket_is_copied_within_the_hour() {
    let (dynamo, table, records) = crossing().await;
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.summary.copied, 2);
    let copied = &snapshots(&dynamo)[&hourly(&bucket("a", 0), HOUR)].shards[&0];
    assert_eq!(copied.write_seq % 4096, 0);
    assert_eq!(copied.usage.acquires, 9);
    assert!(!copied.is_final);
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn an_interim_copy_that_fails_is_left_to_the_next_one() {
    let (dynamo, table, records) = crossing().await;
    dynamo.fail_when(|_| Some(Fault::Throttle { key_range: true }));
    let handled = deliver(&table, &records).await;
    assert_has!(handled.summary, copies_put_off: 1, failed: 1; "the day must know the shard");
    assert_eq!(handled.response.unwrap().batch_item_failures.len(), 1);
    assert_exact(&dynamo, &records);
}
