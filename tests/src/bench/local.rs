//! The backend in one process: how soon it is ready, what it holds, how much it serves to callers
//! on the same machine, and what it costs while nothing calls.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use weirgate::RateLimiter;

use super::harness::{connected, far_limits, limiter};
use super::row::Rounds;
use crate::number::count;

const ROUNDS: usize = 3;
const TIME: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
const LONE_CALLERS: usize = 32;
const SHARED_CALLERS: usize = 256;

/// Returns the rows of the local backend: the command `weirgate local`, as `make bench` builds it
/// beside the folder of this program.
pub async fn rows() -> Vec<Rounds> {
    let (mut ready, mut shared, mut lone, mut peak, mut idle) =
        (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let (process, endpoint) = start().await;
        ready.push(started.elapsed().as_secs_f64());
        let table = connected(&endpoint).await.1;
        shared.push(rate(limiter(table.clone()).await, SHARED_CALLERS, |_| 0).await);
        lone.push(rate(limiter(table).await, LONE_CALLERS, |caller| caller).await);
        peak.push(peak_memory(&process));
        let before = busy(&process);
        tokio::time::sleep(IDLE).await;
        let used = (busy(&process) - before).as_secs_f64();
        idle.push(used / IDLE.as_secs_f64() * 100.0);
    }
    let rows =
        [("ready", ready), ("shared", shared), ("lone", lone), ("memory", peak), ("idle", idle)];
    rows.map(|(name, rounds)| (format!("local/{name}"), rounds)).into()
}

/// Starts the command, and returns it with its endpoint once it is ready.
async fn start() -> (Child, String) {
    let this = std::env::current_exe().expect("a program has a path");
    let target = this.ancestors().nth(2).expect("it is in a folder of a profile");
    let mut process = Command::new(target.join("release/weirgate"))
        .args(["local", "--port", "0", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the command weirgate was built: run make bench");
    let output = process.stdout.take().expect("it has an output");
    let line = BufReader::new(output).lines().next_line().await;
    let line = line.expect("it is read").expect("it says where it is");
    let told: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
    let endpoint = told["endpoint_url"].as_str().expect("it is in there");
    (process, endpoint.to_owned())
}

/// Returns the acquires per second of so many callers, each on the bucket that `bucket` names.
async fn rate(limiter: RateLimiter, callers: usize, bucket: fn(usize) -> usize) -> f64 {
    let limits = far_limits();
    let until = Instant::now() + TIME;
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let (limiter, limits) = (limiter.clone(), Arc::clone(&limits));
        let entity = format!("user-{}", bucket(caller));
        running.spawn(async move {
            while Instant::now() < until {
                let acquire = limiter.acquire(&entity, "gpt-4").shared_limits(&limits);
                let decision = acquire.take("rpm", 1).take("tpm", 500).send().await;
                assert!(decision.expect("a decision").is_granted());
            }
        });
    }
    running.join_all().await;
    count(limiter.stats().granted) / TIME.as_secs_f64()
}

fn of_process(process: &Child, file: &str) -> String {
    let id = process.id().expect("it runs");
    std::fs::read_to_string(format!("/proc/{id}/{file}")).expect("it runs")
}

/// Returns the largest resident memory that the process had, in bytes.
fn peak_memory(process: &Child) -> f64 {
    let status = of_process(process, "status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    let kib: u32 = kib.and_then(|kib| kib.parse().ok()).expect("Linux tells the peak");
    f64::from(kib) * 1024.0
}

/// Returns the processor time that the process has used. Linux counts it in hundredths of a second.
fn busy(process: &Child) -> Duration {
    let stat = of_process(process, "stat");
    // The name before may contain anything but a second closing bracket.
    let (_, fields) = stat.rsplit_once(')').expect("Linux tells the time");
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}
