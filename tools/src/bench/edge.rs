//! The refill edge: more is asked than flows in, of a fast limit and a slow one beside it, for 25
//! s.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;
use weirgate::{Limit, RateLimiter, Stats};
use weirgate_shared::{BucketKey, EpochMillis, ShardIndex, refill_between};
use weirgate_store::{ConnectOptions, Table, connect};

use super::acquire::limiter;
use super::{Row, print};
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

const TIME: Duration = Duration::from_secs(25);
const CALLERS: usize = 8;

/// Prints the rows for eight callers of one process, and for eight processes.
///
/// # Panics
/// If a process of its own cannot be started.
pub async fn run() {
    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let limiter = limiter(table(&endpoint).await).await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(limiter.clone()));
    }
    callers.join_all().await;
    row(
        "8 callers of one process at the edge",
        &dynamo,
        &[limiter.stats()],
        1.0,
        "at most 1.0 writes",
    );

    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let this = std::env::current_exe().expect("a program has a path");
    let process = || {
        let mut command = tokio::process::Command::new(&this);
        command
            .args(["edge", &endpoint])
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        command
            .spawn()
            .expect("this program starts again")
            .wait_with_output()
    };
    let processes: JoinSet<_> = (0..CALLERS).map(|_| process()).collect();
    let stats = processes.join_all().await.into_iter().map(|output| {
        let text = String::from_utf8(output.expect("a process ends").stdout).expect("text");
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        Stats {
            granted: numbers[0],
            writes: numbers[1],
            ..Stats::default()
        }
    });
    let stats: Vec<_> = stats.collect();
    row(
        "8 processes at the edge",
        &dynamo,
        &stats,
        2.0,
        "at most 2.0 writes",
    );
}

/// One of the eight processes: calls, and prints what it was granted and what it wrote.
pub async fn process(endpoint: &str) {
    let limiter = limiter(table(endpoint).await).await;
    call(limiter.clone()).await;
    println!("{} {}", limiter.stats().granted, limiter.stats().writes);
}

async fn table(endpoint: &str) -> Table {
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    Table::new(connect(connection).await, "weirgate")
}

/// Wants both limits all the time.
async fn call(limiter: RateLimiter) {
    let limits: Arc<[Limit]> = Arc::new([
        Limit::per_second("fast", 200).expect("a limit"),
        Limit::per_minute("slow", 6).expect("a limit"),
    ]);
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        let ask = |limit| {
            limiter
                .acquire("openai", "gpt-4")
                .shared_limits(&limits)
                .take(limit, 1)
        };
        let _ = ask("slow").send().await.expect("a decision");
        let left = until.saturating_duration_since(Instant::now());
        let _ = ask("fast")
            .wait_up_to(left)
            .send()
            .await
            .expect("a decision");
    }
}

#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "ratios for people to read"
)]
fn row(
    what: &'static str,
    dynamo: &Dynamo,
    stats: &[Stats],
    most_writes: f64,
    writes_target: &'static str,
) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let ended = EpochMillis(i64::try_from(since.as_millis()).unwrap_or_default());
    let item = dynamo.item("default/BUCKET#openai#gpt-4#0", "#STATE");
    let number = |name: &str| {
        item[name]["N"]
            .as_str()
            .and_then(|n| n.parse::<i64>().ok())
            .expect("a number")
    };
    let key = BucketKey::parse("default/BUCKET#openai#gpt-4#0").expect("a key");
    // Created with the first write, whose `v` is the creation time; the last grant is a moment ago.
    let from = EpochMillis((number("v") - stats_writes_applied(dynamo, &key)) / 1000);
    let admitted = |limit: &str| number(&format!("b_{limit}_tc")) / 1000;
    let entitled = |limit: &Limit| {
        (limit.rule().capacity + refill_between(limit.rule(), ShardIndex::UNSPLIT, from, ended))
            .whole_tokens()
    };
    let share = |name: &str, limit: Limit| admitted(name) as f64 / entitled(&limit) as f64 * 100.0;
    let fast = share("fast", Limit::per_second("fast", 200).expect("a limit"));
    let slow = share("slow", Limit::per_minute("slow", 6).expect("a limit"));
    let granted: u64 = stats.iter().map(|stats| stats.granted).sum();
    let writes = stats.iter().map(|stats| stats.writes).sum::<u64>() as f64 / granted as f64;
    let is_full = |share: f64| (99.0..=100.0).contains(&share);
    print(&Row {
        what,
        measured: format!(
            "{fast:.2} % of 200/s and {slow:.2} % of 6/min entitled, {writes:.2} writes per admitted"
        ),
        target: writes_target,
        is_met: is_full(fast) && is_full(slow) && writes <= most_writes,
    });
}

/// How often the bucket was written to since it was created.
fn stats_writes_applied(dynamo: &Dynamo, key: &BucketKey) -> i64 {
    let records = dynamo.stream();
    let pk = key.item_key().pk;
    let is_write =
        |record: &&serde_json::Value| record["dynamodb"]["Keys"]["PK"]["S"] == pk.as_str();
    i64::try_from(records.iter().filter(is_write).count()).unwrap_or_default() - 1
}
