//! Lambda's side of a function: its runtime API for one event, or several.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// What a function did with events, one after the other.
#[derive(Debug)]
pub struct Invoked {
    /// From its start to its first question for an event.
    pub start: Duration,
    /// Its peak memory in KiB, as Linux tells it.
    pub peak_kib: u64,
    /// Its answers.
    pub answers: Vec<String>,
    /// What it logged.
    pub log: String,
}

/// How long a function gets to ask, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The request id of each event.
pub const REQUEST_ID: &str = "8f5f1c1e-4c2b-4d0e-9a43-0f6a5a3c7b21";

/// Runs a function of 128 MB, whose binary `command` starts, for one event, on the table `weirgate`
/// at `endpoint`.
pub async fn invoke(command: Command, endpoint: &str, event: &str) -> Invoked {
    invoke_all(command, endpoint, &[event]).await
}

/// Runs a function as [`invoke`], for these events in the same process.
pub async fn invoke_all(mut command: Command, endpoint: &str, events: &[&str]) -> Invoked {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let api = listener.local_addr().expect("it is bound").to_string();
    let started = Instant::now();
    let mut function = command
        .env_clear()
        .envs([
            ("AWS_LAMBDA_RUNTIME_API", api.as_str()),
            ("AWS_ENDPOINT_URL", endpoint),
            ("TABLE_NAME", "weirgate"),
        ])
        .envs([
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
        ])
        .envs([("AWS_LAMBDA_FUNCTION_NAME", "bench"), ("AWS_LAMBDA_FUNCTION_VERSION", "1")])
        .envs([("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"), ("AWS_LAMBDA_LOG_STREAM_NAME", "-")])
        .env("AWS_LAMBDA_LOG_GROUP_NAME", "-")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the function starts");
    let mut first_poll = None;
    let mut answers = vec![];
    // One that does not start, or ends, asks for nothing.
    let asked = || async {
        tokio::time::timeout(PATIENCE, listener.accept()).await.expect("the function is alive")
    };
    let (stream, _) = asked().await.expect("the function asks for an event");
    let mut stream = BufReader::new(stream);
    while answers.len() < events.len() {
        let Some((line, body)) = request(&mut stream).await else {
            let (next, _) = asked().await.expect("the function goes on");
            stream = BufReader::new(next);
            continue;
        };
        let event = events[answers.len()];
        let answer = if line.contains("/next") {
            first_poll.get_or_insert_with(|| started.elapsed());
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLambda-Runtime-Aws-Request-Id: {REQUEST_ID}\r\n\
                 Lambda-Runtime-Deadline-Ms: {}\r\nLambda-Runtime-Invoked-Function-Arn: arn\r\nContent-Length: {}\r\n\r\n{event}",
                now + 60_000,
                event.len()
            )
        } else {
            let body = String::from_utf8(body).expect("an answer is text");
            assert!(line.contains("/response"), "the function failed: {line}{body}");
            answers.push(body);
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        stream.get_mut().write_all(answer.as_bytes()).await.expect("the function reads");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", function.id()))
        .expect("it is still there");
    let _ = function.kill();
    let _ = function.wait();
    let mut log = String::new();
    let _ = function.stdout.take().expect("it is read").read_to_string(&mut log);
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    Invoked {
        start: first_poll.expect("it polled"),
        peak_kib: peak.expect("Linux tells the peak"),
        answers,
        log,
    }
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
