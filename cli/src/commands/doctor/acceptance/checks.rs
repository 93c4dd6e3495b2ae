//! What is tried beside the contract: each check by its own requests.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use serde_json::Value;
use tokio::time::Instant;
use weirgate::{Decision, EpochMillis, Granularity, Limit, RateLimiter, UsageScope};

use weirgate_shared::{Millis, exact_span};

use super::backend::{Backend, RESOURCE, limit};
use super::report::{Outcome, Tried};
use crate::failure::Failure;

/// Entities of the buckets, which the clean-up knows by them.
pub const ENTITIES: [&str; 7] = ["steady", "race", "lease", "held", "hot", "usage", "hour"];
/// Leases on one key, which are more than 1 KB.
pub const HELD: u64 = 60;
/// Acquires of the run without faults.
pub const STEADY: u32 = 200;
/// Capacity that the racing processes share.
pub const RACED: u32 = 300;
pub const RACERS: usize = 4;
/// Acquires of each of them.
pub const RACER_ACQUIRES: u32 = 300;
/// Most acquires on the hot key.
pub const HOT_ACQUIRES: u64 = 6_000;
/// Write units of one of them, at most.
pub const HOT_UNITS: u64 = 10;
/// Limiters that acquire on the hot key.
const HOT_CALLERS: usize = 16;
/// Limits of the hot bucket, whose names make it an item of some units.
const HOT_LIMITS: usize = 12;
const HOT_PATIENCE: Duration = Duration::from_secs(40);
const LEASE: Duration = Duration::from_secs(10);
/// Time within which a process of the command line gets a lease.
const PROCESS_PATIENCE: Duration = Duration::from_secs(60);
const HOUR_MS: i64 = 3_600_000;
/// Time after which takes count in the new hour.
const ROLLED: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(250);

async fn is_granted(
    limiter: &RateLimiter,
    entity: &str,
    limits: &[Limit],
    take: (&str, i64),
) -> Result<bool, weirgate::Error> {
    let acquire = limiter.acquire(entity, RESOURCE).limits(limits);
    match acquire.take(take.0, take.1).send().await? {
        Decision::Granted(grant) => {
            // Nothing is returned.
            std::mem::forget(grant);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Acquires one after the other: each is granted by one write.
pub async fn steady(backend: &Backend) -> Result<Tried, Failure> {
    let (limiter, limits) = (backend.limiter().await?, [limit(1_000_000)?]);
    let _ = is_granted(&limiter, "steady", &limits, ("t", 1)).await?;
    let _ = backend.meter.take();
    let mut times = vec![];
    for _ in 0..STEADY {
        let began = Instant::now();
        if !is_granted(&limiter, "steady", &limits, ("t", 1)).await? {
            return Ok(Tried::failed("denied", "1,000,000 tokens must not be denied"));
        }
        times.push(began.elapsed());
    }
    let units = backend.meter.take();
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100].as_micros();
    let milli = |micros: u128| format!("{}.{:02}", micros / 1000, micros % 1000 / 10);
    let each = units.total / f64::from(STEADY);
    let figure =
        format!("{each:.2} units each, p50 {} ms, p99 {} ms", milli(at(50)), milli(at(99)));
    // A request that failed on the way is sent again, and rarely.
    let most = u64::from(STEADY + STEADY / 100);
    match (u64::from(STEADY)..=most).contains(&units.requests) {
        true => Ok(Tried::passed(figure)),
        false => Ok(Tried::failed(
            figure,
            format!(
                "{STEADY} acquires took {} writes, expected {STEADY} to {most}",
                units.requests
            ),
        )),
    }
}

/// Processes take from one key until it is empty: exactly its capacity.
pub async fn race(backend: &Backend) -> Result<Tried, Failure> {
    let limit = format!("t=1/day,burst={RACED}");
    let arguments = [
        "--json", "load", "race", RESOURCE, "t=1", "--limit", &limit, "--rate", "100", "--for",
        "3s",
    ];
    let mut racers = vec![];
    for _ in 0..RACERS {
        let process = backend.process(&arguments)?.spawn();
        racers.push(process.map_err(|error| Failure::Failed(format!("a process: {error}")))?);
    }
    let ended = try_join_all(racers.into_iter().map(tokio::process::Child::wait_with_output));
    let ended = ended.await.map_err(|error| Failure::Failed(format!("a process: {error}")))?;
    let (mut granted, mut denied) = (0, 0);
    for output in ended {
        let said: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let Some(said) = said.filter(|_| output.status.success()) else {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let text = if text.is_empty() {
                String::from_utf8_lossy(&output.stdout).into_owned()
            } else {
                text
            };
            return Ok(Tried::failed("a process failed", text));
        };
        let count =
            |ending: &str| said["outcomes"][ending]["acquires"].as_u64().unwrap_or_default();
        granted += count("granted");
        denied += count("denied");
    }
    let figure = format!("{granted} of {RACED} granted, {denied} denied");
    Ok(match granted == u64::from(RACED) && denied > 0 {
        true => Tried::passed(figure),
        false => Tried::failed(figure, format!("{RACERS} processes must get {RACED} together")),
    })
}

/// A process with both slots of two is killed: they return when its lease ends.
pub async fn lease(backend: &Backend) -> Result<Tried, Failure> {
    let limits = [slots(2)?];
    // The command ends with its standard input, so it does not outlive this process.
    let arguments = [
        "acquire", "lease", RESOURCE, "slots=2", "--limit", "slots=2", "--lease", "10s", "--",
        "cat",
    ];
    let process = backend.process(&arguments)?.stdin(Stdio::piped()).spawn();
    let mut process = process.map_err(|error| Failure::Failed(format!("a process: {error}")))?;
    let has_leases = async || {
        let shard = backend.shard("lease").await?;
        let leases = shard.and_then(|shard| shard.leases);
        Ok::<_, Failure>(leases.is_some_and(|leases| !leases.is_empty()))
    };
    let began = Instant::now();
    while !has_leases().await? {
        let ended = process.try_wait().ok().flatten();
        if ended.is_some() || began.elapsed() > PROCESS_PATIENCE {
            let text =
                "weirgate acquire did not get the slots; it runs `cat`, which must be in PATH";
            return Ok(Tried::not_checked(text));
        }
        tokio::time::sleep(POLL).await;
    }
    let killed = process.kill().await;
    killed.map_err(|error| Failure::Failed(format!("a process must be killed: {error}")))?;
    let limiter = backend.limiter().await?;
    if is_granted(&limiter, "lease", &limits, ("slots", 1)).await? {
        return Ok(Tried::failed("a held slot was granted", ""));
    }
    let (began, patience) = (Instant::now(), backend.reconciler_patience());
    let mut returned = None;
    while returned.is_none() && began.elapsed() < LEASE + patience {
        tokio::time::sleep(POLL).await;
        if !has_leases().await? {
            returned = Some(began.elapsed().as_secs());
        }
    }
    let acquire = limiter.acquire("lease", RESOURCE).limits(&limits);
    let acquire = acquire.take("slots", 2).wait_up_to(LEASE);
    let is_back = matches!(acquire.send().await?, Decision::Granted(_));
    Ok(match (is_back, returned) {
        (false, _) => Tried::failed(
            "the slots are not back",
            format!("a lease of {} must end", exact_span(LEASE)),
        ),
        (true, Some(seconds)) => {
            Tried::passed(format!("returned by the reconciler {seconds} s after the kill"))
        }
        (true, None) if backend.interval().is_some() => {
            Tried::failed("returned by a caller", "the reconciler did not return them: see its log")
        }
        (true, None) => Tried {
            note: "no reconciler acted".to_owned(),
            ..Tried::passed("returned by a caller")
        },
    })
}

/// One key gets more leases than an item should have, so the aggregator must split it.
pub async fn leases(backend: &Backend) -> Result<Tried, Failure> {
    if backend.may_split() == Some(false) {
        return Ok(Tried::not_checked("a split: the stack has MaxShards 1"));
    }
    let (limits, patience) = ([slots(1_000)?], backend.aggregator_patience());
    let limiter = backend.limiter().await?;
    let mut grants = vec![];
    for _ in 0..HELD {
        let acquire = limiter.acquire("held", RESOURCE).limits(&limits);
        match acquire.take("slots", 1).lease(patience + LEASE).send().await? {
            Decision::Granted(grant) => grants.push(grant),
            other => {
                return Ok(Tried::failed(format!("{other:?}"), "1,000 slots must not be denied"));
            }
        }
    }
    let (began, mut shards) = (Instant::now(), 1);
    while shards == 1 && began.elapsed() < patience {
        tokio::time::sleep(POLL).await;
        shards = shards_of(backend, "held").await?;
    }
    let figure = format!("{shards} shards");
    for grant in grants {
        let _ = grant.release().await?;
    }
    Ok(match shards {
        1 if backend.splits() => {
            Tried::failed(figure, "the aggregator did not split the bucket: see its log")
        }
        1 => Tried::not_checked(format!("a split: {}", backend.none_in(patience))),
        _ => Tried::passed(figure),
    })
}

fn slots(capacity: i64) -> Result<Limit, Failure> {
    let limit = Limit::concurrent("slots", capacity);
    limit.map_err(|error| Failure::Failed(error.to_string()))
}

async fn shards_of(backend: &Backend, entity: &str) -> Result<u32, Failure> {
    let shard = backend.shard(entity).await?;
    Ok(shard.map_or(1, |shard| shard.shard().count))
}

/// Callers write to one key more than a partition takes, until it is split. Returns the split, and
/// what was throttled meanwhile.
pub async fn hot(backend: &Backend) -> Result<[Tried; 2], Failure> {
    let mut limits = vec![limit(100_000_000)?];
    for number in 1..HOT_LIMITS {
        let limit = Limit::per_second(&format!("l{number:063}"), 1_000_000);
        limits.push(limit.map_err(|error| Failure::Failed(error.to_string()))?);
    }
    // Usage of an hour that is over is late by a batch; the last acquires end after their patience.
    within_an_hour(backend, HOT_PATIENCE + LEASE).await;
    // An emulator has no partitions: it throttles at once, or never.
    let most = if backend.is_aws() { HOT_ACQUIRES } else { HOT_ACQUIRES / 10 };
    let (since, _) = (backend.table.skew().now(), backend.throttles.take());
    let (begun, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    let (unknown, throttled) = (AtomicU64::new(0), AtomicU64::new(0));
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    let caller = async || {
        let limiter = backend.limiter().await?;
        while !is_over.load(Ordering::Relaxed) && begun.fetch_add(1, Ordering::Relaxed) < most {
            let count = match is_granted(&limiter, "hot", &limits, ("t", 1)).await {
                Ok(true) => &granted,
                Err(error) if error.is_unknown() => &unknown,
                _ => continue,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, Failure>(())
    };
    let watch = async {
        let mut shards = 1;
        while shards == 1 && began.elapsed() < HOT_PATIENCE {
            tokio::time::sleep(POLL).await;
            let more = backend.throttles.take().values().sum();
            let before = throttled.fetch_add(more, Ordering::Relaxed);
            if begun.load(Ordering::Relaxed) >= most && before + more == 0 {
                break;
            }
            // A throttled key is not read in time.
            shards = shards_of(backend, "hot").await.unwrap_or(1);
        }
        is_over.store(true, Ordering::Relaxed);
        (shards, began.elapsed().as_secs())
    };
    let callers = join_all((0..HOT_CALLERS).map(|_| caller()));
    let (ended, (shards, seconds)) = tokio::join!(callers, watch);
    ended.into_iter().collect::<Result<Vec<_>, _>>()?;
    let [granted, unknown, throttled] = [granted, unknown, throttled].map(AtomicU64::into_inner);
    let counted = used(backend, "hot", hour_before(since)).await?;
    let window = backend.batch_window().unwrap_or_default();
    let split = match (shards, throttled) {
        (1, 0) => Tried::not_checked(format!(
            "a split by heat: this endpoint throttled none of {granted} writes to one key"
        )),
        (1, _) if backend.may_split() == Some(false) => {
            Tried::not_checked("a split by heat: the stack has MaxShards 1")
        }
        // A split needs a shard that is hot until its record is read.
        (1, _) if window > HOT_PATIENCE / 2 => Tried::not_checked(format!(
            "a split by heat: records wait {} (StreamBatchWindowSeconds), and the key is hot for {}",
            exact_span(window),
            exact_span(HOT_PATIENCE)
        )),
        (1, _) if backend.splits() => Tried::failed(
            format!("1 shard after {seconds} s, {throttled} throttled"),
            "the aggregator did not split the bucket: see its log",
        ),
        (1, _) => Tried::not_checked(format!("a split by heat: {}", backend.none_in(HOT_PATIENCE))),
        _ => Tried::passed(format!("{shards} shards after {seconds} s, {granted} acquires")),
    };
    let figure = format!("{throttled} throttled, {counted} counted of {granted} granted");
    let is_exact = (granted..=granted + unknown).contains(&counted);
    let run = match (is_exact, throttled) {
        (false, _) => {
            Tried::failed(figure, format!("usage must be {granted} to {}", granted + unknown))
        }
        (true, 0) => {
            Tried::of(Outcome::NotChecked, figure, "a throttled run: nothing was throttled")
        }
        (true, _) => Tried::passed(figure),
    };
    Ok([split, run])
}

/// Returns the usage of `t` since the beginning of an instant's hour, in whole tokens, as a process
/// reads it that took nothing.
async fn used(backend: &Backend, entity: &str, since: EpochMillis) -> Result<u64, Failure> {
    let limiter = backend.reader().await?;
    let scope = UsageScope::Bucket(entity.try_into()?, RESOURCE.try_into()?);
    let range = since..backend.table.skew().now().plus(Millis(1));
    let report = limiter.admin().usage_report(scope, Granularity::Hourly, range)?;
    let usage = report.total().await?.usage;
    let mut tokens = usage.tokens.iter().filter(|(name, _)| name.as_str() == "t");
    let tokens = tokens.next().map_or(0, |(_, tokens)| tokens.0 / 1000);
    Ok(u64::try_from(tokens).unwrap_or_default())
}

/// Returns the same minute of the hour before: a take counts in it for two seconds.
fn hour_before(at: EpochMillis) -> EpochMillis {
    at.plus(Millis(-HOUR_MS))
}

/// Returns the time to the end of the hour.
fn left_of_hour(backend: &Backend) -> Duration {
    let now = backend.table.skew().now();
    let left = HOUR_MS - now.0.rem_euclid(HOUR_MS);
    Duration::from_millis(left.unsigned_abs())
}

/// Waits until what takes so long is of one hour.
async fn within_an_hour(backend: &Backend, time: Duration) {
    let left = left_of_hour(backend);
    if left < time + ROLLED {
        tokio::time::sleep(left + ROLLED).await;
    }
}

async fn takes(limiter: &RateLimiter, entity: &str, amounts: &[i64]) -> Result<bool, Failure> {
    for tokens in amounts {
        if !is_granted(limiter, entity, &[limit(1_000)?], ("t", *tokens)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn denied() -> Tried {
    Tried::failed("denied", "1,000 tokens must not be denied")
}

/// Takes, and reads the usage of the hour back.
pub async fn usage(backend: &Backend) -> Result<Tried, Failure> {
    within_an_hour(backend, Duration::ZERO).await;
    let began = backend.table.skew().now();
    if !takes(&backend.limiter().await?, "usage", &[7, 4]).await? {
        return Ok(denied());
    }
    let counted = used(backend, "usage", hour_before(began)).await?;
    let figure = format!("{counted} of 11 in this hour");
    Ok(match counted {
        11 => Tried::passed(figure),
        _ => Tried::failed(figure, ""),
    })
}

/// Takes before and after the hour's end, if it is at most `wait` away, and reads both hours back.
pub async fn hour_end(backend: &Backend, wait: Duration) -> Result<Tried, Failure> {
    within_an_hour(backend, Duration::ZERO).await;
    let left = left_of_hour(backend);
    if left > wait {
        let minutes = left.as_secs() / 60 + 1;
        return Ok(Tried::not_checked(format!(
            "the hour's end is {minutes} minutes away; give --for {minutes}m"
        )));
    }
    let (limiter, began) = (backend.limiter().await?, backend.table.skew().now());
    if !takes(&limiter, "hour", &[7, 4]).await? {
        return Ok(denied());
    }
    tokio::time::sleep(left_of_hour(backend) + ROLLED).await;
    let end = backend.table.skew().now();
    if !takes(&limiter, "hour", &[5]).await? {
        return Ok(denied());
    }
    // The aggregator copies an hour that is over.
    let patience = backend.aggregator_patience();
    let (began_to_read, mut before) = (Instant::now(), 0);
    let mut after = 0;
    while (before, after) != (11, 5) && began_to_read.elapsed() < patience {
        tokio::time::sleep(POLL).await;
        after = used(backend, "hour", end).await?;
        before = used(backend, "hour", hour_before(began)).await?.saturating_sub(after);
    }
    let figure = format!("{before} before the hour's end, {after} after it");
    Ok(match (before, after) {
        (11, 5) => Tried::passed(figure),
        (0, 5) if backend.batch_window().is_none() => {
            Tried::not_checked(format!("the hour that is over: {}", backend.none_in(patience)))
        }
        _ => Tried::failed(figure, "expected 11 and 5"),
    })
}
