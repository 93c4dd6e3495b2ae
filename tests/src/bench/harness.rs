//! How the benchmarks reach a table, call it for a while, and run on virtual time.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use hdrhistogram::Histogram;
use serde::Deserialize;
use tokio::task::JoinSet;
use weirgate::{Limit, RateLimiter};
use weirgate_store::{ConnectOptions, Table, connect};
use weirgate_testkit::runtime;

use crate::number::count;

/// Returns the SDK's client of an endpoint, and the table there.
pub async fn connected(endpoint: &str) -> (Client, Table) {
    let options =
        ConnectOptions { local_endpoint: Some(endpoint.to_owned()), ..ConnectOptions::default() };
    let connected = connect(options).await;
    (connected.client.clone(), Table::new(connected, "weirgate"))
}

/// Returns a limiter on a table, as it is by default.
pub async fn limiter(table: Table) -> RateLimiter {
    let built = RateLimiter::builder("weirgate").table(table).build().await;
    built.expect("the default settings are good")
}

/// Returns limits that nothing here uses up.
pub fn far_limits() -> Arc<[Limit]> {
    let far = |name| Limit::per_second(name, 1_000_000_000).expect("a limit");
    Arc::new([far("rpm"), far("tpm")])
}

/// Runs something on virtual time, on one thread of its own.
pub async fn on_virtual_time<T, F>(run: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let done = tokio::task::spawn_blocking(|| runtime().block_on(run()));
    done.await.expect("it ends")
}

/// What a rate limiter did in a round.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Measured {
    /// Calls a second.
    pub per_second: f64,
    /// Seconds that half of the calls took at most.
    pub p50: f64,
    /// Seconds that 99 of 100 calls took at most.
    pub p99: f64,
    /// Write units a call.
    pub units: f64,
    /// Requests a call.
    pub requests: f64,
}

/// Something that makes one call.
pub trait Call: Clone + Send + Sync + 'static {
    /// Makes it, and ends when it is answered.
    fn call(&self) -> impl Future<Output = ()> + Send;
}

/// How long calls took.
#[derive(Debug)]
pub struct Times {
    nanoseconds: Histogram<u64>,
    lasted: Duration,
}

/// Calls after which a caller lets others run, if none of the calls waited.
const TURN: u32 = 64;

/// So many callers call for this long.
pub async fn call_for(call: &impl Call, callers: usize, lasts: Duration) -> Times {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(call_until(call.clone(), started + lasts));
    }
    let mut all = Times::none();
    for times in running.join_all().await {
        all.nanoseconds.add(&times).expect("all have the same bounds");
    }
    all.lasted = started.elapsed();
    all
}

async fn call_until(call: impl Call, until: Instant) -> Histogram<u64> {
    let mut times = Times::none().nanoseconds;
    loop {
        for _ in 0..TURN {
            let started = Instant::now();
            if started >= until {
                return times;
            }
            call.call().await;
            let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.saturating_record(took);
        }
        tokio::task::yield_now().await;
    }
}

impl Times {
    /// From a nanosecond to a minute, to a thousandth.
    fn none() -> Self {
        Self {
            nanoseconds: Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds are good"),
            lasted: Duration::ZERO,
        }
    }

    /// Calls that were made.
    pub fn calls(&self) -> f64 {
        count(self.nanoseconds.len())
    }

    /// Seconds that so many hundredths of the calls took at most.
    pub fn percentile(&self, hundredths: f64) -> f64 {
        count(self.nanoseconds.value_at_percentile(hundredths)) / 1e9
    }

    /// Returns what was measured, without what the table was asked.
    pub fn measured(&self) -> Measured {
        Measured {
            per_second: self.calls() / self.lasted.as_secs_f64(),
            p50: self.percentile(50.0),
            p99: self.percentile(99.0),
            ..Measured::default()
        }
    }
}

/// Returns the median of some times.
pub fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
