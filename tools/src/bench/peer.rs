//! The client beside zae-limiter, the closest system there is: the same calls for the same time on
//! the same endpoint, one after the other. `tests/peer/drive.py` is the other side.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::task::JoinSet;
use weirgate::{Config, ConfigLevel, Decision, Entity, Grant, Limit, Prefetch, RateLimiter};

use super::acquire::{connected, far_limits};
use super::{Row, print};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

const LASTS: Duration = Duration::from_secs(5);
/// In which the connections and the buckets are made.
const WARM_UP: Duration = Duration::from_secs(1);

struct Scenario {
    /// What the driver calls it.
    name: &'static str,
    what: &'static str,
    callers: usize,
    /// What each caller does again and again.
    calls: Calls,
    /// Of calls a second, to the peer's.
    least_ratio: f64,
    target: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Calls {
    OneBucket,
    ManyBuckets,
    /// With prefetched tokens, which the peer has nothing like.
    ManyBucketsAhead,
    Denied,
    Adjusted,
    /// A child whose parent is taken of too.
    Cascade,
}

const SCENARIOS: [Scenario; 7] = [
    Scenario {
        name: "sequential",
        what: "beside the peer: 1 caller",
        callers: 1,
        calls: Calls::OneBucket,
        least_ratio: 1.0,
        target: "no fewer",
    },
    Scenario {
        name: "one-bucket",
        what: "beside the peer: 32 callers of one bucket",
        callers: 32,
        calls: Calls::OneBucket,
        least_ratio: 20.0,
        target: "at least 20 times",
    },
    Scenario {
        name: "many-buckets",
        what: "beside the peer: 32 callers of 50 buckets",
        callers: 32,
        calls: Calls::ManyBuckets,
        least_ratio: 5.0,
        target: "at least 5 times",
    },
    Scenario {
        name: "many-buckets",
        what: "the same 50 buckets, with prefetch",
        callers: 32,
        calls: Calls::ManyBucketsAhead,
        least_ratio: 5.0,
        target: "at least 5 times",
    },
    Scenario {
        name: "denied",
        what: "beside the peer: 1 caller, denied each time",
        callers: 1,
        calls: Calls::Denied,
        least_ratio: 1.0,
        target: "no fewer",
    },
    Scenario {
        name: "adjusted",
        what: "beside the peer: 1 caller, adjusted each time",
        callers: 1,
        calls: Calls::Adjusted,
        least_ratio: 1.0,
        target: "no fewer",
    },
    Scenario {
        name: "cascade",
        what: "beside the peer: 1 caller, parent and child",
        callers: 1,
        calls: Calls::Cascade,
        least_ratio: 1.0,
        target: "no fewer",
    },
];

/// What one side did.
#[derive(Debug, Deserialize)]
struct Measured {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Write units a call.
    units: f64,
    /// Requests a call.
    requests: f64,
}

/// Prints three rows for each scenario.
///
/// # Panics
/// If the peer is not installed, or a side or DynamoDB fails.
pub async fn run() {
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let mut peer: Option<(&str, Measured)> = None;
    for scenario in &SCENARIOS {
        // What is only asked in another way of ours is driven once.
        let theirs = match peer.take() {
            Some((name, theirs)) if name == scenario.name => theirs,
            _ => drive_peer(&endpoint, scenario.name),
        };
        let ours = drive(&endpoint, scenario).await;
        print_scenario(scenario, &ours, &theirs);
        peer = Some((scenario.name, theirs));
    }
}

/// The peer, on a table of its own.
fn drive_peer(endpoint: &str, scenario: &str) -> Measured {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let driven = Command::new(root.join(".venv/bench/bin/python"))
        .arg(root.join("tests/peer/drive.py"))
        .args([endpoint, scenario, &LASTS.as_secs().to_string()])
        .envs([
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
        ])
        .output()
        .expect("run `make .venv/bench/.installed` first");
    assert!(
        driven.status.success(),
        "the peer failed in {scenario}: {}",
        String::from_utf8_lossy(&driven.stderr)
    );
    serde_json::from_slice(&driven.stdout).expect("the driver prints JSON")
}

async fn drive(endpoint: &str, scenario: &Scenario) -> Measured {
    let (_, table, meter) = connected(endpoint).await;
    let builder = RateLimiter::builder("weirgate").table(table.with_meter(meter.clone()));
    let limiter = builder
        .prefetch("ahead", Prefetch::default())
        .build()
        .await
        .expect("the settings are good");
    if matches!(scenario.calls, Calls::Cascade) {
        configure(&limiter).await.expect("the table takes it");
    }
    let caller = Caller {
        limiter,
        scenario: scenario.name,
        calls: scenario.calls,
        far: far_limits(),
        near: Arc::new([Limit::per_day("rpm", 1).expect("a limit")]),
    };
    if matches!(scenario.calls, Calls::Denied) {
        assert!(caller.ask_near().await.is_granted(), "the first is denied");
    }
    caller.call_for(WARM_UP, scenario.callers).await;
    let _ = meter.take();
    let mut times = caller.call_for(LASTS, scenario.callers).await;
    let consumed = meter.take();
    times.sort_unstable();
    let count = |number: usize| f64::from(u32::try_from(number).expect("few enough"));
    let us = |at: usize| times[at].as_secs_f64() * 1e6;
    let done = count(times.len());
    Measured {
        per_second: done / LASTS.as_secs_f64(),
        p50_us: us(times.len() / 2),
        p99_us: us(times.len() * 99 / 100),
        units: consumed.total / done,
        requests: count(usize::try_from(consumed.requests).expect("few enough")) / done,
    }
}

/// Limits and a child with a parent, in the table.
async fn configure(limiter: &RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    limiter
        .set_config(
            &ConfigLevel::Resource("stored".try_into()?),
            &Config::of(far_limits().to_vec()),
        )
        .await?;
    let parent = Some("parent".try_into()?);
    limiter
        .set_entity(&Entity {
            id: "child".try_into()?,
            parent,
            cascades: true,
        })
        .await?;
    Ok(())
}

#[derive(Clone)]
struct Caller {
    limiter: RateLimiter,
    scenario: &'static str,
    calls: Calls,
    far: Arc<[Limit]>,
    near: Arc<[Limit]>,
}

impl Caller {
    /// How long each call of so many callers took.
    async fn call_for(&self, lasts: Duration, callers: usize) -> Vec<Duration> {
        let until = Instant::now() + lasts;
        let mut running = JoinSet::new();
        for _ in 0..callers {
            running.spawn(self.clone().call_until(until));
        }
        running.join_all().await.concat()
    }

    async fn call_until(self, until: Instant) -> Vec<Duration> {
        let mut times = vec![];
        loop {
            let started = Instant::now();
            if started >= until {
                return times;
            }
            self.call().await;
            times.push(started.elapsed());
        }
    }

    async fn call(&self) {
        match self.calls {
            Calls::OneBucket => drop(self.take(self.scenario, "far").await),
            Calls::ManyBuckets => drop(
                self.take(&format!("many-{}", fastrand::u8(..50)), "far")
                    .await,
            ),
            Calls::ManyBucketsAhead => drop(
                self.take(&format!("many-{}", fastrand::u8(..50)), "ahead")
                    .await,
            ),
            Calls::Cascade => {
                let request = self
                    .limiter
                    .acquire("child", "stored")
                    .take("rpm", 1)
                    .take("tpm", 500);
                assert!(request.send().await.expect("a decision").is_granted());
            }
            Calls::Denied => assert!(
                !self.ask_near().await.is_granted(),
                "more was granted than there is"
            ),
            Calls::Adjusted => {
                let _ = self
                    .take(self.scenario, "far")
                    .await
                    .adjust("tpm", 300)
                    .await
                    .expect("an adjustment");
            }
        }
    }

    async fn take(&self, entity: &str, resource: &str) -> Grant {
        let request = self
            .limiter
            .acquire(entity, resource)
            .shared_limits(&self.far)
            .take("rpm", 1)
            .take("tpm", 500);
        match request.send().await.expect("a decision") {
            Decision::Granted(grant) => grant,
            refused => panic!("not granted: {refused:?}"),
        }
    }

    async fn ask_near(&self) -> Decision {
        let request = self
            .limiter
            .acquire(self.scenario, "near")
            .shared_limits(&self.near)
            .take("rpm", 1);
        request.send().await.expect("a decision")
    }
}

fn print_scenario(scenario: &Scenario, ours: &Measured, theirs: &Measured) {
    let ratio = ours.per_second / theirs.per_second;
    print(&Row {
        what: scenario.what,
        measured: format!(
            "{:.0} and {:.0} calls/s, {ratio:.1} times",
            ours.per_second, theirs.per_second
        ),
        target: scenario.target,
        is_met: ratio >= scenario.least_ratio,
    });
    print(&Row {
        what: "the same: write units a call",
        measured: format!(
            "{:.6} and {:.6}, in {:.6} and {:.6} requests",
            ours.units, theirs.units, ours.requests, theirs.requests
        ),
        target: "at most half",
        is_met: ours.units <= theirs.units / 2.0,
    });
    print(&Row {
        what: "the same: p50, p99",
        measured: format!(
            "{:.0} µs, {:.0} µs and {:.0} µs, {:.0} µs",
            ours.p50_us, ours.p99_us, theirs.p50_us, theirs.p99_us
        ),
        target: "p99 under the peer's p50",
        is_met: ours.p99_us < theirs.p50_us,
    });
}
