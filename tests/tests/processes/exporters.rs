//! The examples that export metrics, as processes on the embedded table: what a scrape or a log
//! line says is exactly what was decided.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weirgate_testkit::Dynamo;
use weirgate_testkit::lambda::{REQUEST_ID, invoke_all};
use weirgate_testkit::server::{ask, serve};

/// The binary of an example of the client, which `cargo test` builds beside the tests.
fn example(name: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let built: PathBuf = this.ancestors().nth(2).unwrap().join("examples").join(name);
    let build = "cargo build --locked --workspace --example";
    assert!(built.exists(), "{built:?} is missing: {build} {name}");
    Command::new(built)
}

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a request, and returns the status and the body.
fn get(address: &str, path: &str, caller: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nx-api-key: {caller}");
    ask(address, &head, "")
}

/// Returns the samples of an exposition: values by name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line| str::rsplit_once(line, ' ').unwrap();
    lines.map(sample).map(|(series, value)| (series, value.parse().unwrap())).collect()
}

/// The buckets of an outcome, in their order: upper bound and count.
fn buckets(text: &str, outcome: &str) -> Vec<(String, u32)> {
    let head = format!("weirgate_decision_seconds_bucket{{outcome=\"{outcome}\",le=\"");
    let bucket = |line: &str| {
        let (bound, count) = line.strip_prefix(&head)?.split_once("\"} ")?;
        Some((bound.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(bucket).collect()
}

#[tokio::test]
async fn prometheus_scrapes_what_was_decided() {
    let endpoint = serve(&Dynamo::new().await);
    let mut child = example("metrics_prometheus")
        .args(["weirgate", "--local", &endpoint, "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let _server = Server(child);
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("listening on http://").unwrap();

    let before = get(address, "/metrics", "prometheus").1;
    for series in ["weirgate_breaker_state", "weirgate_granted_total", "weirgate_denied_total"] {
        assert_eq!(samples(&before)[series], 0.0, "{before}");
    }
    let answers: Vec<_> = (0..8).map(|_| get(address, "/hello", "key-of-alice").0).collect();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429, 429]);
    for key in ["", "alice", "made-up"] {
        assert_eq!(get(address, "/hello", key).0, 401, "{key:?} has no limit of its own");
    }
    assert_eq!(get(address, "/hello", "key-of-bob").0, 200);
    let (status, text) = get(address, "/metrics", "prometheus");
    assert_eq!(status, 200);

    let samples = samples(&text);
    assert_eq!(samples["weirgate_granted_total"], 6.0, "{text}");
    assert_eq!(samples["weirgate_denied_total"], 3.0, "{text}");
    assert!(samples["weirgate_local_denied_total"] >= 1.0, "{text}");
    assert_eq!(samples["weirgate_breaker_state"], 0.0, "{text}");
    for (outcome, number) in [("granted", 6.0), ("denied", 3.0)] {
        let of = |series: &str| {
            let name = format!("weirgate_decision_seconds_{series}{{outcome=\"{outcome}\"}}");
            samples[name.as_str()]
        };
        assert_eq!(of("count"), number, "{text}");
        assert!(of("sum") > 0.0, "{text}");
        let buckets = buckets(&text, outcome);
        assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{text}");
        let (bound, all) = buckets.last().unwrap();
        assert_eq!((bound.as_str(), f64::from(*all)), ("+Inf", number));
    }
    for line in [
        "# TYPE weirgate_granted_total counter",
        "# TYPE weirgate_breaker_state gauge",
        "# TYPE weirgate_decision_seconds histogram",
        "# HELP weirgate_granted_total Acquires granted.",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is missing in {text}");
    }
}

/// The values of a line in the embedded metric format, if it has what CloudWatch asks for.
fn metrics(line: &str) -> (Vec<String>, BTreeMap<String, Value>) {
    let line: Value = serde_json::from_str(line).unwrap();
    assert!(line["_aws"]["Timestamp"].as_u64().is_some(), "{line}");
    let [directive] = &line["_aws"]["CloudWatchMetrics"].as_array().unwrap()[..] else {
        panic!("{line} has one namespace")
    };
    assert_eq!(directive["Namespace"], "Jobs");
    assert_eq!(line["request_id"], REQUEST_ID, "{line}");
    let [dimensions] = &directive["Dimensions"].as_array().unwrap()[..] else {
        panic!("{line} has one set of dimensions")
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let dimensions = dimensions.as_array().unwrap().iter();
    let dimensions = dimensions.map(|name| format!("{}={}", text(name), text(&line[&text(name)])));
    let each = |metric: &Value| {
        let name = text(&metric["Name"]);
        let value = line[&name].clone();
        assert!(!value.is_null(), "{name} has a value: {line}");
        (name, value)
    };
    let all = directive["Metrics"].as_array().unwrap();
    (dimensions.collect(), all.iter().map(each).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_logs_what_each_invocation_decided() {
    let endpoint = serve(&Dynamo::new().await);
    let events = [
        r#"{"caller": "alice", "jobs": 7}"#,
        r#"{"caller": "alice", "jobs": 5}"#,
        r#"{"caller": "bob", "jobs": 0}"#,
    ];
    let invoked = invoke_all(example("metrics_emf"), &endpoint, &events).await;
    assert_eq!(
        invoked.answers,
        [
            r#"{"granted":7,"denied":0}"#,
            r#"{"granted":3,"denied":2}"#,
            r#"{"granted":0,"denied":0}"#
        ]
    );
    let mut sums = BTreeMap::<String, u64>::new();
    let mut decisions = BTreeMap::<String, usize>::new();
    let mut granted = vec![];
    let mut breaker = vec![];
    for line in invoked.log.lines() {
        let (dimensions, values) = metrics(line);
        assert_eq!(dimensions[0], "function=bench", "{line}");
        for (name, value) in values {
            match name.as_str() {
                "weirgate_decision_seconds" => {
                    let values = value.as_array().map_or(1, Vec::len);
                    *decisions.entry(dimensions[1].clone()).or_default() += values;
                }
                "weirgate_breaker_state" => breaker.push(value),
                name => {
                    let value = value.as_u64().unwrap();
                    if name == "weirgate_granted_total" {
                        granted.push(value);
                    }
                    *sums.entry(name.to_owned()).or_default() += value;
                }
            }
        }
    }
    let log = &invoked.log;
    assert_eq!(granted, [7, 3], "each invocation's own: {log}");
    assert_eq!(sums["weirgate_granted_total"], 10, "{log}");
    assert_eq!(sums["weirgate_denied_total"], 2, "{log}");
    assert!(sums["weirgate_local_denied_total"] >= 1, "{log}");
    let all = [("outcome=denied", 2), ("outcome=granted", 10)];
    assert_eq!(decisions, all.map(|(name, number)| (name.to_owned(), number)).into(), "{log}");
    assert_eq!(breaker, [0.0, 0.0, 0.0], "a gauge is there in each: {log}");
}
