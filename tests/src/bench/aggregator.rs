//! The aggregator: parse and plan alone, memory, and whole batches against a DynamoDB behind HTTP.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weirgate_aggregator::{Config, Invocation, Snapshots, handle, parse, plan};
use weirgate_shared::{EpochMillis, Window};
use weirgate_store::{Connection, Meter, Table, connect};

use super::server::serve;
use super::{Row, print};
use crate::Dynamo;

/// 100 records each, recorded from zae-limiter 0.17 under load.
pub const BATCHES: [(&str, &str); 3] = [
    ("batch-0", include_str!("../../data/stream-batches/batch-0.json")),
    ("batch-3", include_str!("../../data/stream-batches/batch-3.json")),
    ("batch-7", include_str!("../../data/stream-batches/batch-7.json")),
];

/// What the recorded system takes for such a batch against the same local DynamoDB.
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
    for (name, event) in BATCHES {
        parse_and_plan(name, &compact(event), memory);
    }
    let whole: Vec<Value> = BATCHES.iter().flat_map(|(_, event)| records(event)).collect();
    parse_and_plan("1,000 records", &repeated(&whole, |_, record| record), memory);
    parse_and_plan("1,000 records, 1,000 buckets", &repeated(&whole, own_bucket), memory);
    for (name, event) in BATCHES {
        let (took, units) = over_http(event).await;
        let times = PEER.as_secs_f64() / took.as_secs_f64();
        print(&Row {
            what: &format!("aggregator over HTTP, {name}"),
            measured: format!("{times:.0} times the peer ({:.1} ms), {units:.0} write units", took.as_secs_f64() * 1e3),
            target: "at least 75 times, at most 45 units",
            is_met: times >= 75.0 && units <= 45.0,
        });
    }
}

fn config() -> Config {
    Config {
        table_name: "weirgate".to_owned(),
        snapshots: Snapshots { windows: vec![Window::Hourly, Window::Daily], ttl_days: 90 },
        write_concurrency: 32,
        max_shards: 64,
    }
}

fn parse_and_plan(name: &str, event: &str, memory: Memory) {
    let config = config();
    let now = EpochMillis(1_795_195_346_000);
    let once = || {
        let batch = parse::records(black_box(event)).expect("a recorded event");
        assert!(batch.undecodable.is_empty() && batch.skipped == 0);
        let count = batch.records.len();
        let usage = plan::usage(batch.records);
        let writes = plan::writes(&usage, &config, now).len();
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

/// The median time of a batch, and its write units.
async fn over_http(event: &str) -> (Duration, f64) {
    let dynamo = Dynamo::new().await;
    let local_endpoint = Some(serve(&dynamo));
    let connected = connect(Connection { local_endpoint, ..Connection::default() }).await;
    let (table, meter) = (Table::new(connected, "weirgate"), Meter::default());
    let metered = table.clone().with_meter(meter.clone());
    let (config, mut times) = (config(), vec![]);
    for round in 0..60 {
        // As they were when the batch arrived, so that each round finds the same to refill.
        for record in records(event) {
            dynamo.put(&record["dynamodb"]["NewImage"]);
        }
        // Reporting capacity makes answers larger; the first rounds, which do not count, measure it.
        let table = if round < 10 { &metered } else { &table };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let invocation = Invocation { now: EpochMillis(1_795_195_346_000), deadline };
        let started = Instant::now();
        let handled = handle(event, table, &config, invocation).await.expect("a recorded event");
        times.push(started.elapsed());
        assert_eq!(handled.summary.failed, 0);
    }
    let mut times = times.split_off(10);
    times.sort();
    (times[times.len() / 2], meter.take().total / 10.0)
}

fn records(event: &str) -> Vec<Value> {
    let mut event: Value = serde_json::from_str(event).expect("a recorded event");
    event["Records"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

/// As Lambda sends it, without spaces.
fn compact(event: &str) -> String {
    json!({"Records": records(event)}).to_string()
}

fn repeated(records: &[Value], change: impl Fn(usize, Value) -> Value) -> String {
    let records: Vec<_> = (0..1_000).map(|at| change(at, records[at % records.len()].clone())).collect();
    json!({"Records": records}).to_string()
}

/// The record as if its bucket belonged to an entity of its own.
fn own_bucket(at: usize, record: Value) -> Value {
    let entity = record["dynamodb"]["NewImage"]["entity_id"]["S"].as_str().unwrap_or_default();
    let text = record.to_string().replace(&format!("#{entity}#"), &format!("#e-{at:04}#"));
    serde_json::from_str(&text).expect("names do not break JSON")
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a ratio for people to read")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
