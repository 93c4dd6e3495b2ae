//! Usage after a restore (docs/operations.md): buckets and snapshots of different instants, numbers
//! that were given before.

use crate::fixtures::aggregator::{HOUR, bucket, deliver, later, records, take_in, usage};
use crate::fixtures::discarded::{run, wrapped};
use serde_json::{Value, json};
use weirgate_shared::Window;
use weirgate_store::Table;
use weirgate_testkit::Dynamo;
use weirgate_tests::fresh;

const BUCKET: &str = "default/BUCKET#a#gpt-4#0";

/// A table whose bucket was taken from five times and then, after the instant that is restored,
/// three times in the same hour, twice in the next one and once in the one after it. Returns the
/// records after that instant, and the items at it.
async fn used() -> (Dynamo, Table, Vec<Value>, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    take(&table, 5, 0).await;
    deliver(&table, &records(&dynamo)).await;
    let between = dynamo.items();
    for (times, hours) in [(3, 0), (2, 1), (1, 2)] {
        take(&table, times, hours).await;
    }
    let after = records(&dynamo);
    deliver(&table, &after).await;
    assert_eq!(acquires(&dynamo), ([8, 2, 1], 11));
    (dynamo, table, after, between)
}

async fn take(table: &Table, times: usize, hours: i64) {
    for _ in 0..times {
        take_in(table, &bucket("a", 0), 1_000, hours).await;
    }
}

/// Makes the items that `is_restored` what they were, and raises the bucket's `v` as the page says.
/// No function sees that: a restored table has no stream.
fn restore(dynamo: &Dynamo, between: &[Value], is_restored: impl Fn(&str) -> bool) {
    let sort_key = |item: &Value| item["SK"]["S"].as_str().unwrap().to_owned();
    for item in dynamo.items().iter().filter(|item| is_restored(&sort_key(item))) {
        dynamo.delete(item["PK"]["S"].as_str().unwrap(), &sort_key(item));
    }
    for item in between.iter().filter(|item| is_restored(&sort_key(item))) {
        dynamo.put(item);
    }
    let mut item = dynamo.item(BUCKET, "#STATE");
    let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
    item["v"] = json!({"N": (v + 1_000_000_000).to_string()});
    dynamo.put(&item);
    drop(dynamo.stream());
}

/// Acquires of the three hours, and of their day.
fn acquires(dynamo: &Dynamo) -> ([i128; 3], i128) {
    let of = |window: Window, hours| {
        let start = window.start(later(hours));
        usage::read(dynamo, window).get(&(bucket("a", 0), start)).map_or(0, |usage| usage.acquires)
    };
    ([0, 1, 2].map(|hours| of(Window::Hourly, hours)), of(Window::Daily, 0))
}

/// A restore is no cut through all items at one instant. Without the raise, the copy would be taken
/// for an old one.
#[tokio::test]
async fn i3_the_next_copy_of_a_bucket_that_is_older_than_its_snapshot_wins() {
    let (dynamo, table, _, between) = used().await;
    restore(&dynamo, &between, |sk| sk == "#STATE");
    assert!(usage::snapshots(&dynamo)[&usage::hourly(&bucket("a", 0), HOUR)].shards[&0].is_final);
    take(&table, 2, 0).await;
    take(&table, 1, 1).await;
    deliver(&table, &records(&dynamo)).await;
    assert_eq!(acquires(&dynamo), ([5 + 2, 1, 0], 5 + 3));
}

#[tokio::test]
async fn i3_snapshots_older_than_their_bucket_lose_only_hours_that_it_has_left() {
    let (dynamo, table, after, between) = used().await;
    restore(&dynamo, &between, |sk| sk != "#STATE");
    take(&table, 4, 2).await;
    deliver(&table, &records(&dynamo)).await;
    assert_eq!(acquires(&dynamo), ([0, 0, 1 + 4], 11 + 4));
    // The old table's records close them.
    assert_eq!(run(&dynamo, &wrapped(&after)).await.copies(), [2, 0]);
    assert_eq!(acquires(&dynamo), ([8, 2, 1 + 4], 11 + 4));
}

/// Of what the old table's records say, only that stays which is about hours that the restored
/// bucket is not used in.
#[tokio::test]
async fn i3_uses_after_the_restored_instant_are_told_from_those_of_now() {
    let (dynamo, table, after, between) = used().await;
    restore(&dynamo, &between, |_| true);
    assert_eq!(acquires(&dynamo), ([5, 0, 0], 5));
    assert_eq!(run(&dynamo, &wrapped(&after)).await.copies(), [2, 0]);
    assert_eq!(
        acquires(&dynamo),
        ([5, 2, 0], 5),
        "the live item is newer than the old table's copy"
    );
    take(&table, 4, 2).await;
    deliver(&table, &records(&dynamo)).await;
    assert_eq!(acquires(&dynamo), ([5, 2, 4], 5 + 4));
}
