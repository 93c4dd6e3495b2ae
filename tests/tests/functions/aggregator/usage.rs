//! Usage is exact in every window (I3), however the stream is delivered.

use crate::fixtures::aggregator;
use weirgate_tests::{assert_has, fresh, slow};

use crate::fixtures::aggregator::usage::{
    assert_exact, copied, hourly, of, read, snapshots, streamed,
};
use crate::fixtures::aggregator::{
    HOUR, bucket, deliver, deliver_text, event, later, limits, name, records, settle, take,
    take_at, take_in,
};
use serde_json::Value;
use weirgate::RateLimiter;
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

/// Forgets all snapshots.
fn forget(dynamo: &Dynamo) {
    for item in dynamo
        .items()
        .iter()
        .filter(|item| item["SK"]["S"] != "#STATE")
    {
        dynamo.delete(
            item["PK"]["S"].as_str().unwrap(),
            item["SK"]["S"].as_str().unwrap(),
        );
    }
}

fn begins_an_hour(record: &Value) -> bool {
    let [old, new] = ["OldImage", "NewImage"].map(|image| &record["dynamodb"][image]["uh"]);
    old.is_object() && old != new
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
        assert_eq!(
            ended, all,
            "a window that is over is in its snapshot: {window}"
        );
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
    for (left_ms, is_made) in [
        (3_600_001, true),
        (3_600_000, false),
        (0, false),
        (-86_400_000, false),
    ] {
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

#[tokio::test]
async fn i3_a_batch_delivered_twice_counts_once() {
    let (dynamo, table, records) = used().await;
    deliver(&table, &records).await;
    let again = deliver(&table, &records).await;
    assert_has!(again.summary, copied: 0, superseded: 16);
    assert_exact(&dynamo, &records);
}

/// Any number of records within an hour may be lost: the next copy of the shard says what they
/// said.
#[tokio::test]
async fn i3_records_lost_within_an_hour_are_made_up_for_by_the_next_copy() {
    let (dynamo, table, records) = used().await;
    let rolls: Vec<_> = records
        .iter()
        .filter(|record| begins_an_hour(record))
        .cloned()
        .collect();
    assert_eq!(rolls.len(), 8);
    deliver(&table, &rolls).await;
    assert_exact(&dynamo, &records);
}

#[tokio::test]
async fn i3_records_out_of_order_in_a_batch_count_once() {
    let (dynamo, table, records) = used().await;
    let mut shuffled = records.clone();
    shuffled.reverse();
    deliver(&table, &shuffled).await;
    assert_exact(&dynamo, &records);
    shuffled.swap(3, 15);
    deliver(&table, &shuffled).await;
    assert_exact(&dynamo, &records);
}

/// Usage of both lives is in the hour, whichever copies come twice.
#[tokio::test]
async fn i3_a_bucket_that_is_deleted_and_made_again_counts_both_lives() {
    let (dynamo, table) = fresh().await;
    let key = bucket("a", 0);
    take(&table, &key, 5_000).await;
    dynamo.delete("default/BUCKET#a#gpt-4#0", "#STATE");
    let needs = [(name("tpm"), MilliTokens(77))].into();
    take_at(&table, &key, &limits(), needs, EpochMillis(HOUR.0 + 60_000)).await;
    take_in(&table, &key, 1, 1).await;
    let records = records(&dynamo);
    let mut skipped = 0;
    for _ in 0..2 {
        for at in 0..records.len() {
            skipped += deliver(&table, &records[at..=at]).await.summary.skipped;
        }
        assert_exact(&dynamo, &records);
    }
    assert_eq!(skipped, 0);
    let hour = &snapshots(&dynamo)[&hourly(&key, HOUR)];
    assert_eq!(hour.carry.tokens["tpm"], MilliTotal(5_000));
    assert_eq!(hour.carry.acquires, 1);
    assert!(hour.shards[&0].is_final && hour.unfinished.is_empty());
    // Both lives in one batch.
    forget(&dynamo);
    deliver(&table, &records).await;
    assert_exact(&dynamo, &records);
}

/// The records of a life may come back from a failure file when a later life has long been copied.
#[tokio::test(start_paused = true)]
async fn i3_an_earlier_life_that_is_replayed_late_counts_once() {
    let (dynamo, table) = fresh().await;
    let key = bucket("a", 0);
    for life in 0..3 {
        let needs = [(name("tpm"), MilliTokens(5_000 + life))].into();
        take_at(
            &table,
            &key,
            &limits(),
            needs,
            EpochMillis(HOUR.0 + life * 60_000),
        )
        .await;
        if life < 2 {
            dynamo.delete("default/BUCKET#a#gpt-4#0", "#STATE");
        }
    }
    take_in(&table, &key, 1, 1).await;
    let records = records(&dynamo);
    let is_removal = |record: &&Value| record["eventName"] == "REMOVE";
    let removals: Vec<_> = records.iter().filter(is_removal).cloned().collect();
    assert_eq!(removals.len(), 2);
    deliver(&table, &records[records.len() - 1..]).await;
    for at in [1, 0, 0, 1] {
        // Two replays at once, whose answers are lost.
        dynamo.fail_next([
            Some(Fault::LoseAnswer),
            None,
            Some(Fault::ServerErrorApplied),
        ]);
        let slow = slow(&dynamo, 1).await;
        tokio::join!(
            deliver(&slow, &removals[at..=at]),
            deliver(&slow, &removals[at..=at])
        );
        dynamo.forget_faults();
    }
    assert_exact(&dynamo, &records);
    deliver(&table, &records).await;
    assert_exact(&dynamo, &records);
    let hour = &snapshots(&dynamo)[&hourly(&key, HOUR)];
    assert_eq!((hour.carry.acquires, hour.carried[&0].len()), (2, 2));
}

/// A shard that is merged away and made again goes on counting: no carry, and no growth.
#[tokio::test]
async fn i3_splits_and_merges_within_an_hour_leave_one_copy_of_each_shard() {
    let clock = weirgate::FakeClock::at(HOUR);
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let table = dynamo.table_by(clock.clone()).await;
    let limiter = RateLimiter::builder("weirgate")
        .table(table.clone())
        .build()
        .await
        .unwrap();
    let limits = limits();
    let take = async || {
        for _ in 0..20 {
            let take = limiter
                .acquire("a", "gpt-4")
                .limits(&limits)
                .take("rpm", 1)
                .take("tpm", 3);
            assert!(take.send().await.unwrap().is_granted());
        }
    };
    let mut records = vec![];
    for (minutes, shards) in [(0, 4), (1, 1), (2, 4), (3, 2), (4, 4)] {
        clock.skew(minutes * 60_000);
        assert_eq!(
            limiter
                .set_shards("a", "gpt-4", &limits, shards)
                .await
                .unwrap(),
            shards
        );
        take().await;
        let new = aggregator::records(&dynamo);
        deliver(&table, &new).await;
        records.extend(new);
        assert_exact(&dynamo, &records);
    }
    clock.skew(3_700_000);
    take().await;
    let new = aggregator::records(&dynamo);
    deliver(&table, &new).await;
    records.extend(new);
    assert_exact(&dynamo, &records);
    let hour = limiter
        .usage("a", "gpt-4", Window::Hourly, HOUR)
        .await
        .unwrap()
        .usage;
    assert_eq!(hour.acquires, 100);
    assert_eq!(hour.tokens["rpm"], MilliTotal(100_000));
    let snapshot = &snapshots(&dynamo)[&hourly(&bucket("a", 0), HOUR)];
    assert_eq!(snapshot.carry, Default::default());
    assert!(
        snapshot.shards.keys().all(|shard| *shard < 4),
        "{snapshot:?}"
    );
}

/// `v` counts from the creation's milliseconds on; some millisecond comes shortly before an interim
/// copy.
async fn crossing() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    let at = (0..)
        .map(|ms| EpochMillis(HOUR.0 + ms))
        .find(|at| at.0 * 1000 % 4096 == 4088)
        .unwrap();
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

#[tokio::test(start_paused = true)]
async fn two_batches_of_one_bucket_at_the_same_time_count_once() {
    let (dynamo, _, records) = used().await;
    let table = slow(&dynamo, 1).await;
    tokio::join!(
        deliver(&table, &records[..15]),
        deliver(&table, &records[10..]),
        deliver(&table, &records)
    );
    assert_exact(&dynamo, &records);
}
