//! A run of the reconciler over many due buckets in a large table.

use std::time::{Duration, Instant};

use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_shared::{EpochMillis, Millis};

use super::{Row, print};
use weirgate_testkit::leased::{NOW, full, holding, item, limits};
use weirgate_testkit::{Dynamo, import};

const BUCKETS: u64 = 500;
const LEASES: u64 = 20;
const OTHERS: u64 = 100_000;
/// One in this many of the others has a lease too, which is alive.
const ALIVE: u64 = 10;
const TARGET: Duration = Duration::from_secs(10);

/// Loads the table, runs the reconciler once, and prints what it took and what it asked for.
///
/// # Panics
/// If DynamoDB fails, or the counts are not what they must be.
pub async fn run() {
    let dynamo = Dynamo::new().await;
    load(&dynamo);
    let table = dynamo.table().await;
    let config = Config {
        table_name: table.name().to_owned(),
        page: 100,
    };
    let _ = dynamo.take_operations();

    let started = Instant::now();
    let summary = reconcile(
        &table,
        &config,
        NOW,
        Deadline::after(Duration::from_secs(50)),
    )
    .await;
    let took = started.elapsed();
    let summary = summary.expect("the embedded DynamoDB works");
    let operations = dynamo.take_operations();
    let of = |name: &str| operations.get(name).copied().unwrap_or_default();

    assert_eq!(
        (summary.buckets_seen, summary.leases_restored),
        (BUCKETS, BUCKETS * LEASES)
    );
    assert_eq!(
        (of("UpdateItem"), of("Scan")),
        (BUCKETS, 0),
        "one write per bucket, no scan"
    );
    print(&Row {
        what: "10,000 expired leases, 500 buckets, 100,000 more",
        measured: format!(
            "{:.2} s, {} writes, {} queries, {} batch reads, {} scans",
            took.as_secs_f64(),
            of("UpdateItem"),
            of("Query"),
            of("BatchGetItem"),
            of("Scan")
        ),
        target: "one write per bucket, no scan, at most 10 s",
        is_met: took <= TARGET,
    });
}

fn load(dynamo: &Dynamo) {
    let expired = |entity: u64| {
        let bucket = full(&format!("due-{entity}"), &limits());
        let expires = |at: u64| {
            EpochMillis(NOW.0 - 1 - i64::try_from(entity * LEASES + at).unwrap_or_default())
        };
        (0..LEASES).fold(bucket, |bucket, at| {
            holding(bucket, &format!("l{at}"), expires(at), &[("quota", 1)])
        })
    };
    let other = |entity: u64| {
        let bucket = full(&format!("other-{entity}"), &limits());
        let later = NOW.plus(Millis(1 + i64::try_from(entity).unwrap_or_default()));
        if entity.is_multiple_of(ALIVE) {
            holding(bucket, "l", later, &[("slots", 1)])
        } else {
            bucket
        }
    };
    import(dynamo, (0..BUCKETS).map(|entity| item(&expired(entity))));
    import(dynamo, (0..OTHERS).map(|entity| item(&other(entity))));
}
