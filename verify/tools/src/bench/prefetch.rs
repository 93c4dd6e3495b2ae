//! The client with prefetched tokens: how long an acquire from memory takes, and what it costs at
//! a steady load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use weirgate::{Limit, Prefetch, RateLimiter};
use weirgate_store::CapacityMeter;
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::harness::{connected, far_limits};
use super::row::Row;
use crate::number::Unit;
use crate::number::count;

const ROUNDS: usize = 5;
const ACQUIRES: u32 = 200_000;
const STEADY: Duration = Duration::from_secs(3);

/// Returns the rows of prefetched tokens.
///
/// # Panics
/// If DynamoDB fails.
pub async fn rows() -> Vec<Row> {
    let mut rows = from_memory().await;
    rows.push(steady().await);
    rows
}

async fn limiter(dynamo: &Dynamo) -> (RateLimiter, CapacityMeter) {
    let ((_, table), meter) = (connected(&serve(dynamo)).await, CapacityMeter::default());
    let builder = RateLimiter::builder("weirgate").table(table.with_meter(meter.clone()));
    let built = builder.prefetch("gpt-4", Prefetch::default()).build().await;
    (built.expect("the settings are good"), meter)
}

async fn acquire(limiter: &RateLimiter, limits: &Arc<[Limit]>) {
    let acquire = limiter.acquire("openai", "gpt-4").shared_limits(limits);
    let decision = acquire.take("rpm", 1).take("tpm", 500).send().await;
    assert!(decision.expect("a decision").is_granted());
}

/// One caller that sends its next request as soon as it gets a response.
async fn from_memory() -> Vec<Row> {
    let dynamo = Dynamo::new().await;
    let (limiter, _) = limiter(&dynamo).await;
    let limits = far_limits();
    let (mut p50, mut p99) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let mut times = Vec::new();
        for _ in 0..ACQUIRES {
            let asked = Instant::now();
            acquire(&limiter, &limits).await;
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        let percentile = |percent: usize| times[times.len() * percent / 100].as_secs_f64();
        p50.push(percentile(50));
        p99.push(percentile(99));
    }
    limiter.shutdown().await.expect("everything goes back");
    let what = "acquire of 2 limits from prefetched tokens";
    vec![
        Row::new("prefetch/p99", format!("{what}: p99"), Unit::Seconds, &p99).at_most(2e-6),
        Row::new("prefetch/p50", format!("{what}: p50"), Unit::Seconds, &p50),
    ]
}

/// A thousand acquires a second.
async fn steady() -> Row {
    let mut units = vec![];
    for _ in 0..ROUNDS {
        let dynamo = Dynamo::new().await;
        let (limiter, meter) = limiter(&dynamo).await;
        let limits = far_limits();
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let until = Instant::now() + STEADY;
        while Instant::now() < until {
            ticks.tick().await;
            acquire(&limiter, &limits).await;
        }
        limiter.shutdown().await.expect("everything goes back");
        units.push(meter.take().total / count(limiter.stats().granted));
    }
    let what = "1,000 acquires/s from prefetched tokens: write units each";
    let row = Row::new("prefetch/units", what, Unit::WriteUnits, &units);
    row.at_most(0.02).by_range()
}
