//! Measures the agent: start, memory, and the time of a request that prefetched tokens answer.
//!
//! ```sh
//! cargo build --release -p weirgate-agent
//! cargo run -p weirgate-agent --example load -- target/release/weirgate-agent 10000 20
//! ```
//!
//! The load is open: a request is due at its time whether or not earlier ones are answered, and its
//! time counts from when it was due. One thread sends and receives without waiting, so that the
//! system's timers are no part of what is measured; it keeps one processor busy, and the agent has
//! the others.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use weirgate_testkit::{Dynamo, server};

const LIMITS: &str = "
weirgate: 1
system:
  limits:
    rpm: {per_minute: 1000000000}
    tpm: {per_minute: 1000000000}
";
const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_secs(3);
const STARTS: usize = 21;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: load AGENT [REQUESTS_PER_SECOND [SECONDS]]";
    let binary = arguments.first().expect(usage);
    let number = |at: usize, default: u32| {
        let given = arguments.get(at);
        given.map_or(default, |text| text.parse().expect(usage))
    };
    let (rate, seconds) = (number(1, 10_000), number(2, 20));

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let endpoint = server::serve(&runtime.expect("a runtime").block_on(Dynamo::new()));
    let limits = std::env::temp_dir().join(format!("weirgate-load-{}.yaml", std::process::id()));
    std::fs::write(&limits, LIMITS).expect("a temporary file");
    let limits = limits.to_str().expect("a path in UTF-8").to_owned();
    let start = || Agent::start(binary, &endpoint, &limits);

    let mut starts: Vec<_> = (0..STARTS).map(|_| start().ready_in).collect();
    starts.sort_unstable();
    println!(
        "start to healthy: p50 {:?}, max {:?}",
        starts[STARTS / 2],
        starts[STARTS - 1]
    );
    let size = std::fs::metadata(binary).expect("the agent").len();
    println!("binary: {size} bytes");

    let agent = start();
    println!("memory after the start: {}", agent.memory());
    let mut load = Load::new(&agent.address);
    load.run(rate, WARM_UP);
    load.times.reset();
    let answered = load.run(rate, Duration::from_secs(seconds.into()));
    let at = |quantile| load.times.value_at_quantile(quantile);
    println!(
        "{rate} requests/s for {seconds} s: {answered} answered, {} refused; p50 {} us, p90 {} us, \
         p99 {} us, p99.9 {} us, max {} us",
        load.refused,
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        load.times.max()
    );
    println!("memory after the load: {}", agent.memory());
    let _ = std::fs::remove_file(&limits);
}

/// An agent, and how long it took until it was healthy.
struct Agent {
    process: Child,
    address: String,
    ready_in: Duration,
}

impl Agent {
    fn start(binary: &str, endpoint: &str, limits: &str) -> Self {
        let begun = Instant::now();
        let mut process = Command::new(binary)
            .args([
                "--table",
                "weirgate",
                "--endpoint-url",
                endpoint,
                "--listen",
                "127.0.0.1:0",
            ])
            .args(["--limits-file", limits, "--prefetch", "gpt-4"])
            .env_clear()
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("its first line");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let address = address.expect("its address").to_owned();
        let mut stream = TcpStream::connect(&address).expect("it listens");
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        stream.write_all(request).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Self {
            process,
            address,
            ready_in: begun.elapsed(),
        }
    }

    fn memory(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the agent's status");
        let lines = status
            .lines()
            .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection, and when its request was due.
struct Connection {
    stream: TcpStream,
    due: Option<Instant>,
    answer: Vec<u8>,
}

struct Load {
    connections: Vec<Connection>,
    request: Vec<u8>,
    times: Histogram<u64>,
    refused: u64,
}

impl Load {
    fn new(address: &str) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(address).expect("it listens");
            stream.set_nodelay(true).expect("an option of TCP");
            stream.set_nonblocking(true).expect("an option of TCP");
            Connection {
                stream,
                due: None,
                answer: vec![],
            }
        };
        let body = r#"{"entity":"openai","resource":"gpt-4","take":{"rpm":1,"tpm":1500}}"#;
        let head = "POST /v1/acquire HTTP/1.1\r\nhost: agent\r\ncontent-type: application/json\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        Self {
            connections: (0..CONNECTIONS).map(connect).collect(),
            request: request.into_bytes(),
            times: Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are valid"),
            refused: 0,
        }
    }

    /// Sends requests at a rate. Returns the number of those that were answered.
    fn run(&mut self, rate: u32, time: Duration) -> u64 {
        let gap = Duration::from_secs(1) / rate;
        let (begun, mut sent, mut answered) = (Instant::now(), 0_u32, 0);
        loop {
            let due = begun + gap * sent;
            let is_over = due.duration_since(begun) >= time;
            let mut free = self.connections.iter_mut();
            if !is_over
                && due <= Instant::now()
                && let Some(connection) = free.find(|connection| connection.due.is_none())
            {
                let written = connection.stream.write_all(&self.request);
                written.expect("a small request fits");
                connection.due = Some(due);
                sent += 1;
            }
            let mut is_idle = true;
            for connection in &mut self.connections {
                let Some(due) = connection.due else {
                    continue;
                };
                is_idle = false;
                if let Some(is_granted) = connection.read() {
                    let micros = due.elapsed().as_nanos().div_ceil(1_000);
                    self.times
                        .saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
                    connection.due = None;
                    answered += 1;
                    self.refused += u64::from(!is_granted);
                }
            }
            if is_over && is_idle {
                return answered;
            }
        }
    }
}

impl Connection {
    /// Reads what has arrived. Returns whether the request was granted, once its answer is whole.
    fn read(&mut self) -> Option<bool> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => panic!("the agent closed a connection"),
            Ok(count) => self.answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
        let head = self
            .answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")?;
        let text = std::str::from_utf8(&self.answer[..head]).expect("a head in ASCII");
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("a length").parse().expect("a length");
        if self.answer.len() < head + 4 + length {
            return None;
        }
        let is_granted = text.starts_with("HTTP/1.1 200");
        self.answer.clear();
        Some(is_granted)
    }
}
