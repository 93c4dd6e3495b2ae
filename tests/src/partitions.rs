//! What a partition of DynamoDB takes: the embedded database, throttled by key, on the runtime's clock, from a seed.
//!
//! Every partition key of the table is a partition of its own with a balance of write units, which refills at a rate up
//! to a burst. A write to a partition with less than one unit left is refused and changes nothing. Any other is applied,
//! and what it costs is taken from the balance, which may go below zero. A transaction with a part in such a partition is
//! cancelled, at no cost. Not modelled: the partitions of secondary indexes, the limit of reads (they pass, and are
//! counted), the limits of the table and the account, and that DynamoDB lets keys share a partition and splits one that
//! stays hot.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{RangeInclusive, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::config::{HttpClient, RuntimeComponents};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use weirgate_store::{Meter, Table};

use crate::dynamo::{Dynamo, Request, TRANSACTION, cancelled, table, throttled};

/// What partitions take, and how long answers take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Write units that flow into a partition's balance each second.
    pub units_per_second: u32,
    /// The most write units a balance holds, and what it begins with.
    pub burst: u32,
    /// A request takes as long as is drawn from here, to the microsecond; the timer rounds it up to whole milliseconds.
    /// It arrives after half of it.
    pub latency: RangeInclusive<Duration>,
}

impl Default for Limits {
    /// DynamoDB's 1,000 units a second, a second's worth of burst, and answers within 3 to 9 milliseconds.
    fn default() -> Self {
        let latency = Duration::from_millis(3)..=Duration::from_millis(9);
        Self { units_per_second: 1000, burst: 1000, latency }
    }
}

/// What arrived, and what became of it. The difference of two counts is what arrived between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of any kind.
    pub requests: u64,
    /// Those of them that write; a transaction is one.
    pub writes: u64,
    /// Writes that were refused because a partition of theirs was spent.
    pub throttled: u64,
    /// Write units of the table, without its indexes.
    pub units: u64,
}

impl Counts {
    /// Throttled writes among all writes, 0 to 1; 0 if there were none.
    #[must_use]
    pub fn throttled_share(&self) -> f64 {
        let count = |writes| f64::from(u32::try_from(writes).unwrap_or(u32::MAX));
        if self.writes == 0 { 0.0 } else { count(self.throttled) / count(self.writes) }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            throttled: self.throttled - before.throttled,
            units: self.units - before.units,
        }
    }
}

/// A [`Dynamo`] behind partitions with limits. Clones share both. Faults of the database stand in front: a request that
/// is lost on its way costs nothing, one whose answer is lost costs what it did.
///
/// Runs are the same for the same seed if their callers are: pauses before a second attempt are drawn from the thread's
/// `fastrand`, which a test that has some must seed too.
#[derive(Debug, Clone)]
pub struct Partitions {
    dynamo: Dynamo,
    limits: Limits,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    rng: fastrand::Rng,
    started: Instant,
    partitions: BTreeMap<String, Partition>,
    total: Counts,
    seconds: BTreeMap<u64, Counts>,
    /// Tokens of the transactions that happened: to ask for one again writes nothing.
    tokens: BTreeSet<String>,
}

#[derive(Debug)]
struct Partition {
    /// In billionths of a unit, so that what flows in is exact.
    balance: i128,
    at: Instant,
    counts: Counts,
}

const BILLION: i128 = 1_000_000_000;

/// An item that a request writes.
struct Target<'a> {
    pk: &'a str,
    sk: &'a str,
}

impl Partitions {
    /// Partitions with these limits before the database. Their time begins now, their latencies come from `seed`.
    #[must_use]
    pub fn over(dynamo: Dynamo, limits: Limits, seed: u64) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(seed),
            started: Instant::now(),
            partitions: BTreeMap::new(),
            total: Counts::default(),
            seconds: BTreeMap::new(),
            tokens: BTreeSet::new(),
        };
        Self { dynamo, limits, state: Arc::new(Mutex::new(state)) }
    }

    /// The table behind its partitions.
    pub async fn table(&self) -> Table {
        table(self.clone(), self.dynamo.clock()).await
    }

    /// The table behind its partitions, with a meter of what it consumes.
    pub async fn metered(&self) -> (Table, Meter) {
        let meter = Meter::default();
        (self.table().await.with_meter(meter.clone()), meter)
    }

    /// What arrived so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state().total
    }

    /// What arrived in each second since the partitions' time began; a second in which nothing did is not there.
    #[must_use]
    pub fn seconds(&self) -> BTreeMap<u64, Counts> {
        self.state().seconds.clone()
    }

    /// What arrived so far at one partition; of a transaction, the units of its items there.
    #[must_use]
    pub fn partition(&self, pk: &str) -> Counts {
        self.state().partitions.get(pk).map(|partition| partition.counts).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the next request takes.
    fn latency(&self) -> Duration {
        let micros = |span: &Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let (least, most) = (micros(self.limits.latency.start()), micros(self.limits.latency.end()));
        Duration::from_micros(self.state().rng.u64(least..=most.max(least)))
    }

    /// Runs a request that has arrived.
    fn run(&self, operation: &str, request: &Value) -> (u16, String) {
        let targets = targets(operation, request);
        let spent = self.state().arrive(&targets, &self.limits);
        if targets.is_empty() {
            return self.dynamo.run(operation, request);
        }
        let token = request["ClientRequestToken"].as_str().unwrap_or_default();
        if spent.contains(&true) && !self.state().tokens.contains(token) {
            self.state().refuse(&targets, &spent);
            if operation != TRANSACTION {
                return throttled(true);
            }
            let codes: Vec<_> = spent.iter().map(|spent| if *spent { "ThrottlingError" } else { "None" }).collect();
            return cancelled(&codes);
        }
        let mut request = request.clone();
        request["ReturnConsumedCapacity"] = "INDEXES".into();
        if operation == TRANSACTION {
            return self.transact(&targets, &request, token);
        }
        let (status, body) = self.dynamo.run(operation, &request);
        let answer = serde_json::from_str(&body).expect("an answer is JSON");
        let units = match status {
            200 => reported(&answer),
            _ if is(&answer, "ConditionalCheckFailedException") => match &answer["Item"] {
                Value::Null => self.units(&targets[0]),
                item => units(item),
            },
            _ => 0,
        };
        self.state().charge(targets[0].pk, units);
        (status, body)
    }

    /// DynamoDB reports what a transaction costs the table, and here it must be known of each item: two units for each
    /// KB of it, as it was or as it is, whichever is larger, and as it was if the transaction is cancelled. One that
    /// was asked for again costs reads.
    fn transact(&self, targets: &[Target<'_>], request: &Value, token: &str) -> (u16, String) {
        let before: Vec<_> = targets.iter().map(|target| self.units(target)).collect();
        let (status, body) = self.dynamo.run(TRANSACTION, request);
        let answer: Value = serde_json::from_str(&body).expect("an answer is JSON");
        let is_again = answer["ConsumedCapacity"][0]["ReadCapacityUnits"].is_number();
        if (status == 200 && !is_again) || is(&answer, "TransactionCanceledException") {
            for (target, before) in targets.iter().zip(before) {
                let units = if status == 200 { before.max(self.units(target)) } else { before };
                self.state().charge(target.pk, 2 * units);
            }
        }
        if status == 200 {
            self.state().tokens.insert(token.to_owned());
        }
        (status, body)
    }

    /// What a write costs that leaves the item as it is.
    fn units(&self, target: &Target<'_>) -> u64 {
        units(&self.dynamo.item(target.pk, target.sk))
    }
}

impl State {
    /// Counts a request, fills up the partitions it writes to, and says of each item whether its partition is spent.
    fn arrive(&mut self, targets: &[Target<'_>], limits: &Limits) -> Vec<bool> {
        let now = Instant::now();
        let full = i128::from(limits.burst) * BILLION;
        let is_write = u64::from(!targets.is_empty());
        self.count(|counts| {
            counts.requests += 1;
            counts.writes += is_write;
        });
        let pks: BTreeSet<_> = targets.iter().map(|target| target.pk).collect();
        for pk in pks {
            let fresh = || Partition { balance: full, at: now, counts: Counts::default() };
            let partition = self.partitions.entry(pk.to_owned()).or_insert_with(fresh);
            let passed = i128::try_from(now.duration_since(partition.at).as_nanos()).unwrap_or(i128::MAX);
            let flowed = passed.saturating_mul(i128::from(limits.units_per_second));
            partition.balance = partition.balance.saturating_add(flowed).min(full);
            partition.at = now;
            partition.counts.requests += 1;
            partition.counts.writes += 1;
        }
        targets.iter().map(|target| self.partitions[target.pk].balance < BILLION).collect()
    }

    fn refuse(&mut self, targets: &[Target<'_>], spent: &[bool]) {
        self.count(|counts| counts.throttled += 1);
        let spent: BTreeSet<_> = targets.iter().zip(spent).filter(|(_, spent)| **spent).map(|(at, _)| at.pk).collect();
        for pk in spent {
            self.partitions.get_mut(pk).expect("the write has arrived there").counts.throttled += 1;
        }
    }

    fn charge(&mut self, pk: &str, units: u64) {
        self.count(|counts| counts.units += units);
        let partition = self.partitions.get_mut(pk).expect("the write has arrived there");
        partition.balance -= i128::from(units) * BILLION;
        partition.counts.units += units;
    }

    fn count(&mut self, count: impl Fn(&mut Counts)) {
        let second = Instant::now().duration_since(self.started).as_secs();
        count(&mut self.total);
        count(self.seconds.entry(second).or_default());
    }
}

/// The items that a request writes or, in a transaction, checks; none if it only reads.
fn targets<'a>(operation: &str, request: &'a Value) -> Vec<Target<'a>> {
    let target = |key: &'a Value| Target {
        pk: key["PK"]["S"].as_str().expect("a partition key is text"),
        sk: key["SK"]["S"].as_str().expect("a sort key is text"),
    };
    match operation {
        "UpdateItem" | "DeleteItem" => vec![target(&request["Key"])],
        "PutItem" => vec![target(&request["Item"])],
        TRANSACTION => {
            let actions = request["TransactItems"].as_array().map(Vec::as_slice).unwrap_or_default();
            let actions = actions.iter().flat_map(|action| action.as_object().into_iter().flat_map(|of| of.values()));
            actions.map(|action| target(action.get("Key").unwrap_or_else(|| &action["Item"]))).collect()
        }
        _ => vec![],
    }
}

/// Write units that the answer reports of the table's own item.
fn reported(answer: &Value) -> u64 {
    // Whole numbers, written as floats.
    let units = answer["ConsumedCapacity"]["Table"]["CapacityUnits"].as_f64();
    units.and_then(|units| units.to_string().parse().ok()).expect("a write that was applied reports whole units")
}

/// A unit for each KB begun of an item, one if there is none.
fn units(item: &Value) -> u64 {
    let item = if item.is_null() { json!({}) } else { item.clone() };
    let item: dynoxide::Item = serde_json::from_value(item).expect("an item is DynamoDB JSON");
    u64::try_from(dynoxide::types::item_size(&item).div_ceil(1024)).unwrap_or(u64::MAX).max(1)
}

fn is(answer: &Value, kind: &str) -> bool {
    answer["__type"].as_str().is_some_and(|name| name.ends_with(kind))
}

impl HttpClient for Partitions {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Partitions {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (partitions, latency, request) = (self.clone(), self.latency(), Request::read(&request));
        HttpConnectorFuture::new(async move {
            let sent = Instant::now();
            sleep_until(sent + latency / 2).await;
            let answer = partitions.dynamo.answer(&request, || partitions.run(&request.operation, &request.body));
            sleep_until(sent + latency).await;
            answer
        })
    }
}
