//! Loads: every acquire that is due is counted once, with its outcome.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::fixtures::Table;

/// Longest time until a lease is taken.
const BOUND: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_load_counts_each_acquire_once_and_its_outcome() {
    let table = Table::new().await;
    table.json("limits set --resource api hits=30/day");
    let load = "load user api hits=1 --rate 50 --for 1s";
    let report = table.json(load);
    let of = |outcome: &str| report["outcomes"][outcome]["acquires"].clone();
    assert_eq!(of("granted"), json!(30), "{report}");
    assert_eq!(of("denied"), json!(20), "{report}");
    assert_eq!(&report["acquires"], &json!(50), "{report}");
    assert_eq!(report["failures"], json!({}), "{report}");
    let usage = table.json("peek user api");
    assert!(usage["limits"][0]["available_tokens"].as_f64() < Some(1.0), "{usage}");
    // The first one is due at once.
    let short = table.json("load user api hits=1 --rate 1 --for 500ms");
    assert_eq!(short["acquires"], 1, "{short}");
    let text = table.text(load);
    assert!(text.starts_with("50 acquires in 1s, 50 per second asked\n"), "{text}");
    assert!(text.contains("denied") && !text.contains("granted"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_spreads_over_entities_and_processes_and_releases_what_it_held() {
    let table = Table::new().await;
    let load = [
        "load",
        "user",
        "gpu",
        "slots=1",
        "--limit",
        "slots=100",
        "--rate",
        "40",
        "--for",
        "1s",
        "--entities",
        "4",
        "--processes",
        "3",
        "--hold",
        "1s",
    ];
    let report = table.json(load);
    assert_eq!(report["outcomes"]["granted"]["acquires"], 40, "{report}");
    for entity in ["user-0", "user-1", "user-2", "user-3"] {
        let buckets = table.json(["buckets", "--entity", entity]);
        let bucket = &buckets["items"][0];
        assert_eq!(bucket["limits"][0]["available_tokens"], 100, "{bucket}");
        let leases = table.json(["leases", "list", entity, "gpu"]);
        assert_eq!(leases["items"], json!([]));
    }
}

/// Others may have slots whose lease has expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lasts_longer_than_its_slots_are_held() {
    let table = Table::new().await;
    let mut load = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    load.args(&table.options).args(["load", "user", "gpu", "slots=1", "--limit", "slots=1"]);
    load.args(["--rate", "1", "--for", "1s", "--hold", "100s"]);
    let mut load = load.env_clear().spawn().expect("it runs");
    let begun = Instant::now();
    let expires_at = loop {
        assert!(begun.elapsed() < BOUND, "no lease is taken");
        let leases = table.json("leases list user gpu");
        if let Some(at) = leases["items"][0]["expires_at_ms"].as_u64() {
            break at;
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("it is after 1970").as_millis();
    load.kill().expect("it runs");
    load.wait().expect("it ends");
    assert!(u128::from(expires_at) > now + 95_000, "{expires_at} {now}");
}

/// Slots that stay held would deny other callers until their leases end.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_returns_the_slots_and_another_one_counts_what_has_no_answer() {
    for (signal, wait, is_complete) in [
        (Signal::SIGTERM, "1s", true),
        (Signal::SIGHUP, "1s", true),
        (Signal::SIGINT, "1s", true),
        (Signal::SIGINT, "1h", false),
    ] {
        let table = Table::new().await;
        let mut load = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        load.args(&table.options).args(["--json", "load", "user", "gpu", "slots=1"]);
        load.args(["--limit", "slots=2", "--rate", "5", "--for", "1h", "--hold", "10h"]);
        // With a wait of an hour, what the holds' end does not serve is without an answer.
        load.args(["--wait", wait]).env_clear().stdout(Stdio::piped());
        let mut load = load.spawn().expect("it runs");
        let mut begun = Instant::now();
        let leases = || {
            let leases = table.json("leases list user gpu");
            leases["items"].as_array().map_or(0, Vec::len)
        };
        while leases() < 2 {
            assert!(begun.elapsed() < BOUND, "no lease is taken");
        }
        let id = Pid::from_raw(load.id().try_into().unwrap());
        kill(id, signal).unwrap();
        begun = Instant::now();
        // One within a second belongs to the first.
        while load.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < BOUND, "{signal}: it goes on");
            if !is_complete {
                let _ = kill(id, signal);
            }
            tokio::task::yield_now().await;
        }
        let output = load.wait_with_output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let outcomes = report["outcomes"].as_object().unwrap().values();
        let counted = outcomes.map(|row| row["acquires"].as_u64().unwrap());
        assert_eq!(counted.sum::<u64>(), report["acquires"].as_u64().unwrap(), "{report}");
        assert!(report["outcomes"]["granted"]["acquires"].as_u64() >= Some(2), "{report}");
        let failed = report["outcomes"]["failed"]["acquires"].as_u64();
        assert_eq!(output.status.code() == Some(0), failed.is_none(), "{report}");
        if is_complete {
            assert_eq!((leases(), failed), (0, None), "{signal}: {report}");
            continue;
        }
        // One is due each 200 ms, so not all of them waited from the start on.
        let [least, most] =
            ["p50_ms", "max_ms"].map(|at| report["outcomes"]["failed"][at].as_f64());
        assert!(failed < Some(2) || least < most, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acquires_above_those_in_flight_are_counted_and_wrong_ones_are_refused() {
    let table = Table::new().await;
    let waits = [
        "load",
        "user",
        "api",
        "hits=1",
        "--limit",
        "hits=60/minute,burst=1",
        "--rate",
        "50",
        "--for",
        "1s",
        "--wait",
        "2s",
        "--in-flight",
        "5",
    ];
    let report = table.json(waits);
    let counted = [&report["acquires"], &report["not_begun"]].map(|n| n.as_u64().unwrap_or(0));
    assert_eq!(counted.iter().sum::<u64>(), 50, "{report}");
    assert!(counted[1] > 0, "{report}");

    table.json("limits set --resource other hits=1/day");
    for (resource, takes, remedy) in
        [("api", "hits=1", "no limits are configured"), ("other", "hit=1", "hit")]
    {
        let run = table.run(["load", "user", resource, takes, "--rate", "5"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stdout.is_empty() && run.stderr.contains(remedy), "{run:?}");
    }
}
