//! The refill edge: more is asked than is refilled, of a fast limit and a slow one beside it.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::task::JoinSet;
use weirgate::{Limit, RateLimiter};
use weirgate_shared::{EpochMillis, ShardIndex, refill_between};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::harness::{connected, limiter};
use super::rivals::peer;
use super::row::Rounds;
use crate::number::count;

const ROUNDS: usize = 3;
/// The slow limit is refilled once in ten seconds, so a round ends between two refills.
const TIME: Duration = Duration::from_secs(15);
const CALLERS: usize = 8;

/// What a round admitted of what it was entitled to.
#[derive(Debug)]
struct Admitted {
    /// Hundredths of the fast limit.
    fast: f64,
    /// Hundredths of the slow limit.
    slow: f64,
    /// Writes, or write units of the peer, for each that was admitted.
    writes: f64,
}

/// Returns the rows for eight callers of one process, of eight processes, and of the peer.
pub async fn rows() -> Vec<Rounds> {
    let dynamo = Dynamo::new().await;
    let mut peer = peer::Process::start(&[&serve(&dynamo), "edge"]).await;
    let (mut callers, mut processes, mut theirs) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        // Each uses a tenth of the machine, on a table of its own.
        let (of_one, of_eight) = tokio::join!(one_process(), eight_processes());
        callers.push(of_one);
        processes.push(of_eight);
        theirs.push(peer_round(&mut peer).await);
    }
    let of = |of: &str, rounds: &[Admitted]| {
        let row = |name: &str, value: fn(&Admitted) -> f64| {
            let rounds = rounds.iter().map(value).collect();
            (format!("edge/{of}/{name}"), rounds)
        };
        [row("fast", |one| one.fast), row("slow", |one| one.slow), row("writes", |one| one.writes)]
    };
    let of = [of("callers", &callers), of("processes", &processes), of("peer", &theirs)];
    of.into_iter().flatten().collect()
}

async fn one_process() -> Admitted {
    let dynamo = Dynamo::new().await;
    let limiter = limiter(connected(&serve(&dynamo)).await.1).await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(limiter.clone()));
    }
    callers.join_all().await;
    let stats = limiter.stats();
    admitted(&dynamo, &[(stats.granted, stats.writes)])
}

async fn eight_processes() -> Admitted {
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let this = std::env::current_exe().expect("a program has a path");
    let process = || {
        let mut command = tokio::process::Command::new(&this);
        command.args(["--edge", &endpoint]);
        command.stdout(Stdio::piped()).kill_on_drop(true);
        let process = command.spawn().expect("this program starts again");
        process.wait_with_output()
    };
    let processes: JoinSet<_> = (0..CALLERS).map(|_| process()).collect();
    let outputs = processes.join_all().await.into_iter();
    let stats: Vec<(u64, u64)> = outputs
        .map(|output| {
            let text = output.expect("a process ends").stdout;
            serde_json::from_slice(&text).expect("it prints two numbers")
        })
        .collect();
    admitted(&dynamo, &stats)
}

/// One of the eight processes: calls, and prints what it was granted and what it wrote.
pub async fn process(endpoint: &str) {
    let limiter = limiter(connected(endpoint).await.1).await;
    call(limiter.clone()).await;
    let stats = limiter.stats();
    println!("[{}, {}]", stats.granted, stats.writes);
}

fn limits() -> [Limit; 2] {
    [
        Limit::per_second("fast", 200).expect("a limit"),
        Limit::per_minute("slow", 6).expect("a limit"),
    ]
}

/// Wants both limits all the time.
async fn call(limiter: RateLimiter) {
    let limits: Arc<[Limit]> = Arc::new(limits());
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        let ask = |limit| {
            let acquire = limiter.acquire("openai", "gpt-4");
            acquire.shared_limits(&limits).take(limit, 1)
        };
        let _ = ask("slow").send().await.expect("a decision");
        let left = until.saturating_duration_since(Instant::now());
        let fast = ask("fast").wait_up_to(left).send().await;
        let _ = fast.expect("a decision");
    }
}

const BUCKET: &str = "default/BUCKET#openai#gpt-4#0";

/// From what each process was granted and wrote, and from the bucket itself.
fn admitted(dynamo: &Dynamo, stats: &[(u64, u64)]) -> Admitted {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("the clock is after 1970").as_millis();
    let ended =
        EpochMillis(i64::try_from(since).expect("the clock is before the year 292,000,000"));
    let item = dynamo.item(BUCKET, "#STATE");
    let number = |name: &str| {
        let number = item[name]["N"].as_str();
        number.and_then(|n| n.parse::<i64>().ok()).expect("a number")
    };
    // Created with the first write, whose `v` is the creation time.
    let from = EpochMillis((number("v") - writes_after_the_first(dynamo)) / 1000);
    let share = |name: &str| {
        let tokens = number(&format!("b_{name}_tc")) / 1000;
        let tokens = u64::try_from(tokens).expect("tokens were taken");
        count(tokens) / entitled(name, from, ended) * 100.0
    };
    let (granted, writes) = stats
        .iter()
        .fold((0, 0), |(granted, writes), (more, written)| (granted + more, writes + written));
    Admitted { fast: share("fast"), slow: share("slow"), writes: count(writes) / count(granted) }
}

/// Whole tokens of a limit from its first instant to another.
fn entitled(name: &str, from: EpochMillis, to: EpochMillis) -> f64 {
    let limits = limits();
    let mut limits = limits.iter().filter(|limit| limit.name().as_str() == name);
    let rule = limits.next().expect("it is one of the two").rule();
    let tokens = rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, from, to);
    count(u64::try_from(tokens.whole_tokens()).expect("there is some"))
}

/// How often the bucket was written to since it was created.
fn writes_after_the_first(dynamo: &Dynamo) -> i64 {
    let records = dynamo.stream();
    let is_write = |record: &&Value| record["dynamodb"]["Keys"]["PK"]["S"] == BUCKET;
    i64::try_from(records.iter().filter(is_write).count()).expect("few enough") - 1
}

async fn peer_round(peer: &mut peer::Process) -> Admitted {
    let said: Value = peer.ask(&TIME.as_secs().to_string()).await;
    let number = |of: &Value| of.as_f64().expect("the driver says a number");
    let passed = Duration::from_secs_f64(number(&said["seconds"]));
    let passed = EpochMillis(i64::try_from(passed.as_millis()).expect("short"));
    let [fast, slow] = ["fast", "slow"].map(|name| number(&said["admitted"][name]));
    let share = |name, admitted| admitted / entitled(name, EpochMillis(0), passed) * 100.0;
    Admitted {
        fast: share("fast", fast),
        slow: share("slow", slow),
        writes: number(&said["units"]) / (fast + slow),
    }
}
