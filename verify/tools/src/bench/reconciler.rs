//! Runs of the reconciler over many due buckets in a large table.

use std::time::{Duration, Instant};

use serde_json::Value;
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_testkit::leased::{NOW, full, holding, item, limits};
use weirgate_testkit::{Dynamo, import};

use super::row::Row;
use crate::number::Unit;
use crate::number::count;

const ROUNDS: usize = 3;
const BUCKETS: u64 = 500;
const LEASES: u64 = 20;
const OTHERS: u64 = 100_000;
/// One in this many of the others has a lease too, which is alive.
const ALIVE: u64 = 10;

/// Loads the table, runs the reconciler on it, and returns what it took and what it asked for.
///
/// # Panics
/// If DynamoDB fails, or the counts are not what they must be.
pub async fn rows() -> Vec<Row> {
    let dynamo = Dynamo::new().await;
    import(&dynamo, (0..OTHERS).map(other));
    let table = dynamo.table().await;
    let config = Config {
        table_name: table.name().to_owned(),
        page: 100,
    };
    let names = ["UpdateItem", "Query", "BatchGetItem", "Scan"];
    let (mut times, mut requests) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        (0..BUCKETS).for_each(|entity| dynamo.put(&expired(entity)));
        let _ = dynamo.take_operations();
        let deadline = Deadline::after(Duration::from_secs(50));
        let started = Instant::now();
        let summary = reconcile(&table, &config, &|| NOW, deadline).await;
        times.push(started.elapsed().as_secs_f64());
        let summary = summary.expect("the embedded DynamoDB works");
        assert_eq!(
            (summary.buckets_seen, summary.leases_restored),
            (BUCKETS, BUCKETS * LEASES)
        );
        let operations = dynamo.take_operations();
        requests.push(names.map(|name| count(operations.get(name).copied().unwrap_or_default())));
    }
    let what = "10,000 expired leases, 500 buckets, 100,000 more";
    let counted = |at: usize, id: &str, text: &str| {
        let rounds: Vec<_> = requests.iter().map(|round| round[at]).collect();
        Row::new(
            format!("reconciler/{id}"),
            format!("{what}: {text}"),
            Unit::Count,
            &rounds,
        )
    };
    let writes = count(BUCKETS);
    vec![
        Row::new(
            "reconciler/time",
            format!("{what}: a run"),
            Unit::Seconds,
            &times,
        )
        .at_most(10.0),
        counted(0, "writes", "writes, one a bucket").between(writes, writes),
        counted(1, "queries", "queries"),
        counted(2, "reads", "batch reads"),
        counted(3, "scans", "scans").at_most(0.0),
    ]
}

/// A bucket with leases that are over.
fn expired(entity: u64) -> Value {
    let bucket = full(&format!("due-{entity}"), &limits());
    let expires = |at: u64| {
        let earlier = i64::try_from(entity * LEASES + at).expect("few leases");
        EpochMillis(NOW.0 - 1 - earlier)
    };
    let bucket = (0..LEASES).fold(bucket, |bucket, at| {
        holding(bucket, &format!("l{at}"), expires(at), &[("quota", 1)])
    });
    item(&bucket)
}

fn other(entity: u64) -> Value {
    let bucket = full(&format!("other-{entity}"), &limits());
    let later = NOW.plus(Millis(1 + i64::try_from(entity).expect("few entities")));
    item(&if entity.is_multiple_of(ALIVE) {
        holding(bucket, "l", later, &[("slots", 1)])
    } else {
        bucket
    })
}
