//! Start, readiness and end.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::json;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::fixtures::{Agent, Client, File, command, temporary};

#[test]
fn a_signal_ends_it_after_the_requests_in_flight() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut agent = Agent::new(&[]);
        let slots = json!({"entity": "e", "resource": "r", "take": {"slots": 20}});
        let held = agent.acquire(&slots);
        let mut idle = agent.connect();
        let mut releasing = agent.connect();
        let settle = json!({"grant": held["grant"], "end": "release"}).to_string();
        let (most, last) = settle.split_at(settle.len() - 1);
        let head = format!(
            "POST /v1/settle HTTP/1.1\r\nhost: agent\r\ncontent-length: {}\r\n\r\n{most}",
            settle.len()
        );
        releasing.write_raw(head.as_bytes());
        let mut wait = slots.clone();
        wait["wait_ms"] = 60_000.into();
        let mut waiting = agent.connect();
        waiting.write("POST", "/v1/acquire", &[], &wait.to_string());
        agent.wait_for("weirgate_agent_in_flight", |number| number == 1.0);
        agent.signal(signal);
        assert!(idle.read().is_none(), "an idle connection is closed");
        releasing.write_raw(last.as_bytes());
        let released = releasing.read().expect("a request in flight is answered");
        assert_eq!(released.json()["settlement"], "settled", "{released:?}");
        assert_eq!(waiting.read().expect("a waiting one too").status, 200);
        assert_eq!(agent.process.wait().unwrap().code(), Some(0), "{signal}");
    }
}

/// Takes tokens until some are prefetched.
fn take_until_prefetched(agent: &Agent) {
    let take = json!({"entity": "e", "resource": "r", "take": {"tpm": 1}});
    let name = "weirgate_prefetch_outstanding_tokens{resource=\"r\",limit=\"tpm\"}";
    // Enough of them that a block is worth a write.
    let mut client = agent.connect();
    while !agent.get("/metrics").body.contains(name) || agent.metric(name) < 10.0 {
        assert_eq!(client.post("/v1/acquire", &take).status, 200);
    }
}

/// Returns the usage of the tokens that were taken and not returned.
fn used(endpoint: &str) -> f64 {
    let body = crate::openapi::day(&json!({"entity": "e"}), true);
    let row = Agent::on(endpoint, &[]).post("/v1/usage", &body);
    row.json()["usage"]["tokens"]["tpm"].as_f64().unwrap()
}

#[test]
fn prefetched_tokens_return_at_the_end() {
    let endpoint = crate::fixtures::database();
    let mut agent = Agent::on(&endpoint, &["--prefetch", "r=50@60000"]);
    take_until_prefetched(&agent);
    let spent = agent.metric("weirgate_granted_total");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.process.wait().unwrap().code(), Some(0));
    assert_eq!(used(&endpoint), spent);
}

#[test]
fn a_client_that_watches_the_health_costs_no_prefetched_tokens() {
    let endpoint = crate::fixtures::database();
    let rules = File::new(
        "{weirgate: 1, domains: {edge: [{match: [tenant], entity: \"{tenant}\", resource: r, take: {tpm: hits}}]}}",
    );
    // The first line of the log has the other address.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let grpc = free.local_addr().unwrap().to_string();
    drop(free);
    let prefetch = ["--prefetch", "r=50@60000", "--grace", "0.5"];
    let service = ["--grpc", &grpc, "--rules", rules.path()];
    let mut agent = Agent::on(&endpoint, &[prefetch, service].concat());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut watched = runtime.block_on(async {
        let channel = Channel::builder(format!("http://{grpc}").parse().unwrap());
        // It listens a moment after its other address.
        let channel = loop {
            if let Ok(channel) = channel.connect().await {
                break channel;
            }
        };
        let all = HealthCheckRequest::default();
        let watched = HealthClient::new(channel).watch(all).await;
        watched.unwrap().into_inner()
    });
    take_until_prefetched(&agent);
    let spent = agent.metric("weirgate_granted_total");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.process.wait().unwrap().code(), Some(0));
    assert_eq!(used(&endpoint), spent);
    let first = runtime.block_on(watched.message());
    assert!(first.unwrap().is_some(), "the watch was open");
}

#[test]
fn a_unix_socket_is_for_its_owner_and_goes_with_the_agent() {
    let path = temporary("socket");
    let shown = path.to_str().unwrap().to_owned();
    let mut agent = Agent::new(&["--unix-socket", &shown]);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client::to(UnixStream::connect(&path).unwrap());
    let take = json!({"entity": "e", "resource": "r", "take": {"rpm": 1}});
    assert_eq!(client.post("/v1/acquire", &take).status, 200);

    let second = command(&["--table", "weirgate", "--unix-socket", &shown])
        .output()
        .unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(
        error.contains(&shown) && error.contains("in use"),
        "{error}"
    );

    // A killed agent leaves it, and the next one takes its place.
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    assert!(path.exists());
    let mut next = Agent::new(&["--unix-socket", &shown]);
    assert!(UnixStream::connect(&path).is_ok());
    next.signal(Signal::SIGTERM);
    assert_eq!(next.process.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_wrong_start_is_one_line_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let agent = Agent::new(&[]);
    let broken = File::new("weirgate: 1\nsystem: {limit: 1}\n");
    for (arguments, code, words) in [
        (&[][..], 2, &["--table", "WEIRGATE_TABLE"][..]),
        (
            &["--table", "weirgate", "--listen", &agent.address],
            1,
            &[&agent.address, "in use", "--listen"],
        ),
        (
            &["--table", "weirgate", "--listen", "0.0.0.0:0"],
            2,
            &["0.0.0.0:0", "--token-file", "16 characters"],
        ),
        (
            &["--table", "weirgate", "--limits-file", broken.path()],
            2,
            &[broken.path(), ":2:", "limit"],
        ),
        (
            &["--table", "weirgate", "--limits-file", "/none"],
            2,
            &["/none"],
        ),
        (
            &["--table", "weirgate", "--token-file", "/none"],
            2,
            &["--token-file /none"],
        ),
        (&["--table", "a b"], 2, &["\"a b\"", "table name"]),
        (
            &["--table", "weirgate", "--prefetch", "r=0"],
            2,
            &["--prefetch", "1 to 100"],
        ),
        (
            &["--table", "weirgate", "--nonsense"],
            2,
            &["--nonsense", "--help"],
        ),
        (&["--table", "weirgate", "--namespace", "a b"], 2, &["a b"]),
    ] {
        let output = command(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            words.iter().all(|word| error.contains(word)),
            "{arguments:?}: {error}"
        );
    }
    drop(taken);
}

#[test]
fn it_is_healthy_once_the_table_is_reached() {
    let endpoint = weirgate_testkit::server::serve(&weirgate_testkit::Dynamo::empty());
    let agent = Agent::on(&endpoint, &[]);
    let health = agent.get("/healthz");
    assert_eq!(health.status, 503, "{health:?}");
    assert!(
        health.json()["detail"]
            .as_str()
            .unwrap()
            .contains("no such table"),
        "{health:?}"
    );
    let agent = Agent::new(&[]);
    assert_eq!(agent.get("/healthz").json(), json!({"status": "ok"}));
}

#[test]
fn a_log_line_is_an_object_on_standard_output() {
    // Every other test reads the first one; this one shows the level.
    let mut quiet = command(&[
        "--table",
        "weirgate",
        "--log-level",
        "error",
        "--listen",
        "127.0.0.1:0",
        "--endpoint-url",
        "http://127.0.0.1:1",
    ]);
    let mut process = quiet.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(process.stdout.take().unwrap());
    // Nothing is reached there, and the first line says so.
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let _ = process.kill();
    let _ = process.wait();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["level"], "ERROR", "{line}");
    assert!(
        line["timestamp"].is_string() && line["error"].is_string(),
        "{line}"
    );
    let _ = std::io::stdout().flush();
}
