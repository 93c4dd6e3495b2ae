//! The aggregator: parse and plan alone, memory, and whole batches against a DynamoDB behind HTTP.

use std::hint::black_box;
use std::time::{Duration, Instant};

use weirgate_aggregator::{Config, Invocation, handle, parse, plan};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::{CapacityMeter, ConnectOptions, Table, connect};

use super::{Row, print};
use weirgate_testkit::batches::{BATCH_START, batch, event};
use weirgate_testkit::server::serve;

/// What zae-limiter 0.17 takes for a batch of 100 records on 14 buckets against the same local
/// DynamoDB.
const PEER: Duration = Duration::from_millis(560);

/// Bytes allocated now and at most since the last reset, from the program's allocator.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Forgets the highest.
    pub reset: fn(),
    /// Allocated now.
    pub current: fn() -> usize,
    /// The highest.
    pub peak: fn() -> usize,
}

/// Prints the aggregator's rows.
pub async fn run(memory: Memory) {
    for (name, buckets, records) in [
        ("100 records, 14 buckets", 14, 100),
        ("1,000 records, 14 buckets", 14, 1_000),
        ("1,000 records, 1,000 buckets", 1_000, 1_000),
    ] {
        parse_and_plan(name, &event(&batch(buckets, records).await.1), memory);
    }
    at_the_end_of_an_hour(memory).await;
    let (took, units) = over_http().await;
    let times = PEER.as_secs_f64() / took.as_secs_f64();
    print(&Row {
        what: "aggregator over HTTP, 100 records on 14 buckets",
        measured: format!(
            "{times:.0} times the peer ({:.1} ms), {units:.0} write units",
            took.as_secs_f64() * 1e3
        ),
        target: "at least 75 times, at most 14 units",
        is_met: times >= 75.0 && units <= 14.0,
    });
}

/// Each of 1,000 buckets begins a new hour: two copies a record.
async fn at_the_end_of_an_hour(memory: Memory) {
    let (_, mut records) = batch(1_000, 1_000).await;
    for record in &mut records {
        let begun = record["dynamodb"]["NewImage"]["uh"]["N"]
            .as_str()
            .and_then(|hour| hour.parse::<i64>().ok());
        record["dynamodb"]["OldImage"]["uh"]["N"] =
            (begun.expect("an hour") - 1).to_string().into();
    }
    parse_and_plan("1,000 buckets begin an hour", &event(&records), memory);
}

fn config() -> Config {
    Config {
        table_name: "weirgate".to_owned(),
        snapshot_ttl_days: 90,
        write_concurrency: 32,
        max_shards: 64,
        refill_writes: 1,
    }
}

fn parse_and_plan(name: &str, event: &str, memory: Memory) {
    let config = config();
    let once = || {
        let batch = parse::records(black_box(event)).expect("an event");
        assert!(batch.undecodable.is_empty() && batch.skipped == 0);
        let count = batch.records.len();
        let shards = plan::shards(batch.records);
        let writes = plan::writes(&shards, &config, LATER).len();
        black_box(writes);
        count
    };
    (memory.reset)();
    let before = (memory.current)();
    let records = once();
    let used = (memory.peak)().saturating_sub(before) + event.len();

    // The best of many short runs: others use the machine too.
    let best = (0..40)
        .map(|_| {
            let started = Instant::now();
            let rounds = (5_000 / records).max(1);
            for _ in 0..rounds {
                once();
            }
            started.elapsed() / u32::try_from(rounds * records).expect("few records")
        })
        .min()
        .expect("some runs");
    let (share, rate) = (ratio(used, event.len()), 1.0 / best.as_secs_f64().max(1e-9));
    print(&Row {
        what: &format!("parse + plan, one core: {name}"),
        measured: format!("{rate:.0} records/s, {share:.2} times the event in memory"),
        target: "at least 150,000, at most 3 times",
        is_met: rate >= 150_000.0 && share <= 3.0,
    });
}

/// When a batch is delivered.
const LATER: EpochMillis = BATCH_START.plus(Millis(60_000));

/// The median time of a batch, and its write units.
async fn over_http() -> (Duration, f64) {
    let (dynamo, records) = batch(14, 100).await;
    let event = event(&records);
    let local_endpoint = Some(serve(&dynamo));
    let connected = connect(ConnectOptions {
        local_endpoint,
        ..ConnectOptions::default()
    })
    .await;
    let (table, meter) = (Table::new(connected, "weirgate"), CapacityMeter::default());
    let metered = table.clone().with_meter(meter.clone());
    let (config, mut times) = (config(), vec![]);
    for round in 0..60 {
        // As they were when the batch arrived, so that each round finds the same to refill.
        for record in &records {
            dynamo.put(&record["dynamodb"]["NewImage"]);
        }
        // Reporting capacity makes answers larger; the first rounds, which do not count, measure
        // it.
        let table = if round < 10 { &metered } else { &table };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let started = Instant::now();
        let handled = handle(
            &event,
            table,
            &config,
            Invocation {
                now: LATER,
                deadline,
            },
        )
        .await
        .expect("an event");
        times.push(started.elapsed());
        assert_eq!(handled.summary.failed, 0);
    }
    let mut times = times.split_off(10);
    times.sort();
    (times[times.len() / 2], meter.take().total / 10.0)
}

#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a ratio for people to read"
)]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
