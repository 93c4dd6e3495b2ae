//! The backend in one process: how soon it is ready, what it holds, how much it serves to callers
//! on the same machine, and what it costs while nothing calls.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use weirgate::RateLimiter;
use weirgate_store::{ConnectOptions, Table, connect};

use super::acquire::{far_limits, limiter};
use super::{Row, print};

const TIME: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(20);
const LONE_CALLERS: usize = 32;
const SHARED_CALLERS: usize = 256;

/// Prints the rows of the local backend: the command `weirgate local`, from the folder of this
/// program.
///
/// # Panics
/// If the command cannot be started.
pub async fn run() {
    let started = Instant::now();
    let this = std::env::current_exe().expect("a program has a path");
    let mut process = Command::new(this.with_file_name("weirgate"))
        .args(["local", "--port", "0", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("weirgate is beside this program: run make bench");
    let output = process.stdout.take().expect("it has an output");
    let line = BufReader::new(output).lines().next_line().await;
    let line = line.expect("it is read").expect("it says where it is");
    let ready = started.elapsed();
    let told: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
    let endpoint = told["endpoint_url"].as_str().expect("it is in there");
    print(&Row {
        what: "weirgate local: ready",
        measured: format!("{ready:.1?}"),
        target: "at most 300 ms",
        is_met: ready <= Duration::from_millis(300),
    });
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    let table = Table::new(connect(connection).await, "weirgate");
    let shared = rate(limiter(table.clone()).await, SHARED_CALLERS, |_| 0).await;
    print(&Row {
        what: "weirgate local: callers of one bucket",
        measured: format!("{shared:.0} acquires/s"),
        target: "at least 50,000",
        is_met: shared >= 50_000.0,
    });
    let lone = rate(limiter(table).await, LONE_CALLERS, |caller| caller).await;
    print(&Row {
        what: "weirgate local: each caller with its own bucket",
        measured: format!("{lone:.0} acquires/s"),
        target: "at least 5,000",
        is_met: lone >= 5_000.0,
    });
    let peak = peak_mib(&process);
    print(&Row {
        what: "weirgate local: peak memory after both",
        measured: format!("{peak:.1} MiB"),
        target: "at most 60 MiB",
        is_met: peak <= 60.0,
    });
    let before = busy(&process);
    tokio::time::sleep(IDLE).await;
    let idle = (busy(&process) - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    print(&Row {
        what: "weirgate local: idle",
        measured: format!("{idle:.2} % of a core"),
        target: "at most 1 %",
        is_met: idle <= 1.0,
    });
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
                let request = limiter.acquire(&entity, "gpt-4").shared_limits(&limits);
                let decision = request.take("rpm", 1).take("tpm", 500).send().await;
                assert!(decision.expect("a decision").is_granted());
            }
        });
    }
    running.join_all().await;
    f64::from(u32::try_from(limiter.stats().granted).expect("few enough")) / TIME.as_secs_f64()
}

fn of_process(process: &Child, file: &str) -> String {
    let id = process.id().expect("it runs");
    std::fs::read_to_string(format!("/proc/{id}/{file}")).expect("it runs")
}

/// Returns the largest resident memory that the process had.
fn peak_mib(process: &Child) -> f64 {
    let status = of_process(process, "status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    let kib: u32 = kib
        .and_then(|kib| kib.parse().ok())
        .expect("Linux tells the peak");
    f64::from(kib) / 1024.0
}

/// Returns the processor time that the process has used. Linux counts it in hundredths of a second.
fn busy(process: &Child) -> Duration {
    let stat = of_process(process, "stat");
    // The name before may contain anything but a second closing bracket.
    let (_, fields) = stat.rsplit_once(')').expect("Linux tells the time");
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}
