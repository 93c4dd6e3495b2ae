//! A table with its aggregator on virtual time, and what callers and aggregator consume.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weirgate::{Clock, EpochMillis, FakeClock, Prefetch, RateLimiter};
use weirgate_aggregator::{Invocation, handle};
use weirgate_store::{CapacityMeter, Table};
use weirgate_testkit::{Dynamo, batches};

/// 2026-11-20T18:59:00Z: an hour ends within the first minute, with its copies of usage.
const START: EpochMillis = EpochMillis(1_795_201_140_000);
/// What a write takes from a caller to DynamoDB and back.
const LATENCY: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// A table with its aggregator.
#[derive(Debug, Clone)]
pub struct Stack {
    clock: FakeClock,
    dynamo: Dynamo,
    of_callers: CapacityMeter,
    of_aggregator: CapacityMeter,
}

/// What was consumed.
#[derive(Debug, Default)]
pub struct Consumed {
    /// Requests of callers that were decided.
    pub requests: u64,
    /// Write units of callers.
    pub callers: f64,
    /// Write units of the aggregator.
    pub aggregator: f64,
    /// Read units of both.
    pub reads: f64,
    /// Calls of the aggregator: records, and how many calls had so many.
    pub calls: Vec<(u64, f64)>,
}

impl Consumed {
    /// Records of all calls.
    pub fn records(&self) -> u64 {
        self.calls.iter().map(|(records, _)| records).sum()
    }
}

impl Stack {
    /// Returns an empty one.
    pub async fn new() -> Self {
        fastrand::seed(1);
        let clock = FakeClock::at(START);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        Self {
            dynamo: dynamo.with_latency(LATENCY),
            clock,
            of_callers: CapacityMeter::default(),
            of_aggregator: CapacityMeter::default(),
        }
    }

    /// Returns the limiter of a process; the resource `ahead` has prefetched tokens.
    pub async fn process(&self) -> RateLimiter {
        let table = self.table(&self.of_callers).await;
        let builder = RateLimiter::builder("weirgate").table(table);
        let built = builder.prefetch("ahead", Prefetch::default()).build().await;
        built.expect("the settings are good")
    }

    async fn table(&self, meter: &CapacityMeter) -> Table {
        let table = self.dynamo.table_by(self.clock.clone()).await;
        table.with_meter(meter.clone())
    }

    /// Forgets what was consumed so far: connections, and the creation of buckets.
    pub async fn begin(&self) {
        let _ = self.aggregate().await;
        let _ = (self.of_callers.take(), self.of_aggregator.take());
    }

    /// Returns what `load` consumes, which says how many requests it made. The aggregator is called
    /// once a second, if there are records.
    pub async fn consumed(&self, load: impl Future<Output = u64>) -> Consumed {
        let (mut load, mut calls) = (std::pin::pin!(load), vec![]);
        let mut next = Instant::now() + SECOND;
        let requests = loop {
            tokio::select! {
                requests = &mut load => break requests,
                () = tokio::time::sleep_until(next) => {
                    next += SECOND;
                    calls.extend(self.aggregate().await);
                }
            }
        };
        // What is under way arrives, and is counted.
        sleep(2 * SECOND).await;
        calls.extend(self.aggregate().await);
        let (callers, aggregator) = (self.of_callers.take(), self.of_aggregator.take());
        Consumed {
            requests,
            callers: callers.total,
            aggregator: aggregator.total,
            reads: callers.read + aggregator.read,
            calls: calls.into_iter().map(|records| (records, 1.0)).collect(),
        }
    }

    /// One call of the aggregator, as it is deployed. Returns its records, if there are some.
    async fn aggregate(&self) -> Option<u64> {
        let now = self.clock.now();
        let records = batches::stream(&self.dynamo, now);
        if records.is_empty() {
            return None;
        }
        let invocation = Invocation { now, deadline: Instant::now() + 60 * SECOND };
        let table = self.table(&self.of_aggregator).await;
        let handled =
            handle(&batches::event(&records), &table, &batches::deployed(), invocation).await;
        let summary = handled.expect("an event").summary;
        assert_eq!((summary.undecodable, summary.failed, summary.refused), (0, 0, 0));
        u64::try_from(records.len()).ok()
    }
}
