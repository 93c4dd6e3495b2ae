//! The aggregator: parse and plan alone, memory, and whole batches against a DynamoDB behind HTTP,
//! beside the peer's.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use weirgate_aggregator::{Config, Invocation, handle, parse, plan};
use weirgate_local::StreamReader;
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::{CapacityMeter, Table};
use weirgate_testkit::Dynamo;
use weirgate_testkit::batches::{BATCH_START, batch, event};
use weirgate_testkit::server::serve;

use super::harness::connected;
use super::harness::median;
use super::rivals::peer;
use super::row::Row;
use crate::number::Unit;
use crate::number::count;

/// Buckets and records of the batch that the peer handles too.
const BATCH: (usize, usize) = (14, 100);
const ROUNDS: usize = 5;
/// Batches of ours in a round, which has one of the peer.
const BATCHES: usize = 10;

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

/// Returns the aggregator's rows.
///
/// # Panics
/// If DynamoDB or the peer fails.
pub async fn rows(memory: Memory) -> Vec<Row> {
    let mut rows = beside_the_peer().await;
    for (id, name, buckets, records) in [
        ("few", "100 records, 14 buckets", 14, 100),
        ("hot", "1,000 records, 14 buckets", 14, 1_000),
        ("many", "1,000 records, 1,000 buckets", 1_000, 1_000),
    ] {
        let event = event(&batch(buckets, records).await.1);
        rows.extend(parse_and_plan(id, name, &event, memory));
    }
    let event = an_hour_ends().await;
    rows.extend(parse_and_plan(
        "hour",
        "1,000 buckets begin an hour",
        &event,
        memory,
    ));
    rows
}

/// Each of 1,000 buckets begins a new hour: two copies a record.
async fn an_hour_ends() -> String {
    let (_, mut records) = batch(1_000, 1_000).await;
    for record in &mut records {
        let begun = record["dynamodb"]["NewImage"]["uh"]["N"].as_str();
        let begun = begun.and_then(|hour| hour.parse::<i64>().ok());
        record["dynamodb"]["OldImage"]["uh"]["N"] =
            (begun.expect("an hour") - 1).to_string().into();
    }
    event(&records)
}

fn config() -> Config {
    Config {
        table_name: "weirgate".to_owned(),
        snapshot_ttl_days: 90,
        write_concurrency: 32,
        max_shards: 64,
        refill_writes: 1,
        hot_units: weirgate_aggregator::HOT_UNITS,
    }
}

fn parse_and_plan(id: &str, name: &str, event: &str, memory: Memory) -> [Row; 2] {
    let config = config();
    let once = || {
        let batch = parse::records(black_box(event)).expect("an event");
        assert!(batch.undecodable.is_empty() && batch.skipped == 0);
        let read = batch.records.len();
        let shards = plan::shards(batch.records);
        let writes = plan::writes(&shards, &config, LATER).len();
        black_box(writes);
        read
    };
    (memory.reset)();
    let before = (memory.current)();
    let records = once();
    let used = (memory.peak)().saturating_sub(before) + event.len();
    let rounds = (5_000 / records).max(1);
    let a_second = |_| {
        let started = Instant::now();
        for _ in 0..rounds {
            once();
        }
        size(rounds * records) / started.elapsed().as_secs_f64()
    };
    // The best of some short runs: others use the machine too.
    let rates = [(); ROUNDS].map(|()| (0..8).map(a_second).fold(0.0, f64::max));
    let what = format!("parse and plan, one core, {name}");
    [
        Row::new(
            format!("aggregator/{id}/records"),
            format!("{what}: records"),
            Unit::PerSecond,
            &rates,
        )
        .at_least(150_000.0),
        Row::new(
            format!("aggregator/{id}/memory"),
            format!("{what}: memory beside the event"),
            Unit::Times,
            &[size(used) / size(event.len())],
        )
        .at_most(3.0)
        .within(5.0),
    ]
}

fn size(number: usize) -> f64 {
    count(u64::try_from(number).unwrap_or(u64::MAX))
}

/// When a batch is delivered.
const LATER: EpochMillis = BATCH_START.plus(Millis(60_000));

/// What one of the two aggregators took for the batch.
#[derive(Debug, Deserialize)]
struct Handled {
    seconds: f64,
    units: f64,
    requests: f64,
}

/// The acquires of the batch, made by each client on its own table, and handled by its own
/// aggregator from its own stream records.
async fn beside_the_peer() -> Vec<Row> {
    let ((buckets, acquires), mut ours, mut theirs) = (BATCH, vec![], vec![]);
    let (dynamo, records) = batch(buckets, acquires).await;
    let endpoint = serve(&dynamo);
    let table = connected(&endpoint).await.1;
    let mut peer = Peer::new(&dynamo, &endpoint).await;
    for _ in 0..ROUNDS {
        ours.push(handled(&dynamo, &records, &table).await);
        theirs.push(peer.process.ask::<Handled>("").await);
    }
    let what = format!("aggregator over HTTP, {acquires} acquires on {buckets} buckets");
    let row = |id: &str, text: &str, unit, values: &dyn Fn(usize) -> f64| {
        let values: [f64; ROUNDS] = std::array::from_fn(values);
        Row::new(
            format!("aggregator/{id}"),
            format!("{what}: {text}"),
            unit,
            &values,
        )
    };
    vec![
        row("ratio", "beside that of zae-limiter", Unit::Times, &|at| {
            theirs[at].seconds / ours[at].seconds
        })
        .at_least(75.0),
        row("units", "write units", Unit::WriteUnits, &|at| {
            ours[at].units
        })
        .at_most(14.0),
        row(
            "peer-units",
            "write units of zae-limiter",
            Unit::WriteUnits,
            &|at| theirs[at].units,
        )
        .shown(),
        row("requests", "requests", Unit::Requests, &|at| {
            ours[at].requests
        }),
        row(
            "peer-requests",
            "requests of zae-limiter",
            Unit::Requests,
            &|at| theirs[at].requests,
        )
        .shown(),
        row("time", "time", Unit::Seconds, &|at| ours[at].seconds).shown(),
        row("peer-time", "time of zae-limiter", Unit::Seconds, &|at| {
            theirs[at].seconds
        })
        .shown(),
    ]
}

/// The driver of the peer's aggregator.
struct Peer {
    process: peer::Process,
}

impl Peer {
    /// Has the peer make the acquires, and gives its driver the records that its stream has of
    /// them.
    async fn new(dynamo: &Dynamo, endpoint: &str) -> Self {
        let mut process = peer::Process::start(&[endpoint, "aggregator"]).await;
        let mut stream = StreamReader::after(dynamo.db(), "peer-aggregator", 0);
        let _ = next_records(&mut stream);
        let _: String = process.ask("acquire").await;
        let records = next_records(&mut stream);
        let _: String = process.ask(&Value::from(records).to_string()).await;
        let mut peer = Self { process };
        // The first one opens a connection and creates the snapshots.
        let _: Handled = peer.process.ask("").await;
        peer
    }
}

fn next_records(stream: &mut StreamReader) -> Vec<Value> {
    let mut records = vec![];
    loop {
        let found = stream.read(1_000).expect("the stream is readable");
        if found.is_empty() {
            return records;
        }
        let value = |record| serde_json::to_value(record).expect("a record is JSON");
        records.extend(found.iter().map(value));
    }
}

/// The median time of some batches, and what one costs.
async fn handled(dynamo: &Dynamo, records: &[Value], table: &Table) -> Handled {
    let (event, meter) = (event(records), CapacityMeter::default());
    // Reporting capacity makes answers larger, so the batch that is metered is not timed.
    let metered = table.clone().with_meter(meter.clone());
    let _ = handle_once(dynamo, records, &event, &metered).await;
    let consumed = meter.take();
    let mut times = vec![];
    for _ in 0..BATCHES {
        times.push(handle_once(dynamo, records, &event, table).await);
    }
    Handled {
        seconds: median(times),
        units: consumed.total,
        requests: count(consumed.requests),
    }
}

async fn handle_once(dynamo: &Dynamo, records: &[Value], event: &str, table: &Table) -> Duration {
    // As they were when the batch arrived, so that each round finds the same to refill.
    for record in records {
        dynamo.put(&record["dynamodb"]["NewImage"]);
    }
    let invocation = Invocation {
        now: LATER,
        deadline: tokio::time::Instant::now() + Duration::from_secs(60),
    };
    let started = Instant::now();
    let handled = handle(event, table, &config(), invocation).await;
    let took = started.elapsed();
    assert_eq!(handled.expect("an event").summary.failed, 0);
    took
}
