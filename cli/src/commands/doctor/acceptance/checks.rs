//! What is tried beside the contract: each check by its own requests.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use serde_json::Value;
use weirgate::{
    Clock, Decision, EpochMillis, Granularity, Limit, RateLimiter, SystemClock, UsageScope,
};

use super::backend::{Backend, RESOURCE, limit};
use super::report::Tried;
use crate::failure::Failure;

/// Entities of the buckets, which the clean-up knows by them.
pub const ENTITIES: [&str; 5] = ["steady", "race", "lease", "hot", "usage"];
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
/// Time within which a function that runs does its work, after the lease's end.
const PATIENCE: Duration = Duration::from_secs(100);
/// The same, where it is not known whether one runs.
const DOUBTFUL: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(250);

async fn is_granted(
    limiter: &RateLimiter,
    entity: &str,
    limits: &[Limit],
    take: (&str, i64),
) -> Result<bool, Failure> {
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
            return Ok(Tried::failed(
                "denied",
                "1,000,000 tokens must not be denied",
            ));
        }
        times.push(began.elapsed());
    }
    let units = backend.meter.take();
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100].as_micros();
    let milli = |micros: u128| format!("{}.{:02}", micros / 1000, micros % 1000 / 10);
    let each = units.total / f64::from(STEADY);
    let figure = format!(
        "{each:.2} units each, p50 {} ms, p99 {} ms",
        milli(at(50)),
        milli(at(99))
    );
    match units.requests == u64::from(STEADY) {
        true => Ok(Tried::passed(figure)),
        false => Ok(Tried::failed(
            figure,
            format!("{STEADY} acquires took {} writes", units.requests),
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
    let ended = try_join_all(
        racers
            .into_iter()
            .map(tokio::process::Child::wait_with_output),
    );
    let ended = ended
        .await
        .map_err(|error| Failure::Failed(format!("a process: {error}")))?;
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
        let count = |ending: &str| {
            said["outcomes"][ending]["acquires"]
                .as_u64()
                .unwrap_or_default()
        };
        granted += count("granted");
        denied += count("denied");
    }
    let figure = format!("{granted} of {RACED} granted, {denied} denied");
    Ok(match granted == u64::from(RACED) && denied > 0 {
        true => Tried::passed(figure),
        false => Tried::failed(
            figure,
            format!("{RACERS} processes must get {RACED} together"),
        ),
    })
}

/// A process with both slots of two is killed: they return when its lease ends.
pub async fn lease(backend: &Backend) -> Result<Tried, Failure> {
    let limits =
        [Limit::concurrent("slots", 2).map_err(|error| Failure::Failed(error.to_string()))?];
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
        if ended.is_some() || began.elapsed() > PATIENCE {
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
    let (began, patience) = (
        Instant::now(),
        if backend.has_functions {
            PATIENCE
        } else {
            DOUBTFUL
        },
    );
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
            format!("a lease of {LEASE:?} must end"),
        ),
        (true, Some(seconds)) => Tried::passed(format!(
            "returned by the reconciler {seconds} s after the kill"
        )),
        (true, None) if backend.has_functions => Tried::failed(
            "returned by a caller",
            "the reconciler did not return them: see its log",
        ),
        (true, None) => Tried {
            note: "no reconciler acted".to_owned(),
            ..Tried::passed("returned by a caller")
        },
    })
}

/// Callers write to one key more than a partition takes, until it is split. Returns the split, and
/// what was throttled meanwhile.
pub async fn hot(backend: &Backend) -> Result<[Tried; 2], Failure> {
    let mut limits = vec![limit(100_000_000)?];
    for number in 1..HOT_LIMITS {
        let name = format!("l{number:063}");
        limits.push(
            Limit::per_second(&name, 1_000_000)
                .map_err(|error| Failure::Failed(error.to_string()))?,
        );
    }
    let since = SystemClock.now();
    let (_, began) = (backend.throttles.take(), Instant::now());
    let (begun, granted, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (limits, is_split) = (Arc::new(limits), std::sync::atomic::AtomicBool::new(false));
    let caller = async || {
        let limiter = backend.limiter().await?;
        while !is_split.load(Ordering::Relaxed)
            && began.elapsed() < HOT_PATIENCE
            && begun.fetch_add(1, Ordering::Relaxed) < HOT_ACQUIRES
        {
            match is_granted(&limiter, "hot", &limits, ("t", 1)).await {
                Ok(true) => granted.fetch_add(1, Ordering::Relaxed),
                _ => failed.fetch_add(1, Ordering::Relaxed),
            };
        }
        Ok::<_, Failure>(())
    };
    let watch = async {
        let mut shards = 1;
        while shards == 1 && began.elapsed() < HOT_PATIENCE {
            tokio::time::sleep(POLL).await;
            shards = backend
                .shard("hot")
                .await?
                .map_or(1, |shard| shard.shard().count);
            if begun.load(Ordering::Relaxed) >= HOT_ACQUIRES && began.elapsed() > HOT_PATIENCE / 2 {
                break;
            }
        }
        is_split.store(true, Ordering::Relaxed);
        Ok::<_, Failure>((shards, began.elapsed()))
    };
    let callers = join_all((0..HOT_CALLERS).map(|_| caller()));
    let (ended, watched) = tokio::join!(callers, watch);
    ended.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (shards, after) = watched?;
    let (granted, failed) = (granted.into_inner(), failed.into_inner());
    let figure = format!(
        "{shards} shards after {:.1} s and {granted} acquires",
        after.as_secs_f64()
    );
    let counted = used(&backend.limiter().await?, "hot", since).await?;
    let throttles = backend.throttles.take().values().sum::<u64>();
    let split = match shards {
        1 if backend.has_functions => Tried::failed(
            figure,
            "the aggregator did not split the bucket: see its log",
        ),
        1 => Tried::not_checked(format!(
            "nothing split the bucket after {granted} acquires: no aggregator acts on this table"
        )),
        _ => Tried::passed(figure),
    };
    let throttled =
        format!("{throttles} throttled, {failed} without a grant, {counted} counted of {granted}");
    // What failed may have been taken.
    let is_exact = (granted..=granted + failed).contains(&counted);
    let throttled = match (is_exact, throttles) {
        (false, _) => Tried::failed(throttled, "usage must be what was granted"),
        (true, 0) => Tried::not_checked(format!(
            "this endpoint throttled none of {granted} writes to one key"
        )),
        (true, _) => Tried::passed(throttled),
    };
    Ok([split, throttled])
}

/// Returns the usage of `t` since an instant, in whole tokens.
async fn used(limiter: &RateLimiter, entity: &str, since: EpochMillis) -> Result<u64, Failure> {
    let scope = UsageScope::Bucket(entity.try_into()?, RESOURCE.try_into()?);
    let range = since..SystemClock.now();
    let report = limiter
        .admin()
        .usage_report(scope, Granularity::Hourly, range)?;
    let usage = report.total().await?.usage;
    let mut tokens = usage.tokens.iter().filter(|(name, _)| name.as_str() == "t");
    let tokens = tokens.next().map_or(0, |(_, tokens)| tokens.0 / 1000);
    Ok(u64::try_from(tokens).unwrap_or_default())
}

/// Takes before and after the hour's end, if it is at most `wait` away, and reads both hours back.
pub async fn usage(backend: &Backend, wait: Duration) -> Result<Tried, Failure> {
    const HOUR_MS: i64 = 3_600_000;
    let (limiter, limits) = (backend.limiter().await?, [limit(1_000)?]);
    let take = async |tokens| is_granted(&limiter, "usage", &limits, ("t", tokens)).await;
    let began = backend.table.skew().now();
    if !take(7).await? || !take(4).await? {
        return Ok(Tried::failed("denied", "1,000 tokens must not be denied"));
    }
    let left = HOUR_MS - began.0.rem_euclid(HOUR_MS);
    let left = Duration::from_millis(left.unsigned_abs());
    let now = backend.limiter().await?;
    if left > wait {
        let counted = used(&now, "usage", began).await?;
        let minutes = left.as_secs() / 60 + 1;
        let note = format!("the hour's end: it is {minutes} minutes away; give --for {minutes}m");
        return Ok(match counted {
            11 => Tried {
                note,
                ..Tried::passed("11 of 11 in this hour")
            },
            _ => Tried::failed(format!("{counted} of 11 in this hour"), ""),
        });
    }
    // With the second in which clocks may differ.
    tokio::time::sleep(left + Duration::from_secs(1)).await;
    let end = backend.table.skew().now();
    if !take(5).await? {
        return Ok(Tried::failed("denied", "1,000 tokens must not be denied"));
    }
    let (both, after) = (
        used(&now, "usage", began).await?,
        used(&now, "usage", end).await?,
    );
    let figure = format!("{} before the hour's end, {after} after it", both - after);
    Ok(match (both, after) {
        (16, 5) => Tried::passed(figure),
        _ => Tried::failed(figure, "expected 11 and 5"),
    })
}
