//! Measures what the extension adds to the init of a function: from the start of its process until it
//! waits for an event, which is when Lambda goes on.
//!
//! ```sh
//! cargo run --release -p weirgate-agent --example init -- target/agent/weirgate-agent
//! ```
//!
//! A server in this process stands in for Lambda's Extensions API. No table is reached: the extension
//! asks for none until the function does.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STARTS: usize = 101;

fn main() {
    let usage = "usage: init AGENT";
    let binary = std::env::args().nth(1).expect(usage);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let mut waits: Vec<_> = (0..STARTS).map(|_| init(&binary, &listener)).collect();
    waits.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| waits[(STARTS - 1) * percent / 100]);
    let max = waits[STARTS - 1];
    println!("init of the extension: p50 {p50:?}, p99 {p99:?}, max {max:?}, of {STARTS} starts");
}

/// Starts the extension. Returns the time until it waits for an event.
fn init(binary: &str, listener: &TcpListener) -> Duration {
    let api = listener.local_addr().expect("an address").to_string();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let begun = Instant::now();
    let mut process = Command::new(binary)
        .env_clear()
        .env("AWS_LAMBDA_RUNTIME_API", api)
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_SESSION_TOKEN", "session-token")
        .env("WEIRGATE_TABLE", "weirgate")
        .env("WEIRGATE_HTTP_PORT", port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("the agent starts");
    let (register, mut stream) = call(listener);
    assert!(register.contains("/extension/register"), "{register}");
    let identified =
        "HTTP/1.1 200 OK\r\nlambda-extension-identifier: id-1\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(identified.as_bytes()).expect("an answer");
    let (next, _stream) = call(listener);
    let waited = begun.elapsed();
    assert!(next.contains("/extension/event/next"), "{next}");
    process.kill().expect("it runs");
    process.wait().expect("it ends");
    waited
}

/// Returns the first line of the next call, and its connection.
fn call(listener: &TcpListener) -> (String, TcpStream) {
    let (stream, _) = listener.accept().expect("a call");
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a head");
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).expect("a head");
    }
    (first, reader.into_inner())
}
