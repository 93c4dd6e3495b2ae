//! Usage after a restore (docs/operations.md): buckets and snapshots of different instants, numbers that were given before.

mod aggregator;
mod discarded;

use aggregator::{bucket, counted, deliver, records, take};
use discarded::{run, wrapped};
use serde_json::{Value, json};
use weirgate_shared::Window;
use weirgate_store::Table;
use weirgate_tests::Dynamo;

const BUCKET: &str = "default/BUCKET#a#gpt-4#0";

/// A table whose bucket was taken from five times and then three times; the records of the three, and the items as they
/// were between.
async fn used() -> (Dynamo, Table, Vec<Value>, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    for _ in 0..5 {
        take(&table, &bucket("a", 0), 1_000).await;
    }
    deliver(&table, &records(&dynamo)).await;
    let between = dynamo.items();
    for _ in 0..3 {
        take(&table, &bucket("a", 0), 1_000).await;
    }
    let later = records(&dynamo);
    deliver(&table, &later).await;
    (dynamo, table, later, between)
}

/// Puts back the items that `is_restored`, as they were, and raises the bucket's `v` as the page says. Nobody sees that: a
/// restored table has no stream.
fn restore(dynamo: &Dynamo, between: &[Value], is_restored: impl Fn(&str) -> bool) {
    for item in between.iter().filter(|item| is_restored(item["SK"]["S"].as_str().unwrap())) {
        dynamo.put(item);
    }
    let mut item = dynamo.item(BUCKET, "#STATE");
    let v: i64 = item["v"]["N"].as_str().unwrap().parse().unwrap();
    item["v"] = json!({"N": (v + 1_000_000_000).to_string()});
    dynamo.put(&item);
    let _ = dynamo.stream();
}

async fn takes(dynamo: &Dynamo, table: &Table, times: usize) -> i128 {
    for _ in 0..times {
        take(table, &bucket("a", 0), 1_000).await;
    }
    deliver(table, &records(dynamo)).await;
    counted(dynamo, Window::Daily)["a"]["takes"]
}

#[tokio::test]
async fn i3_a_bucket_older_than_its_snapshots_gives_no_number_twice() {
    let (dynamo, table, later, between) = used().await;
    restore(&dynamo, &between, |sk| sk == "#STATE");
    assert_eq!(takes(&dynamo, &table, 4).await, 8 + 4);
    // What the snapshots have counted stays counted.
    assert!(run(&dynamo, &wrapped(&later), &[]).await.sum.is_complete());
    assert_eq!(takes(&dynamo, &table, 0).await, 8 + 4);
}

#[tokio::test]
async fn i3_what_snapshots_older_than_their_bucket_lack_is_a_missing_range_and_can_be_replayed() {
    let (dynamo, table, later, between) = used().await;
    restore(&dynamo, &between, |sk| sk != "#STATE");
    assert_eq!(takes(&dynamo, &table, 4).await, 5 + 4);
    assert!(run(&dynamo, &wrapped(&later), &[]).await.sum.is_complete());
    assert_eq!(takes(&dynamo, &table, 0).await, 8 + 4);
}

#[tokio::test]
async fn i3_what_was_done_after_the_restored_instant_is_told_from_what_is_done_now() {
    let (dynamo, table, later, between) = used().await;
    restore(&dynamo, &between, |_| true);
    assert_eq!(takes(&dynamo, &table, 4).await, 5 + 4);
    // Three records of the old table, whose numbers would have been given once more.
    assert!(run(&dynamo, &wrapped(&later), &[]).await.sum.is_complete());
    assert_eq!(takes(&dynamo, &table, 0).await, 8 + 4);
}
