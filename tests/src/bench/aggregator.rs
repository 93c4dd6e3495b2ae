//! The aggregator: parse and plan alone, and whole batches against a DynamoDB behind HTTP,
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
use weirgate_testkit::batches::{BATCH_START, batch, deployed, event};
use weirgate_testkit::server::serve;

use super::harness::connected;
use super::harness::median;
use super::rivals::peer;
use super::row::Rounds;
use crate::number::count;

/// Buckets and records of the batch that the peer handles too.
const BATCH: (usize, usize) = (14, 100);
const ROUNDS: usize = 5;
/// Batches of ours in a round, which has one of the peer.
const BATCHES: usize = 10;

/// Returns the aggregator's rows.
pub async fn rows() -> Vec<Rounds> {
    let mut rows = beside_the_peer().await;
    for (load, buckets, records) in [("few", 14, 100), ("hot", 14, 1_000), ("many", 1_000, 1_000)] {
        let event = event(&batch(buckets, records).await.1);
        rows.push(parse_and_plan(load, &event));
    }
    rows.push(parse_and_plan("hour", &an_hour_ends().await));
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
    Config { refill_writes: 1, ..deployed() }
}

fn parse_and_plan(load: &str, event: &str) -> Rounds {
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
    let records = once();
    let rounds = (5_000 / records).max(1);
    let a_second = |_| {
        let started = Instant::now();
        for _ in 0..rounds {
            once();
        }
        let read = u64::try_from(rounds * records).expect("few records");
        count(read) / started.elapsed().as_secs_f64()
    };
    // The best of some short runs: others use the machine too.
    let rates = [(); ROUNDS].map(|()| (0..8).map(a_second).fold(0.0, f64::max));
    (format!("aggregator/{load}/records"), rates.into())
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
async fn beside_the_peer() -> Vec<Rounds> {
    let ((buckets, acquires), mut ours, mut theirs) = (BATCH, vec![], vec![]);
    let (dynamo, records) = batch(buckets, acquires).await;
    let endpoint = serve(&dynamo);
    let table = connected(&endpoint).await.1;
    let mut peer = peer_with_records(&dynamo, &endpoint).await;
    for _ in 0..ROUNDS {
        ours.push(handled(&dynamo, &records, &table).await);
        theirs.push(peer.ask::<Handled>("").await);
    }
    let row = |id: &str, values: &dyn Fn(&Handled, &Handled) -> f64| {
        let rounds = ours.iter().zip(&theirs);
        let values = rounds.map(|(ours, theirs)| values(ours, theirs)).collect();
        (format!("aggregator/{id}"), values)
    };
    vec![
        row("ratio", &|ours, theirs| theirs.seconds / ours.seconds),
        row("units", &|ours, _| ours.units),
        row("peer-units", &|_, theirs| theirs.units),
        row("requests", &|ours, _| ours.requests),
        row("peer-requests", &|_, theirs| theirs.requests),
        row("time", &|ours, _| ours.seconds),
        row("peer-time", &|_, theirs| theirs.seconds),
    ]
}

/// Has the peer make the acquires, and returns its driver with the records that its stream has of them.
async fn peer_with_records(dynamo: &Dynamo, endpoint: &str) -> peer::Process {
    let mut peer = peer::Process::start(&[endpoint, "aggregator"]).await;
    let mut stream = StreamReader::after(dynamo.db(), "peer-aggregator", 0);
    let _ = next_records(&mut stream);
    let _: String = peer.ask("acquire").await;
    let records = next_records(&mut stream);
    let _: String = peer.ask(&Value::from(records).to_string()).await;
    // The first one opens a connection and creates the snapshots.
    let _: Handled = peer.ask("").await;
    peer
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
    Handled { seconds: median(times), units: consumed.total, requests: count(consumed.requests) }
}

async fn handle_once(dynamo: &Dynamo, records: &[Value], event: &str, table: &Table) -> Duration {
    // As they were when the batch arrived, so that each round finds the same to refill.
    for record in records {
        dynamo.put(&record["dynamodb"]["NewImage"]);
    }
    let invocation =
        Invocation { now: LATER, deadline: tokio::time::Instant::now() + Duration::from_secs(60) };
    let started = Instant::now();
    let handled = handle(event, table, &config(), invocation).await;
    let took = started.elapsed();
    assert_eq!(handled.expect("an event").summary.failed, 0);
    took
}
