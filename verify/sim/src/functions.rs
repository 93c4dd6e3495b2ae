//! The functions as Lambda runs them: the stream's event source mapping, its failure file, and the
//! schedule.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use weirgate_aggregator::execute::Throttles;
use weirgate_aggregator::replay::{Options, Replay};
use weirgate_aggregator::{Invocation, LogBudget};
use weirgate_reconciler::Deadline;
use weirgate_store::Table;
use weirgate_testkit::Dynamo;
use weirgate_testkit::batches::deployed;

use crate::cancel::{cancel_after, stall_after};
use crate::fault::{Event, Kind};
use crate::network::Network;
use crate::world::World;

/// The stream's event source mapping: its position, and the discarded batches.
#[derive(Debug)]
pub struct Mapping {
    world: World,
    /// Records that pass its filter.
    records: Vec<Value>,
    /// Number of stream records read.
    seen: usize,
    /// Index of the first record that was not processed successfully.
    next: usize,
    attempts: u32,
    /// No deliveries before this instant.
    until: Option<Instant>,
    /// Objects of the failure bucket.
    discarded: Vec<String>,
    /// What the function's process knows from its earlier events.
    throttles: Throttles,
}

impl Mapping {
    /// Returns a mapping that begins with the first record.
    pub fn new(world: &World) -> Self {
        let world = world.clone();
        Self {
            world,
            records: vec![],
            seen: 0,
            next: 0,
            attempts: 0,
            until: None,
            discarded: vec![],
            throttles: Throttles::default(),
        }
    }

    /// Delivers batches about every second until faults are over.
    pub async fn run(mut self) -> Self {
        while !self.world.are_faults_over() {
            let pause = self.world.rng().u64(200..1500);
            sleep(Duration::from_millis(pause)).await;
            self.deliver().await;
            if !self.discarded.is_empty() && self.world.threatens(Kind::Replayed) {
                let at = self.world.rng().usize(..self.discarded.len());
                let object = self.discarded[at].clone();
                self.replay(&object).await;
            }
        }
        self
    }

    /// Delivers all remaining records, and replays all discarded batches twice.
    pub async fn drain(&mut self) {
        self.until = None;
        loop {
            self.pull();
            if self.next == self.records.len() {
                break;
            }
            self.deliver().await;
        }
        for object in std::mem::take(&mut self.discarded) {
            for _ in 0..2 {
                self.replay(&object).await;
            }
        }
    }

    /// Begins with the oldest record again, as a mapping that is made again does.
    pub fn begin_again(&mut self) {
        (self.next, self.attempts) = (0, 0);
    }

    fn pull(&mut self) {
        let there = self.world.streamed();
        let is_ours =
            |record: &Value| record["dynamodb"]["Keys"]["SK"]["S"] == weirgate_shared::BUCKET_SK;
        self.records.extend(self.world.records(self.seen..there).into_iter().filter(is_ours));
        self.seen = there;
    }

    async fn deliver(&mut self) {
        self.pull();
        if self.world.strikes(Kind::StreamBegunAgain) {
            self.begin_again();
        }
        let there = self.records.len() - self.next;
        if there == 0 || self.until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.world.strikes(Kind::StreamDelayed) {
            let late = Duration::from_secs(self.world.rng().u64(20..200));
            self.until = Some(Instant::now() + late);
            return;
        }
        let size =
            if self.world.are_faults_over() { there } else { self.world.rng().usize(1..=there) };
        if self.attempts > 0 {
            self.world.count(Kind::Recut);
        }
        let event = event(&self.records[self.next..self.next + size]);
        let done = if self.world.strikes(Kind::FunctionTwice) {
            let (one, other) = tokio::join!(self.invoke(&event), self.invoke(&event));
            // Lambda gets only one of the two responses.
            if self.world.rng().bool() { one } else { other }
        } else {
            self.invoke(&event).await
        };
        let done = done.map_or(0, |failed| self.place(&failed, size));
        self.world.note(|| format!("delivered {size} from {}, {done} done", self.next));
        if (1..size).contains(&done) {
            self.world.count(Kind::PartialFailure);
        }
        self.attempts = if done == 0 { self.attempts + 1 } else { 0 };
        self.next += done;
        if done < size && self.world.strikes(Kind::Discarded) {
            let rest = self.next + self.world.rng().usize(1..=size - done);
            self.discarded.push(object(&self.records[self.next..rest]));
            self.world.note(|| format!("discarded {} to {rest}", self.next));
            self.next = rest;
            self.attempts = 0;
        }
        if self.next > 0 && self.world.strikes(Kind::DeliveredTwice) {
            let from = self.world.rng().usize(..self.next);
            let to = self.world.rng().usize(from..self.next);
            let again = self::event(&self.records[from..=to]);
            self.world.note(|| format!("delivered {from} to {to} again"));
            let _ = self.invoke(&again).await;
        }
    }

    /// Returns how many of the batch's records Lambda considers done: those before the first failed
    /// one.
    fn place(&self, failed: &[String], size: usize) -> usize {
        let batch = &self.records[self.next..self.next + size];
        let place = |number: &String| {
            let is_it = |record: &Value| record["dynamodb"]["SequenceNumber"] == number.as_str();
            batch.iter().position(is_it).unwrap_or_default()
        };
        failed.iter().map(place).min().unwrap_or(size)
    }

    /// Returns the failed records of a batch, or `None` if the function did not respond.
    async fn invoke(&self, event: &str) -> Option<Vec<String>> {
        let world = &self.world;
        let network = Network::new(world, "aggregator");
        let table = table(world, &network).await;
        let polls = world.threatens(Kind::FunctionKilled).then(|| world.rng().u32(1..30));
        let (left, known) = left(world, Duration::from_millis(100));
        let invocation = Invocation { now: table.skew().now(), deadline: Instant::now() + known };
        let config = aggregator();
        let handled = weirgate_aggregator::handle_next(
            event,
            &table,
            &config,
            &self.throttles,
            invocation,
            LogBudget::default(),
        );
        let handled = ended(
            world,
            &network,
            timeout(left, cancel_after(stall_after(handled, stall(world)), polls)).await,
        )?;
        let handled = handled.expect("the event is one");
        if handled.summary.copied > 0 {
            world.happened(Event::Copied);
        }
        let response = handled.response.ok()?;
        Some(
            response
                .batch_item_failures
                .into_iter()
                .filter_map(|failure| failure.item_identifier)
                .collect(),
        )
    }

    /// Replays an object of the failure bucket, as `weirgate replay` does.
    async fn replay(&self, object: &str) {
        let world = &self.world;
        let network = Network::new(world, "replay");
        let table = table(world, &network).await;
        let options = Options {
            ttl_days: deployed().snapshot_ttl_days,
            concurrency: 4,
            ..Options::default()
        };
        let polls = world.threatens(Kind::FunctionKilled).then(|| world.rng().u32(1..30));
        let done =
            cancel_after(Replay::new(&table, options).object("discarded", object), polls).await;
        match &done {
            Some(done) if done.left.is_empty() => world.count(Kind::Replayed),
            Some(_) => {}
            None => {
                world.count(Kind::FunctionKilled);
                network.kill();
            }
        }
        world.note(|| format!("replayed {done:?}"));
    }
}

fn event(records: &[Value]) -> String {
    json!({"Records": records}).to_string()
}

/// Returns what Lambda stores in the failure bucket for discarded records.
fn object(records: &[Value]) -> String {
    const STREAM: &str =
        "arn:aws:dynamodb:us-east-1:123456789012:table/weirgate/stream/2026-11-20T00:00:00.000";
    let mut records = records.to_vec();
    for record in &mut records {
        record["eventSourceARN"] = STREAM.into();
    }
    let context = json!({"condition": "RetryAttemptsExhausted", "approximateInvokeCount": 101});
    json!({"requestContext": context, "version": "1.0", "payload": event(&records)}).to_string()
}

fn aggregator() -> weirgate_aggregator::Config {
    weirgate_aggregator::Config {
        write_concurrency: 4,
        max_shards: 4,
        refill_writes: 1,
        ..deployed()
    }
}

/// Returns the table as a function's process reaches it, with a clock that may be slightly wrong.
async fn table(world: &World, network: &Network) -> Table {
    let clock = world.clock();
    if world.strikes(Kind::ClockSkewed) {
        clock.skew(world.rng().i64(-3000..3000));
    }
    Dynamo::reached_by(network.clone(), clock).await
}

/// Runs the reconciler on its schedule until the world calms down.
pub async fn schedule(world: World) {
    while !world.are_faults_over() {
        sleep(Duration::from_secs(20)).await;
        if world.strikes(Kind::ScheduleMissed) {
            continue;
        }
        if world.strikes(Kind::ScheduleTwice) {
            tokio::join!(reconcile(&world), reconcile(&world));
        } else {
            reconcile(&world).await;
        }
    }
}

/// Runs the reconciler once.
pub async fn reconcile(world: &World) {
    let network = Network::new(world, "reconciler");
    let table = table(world, &network).await;
    let polls = world.threatens(Kind::FunctionKilled).then(|| world.rng().u32(1..60));
    let (left, known) = left(world, Duration::from_secs(10));
    let config = weirgate_reconciler::Config { table_name: "weirgate".to_owned(), page: 100 };
    let clock = || table.skew().now();
    let run = weirgate_reconciler::reconcile(&table, &config, &clock, Deadline::after(known));
    match ended(
        world,
        &network,
        timeout(left, cancel_after(stall_after(run, stall(world)), polls)).await,
    ) {
        Some(Ok(summary)) => world.note(|| format!("reconciled {summary:?}")),
        Some(Err(error)) => world.note(|| format!("not reconciled: {error}")),
        None => {}
    }
}

/// Returns after how many polls a function stands still, and for how long, if it does.
fn stall(world: &World) -> Option<(u32, Duration)> {
    if !world.strikes(Kind::RunStalled) {
        return None;
    }
    let mut rng = world.operator_rng();
    Some((rng.u32(1..60), Duration::from_millis(rng.u64(1_000..50_000))))
}

/// Returns how long a function has, and how long it believes to have: sometimes at most `most`, and
/// less than it believes.
fn left(world: &World, most: Duration) -> (Duration, Duration) {
    const ALL: Duration = Duration::from_secs(60);
    let part = world.rng().f64();
    let believed = world.rng().f64();
    if world.threatens(Kind::FunctionTimedOut) {
        let left = most.mul_f64(part);
        (left, left.mul_f64(0.5 + believed))
    } else {
        (ALL, ALL)
    }
}

/// Returns a function's response, or `None` if it was killed or ran into its deadline.
fn ended<T>(world: &World, network: &Network, run: Result<Option<T>, Elapsed>) -> Option<T> {
    match run {
        Ok(Some(answer)) => return Some(answer),
        Ok(None) => world.count(Kind::FunctionKilled),
        Err(_) => world.count(Kind::FunctionTimedOut),
    }
    network.kill();
    None
}
