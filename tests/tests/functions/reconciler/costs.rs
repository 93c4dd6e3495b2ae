//! What a run costs: what is due, not what is stored.

use std::time::Duration;
use weirgate_tests::{assert_has, fresh};

use crate::fixtures::sharded::{hold, run, run_for};
use serde_json::Value;
use weirgate_reconciler::Summary;
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::Table;
use weirgate_testkit::leased::{NOW, full, holding, item, key, limits, store};
use weirgate_testkit::{Dynamo, Fault};
use weirgate_tests::scaling::facts;

const PAST: EpochMillis = EpochMillis(NOW.0 - 1_000);
const LATER: EpochMillis = EpochMillis(NOW.0 + 60_000);

async fn paged(table: &Table, page: i32) -> Summary {
    let done = run_for(table, NOW, page, Duration::from_secs(50)).await;
    done.expect("DynamoDB works")
}

fn import(dynamo: &Dynamo, items: impl Iterator<Item = Value>) {
    let items = items.map(|item| serde_json::from_value(item).expect("an item")).collect();
    dynamo
        .db()
        .import_items("weirgate", items, dynoxide::ImportOptions::default())
        .expect("items are imported");
}

#[tokio::test]
async fn one_write_per_bucket_no_scan_and_only_what_is_due_is_read() {
    const BUCKETS: u64 = 100;
    let dynamo = Dynamo::new().await;
    let leases = |entity: u64| {
        let bucket = full(&format!("due-{entity}"), &limits());
        (0..20).fold(bucket, |bucket, at| holding(bucket, &format!("l{at}"), PAST, &[("quota", 1)]))
    };
    import(&dynamo, (0..BUCKETS).map(|entity| item(&leases(entity))));
    // Others: idle ones, and some in the index whose time has not come.
    let idle = |entity: u64| item(&full(&format!("idle-{entity}"), &limits()));
    let alive = |entity: u64| {
        item(&holding(full(&format!("live-{entity}"), &limits()), "a", LATER, &[("slots", 1)]))
    };
    import(&dynamo, (0..1_500).map(idle).chain((0..500).map(alive)));

    let (table, meter) = dynamo.metered().await;
    let _ = dynamo.take_operations();
    let summary = run(&table, NOW).await;
    assert_has!(summary, buckets_seen: BUCKETS, leases_restored: 20 * BUCKETS);
    let operations = dynamo.take_operations();
    let names: Vec<_> = operations.keys().map(String::as_str).collect();
    assert_eq!(names, ["BatchGetItem", "Query", "UpdateItem"], "no scan");
    assert_eq!(operations["UpdateItem"], BUCKETS);
    assert_eq!(operations["Query"], 16);
    assert!(operations["BatchGetItem"] <= 16);

    // "an expired lease: at most 1 + index, per bucket not per lease": the index entry goes, and 2
    // KB of leases with it.
    let units = meter.take();
    let per_bucket = units.indexes["DueIndex"] / 100.0;
    assert!(per_bucket <= 1.0, "{units:?}");
    assert_eq!(units.indexes.keys().collect::<Vec<_>>(), ["DueIndex"], "{units:?}");
}

/// `docs/scaling.md` computes an idle stack by it.
#[tokio::test]
async fn a_run_in_which_nothing_is_due_reads_each_partition_of_the_index_once() {
    let dynamo = Dynamo::new().await;
    store(&dynamo.table().await, &holding(full("e-1", &limits()), "a", LATER, &[("slots", 1)]))
        .await;
    let (table, meter) = dynamo.metered().await;
    let _ = dynamo.take_operations();
    assert_eq!(run(&table, NOW).await.buckets_seen, 0);
    let partitions = facts::DUE_PARTITIONS;
    assert_eq!(dynamo.take_operations(), [("Query".to_owned(), partitions)].into());
    assert_eq!(meter.take().total, 0.0);
}

#[tokio::test]
async fn pages_are_read_to_the_end_past_what_stays_due() {
    let (dynamo, table) = fresh().await;
    let mut broken = 0;
    for at in 0..120_u32 {
        let due = EpochMillis(NOW.0 - 500 + i64::from(at));
        hold(&table, &format!("e-{at}"), due).await;
        if at % 3 == 0 {
            let key = key(&format!("e-{at}")).item_key();
            let mut item = dynamo.item(&key.pk, &key.sk);
            item["rf"] = serde_json::json!({"S": "soon"});
            dynamo.put(&item);
            broken += 1;
        }
    }
    // Those that cannot be read stay due, as nothing can be written to them.
    let db = dynamo.clone();
    dynamo.fail_when(move |write| {
        let text = |name: &str| write["Key"][name]["S"].as_str().unwrap().to_owned();
        let is_broken = db.item(&text("PK"), &text("SK"))["rf"].get("S").is_some();
        is_broken.then_some(Fault::Rejected)
    });
    let _ = dynamo.take_operations();
    for page in [1, 2, 7] {
        let summary = paged(&table, page).await;
        let operations = dynamo.take_operations();
        assert_has!(summary, undecodable: broken, partitions_unfinished: 0; "page {page}");
        let (seen, restored) = if page == 1 { (120, 80) } else { (40, 0) };
        assert_has!(summary, buckets_seen: seen, leases_restored: restored; "page {page}");
        let pages = seen.div_ceil(u64::try_from(page).unwrap()) + 2 * 16;
        assert!(operations["Query"] <= pages, "{operations:?}: it ends, and no page is read twice");
    }
}

#[tokio::test]
async fn the_oldest_are_met_first() {
    let (dynamo, table) = fresh().await;
    let shard = key("e-0").due_shard();
    let mut entities =
        (0..).map(|at| format!("e-{at}")).filter(|entity| key(entity).due_shard() == shard);
    for age in [5, 900, 30, 60_000, 1] {
        let due = NOW.plus(Millis(-age));
        let bucket = full(&entities.next().unwrap(), &limits());
        store(&table, &holding(bucket, "a", due, &[("slots", 1)])).await;
    }
    let met = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let (writes, db) = (met.clone(), dynamo.clone());
    dynamo.fail_when(move |write| {
        let key = |name: &str| write["Key"][name]["S"].as_str().unwrap().to_owned();
        let due =
            db.item(&key("PK"), &key("SK"))["due"]["N"].as_str().unwrap().parse::<i64>().unwrap();
        writes.lock().unwrap().push(NOW.0 - due);
        None
    });
    let summary = paged(&table, 1).await;
    assert_eq!(*met.lock().unwrap(), [60_000, 900, 30, 5, 1]);
    assert_eq!(summary.oldest_due_age_ms, 60_000);
}

#[tokio::test]
async fn a_bucket_that_the_index_shows_twice_is_read_and_counted_once() {
    let (dynamo, table) = fresh().await;
    let shard = key("e-0").due_shard();
    let mut entities =
        (0..).map(|at| format!("e-{at}")).filter(|entity| key(entity).due_shard() == shard);
    for age in [50, 40] {
        let bucket = full(&entities.next().unwrap(), &limits());
        store(&table, &holding(bucket, "a", NOW.plus(Millis(-age)), &[("slots", 1)])).await;
    }
    // It stays due, and a caller whose clock is behind moves it past the second one while the run
    // is at that.
    let first = key("e-0").item_key();
    let mut item = dynamo.item(&first.pk, &first.sk);
    item["rf"] = serde_json::json!({"S": "soon"});
    dynamo.put(&item);
    let db = dynamo.clone();
    dynamo.fail_reads(move |operation, request| {
        if operation == "Query" && request.get("ExclusiveStartKey").is_some() {
            item["due"] = serde_json::json!({"N": (NOW.0 - 30).to_string()});
            db.put(&item);
        }
        None
    });
    let summary = paged(&table, 1).await;
    assert_has!(summary, buckets_seen: 2, undecodable: 1, leases_restored: 1);
}
