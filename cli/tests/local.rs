//! `weirgate local` as a terminal runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const LIMITS: &str = "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 60}}}\n";

fn weirgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    command.args(arguments).env_clear();
    command
}

/// A file that is removed at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("weirgate-cli-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `weirgate local`, which is stopped at the latest at the end.
struct Local {
    process: Child,
    /// What it says at the start.
    started: Value,
}

impl Local {
    fn start(arguments: &[&str]) -> Self {
        let mut command = weirgate(&["local", "--port", "0", "--json"]);
        command.args(arguments).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line).expect("one object");
        Self { process, started }
    }

    /// Runs a command with the environment that it says callers need.
    fn caller(&self, arguments: &[&str]) -> Output {
        let variables = self.started["variables"].as_object().unwrap();
        let variables = variables
            .iter()
            .map(|(name, value)| (name, value.as_str().unwrap()));
        weirgate(arguments).envs(variables).output().unwrap()
    }

    fn port(&self) -> &str {
        let endpoint = self.started["endpoint_url"].as_str().unwrap();
        endpoint.rsplit(':').next().unwrap()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn its_variables_are_all_that_a_caller_needs_and_a_signal_ends_it_in_order() {
    let limits = File::new("good", LIMITS);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut local = Local::start(&["--limits", limits.path()]);
        let taken = local.caller(&["acquire", "user-1", "gpt-4", "rpm=60"]);
        assert!(taken.status.success(), "{}", text(&taken.stderr));
        let peeked = local.caller(&["peek", "user-1", "gpt-4", "--json"]);
        let balances: Value = serde_json::from_slice(&peeked.stdout).unwrap();
        assert_eq!(balances["limits"][0]["limit"], "rpm", "{balances}");
        let denied = local.caller(&["acquire", "user-1", "gpt-4", "rpm=60"]);
        assert_eq!(denied.status.code(), Some(1), "{}", text(&denied.stdout));

        let id = i32::try_from(local.process.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
        assert_eq!(local.process.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_taken_port_and_a_wrong_file_are_one_line_with_the_remedy() {
    let local = Local::start(&[]);
    let taken = weirgate(&["local", "--port", local.port()])
        .output()
        .unwrap();
    assert_eq!(taken.status.code(), Some(2));
    let line = text(&taken.stderr);
    assert!(
        line.contains(&format!("port {} of 127.0.0.1 is in use", local.port()))
            && line.contains("--port")
            && line.lines().count() == 1,
        "{line}"
    );

    let wrong = File::new(
        "wrong",
        "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 0}}}\n",
    );
    let refused = weirgate(&["local", "--port", "0", "--limits", wrong.path()]);
    let refused = { refused }.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let line = text(&refused.stderr);
    assert!(
        line.contains(&format!("{}:2:24: ", wrong.path())) && line.lines().count() == 1,
        "{line}"
    );
    assert!(refused.stdout.is_empty(), "nothing was started");
}

#[test]
fn in_a_terminal_it_prints_exports_and_tells_what_the_functions_do() {
    let mut command = weirgate(&["local", "--port", "0"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut exports = vec![];
    while exports.len() < 6 {
        let line = lines.next().expect("a line").unwrap();
        if let Some(export) = line.strip_prefix("export ") {
            let (name, value) = export.split_once('=').unwrap();
            exports.push((name.to_owned(), value.to_owned()));
        }
    }
    let mut acquire = weirgate(&[
        "acquire",
        "user-1",
        "gpt-4",
        "rpm=1",
        "--limit",
        "rpm=60/minute",
    ]);
    let taken = acquire.envs(exports).output().unwrap();
    assert!(taken.status.success(), "{}", text(&taken.stderr));

    let mut told = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(
        line.ends_with("aggregator 1 record, 1 usage copy\n"),
        "{line}"
    );
    let id = i32::try_from(process.id()).unwrap();
    kill(Pid::from_raw(id), Signal::SIGINT).unwrap();
    assert!(process.wait().unwrap().success());
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("error"), "{rest}");
}

/// The most memory that a process had, in KiB.
fn peak_memory_kib(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn twenty_large_bodies_at_once_take_the_memory_of_two() {
    let local = Local::start(&[]);
    let address = local.started["endpoint_url"].as_str().unwrap();
    let address = address.trim_start_matches("http://").to_owned();
    let filler = "x".repeat(15_900_000);
    let item = r#""Item": {"PK": {"S": "a"}, "SK": {"S": "b"}}"#;
    let body = format!(r#"{{"TableName": "weirgate", "Filler": "{filler}", {item}}}"#);
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nx-amz-target: DynamoDB_20120810.PutItem\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(&address).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            });
        }
    });
    let peak = peak_memory_kib(&local.process);
    assert!(peak < 128 * 1024, "{peak} KiB");
}
