//! Callers of a small fleet: a hot entity and quiet ones, estimates that are adjusted, slots, a
//! holder that is killed.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use weirgate::{Decision, Error, Limit, RateLimiter, Settlement, Stats, Table};
use weirgate_store::{CapacityMeter, ConsumedUnits};

use super::connection::connected;
use super::ledger::{Bucket, Consumed, Ledger};
use super::options::Options;

const ESTIMATE: i64 = 500;
/// Slots that only the reconciler can release: no other request uses their bucket.
pub(super) const HELD: (&str, &str) = ("fleet", "batch-jobs");
pub(super) const HELD_SLOTS: i64 = 2;
const HELD_FOR: Duration = Duration::from_secs(10);

/// What the drive did.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) consumed: BTreeMap<Bucket, Consumed>,
    pub(super) units: ConsumedUnits,
    pub(super) stats: Vec<Stats>,
    /// Adjustments and releases; each is a write.
    pub(super) settlements: u64,
}

struct Fleet {
    /// Two limiters, as if in two processes: each sees only its own responses.
    limiters: [RateLimiter; 2],
    ledger: Ledger,
    settlements: AtomicU64,
    chat: Arc<[Limit]>,
    browsers: Arc<[Limit]>,
    until: Instant,
}

pub(super) async fn drive(
    table: &Table,
    meter: &CapacityMeter,
    endpoint: &str,
    options: &Options,
    progress: &impl Fn(&str),
) -> Result<Driven, String> {
    let invalid = |error: weirgate::LimitError| error.to_string();
    let fleet = Arc::new(Fleet {
        limiters: [limiter(table.clone()).await?, limiter(table.clone()).await?],
        ledger: Ledger::default(),
        settlements: AtomicU64::default(),
        chat: Arc::new([
            Limit::per_second("rpm", 100)
                .map_err(invalid)?
                .with_burst(200)
                .map_err(invalid)?,
            Limit::per_minute("tpm", 6_000_000).map_err(invalid)?,
        ]),
        browsers: Arc::new([Limit::concurrent("slots", 4).map_err(invalid)?]),
        until: Instant::now() + options.drive,
    });
    kill_a_holder(&fleet, table.name(), endpoint, options).await?;
    progress(&format!(
        "a holder of {HELD_SLOTS} slots was killed; its lease expires in {HELD_FOR:?}"
    ));

    let mut callers = JoinSet::new();
    for caller in 0..16 {
        callers.spawn(chat(
            Arc::clone(&fleet),
            caller,
            "openai".to_owned(),
            Duration::from_millis(5),
        ));
    }
    for tenant in 1..=4 {
        callers.spawn(chat(
            Arc::clone(&fleet),
            tenant,
            format!("tenant-{tenant}"),
            Duration::from_millis(150),
        ));
    }
    for caller in 0..8 {
        callers.spawn(browse(Arc::clone(&fleet), caller));
    }
    let mut tick = tokio::time::interval(Duration::from_secs(5));
    tick.tick().await;
    loop {
        tokio::select! {
            _ = tick.tick() => progress(&fleet.line()),
            done = callers.join_next() => match done {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return Err(format!("a caller could not go on: {error}")),
                Some(Err(error)) => return Err(format!("a caller panicked: {error}")),
            },
        }
    }
    let stats = fleet.limiters.iter().map(RateLimiter::stats).collect();
    let settlements = fleet.settlements.load(Ordering::Relaxed);
    Ok(Driven {
        consumed: fleet.ledger.read(),
        units: meter.take(),
        stats,
        settlements,
    })
}

impl Fleet {
    fn line(&self) -> String {
        let left = self
            .until
            .saturating_duration_since(Instant::now())
            .as_secs();
        let sum = |field: fn(&Stats) -> u64| {
            self.limiters
                .iter()
                .map(|limiter| field(&limiter.stats()))
                .sum::<u64>()
        };
        format!(
            "{left:>3} s to go: {} granted, {} denied, {} writes",
            sum(|stats| stats.granted),
            sum(|stats| stats.denied),
            sum(|stats| stats.writes)
        )
    }
}

async fn limiter(table: Table) -> Result<RateLimiter, String> {
    RateLimiter::builder("demo")
        .table(table)
        .owner("demo")
        .build()
        .await
        .map_err(|error| error.to_string())
}

/// Asks for an estimate, works, and adjusts it to what was used.
async fn chat(
    fleet: Arc<Fleet>,
    caller: usize,
    entity: String,
    work: Duration,
) -> Result<(), Error> {
    let limiter = &fleet.limiters[caller % 2];
    while Instant::now() < fleet.until {
        let request = limiter
            .acquire(&entity, "gpt-4")
            .shared_limits(&fleet.chat)
            .take("rpm", 1)
            .take("tpm", ESTIMATE);
        let Decision::Granted(mut grant) = request
            .wait_up_to(Duration::from_millis(500))
            .send()
            .await?
        else {
            continue;
        };
        tokio::time::sleep(work).await;
        // Never the estimate itself, which would need no write.
        let used = if fastrand::bool() {
            fastrand::i64(200..ESTIMATE)
        } else {
            fastrand::i64(ESTIMATE + 1..=900)
        };
        // Without a lease there is nothing that could have ended.
        let Settlement::Applied = grant.adjust("tpm", used).await? else {
            continue;
        };
        fleet.settlements.fetch_add(1, Ordering::Relaxed);
        fleet
            .ledger
            .count(&entity, "gpt-4", &[("rpm", 1), ("tpm", used)]);
    }
    Ok(())
}

/// Holds one of four slots for a while; eight callers want one.
async fn browse(fleet: Arc<Fleet>, caller: usize) -> Result<(), Error> {
    let limiter = &fleet.limiters[caller % 2];
    while Instant::now() < fleet.until {
        let request = limiter
            .acquire("fleet", "browsers")
            .shared_limits(&fleet.browsers)
            .take("slots", 1);
        let Decision::Granted(grant) = request.wait_up_to(Duration::from_secs(1)).send().await?
        else {
            continue;
        };
        fleet.ledger.count("fleet", "browsers", &[("slots", 1)]);
        tokio::time::sleep(Duration::from_millis(400)).await;
        let _ = grant.release().await?;
        fleet.settlements.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Starts a process that takes slots, and kills it as soon as it has them.
async fn kill_a_holder(
    fleet: &Fleet,
    table: &str,
    endpoint: &str,
    options: &Options,
) -> Result<(), String> {
    let holder = options.holder.display();
    let mut child = tokio::process::Command::new(&options.holder)
        .args(["hold", endpoint, table])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{holder} cannot be started: {error}"))?;
    let said = child
        .stdout
        .take()
        .ok_or_else(|| format!("{holder} has no output"))?;
    let line = tokio::time::timeout(
        Duration::from_secs(30),
        BufReader::new(said).lines().next_line(),
    )
    .await;
    match line {
        Ok(Ok(Some(line))) if line == "held" => {}
        other => return Err(format!("{holder} did not take its slots: {other:?}")),
    }
    child
        .kill()
        .await
        .map_err(|error| format!("{holder} cannot be killed: {error}"))?;
    fleet.ledger.count(HELD.0, HELD.1, &[("slots", HELD_SLOTS)]);
    Ok(())
}

/// The process that is killed: takes slots and holds them.
///
/// # Errors
/// If the slots were not granted.
pub async fn hold(endpoint: &str, table: &str) -> Result<(), String> {
    let limiter = limiter(Table::new(connected(endpoint).await, table)).await?;
    let limits = [Limit::concurrent("slots", HELD_SLOTS).map_err(|error| error.to_string())?];
    let request = limiter
        .acquire(HELD.0, HELD.1)
        .limits(&limits)
        .take("slots", HELD_SLOTS)
        .lease(HELD_FOR);
    match request.send().await {
        Ok(Decision::Granted(_grant)) => {
            println!("held");
            std::future::pending().await
        }
        other => Err(format!("the slots were not granted: {other:?}")),
    }
}
