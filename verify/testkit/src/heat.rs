//! A hot bucket on virtual time: clients against partitions with limits, with the aggregator and the reconciler beside them as Lambda runs them.

mod caller;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirgate::{Clock, FakeClock, Limit, RateLimiter, Window};
use weirgate_aggregator::Invocation;
use weirgate_reconciler::Deadline;
use weirgate_shared::{EpochMillis, MilliTokens, ShardIndex, refill_between};
use weirgate_store::Table;

pub use caller::Arrivals;

use caller::Caller;

use crate::batches::deployed;
use crate::{Counts, Dynamo, Limits, Partitions};

/// Calls a second of a quiet bucket.
pub const QUIET: u32 = 1;
/// Ten minutes after an hour began, so that all usage of a run is counted for that hour.
const START: EpochMillis = EpochMillis(1_795_198_200_000);
/// Entity of the hot bucket.
const HOT: &str = "openai";
/// How often Lambda calls the aggregator: the template's batch window.
const BATCH: Duration = Duration::from_secs(1);

/// The callers, and how often they call.
#[derive(Debug, Clone)]
pub struct Load {
    /// Clients, each a process of its own.
    pub clients: u32,
    /// Calls that all of them begin in a second, if none takes too long.
    pub calls_per_second: f64,
    /// How the calls of each client follow each other.
    pub arrivals: Arrivals,
    /// For how long.
    pub lasts: Duration,
    /// The limit, by the name `rpm`, of which each call takes one.
    pub limit: Limit,
    /// Other buckets with this limit, each with a client of its own that makes [`QUIET`] call a
    /// second.
    pub quiet: u32,
    /// Shards before the load begins.
    pub shards: u32,
    /// What partitions take.
    pub partitions: Limits,
    /// The load ends once there are so many shards.
    pub enough: u32,
    /// Of latencies, and of the clients' choices.
    pub seed: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Report {
    /// Requests of each second of the load, in order.
    pub seconds: Vec<Counts>,
    /// Items of the bucket at the end of each second.
    pub shards: Vec<u32>,
    /// Items that the quiet buckets were split into, beyond one each, at the end of each second.
    pub quiet_splits: Vec<u32>,
    /// Calls granted.
    pub granted: u64,
    /// Calls denied.
    pub denied: u64,
    /// Writes that the clients sent.
    pub writes: u64,
    /// Calls that ended with an error, as those not decided in time.
    pub failed: u64,
    /// What the limit entitled to from the first call to the last answer, in millitokens.
    pub entitled: MilliTokens,
    /// Items of the bucket after each run of the reconciler after the load.
    pub cooled: Vec<u32>,
    /// Acquires and tokens that the hour's usage has, as a reader sees it.
    pub counted: (u64, MilliTokens),
    /// Calls of the aggregator that had to leave records for the next one.
    pub failed_batches: u32,
    /// Partitions that the keys of the table share at the end.
    pub partitions: u64,
    /// Calls of the clients of quiet buckets, and the writes that these sent.
    pub quiet: (u64, u64),
}

impl Report {
    /// Throttled writes among all writes from one second (inclusive) to another, 0 to 1.
    pub fn throttled_share(&self, from: usize, to: usize) -> f64 {
        let mut all = Counts::default();
        for second in self.seconds.iter().take(to).skip(from) {
            all.writes += second.writes;
            all.throttled += second.throttled;
        }
        all.throttled_share()
    }
}

/// Runs the load, lets it cool for `cooling` runs of the reconciler, and reports. The runtime's
/// time must be paused.
pub async fn run(load: &Load, cooling: usize) -> Report {
    fastrand::seed(load.seed);
    let clock = FakeClock::at(START);
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let partitions = Partitions::over(dynamo.clone(), load.partitions.clone(), load.seed);
    let table = partitions.table().await;
    let limits: Arc<[Limit]> = Arc::new([load.limit.clone()]);
    let limiter = |table: &Table| RateLimiter::builder("weirgate").table(table.clone()).build();
    if load.shards > 1 {
        let operator = limiter(&dynamo.table().await).await.expect("the settings are good");
        operator
            .admin()
            .set_shards(HOT, "gpt-4", &limits, load.shards)
            .await
            .expect("the bucket is split");
    }
    let units = load.partitions.units_per_second;
    let mut functions = Functions::new(table.clone(), dynamo.clone(), clock.clone(), units);
    let is_over = Arc::new(AtomicBool::new(false));
    let (began, from) = (Instant::now(), clock.now());
    let mut clients = JoinSet::new();
    let pause = Duration::from_secs_f64(f64::from(load.clients) / load.calls_per_second);
    for client in 0..load.clients {
        let caller = Caller {
            entity: HOT.to_owned(),
            limiter: limiter(&table).await.expect("the settings are good"),
            limits: Arc::clone(&limits),
            arrivals: load.arrivals,
            pause,
            until: began + load.lasts,
            is_over: Arc::clone(&is_over),
        };
        clients.spawn(caller.run(began + pause * client / load.clients));
    }
    let mut others = JoinSet::new();
    for at in 0..load.quiet {
        let pause = Duration::from_secs(1) / QUIET;
        let caller = Caller {
            entity: format!("quiet-{at}"),
            limiter: limiter(&table).await.expect("the settings are good"),
            limits: Arc::clone(&limits),
            arrivals: Arrivals::Even,
            pause,
            until: began + load.lasts,
            is_over: Arc::clone(&is_over),
        };
        others.spawn(caller.run(began + pause * at / load.quiet));
    }
    let mut report = Report::default();
    for second in 1..=load.lasts.as_secs() {
        sleep_until(began + Duration::from_secs(second)).await;
        functions.aggregate().await;
        let (hot, quiet) = functions.shards();
        report.shards.push(hot);
        report.quiet_splits.push(quiet);
        if report.shards.last() >= Some(&load.enough) {
            is_over.store(true, Ordering::Relaxed);
            break;
        }
        if second % 60 == 0 {
            functions.reconcile().await;
        }
    }
    for seen in clients.join_all().await {
        report.granted += seen.granted;
        report.denied += seen.denied;
        report.failed += seen.failed;
        report.writes += seen.writes;
    }
    for seen in others.join_all().await {
        report.quiet.0 += seen.granted + seen.denied + seen.failed;
        report.quiet.1 += seen.writes;
    }
    report.partitions = partitions.shared();
    let rule = load.limit.rule();
    report.entitled = rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, from, clock.now());
    let requests = partitions.seconds();
    report.seconds = (0..)
        .zip(&report.shards)
        .map(|(at, _)| requests.get(&at).copied().unwrap_or_default())
        .collect();
    functions.aggregate().await;
    for _ in 0..cooling {
        sleep(Duration::from_secs(60)).await;
        functions.reconcile().await;
        functions.aggregate().await;
        report.cooled.push(functions.shards().0);
    }
    report.counted = functions.used().await;
    report.failed_batches = functions.failed;
    report
}

/// Aggregator and reconciler of a table, as Lambda runs them.
#[derive(Debug)]
pub struct Functions {
    table: Table,
    clock: FakeClock,
    dynamo: Dynamo,
    /// Records that must come again.
    left: Vec<Value>,
    failed: u32,
    hot_units: i64,
}

impl Functions {
    /// The functions of a table whose partitions take so many write units a second.
    pub fn new(table: Table, dynamo: Dynamo, clock: FakeClock, units_per_second: u32) -> Self {
        Self {
            table,
            clock,
            dynamo,
            left: vec![],
            failed: 0,
            // The same share of what a partition takes as deployed.
            hot_units: weirgate_aggregator::HOT_UNITS * i64::from(units_per_second) / 1_000,
        }
    }

    /// Calls the aggregator with what the stream has.
    pub async fn aggregate(&mut self) {
        self.left.extend(self.dynamo.stream());
        let config = weirgate_aggregator::Config { hot_units: self.hot_units, ..deployed() };
        while !self.left.is_empty() {
            let batch = self.left.len().min(10_000);
            let created = json!(
                self.clock.now().0 / 1000 - i64::try_from(BATCH.as_secs()).unwrap_or_default()
            );
            for record in &mut self.left[..batch] {
                // The database stamps records with the machine's time.
                record["dynamodb"]["ApproximateCreationDateTime"] = created.clone();
            }
            let event = json!({"Records": self.left[..batch]}).to_string();
            let invocation = Invocation {
                now: self.clock.now(),
                deadline: Instant::now() + Duration::from_secs(60),
            };
            let handled =
                weirgate_aggregator::handle(&event, &self.table, &config, invocation).await;
            let response = handled.expect("an event").response.expect("the table is there");
            let first = response.batch_item_failures.iter().filter_map(|failure| {
                let is_it = |record: &Value| {
                    record["dynamodb"]["SequenceNumber"]
                        == failure.item_identifier.as_deref().unwrap_or_default()
                };
                self.left.iter().position(is_it)
            });
            match first.min() {
                Some(first) => {
                    self.failed += 1;
                    self.left.drain(..first);
                    return;
                }
                None => drop(self.left.drain(..batch)),
            }
        }
    }

    async fn reconcile(&self) {
        let config = weirgate_reconciler::Config { table_name: "weirgate".to_owned(), page: 100 };
        let deadline = Deadline::after(Duration::from_secs(60));
        weirgate_reconciler::reconcile(&self.table, &config, &|| self.clock.now(), deadline)
            .await
            .expect("a summary");
    }

    /// Live shards of the hot bucket, and those of the quiet ones beyond one each.
    fn shards(&self) -> (u32, u32) {
        let items = self.dynamo.items();
        let is_live = |item: &&Value| item["SK"]["S"] == "#STATE" && item["rf"].is_object();
        let is_hot = |item: &&Value| {
            let pk = item["PK"]["S"].as_str();
            pk.is_some_and(|pk| pk.starts_with(&format!("default/BUCKET#{HOT}#")))
        };
        let (hot, mut quiet): (Vec<_>, Vec<_>) = items.iter().filter(is_live).partition(is_hot);
        quiet.retain(|item| item["PK"]["S"].as_str().is_some_and(|pk| !pk.ends_with("#0")));
        let count = |of: Vec<_>| u32::try_from(of.len()).unwrap_or(u32::MAX);
        (count(hot), count(quiet))
    }

    /// What was used in the hour of the load.
    async fn used(&self) -> (u64, MilliTokens) {
        let reader =
            RateLimiter::builder("weirgate").table(self.dynamo.table().await).build().await;
        let reader = reader.expect("the settings are good");
        let used =
            reader.usage(HOT, "gpt-4", Window::Hourly, START).await.expect("usage is read").usage;
        (
            u64::try_from(used.acquires).unwrap_or_default(),
            used.tokens.get("rpm").copied().unwrap_or_default().bounded(),
        )
    }
}
