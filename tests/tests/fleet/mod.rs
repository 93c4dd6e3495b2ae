//! A fleet: limiters that share nothing but one embedded table, on a time that tests move.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod shards;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::test_runner::{Config, FileFailurePersistence};
use tokio::runtime::Runtime;
use weirgate::{
    Acquire, Builder, Clock, Decision, Denied, EpochMillis, FakeClock, Grant, Limit, MilliTokens,
    RateLimiter,
};
use weirgate_shared::{BucketKey, Shard};
use weirgate_store::{CapacityMeter, Table};
use weirgate_tests::leased::load;
use weirgate_tests::{Dynamo, Fault};

/// When the fleet's time begins: a full hour, so that what flows in by then is whole tokens.
pub const START: EpochMillis = EpochMillis(1_795_197_600_000);
/// The partition key of the bucket that tests use if they need only one.
pub const PK: &str = "default/BUCKET#e-1#gpt-4#0";

/// What a test's processes share.
pub struct Fleet {
    pub dynamo: Dynamo,
    pub clock: FakeClock,
    latency: Duration,
    foreign: Arc<AtomicI64>,
}

impl Fleet {
    /// A fleet on a fresh table that answers at once.
    pub async fn new() -> Self {
        Self::slow(Duration::ZERO).await
    }

    /// A fleet on a fresh table that takes this long for every answer.
    pub async fn slow(latency: Duration) -> Self {
        let clock = FakeClock::at(START);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        Self {
            dynamo,
            clock,
            latency,
            foreign: Arc::default(),
        }
    }

    /// A process of the fleet, yet to be built.
    pub async fn builder(&self) -> Builder {
        process(self.remote().table().await)
    }

    /// A process with its own clock.
    pub async fn limiter_by(&self, clock: &FakeClock) -> RateLimiter {
        process(self.remote().table_by(clock.clone()).await)
            .build()
            .await
            .unwrap()
    }

    /// A process of the fleet.
    pub async fn limiter(&self) -> RateLimiter {
        self.builder().await.build().await.unwrap()
    }

    /// A process of the fleet, and the meter of what it consumes.
    pub async fn metered(&self) -> (RateLimiter, CapacityMeter) {
        let (table, meter) = self.remote().metered().await;
        (process(table).build().await.unwrap(), meter)
    }

    fn remote(&self) -> Dynamo {
        if self.latency.is_zero() {
            self.dynamo.clone()
        } else {
            self.dynamo.clone().with_latency(self.latency)
        }
    }

    /// The time now.
    pub fn now(&self) -> EpochMillis {
        self.clock.now()
    }

    /// The bucket of tests that need only one, as the table has it.
    pub async fn bucket(&self) -> Shard {
        let key = BucketKey::parse(PK).unwrap();
        load(&self.dynamo.table().await, &key)
            .await
            .expect("the bucket is there")
    }

    /// Balance now and net consumption of one limit, in millitokens.
    pub async fn tk_tc(&self, limit: &str) -> (i64, i64) {
        let bucket = self.bucket().await;
        let state = bucket.limits[limit];
        (bucket.balance(&state, self.now()).0, state.consumed.0)
    }

    /// Writes that reached the table since the last call.
    pub fn writes(&self) -> u64 {
        self.dynamo
            .take_operations()
            .get("UpdateItem")
            .copied()
            .unwrap_or_default()
    }

    /// The next writes meet these faults.
    pub fn fail(&self, faults: &[Fault]) {
        self.dynamo.fail_next(faults.iter().copied().map(Some));
    }

    /// The next writes meet these faults. Before every write after the first, until the one after
    /// the last fault, another process takes a token of `other`.
    pub fn trouble(&self, faults: Vec<Option<Fault>>, other: Option<&'static str>) {
        let (dynamo, foreign, mut at) = (self.dynamo.clone(), self.foreign.clone(), 0);
        self.dynamo.fail_when(move |_| {
            if let Some(limit) = other.filter(|_| (1..=faults.len()).contains(&at)) {
                foreign.fetch_add(one_more(&dynamo, limit), Ordering::Relaxed);
            }
            at += 1;
            faults.get(at - 1).copied().flatten()
        });
    }

    /// Deletes the bucket, as TTL or an operator does.
    pub fn delete(&self) {
        self.dynamo.delete(PK, "#STATE");
    }
}

fn process(table: Table) -> Builder {
    RateLimiter::builder("weirgate").table(table).owner("test")
}

/// Takes one token, as a process with its own connection does; how many it took.
fn one_more(dynamo: &Dynamo, limit: &str) -> i64 {
    let mut item = dynamo.item(PK, "#STATE");
    if item.is_null() {
        return 0;
    }
    let mut add = |name: &str, by: i64| {
        let now: i64 = item[name]["N"].as_str().unwrap().parse().unwrap();
        item[name] = serde_json::json!({"N": (now + by).to_string()});
    };
    add(&format!("b_{limit}_tk"), -1000);
    add(&format!("b_{limit}_tc"), 1000);
    add("takes", 1);
    add("v", 1);
    item["op"] = serde_json::json!({"S": "0ther"});
    dynamo.put(&item);
    1
}

/// The partition keys of all items that are read from now on.
pub fn keys_read(fleet: &Fleet) -> Arc<Mutex<Vec<String>>> {
    let keys = Arc::new(Mutex::new(vec![]));
    let seen = Arc::clone(&keys);
    fleet.dynamo.fail_reads(move |operation, request| {
        if operation == "BatchGetItem" {
            let wanted = request["RequestItems"]["weirgate"]["Keys"]
                .as_array()
                .unwrap();
            seen.lock().unwrap().extend(
                wanted
                    .iter()
                    .map(|key| key["PK"]["S"].as_str().unwrap().to_owned()),
            );
        }
        None
    });
    keys
}

/// How often [`Fleet::trouble`] had another process take a token.
pub fn foreign_takes(fleet: &Fleet) -> i64 {
    fleet.foreign.load(Ordering::Relaxed)
}

/// A request for tokens of the bucket that tests use if they need only one.
pub fn ask<'a>(limiter: &'a RateLimiter, limits: &[Limit], takes: &[(&str, i64)]) -> Acquire<'a> {
    let ask = limiter.acquire("e-1", "gpt-4").limits(limits);
    takes
        .iter()
        .fold(ask, |ask, (limit, tokens)| ask.take(limit, *tokens))
}

/// Takes tokens that are there.
pub async fn granted(limiter: &RateLimiter, limits: &[Limit], takes: &[(&str, i64)]) -> Grant {
    ask(limiter, limits, takes)
        .send()
        .await
        .unwrap()
        .granted()
        .expect("the tokens are there")
}

/// Takes tokens that are there, under a lease.
pub async fn leased(
    limiter: &RateLimiter,
    limits: &[Limit],
    takes: &[(&str, i64)],
    lasts: Duration,
) -> Grant {
    ask(limiter, limits, takes)
        .lease(lasts)
        .send()
        .await
        .unwrap()
        .granted()
        .expect("the tokens are there")
}

/// Asks for tokens that are not there.
pub async fn denied(limiter: &RateLimiter, limits: &[Limit], takes: &[(&str, i64)]) -> Denied {
    match ask(limiter, limits, takes).send().await.unwrap() {
        Decision::Denied(denied) => denied,
        Decision::Granted(grant) => panic!("granted {:?}", grant.limits()),
        other => panic!("{other:?} is no denial"),
    }
}

/// A number of whole tokens.
pub const fn tokens(amount: i64) -> MilliTokens {
    MilliTokens::from_tokens(amount)
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Moves the time, and lets everything due by then happen.
pub async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Lets background tasks come to an end: they wait for nothing but answers and short pauses.
pub async fn settle() {
    pass(secs(10)).await;
}

/// A runtime with its own paused time, for the cases of a property.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

/// `cases` cases; the seeds of failures are kept beside the test's source, to be checked in.
pub fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}

/// Statuses by the limit's name.
pub fn by_name(denied: &Denied) -> HashMap<&str, &weirgate::LimitStatus> {
    denied
        .limits
        .iter()
        .map(|status| (status.limit.as_str(), status))
        .collect()
}
