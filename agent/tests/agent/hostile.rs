//! Clients that hold what they can, outputs that take no lines, and a process without descriptors.

use std::fs::File as Output;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::json;
use weirgate_testkit::{Fault, Temporary};

use crate::fixtures::{
    Agent, Answer, Client, Process, Serving, Settings, command, database, file, kill, temporary,
};

const TAKE: &str = r#"{"entity": "e", "resource": "r", "take": {"rpm": 1}}"#;
/// A rule whose limit is nowhere configured, so that each call is logged.
const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant]
      entity: "{tenant}"
      resource: api
      take: {nowhere: hits}
"#;
/// RateLimitRequest { domain: "edge", descriptors: [{ entries: [{ "tenant", "a" }] }] }
const MESSAGE: &[u8] = b"\0\0\0\0\x15\x0a\x04edge\x12\x0d\x0a\x0b\x0a\x06tenant\x12\x01a";
const PATH: &str = "http://agent/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Returns the memory of the agent, in KiB: `VmHWM` is the largest until now, `VmRSS` what it is now.
fn memory(agent: &Process, name: &str) -> usize {
    let status = format!("/proc/{}/status", agent.process.id());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Asks for health until the table has answered: its time is short while both cores are busy.
fn assert_answers(agent: &Process) {
    let mut answers = std::iter::repeat_with(|| agent.get("/healthz")).take(12);
    let is_late =
        |answer: &Answer| answer.status == 503 && answer.body.contains("no answer within");
    let answer = answers.find(|answer| !is_late(answer)).expect("an answer of the table");
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Requires that the agent never took so many MiB.
fn assert_below(agent: &Process, most: usize) {
    let peak = memory(agent, "VmHWM") / 1024;
    assert!(peak < most, "{peak} MiB");
}

fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// Returns an address for a process that cannot choose one itself.
fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], weirgate_testkit::server::free_port()).into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

type Parts = StreamBody<
    futures_util::stream::Chain<
        futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::io::Error>>>,
        futures_util::stream::Pending<Result<Frame<Bytes>, std::io::Error>>,
    >,
>;

/// Returns a body of these parts that does not end.
fn endless(parts: Vec<Bytes>) -> Parts {
    let parts: Vec<_> = parts.into_iter().map(|part| Ok(Frame::data(part))).collect();
    let parts = futures_util::stream::iter(parts);
    StreamBody::new(futures_util::StreamExt::chain(parts, futures_util::stream::pending()))
}

async fn connect(address: SocketAddr) -> http2::SendRequest<Parts> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn call(body: Parts) -> hyper::Request<Parts> {
    let request = hyper::Request::post(PATH);
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body(body).unwrap()
}

/// An agent with the rate limit service, and its address.
fn with_grpc(arguments: &[&str]) -> (Process, SocketAddr, Temporary) {
    let (rules, grpc) = (file(RULES), free_address());
    let grpc_text = grpc.to_string();
    let all = ["--rules", rules.path(), "--grpc", &grpc_text];
    (Process::new(&[&all, arguments].concat()), grpc, rules)
}

#[test]
fn a_thousand_messages_that_lack_a_byte_take_bounded_memory() {
    let (agent, grpc, _rules) = with_grpc(&[]);
    runtime().block_on(async {
        // Messages of the largest size, without their last byte.
        let mut message = vec![0; 262_148];
        message[1..5].copy_from_slice(&262_144_u32.to_be_bytes());
        let message = Bytes::from(message);
        let mut connections = vec![];
        for _ in 0..12 {
            let mut sender = connect(grpc).await;
            for _ in 0..250 {
                sender.ready().await.unwrap();
                let sent = sender.send_request(call(endless(vec![message.clone()])));
                tokio::spawn(sent);
            }
            connections.push(sender);
        }
        // Others are served meanwhile.
        for _ in 0..200 {
            let answer = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    });
    assert_below(&agent, 128);
}

/// A frame of HTTP/2 on the first stream.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, u8::from(kind != 4)], payload].concat()
}

#[test]
fn heads_of_calls_without_an_end_take_bounded_memory_and_are_closed() {
    let (agent, grpc, _rules) = with_grpc(&[]);
    let header = [&[0, 1, b'x', 127, 0xc1, 0x7e][..], &[b'y'; 16_257]].concat();
    let mut head = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    head.extend(frame(4, &[]));
    head.extend(frame(1, &header));
    head.extend(frame(9, &header));
    head.extend(frame(9, &header));
    // Without the last byte.
    head.pop();
    let clients: Vec<_> = (0..2_048)
        .map(|_| {
            let mut client = TcpStream::connect(grpc).unwrap();
            let _ = client.write_all(&head);
            client
        })
        .collect();
    let answer = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_below(&agent, 128);
    for mut client in &clients {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Settings, a ping, and then the end.
        let ended = client.read_to_end(&mut vec![]);
        let is_late = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_late, "it stays open");
    }
}

#[test]
fn connections_of_calls_leave_room_for_health_and_settlements() {
    let (agent, grpc, _rules) = with_grpc(&["--max-connections", "64"]);
    runtime().block_on(async {
        let mut calls = vec![];
        for _ in 0..64 {
            let mut sender = connect(grpc).await;
            sender.ready().await.unwrap();
            let sent = sender.send_request(call(endless(vec![Bytes::from_static(MESSAGE)])));
            calls.push((tokio::spawn(sent), sender));
        }
        let answer = agent.get("/healthz");
        assert_eq!(answer.status, 200, "{answer:?}");
        let settled = agent.connect().send("POST", "/v1/settle", &[], "{}");
        assert_eq!(settled.status, 400, "{settled:?}");
    });
}

#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    for name in ["WEIRGATE_AGENT_TOKEN", "WEIRGATE_TABLE", "AWS_SESSION_TOKEN", "AWS_REGION"] {
        let mut agent = command(&["--table", "weirgate", "--listen", "127.0.0.1:0"]);
        agent.env(name, std::ffi::OsStr::from_bytes(b"\xffsecretsecretsecret"));
        let ended = agent.output().unwrap();
        let error = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(name) && error.contains("UTF-8"), "{error}");
        assert!(!error.contains("secretsecret"), "{error}");
    }
}

#[test]
fn thousands_of_heads_without_an_end_take_bounded_memory() {
    raise_file_limit();
    let agent = Process::new(&[]);
    let head = format!("POST /v1/acquire HTTP/1.1\r\nhost: agent\r\nx: {}", "x".repeat(15_500));
    let mut clients = vec![];
    for at in 0..6_000 {
        let mut client = Client::to(TcpStream::connect(&agent.address).unwrap());
        client.write_raw(head.as_bytes());
        clients.push(client);
        if at % 500 == 0 {
            let answer = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    // Without a bound they would be 96 MiB, beside the agent's own 26.
    assert_below(&agent, 96);
}

#[test]
fn answers_that_are_not_taken_use_bounded_memory() {
    let agent = Process::new(&[]);
    // So many answers on each connection that its socket has no room for them.
    let asked = b"GET /metrics HTTP/1.1\r\nhost: agent\r\n\r\n".repeat(1_000);
    let mut clients = vec![];
    for _ in 0..100 {
        let client = TcpStream::connect(&agent.address).unwrap();
        client.set_nonblocking(true).unwrap();
        let _ = (&client).write(&asked);
        clients.push(client);
    }
    assert_answers(&agent);
    assert_below(&agent, 128);
}

#[test]
fn large_bodies_of_any_shape_take_bounded_memory() {
    let agent = Process::new(&[]);
    let fill = |part: &str, separator: &str| {
        let count = 2_000_000 / (part.len() + separator.len());
        vec![part; count].join(separator)
    };
    let bodies = [
        format!("[{}]", fill("1", ",")),
        format!("{{\"grant\":[{}]}}", fill("\"\"", ",")),
        format!("{{\"grant\":\"{}\"}}", fill("a", "")),
        format!("{{\"grant\":\"{}\"}}", fill("\\u0000", "")),
        format!("{{\"grant\":[{}]}}", fill("{}", ",")),
        format!("{{\"adjust\":{{{}}}}}", fill("\"x\":1", ",")),
        fill("[", ""),
        fill(" ", ""),
    ];
    std::thread::scope(|scope| {
        for body in bodies.iter().cycle().take(16) {
            let agent = &agent;
            scope.spawn(move || {
                for _ in 0..5 {
                    let mut client = agent.connect();
                    client.write("POST", "/v1/settle", &[], body);
                    // More of them than there is room for: the oldest gives way.
                    if let Some(answer) = client.read() {
                        assert!(matches!(answer.status, 400 | 503), "{answer:?}");
                    }
                }
            });
        }
    });
    assert_answers(&agent);
    assert_below(&agent, 128);
}

#[test]
fn idle_connections_of_calls_give_way_too() {
    let (agent, grpc, _rules) = with_grpc(&["--max-connections", "50"]);
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(grpc).unwrap()).collect();
    for _ in 0..20 {
        let answer = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let mut first = &idle[0];
    first.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert!(!matches!(first.read(&mut [0]), Ok(1..)), "the first is closed");
    assert!(agent.metric("weirgate_agent_connections") <= 50.0);
}

/// Changes the limit of open files of a process.
fn limit_files(process: &Child, files: u64) {
    let limit = format!("--nofile={files}:");
    let id = process.id().to_string();
    let status = Command::new("prlimit").args(["--pid", &id, &limit]).status();
    assert!(status.unwrap().success());
}

#[test]
fn without_descriptors_both_listeners_pause_say_so_once_and_go_on() {
    let (rules, grpc) = (file(RULES), free_address());
    let (socket, endpoint) = (temporary("socket"), database());
    let grpc_text = grpc.to_string();
    let mut process = command(&[
        "--table",
        "weirgate",
        "--endpoint-url",
        &endpoint,
        "--unix-socket",
        socket.to_str().unwrap(),
        "--rules",
        rules.path(),
        "--grpc",
        &grpc_text,
    ])
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let listening: Vec<_> = lines.by_ref().take(2).map(Result::unwrap).collect();
    assert!(listening.iter().all(|line| line.contains("listening")), "{listening:?}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count();
    limit_files(&process, u64::try_from(open).unwrap() - 1);
    let unix = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let tcp = TcpStream::connect(grpc).unwrap();
    let mut paused: Vec<_> = lines.by_ref().take(2).map(Result::unwrap).collect();
    paused.sort();
    assert!(
        paused
            .iter()
            .all(|line| line.contains("no connection can be accepted") && line.contains("ERROR")),
        "{paused:?}"
    );
    assert!(paused.iter().any(|line| line.contains("unix:")), "{paused:?}");
    assert!(paused.iter().any(|line| line.contains(&grpc_text)), "{paused:?}");
    limit_files(&process, 1_000);
    let again: Vec<_> = lines.by_ref().take(2).map(Result::unwrap).collect();
    assert!(again.iter().all(|line| line.contains("accepted again")), "{again:?}");
    let mut unix = Client::to(unix);
    assert_eq!(unix.send("GET", "/healthz", &[], "").status, 200);
    drop(tcp);
    kill(&process, Signal::SIGTERM);
    assert!(process.wait().unwrap().success());
}

/// What an output of the agent is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sink {
    /// A pipe that is read to its end.
    Read,
    /// A pipe that is full, and is not read.
    Stalled,
    /// A pipe whose reader has gone.
    Gone,
    /// A device without room.
    Full,
    /// Not open.
    Closed,
}

impl Sink {
    const ALL: [Self; 5] = [Self::Read, Self::Stalled, Self::Gone, Self::Full, Self::Closed];

    /// Returns it, with what has to be kept until the end.
    fn open(self) -> (Stdio, Option<Box<dyn std::any::Any>>) {
        let pipe = || std::io::pipe().unwrap();
        match self {
            Self::Read => {
                let (mut reader, writer) = pipe();
                std::thread::spawn(move || reader.read_to_end(&mut vec![]));
                (writer.into(), None)
            }
            Self::Stalled => {
                let (reader, mut writer) = pipe();
                // A pipe has room for 64 KiB.
                writer.write_all(&[b'x'; 65_536]).unwrap();
                (writer.into(), Some(Box::new(reader)))
            }
            Self::Gone => (pipe().1.into(), None),
            Self::Full => {
                let full = Output::options().write(true).open("/dev/full");
                (full.unwrap().into(), None)
            }
            Self::Closed => (Stdio::null(), None),
        }
    }
}

#[test]
fn no_output_stops_the_agent() {
    let endpoint = database();
    for out in Sink::ALL {
        for err in [out, Sink::Read] {
            let case = format!("standard output {out:?}, standard error {err:?}");
            let (rules, grpc) = (file(RULES), free_address());
            let (socket, grpc_text) = (temporary("socket"), grpc.to_string());
            let agent = command(&[
                "--table",
                "weirgate",
                "--endpoint-url",
                &endpoint,
                "--threads",
                "1",
                "--unix-socket",
                socket.to_str().unwrap(),
                "--rules",
                rules.path(),
                "--grpc",
                &grpc_text,
            ]);
            // A shell closes what is to be closed.
            let mut shell = Command::new("sh");
            let closing = |sink, number| {
                if sink == Sink::Closed { format!(" {number}>&-") } else { String::new() }
            };
            let script = format!("exec \"$@\"{}{}", closing(out, 1), closing(err, 2));
            shell.args(["-c", &script, "sh"]).arg(agent.get_program()).args(agent.get_args());
            shell.env_clear().env("AWS_REGION", "us-east-1").env("PATH", "/usr/bin:/bin");
            let ((stdout, _out), (stderr, _err)) = (out.open(), err.open());
            let mut process = shell.stdout(stdout).stderr(stderr).spawn().unwrap();
            drop(shell);
            // Each of these calls is logged.
            runtime().block_on(async {
                let mut sender = loop {
                    match tokio::net::TcpStream::connect(grpc).await {
                        Ok(stream) => {
                            stream.set_nodelay(true).unwrap();
                            let io = TokioIo::new(stream);
                            let (sender, connection) =
                                http2::handshake(TokioExecutor::new(), io).await.unwrap();
                            tokio::spawn(connection);
                            break sender;
                        }
                        Err(_) => {
                            assert!(process.try_wait().unwrap().is_none(), "it ended: {case}")
                        }
                    }
                };
                for _ in 0..400 {
                    sender.ready().await.unwrap();
                    let body = http_body_util::Full::new(Bytes::from_static(MESSAGE));
                    let request =
                        hyper::Request::post(PATH).header("content-type", "application/grpc");
                    let request = request.header("te", "trailers").body(body).unwrap();
                    let answer = sender.send_request(request).await;
                    let answer = answer.unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert_eq!(answer.headers()["grpc-status"], "9", "{case}");
                }
            });
            let stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            let mut client = Client::to(stream);
            assert_eq!(client.send("GET", "/healthz", &[], "").status, 200, "{case}");
            kill(&process, Signal::SIGTERM);
            let (done, is_done) = channel();
            let id = process.id();
            std::thread::spawn(move || done.send(process.wait().unwrap()));
            let status = is_done.recv_timeout(Duration::from_secs(60));
            let status = status.unwrap_or_else(|_| panic!("process {id} goes on: {case}"));
            assert!(status.success(), "{case}: {status}");
        }
    }
}

#[test]
fn lines_of_one_kind_are_bounded_and_the_lost_ones_counted() {
    let (agent, grpc, _rules) = with_grpc(&["--threads", "1"]);
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(grpc).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..300 {
            sender.ready().await.unwrap();
            let body = http_body_util::Full::new(Bytes::from_static(MESSAGE));
            let request = hyper::Request::post(PATH).header("content-type", "application/grpc");
            sender.send_request(request.body(body).unwrap()).await.unwrap();
        }
    });
    assert!(agent.metric("weirgate_agent_log_lines_lost_total") >= 100.0);
}

#[test]
fn a_failed_start_ends_although_standard_error_takes_nothing() {
    for sink in Sink::ALL {
        let (stderr, _kept) = sink.open();
        let mut process = command(&["--table", "weirgate", "--grpc", "127.0.0.1:0"])
            .stderr(stderr)
            .spawn()
            .unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(2), "{sink:?}");
    }
}

#[test]
fn idle_connections_that_were_used_need_little_memory_and_go_on() {
    const COUNT: usize = 1_500;
    raise_file_limit();
    let agent = Process::new(&[]);
    agent.connect().send("POST", "/v1/acquire", &[], TAKE);
    let before = memory(&agent, "VmRSS");
    let mut idle: Vec<Client> = (0..COUNT).map(|_| agent.connect()).collect();
    for client in &mut idle {
        assert_eq!(client.send("GET", "/healthz", &[], "").status, 200);
    }
    // Two buffers of 8 KiB each would be 16 KiB for a connection. The allocator keeps those of a
    // burst, which is longer on a busy machine.
    let most = before + 15_000 + COUNT * 3;
    let mut now = memory(&agent, "VmRSS");
    for _ in 0..20_000 {
        if now < most {
            break;
        }
        let answer = agent.get("/healthz");
        assert_eq!(answer.status, 200, "{answer:?}");
        now = memory(&agent, "VmRSS");
    }
    assert!(now < most, "{before} KiB before, {now} KiB");
    for client in idle.iter_mut().step_by(10) {
        assert_eq!(client.send("GET", "/healthz", &[], "").status, 200);
    }
}

#[test]
fn a_flood_of_health_checks_reads_the_table_as_often_as_one() {
    let agent = Agent::with(Settings {
        limiter: |builder| builder.timeout(Duration::from_millis(500)),
        ..Settings::default()
    });
    let sleep = |time| agent.runtime.block_on(async { tokio::time::sleep(time).await });
    agent.dynamo.fail_reads(|_, _| Some(Fault::ServerError));
    agent.dynamo.take_requests();
    assert_eq!(agent.get("/healthz").status, 503);
    let of_one = agent.dynamo.take_requests();
    assert!(of_one > 0);
    sleep(Duration::from_secs(1));
    let mut clients: Vec<_> = (0..64).map(|_| agent.connect()).collect();
    for client in &mut clients {
        client.write("GET", "/healthz", &[], "");
    }
    for client in &mut clients {
        assert_eq!(client.read().unwrap().status, 503);
    }
    assert_eq!(agent.dynamo.take_requests(), of_one);
    // Requests whose clients leave cost no read each either.
    sleep(Duration::from_secs(1));
    for _ in 0..64 {
        agent.connect().write("GET", "/healthz", &[], "");
    }
    assert_eq!(agent.get("/healthz").status, 503);
    assert!(agent.dynamo.take_requests() <= 2 * of_one);
    agent.dynamo.fail_reads(|_, _| None);
    sleep(Duration::from_secs(1));
    assert_eq!(agent.get("/healthz").status, 200);
    agent.dynamo.take_requests();
    assert_eq!(agent.get("/healthz").status, 200);
    assert_eq!(agent.dynamo.take_requests(), 0);
}

#[test]
fn requests_that_wait_leave_room_for_health_and_settlements() {
    let agent = Process::new(&["--max-connections", "8"]);
    let slots = json!({"entity": "e", "resource": "r", "take": {"slots": 20}});
    let held = agent.acquire(&slots);
    // All of them find slots once those are released.
    let wait = json!({"entity": "e", "resource": "r", "take": {"slots": 2}, "wait_ms": 60_000});
    let mut waiting: Vec<Client> = (0..5).map(|_| agent.connect()).collect();
    for client in &mut waiting {
        client.write("POST", "/v1/acquire", &[], &wait.to_string());
    }
    agent.wait_for("weirgate_agent_in_flight", |number| number == 5.0);
    assert_eq!(agent.metric("weirgate_agent_in_flight_max"), 7.0);
    for _ in 0..20 {
        let refused = agent.connect().send("POST", "/v1/acquire", &[], TAKE);
        assert_eq!(refused.status, 503, "{refused:?}");
        let answer = agent.get("/healthz");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    agent.settle(&json!({"grant": held["grant"], "end": "release"}));
    for mut client in waiting {
        assert_eq!(client.read().unwrap().status, 200);
    }
}
