//! The deployed binary: its size, how long it takes from start to its first poll, and what memory a large batch costs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::server::serve;
use super::{Row, print};
use crate::Dynamo;
use crate::batches::{batch, event};

const STARTS: usize = 20;

/// Prints the rows of the aggregator's binary, built by `make build`.
///
/// # Panics
/// If it is not there, or does not behave as a function.
pub async fn run() {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lambda/aggregator/bootstrap");
    let bytes = std::fs::metadata(&binary).expect("run `make build` first").len();
    let zipped = Command::new("gzip").args(["-9", "-c"]).arg(&binary).output().expect("gzip is there").stdout.len();
    let zipped = u64::try_from(zipped).expect("a size");
    let mb = |bytes: u64| format!("{}.{:02} MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000);
    print(&Row {
        what: "function binary, and gzipped",
        measured: format!("{} and {}", mb(bytes), mb(zipped)),
        target: "at most 4 MB and 1.8 MB",
        is_met: bytes <= 4_000_000 && zipped <= 1_800_000,
    });

    let dynamo = Dynamo::new().await;
    let endpoint = serve(&dynamo);
    let event = event(&batch(1_000, 1_000).await.1);
    let (mut starts, mut peaks) = (vec![], vec![]);
    for _ in 0..STARTS {
        let (start, peak_kib) = invoke(&binary, &endpoint, &event).await;
        starts.push(start);
        peaks.push(peak_kib);
    }
    starts.sort();
    let (start, peak) = (starts[STARTS / 2], *peaks.iter().max().expect("some starts"));
    print(&Row {
        what: "function start to first poll, median of 20",
        measured: format!("{start:.1?}"),
        target: "at most 10 ms",
        is_met: start <= Duration::from_millis(10),
    });
    print(&Row {
        what: "peak memory for 1,000 records",
        measured: format!("{} MiB ({} KB of event)", peak.div_ceil(1024), event.len() / 1000),
        target: "at most 32 MiB",
        is_met: peak <= 32 * 1024,
    });
}

/// Runs the function for one event; says how long it took to ask for it, and its peak memory in KiB.
async fn invoke(binary: &Path, endpoint: &str, event: &str) -> (Duration, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let api = listener.local_addr().expect("it is bound").to_string();
    let started = Instant::now();
    let mut function = Command::new(binary)
        .env_clear()
        .envs([("AWS_LAMBDA_RUNTIME_API", api.as_str()), ("AWS_ENDPOINT_URL", endpoint), ("TABLE_NAME", "weirgate")])
        .envs([("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")])
        .envs([("AWS_LAMBDA_FUNCTION_NAME", "bench"), ("AWS_LAMBDA_FUNCTION_VERSION", "1")])
        .envs([("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"), ("AWS_LAMBDA_LOG_STREAM_NAME", "-")])
        .env("AWS_LAMBDA_LOG_GROUP_NAME", "-")
        .stdout(Stdio::null())
        .spawn()
        .expect("the function starts");
    let mut first_poll = None;
    let mut has_answered = false;
    let (stream, _) = listener.accept().await.expect("the function asks for an event");
    let mut stream = BufReader::new(stream);
    while !has_answered {
        let Some((line, _body)) = request(&mut stream).await else {
            let (next, _) = listener.accept().await.expect("the function goes on");
            stream = BufReader::new(next);
            continue;
        };
        let answer = if line.contains("/next") {
            first_poll.get_or_insert_with(|| started.elapsed());
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLambda-Runtime-Aws-Request-Id: 1\r\n\
                 Lambda-Runtime-Deadline-Ms: {}\r\nLambda-Runtime-Invoked-Function-Arn: arn\r\nContent-Length: {}\r\n\r\n{event}",
                now + 60_000,
                event.len()
            )
        } else {
            assert!(line.contains("/response"), "the function failed: {line}");
            has_answered = true;
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        stream.get_mut().write_all(answer.as_bytes()).await.expect("the function reads");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", function.id())).expect("it is still there");
    let _ = function.kill();
    let _ = function.wait();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    (first_poll.expect("it polled"), peak.expect("Linux tells the peak"))
}

/// One request of the runtime: its first line and its body.
async fn request(stream: &mut BufReader<tokio::net::TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut first, mut length) = (String::new(), 0);
    if stream.read_line(&mut first).await.ok()? == 0 {
        return None;
    }
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(bytes) = header.strip_prefix("content-length:") {
            length = bytes.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((first, body))
}
