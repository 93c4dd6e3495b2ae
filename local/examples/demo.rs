//! `make demo`: runs `weirgate local`, drives it for 20 seconds with three kinds of callers, and prints
//! what the table says of today.
//!
//! - a shared process: 32 tasks with one limiter, whose requests share writes
//! - four lone processes, one request at a time, on one bucket
//! - a holder of slots, which is killed: the reconciler returns its slots
//!
//! It fails if the usage of a bucket differs from what its callers were granted.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use weirgate::{
    Clock, ConnectOptions, Decision, EntityId, EpochMillis, Granularity, RateLimiter, Resource,
    SystemClock, UsageScope,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const DRIVE: Duration = Duration::from_secs(20);
const SHARED: &str = "shared-process";
const LONE: &str = "lone-processes";
const LONE_PROCESSES: usize = 4;
const HOLDER: &str = "holder";
const MODEL: &str = "gpt-4";
const JOBS: &str = "batch-jobs";
const LEASE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => run().await,
        ["shared", endpoint] => drive(endpoint, SHARED, 32).await,
        ["lone", endpoint] => drive(endpoint, LONE, 1).await,
        ["hold", endpoint] => hold(endpoint).await,
        _ => Err(format!("demo takes no arguments, got {arguments:?}; run make demo").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    let limits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo.yaml");
    let mut local = Command::new(weirgate()?)
        .args(["local", "--port", "0", "--json", "--limits"])
        .arg(limits)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let started = lines(&mut local)?.next_line().await?;
    let started = started.ok_or("weirgate local ended; see above")?;
    let started: serde_json::Value = serde_json::from_str(&started)?;
    let endpoint = started["endpoint_url"].as_str().unwrap_or_default();
    println!("The table is at {endpoint}, with the aggregator and the reconciler.");
    let page = started["page_url"].as_str().unwrap_or_default();
    println!("The live page is at {page}");

    let since = SystemClock.now();
    let mut holder = child("hold", endpoint)?;
    let held = lines(&mut holder)?.next_line().await?;
    if held.as_deref() != Some("held") {
        return Err("the holder got no slots; see above".into());
    }
    holder.kill().await?;
    println!("A holder of 2 slots was killed. Its lease ends in {LEASE:?}.");

    println!("A shared process and {LONE_PROCESSES} lone ones take tokens for {DRIVE:?}.");
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for kind in std::iter::once("shared").chain(["lone"; LONE_PROCESSES]) {
        let process = child(kind, endpoint)?;
        callers.spawn(async move { (kind, process.wait_with_output().await) });
    }
    let mut granted = BTreeMap::from([((HOLDER, JOBS), 1)]);
    while let Some(ended) = callers.join_next().await {
        let (kind, output) = ended?;
        let output = output?;
        if !output.status.success() {
            return Err(format!("a {kind} process failed; see above").into());
        }
        let entity = if kind == "shared" { SHARED } else { LONE };
        let count: i64 = String::from_utf8(output.stdout)?.trim().parse()?;
        *granted.entry((entity, MODEL)).or_default() += count;
    }
    println!("Done after {:.0?}.\n", begun.elapsed());
    report(&limiter(endpoint).await?, since, &granted).await?;
    if std::io::stdout().is_terminal() {
        println!("\nThe table stays until Ctrl-C. Callers reach it with:");
        for (name, value) in started["variables"].as_object().into_iter().flatten() {
            println!("export {name}={}", value.as_str().unwrap_or_default());
        }
        tokio::signal::ctrl_c().await?;
    }
    local.kill().await?;
    Ok(())
}

/// The command: `debug/weirgate` beside `debug/examples/demo`.
fn weirgate() -> Outcome<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(2);
    Ok(folder.ok_or("this program has no folder")?.join("weirgate"))
}

fn child(kind: &str, endpoint: &str) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([kind, endpoint]);
    Ok(command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
}

fn lines(process: &mut Child) -> Outcome<Lines<BufReader<ChildStdout>>> {
    let output = process.stdout.take().ok_or("the process has no output")?;
    Ok(BufReader::new(output).lines())
}

async fn limiter(endpoint: &str) -> Outcome<RateLimiter> {
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    let builder = RateLimiter::builder("weirgate").owner("demo");
    Ok(builder.connection(connection).build().await?)
}

/// Takes tokens by so many tasks of one limiter until the time is over, and prints how many
/// acquires were granted.
async fn drive(endpoint: &str, entity: &'static str, tasks: usize) -> Outcome<()> {
    let limiter = limiter(endpoint).await?;
    let (until, granted) = (Instant::now() + DRIVE, Arc::new(AtomicI64::new(0)));
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (limiter, granted) = (limiter.clone(), Arc::clone(&granted));
        running.spawn(async move {
            while Instant::now() < until {
                let request = limiter
                    .acquire(entity, MODEL)
                    .take("rpm", 1)
                    .take("tpm", 500);
                let left = until.saturating_duration_since(Instant::now());
                let wait = left.min(Duration::from_millis(500));
                if request.wait_up_to(wait).send().await?.is_granted() {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, weirgate::Error>(())
        });
    }
    for ended in running.join_all().await {
        ended?;
    }
    println!("{}", granted.load(Ordering::Relaxed));
    Ok(())
}

/// Takes slots, and holds them until it is killed.
async fn hold(endpoint: &str) -> Outcome<()> {
    let limiter = limiter(endpoint).await?;
    let request = limiter.acquire(HOLDER, JOBS).take("slots", 2).lease(LEASE);
    match request.send().await? {
        Decision::Granted(_grant) => {
            println!("held");
            std::future::pending().await
        }
        other => Err(format!("the slots were not granted: {other:?}").into()),
    }
}

/// Prints today's usage, and the slots that came back.
async fn report(
    limiter: &RateLimiter,
    since: EpochMillis,
    granted: &BTreeMap<(&str, &str), i64>,
) -> Outcome<()> {
    println!("{:<16} {:<12} {:>9}  tokens", "Usage today", "", "acquires");
    let mut wrong = vec![];
    for ((entity, resource), granted) in granted {
        let bucket = UsageScope::Bucket(EntityId::new(*entity)?, Resource::new(*resource)?);
        let range = since..SystemClock.now();
        let report = limiter
            .admin()
            .usage_report(bucket, Granularity::Daily, range)?;
        let usage = report.total().await?.usage;
        let amount = |(limit, tokens): (_, _)| format!("{tokens} {limit}");
        let tokens: Vec<_> = usage.tokens.iter().map(amount).collect();
        let acquires = usage.acquires;
        println!(
            "{entity:<16} {resource:<12} {acquires:>9}  {}",
            tokens.join(", ")
        );
        if acquires != i128::from(*granted) {
            wrong.push(format!(
                "{entity} on {resource} was granted {granted} acquires, the table has {acquires}"
            ));
        }
    }
    let leases = limiter.admin().leases(HOLDER, JOBS).await?.items.len();
    if leases > 0 {
        wrong.push(format!("the killed holder still has {leases} lease"));
    }
    if !wrong.is_empty() {
        return Err(wrong.join("; ").into());
    }
    println!("\nThe table has every acquire that was granted, and no more.");
    println!("The reconciler returned the slots of the killed holder.");
    Ok(())
}
