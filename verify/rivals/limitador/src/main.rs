//! Drives the crate limitador on the redis-server at a URL.
//!
//! When it is ready it prints a line. Then it answers each line of its input, a number of seconds, with one of
//! JSON: what a round measured. The limits are those of the other rivals, in windows of an hour; an amount is the
//! same for both, because limitador has one for all limits of a call.
//!
//! Usage: drive-limitador URL SCENARIO CALLERS

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::redis::AsyncRedisStorage;
use tokio::task::JoinSet;

/// Buckets of the scenario with many.
const BUCKETS: u8 = 50;
/// What nothing uses up, in an hour.
const FAR: u64 = 1_000_000_000_000;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

struct Caller {
    limiter: AsyncRateLimiter,
    scenario: String,
}

impl Caller {
    async fn new(url: &str, scenario: &str) -> Result<Self, Box<dyn Error>> {
        let limiter =
            AsyncRateLimiter::new_with_storage(Box::new(AsyncRedisStorage::new(url).await?));
        let (far, near) = ("far", "near");
        // Two limits of one window are one to limitador.
        for (namespace, most, seconds) in [(far, FAR, HOUR), (far, FAR, HOUR + 1), (near, 1, DAY)] {
            let by_user = vec!["user_id".try_into()?];
            limiter.add_limit(Limit::new(namespace, most, seconds, [], by_user));
        }
        let scenario = scenario.to_owned();
        Ok(Self { limiter, scenario })
    }

    /// Takes for a user, and returns whether that was granted.
    async fn take(&self, namespace: &str, user: String) -> bool {
        let values = HashMap::from([("user_id".to_owned(), user)]);
        let (namespace, context) = (Namespace::from(namespace), Context::from(values));
        let checked = self.limiter.check_rate_limited_and_update(&namespace, &context, 1);
        !checked.await.expect("Redis answers").limited
    }

    async fn call(&self) {
        match self.scenario.as_str() {
            "denied" => assert!(!self.take("near", "near".to_owned()).await, "more than there is"),
            "many-buckets" => {
                let user = format!("many-{}", fastrand::u8(..BUCKETS));
                assert!(self.take("far", user).await);
            }
            one => assert!(self.take("far", one.to_owned()).await),
        }
    }
}

fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are good")
}

async fn call_until(caller: Arc<Caller>, until: Instant) -> Histogram<u64> {
    let mut times = times();
    loop {
        let started = Instant::now();
        if started >= until {
            return times;
        }
        caller.call().await;
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        times.saturating_record(took);
    }
}

async fn round(
    caller: &Arc<Caller>,
    callers: usize,
    lasts: Duration,
) -> (Histogram<u64>, Duration) {
    let (started, mut running) = (Instant::now(), JoinSet::new());
    for _ in 0..callers {
        running.spawn(call_until(Arc::clone(caller), started + lasts));
    }
    let mut all = times();
    for one in running.join_all().await {
        all.add(&one).expect("all have the same bounds");
    }
    (all, started.elapsed())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, scenario, callers] = &arguments[..] else {
        return Err("usage: drive-limitador URL SCENARIO CALLERS".into());
    };
    let (caller, callers) = (Arc::new(Caller::new(url, scenario).await?), callers.parse()?);
    if scenario == "denied" {
        assert!(caller.take("near", "near".to_owned()).await, "the first is denied");
    }
    println!("\"ready\"");
    for line in io::stdin().lock().lines() {
        let lasts = Duration::from_secs_f64(line?.parse()?);
        let (times, lasted) = round(&caller, callers, lasts).await;
        let seconds = |hundredths: f64| {
            Duration::from_nanos(times.value_at_percentile(hundredths)).as_secs_f64()
        };
        let calls = Duration::from_nanos(times.len()).as_secs_f64() * 1e9;
        println!(
            "{{\"per_second\":{},\"p50\":{},\"p99\":{},\"units\":0,\"requests\":0}}",
            calls / lasted.as_secs_f64(),
            seconds(50.0),
            seconds(99.0)
        );
        io::stdout().flush()?;
    }
    Ok(())
}
