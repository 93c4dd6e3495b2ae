//! What the tests set up: a database, agents on it, and a client that shows everything.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weirgate_testkit::{Dynamo, server};

/// The limits of all entities, unless a request brings others.
pub const LIMITS: &str = "
weirgate: 1
system:
  limits:
    rpm: {per_minute: 600}
    tpm: {per_minute: 100000}
    slots: {concurrent: 20}
resources:
  stopped: {status: disabled}
  trial:
    shadow: true
    limits:
      rpm: {per_minute: 1}
";

/// A file that is removed at the end.
pub struct File(pub PathBuf);

impl File {
    pub fn new(text: &str) -> Self {
        let path = temporary("file");
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a path that no other test has.
pub fn temporary(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("weirgate-agent-{}-{number}-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

/// Serves a new database with the table; says where.
pub fn database() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    server::serve(&runtime.block_on(Dynamo::new()))
}

/// Returns the command of an agent with the variables that a test gives, and no others.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate-agent"));
    // Without a region the AWS configuration would be asked for one, over the network too.
    command
        .args(arguments)
        .env_clear()
        .env("AWS_REGION", "us-east-1");
    command
}

/// Sends a signal.
pub fn kill(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id()).unwrap();
    signal::kill(Pid::from_raw(id), signal).unwrap();
}

/// An agent, which is stopped at the latest at the end.
pub struct Agent {
    pub process: Child,
    /// Host and port.
    pub address: String,
    _limits: File,
}

impl Agent {
    /// Starts an agent on a new database.
    pub fn new(arguments: &[&str]) -> Self {
        Self::on(&database(), arguments)
    }

    /// Starts an agent on a database.
    pub fn on(endpoint: &str, arguments: &[&str]) -> Self {
        let limits = File::new(LIMITS);
        let standard = [
            "--table",
            "weirgate",
            "--endpoint-url",
            endpoint,
            "--listen",
            "127.0.0.1:0",
            "--limits-file",
            limits.path(),
        ];
        let mut command = command(&[&standard[..], arguments].concat());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = process.stdout.take().unwrap();
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // Read on, so that the agent can write.
        std::thread::spawn(move || output.read_to_end(&mut vec![]));
        let line: Value = serde_json::from_str(&line).expect("a log line is an object");
        assert_eq!(line["message"], "listening", "{line}");
        let address = line["address"].as_str().unwrap();
        Self {
            address: address.trim_start_matches("http://").to_owned(),
            process,
            _limits: limits,
        }
    }

    pub fn connect(&self) -> Client {
        Client::to(TcpStream::connect(&self.address).unwrap())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.connect().post(path, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.connect().send("GET", path, &[], "")
    }

    /// Takes tokens that there are.
    pub fn acquire(&self, body: &Value) -> Value {
        let answer = self.post("/v1/acquire", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn settle(&self, body: &Value) -> Value {
        let answer = self.post("/v1/settle", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Returns the balance of a limit.
    pub fn balance(&self, entity: &str, resource: &str, limit: &str) -> f64 {
        let answer = self.post("/v1/peek", &json!({"entity": entity, "resource": resource}));
        assert_eq!(answer.status, 200, "{answer:?}");
        let balances = answer.json();
        let limits = balances["limits"].as_array().unwrap();
        let found = limits.iter().find(|status| status["limit"] == limit);
        found.expect(limit)["available_tokens"].as_f64().unwrap()
    }

    /// Returns a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text
            .lines()
            .find(|line| line.rsplit_once(' ').unwrap().0 == name);
        let line = line.unwrap_or_else(|| panic!("{name} is in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Waits until a metric is as it should be.
    pub fn wait_for(&self, name: &str, is_so: impl Fn(f64) -> bool) {
        for _ in 0..20_000 {
            if is_so(self.metric(name)) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{name} is {}", self.metric(name));
    }

    pub fn signal(&self, signal: Signal) {
        kill(&self.process, signal);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection.
pub struct Client<S = TcpStream>(pub BufReader<S>);

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn to(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], &body.to_string())
    }

    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        self.write(method, path, fields, body);
        self.read().expect("an answer")
    }

    pub fn write(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: agent\r\n");
        for (name, value) in fields {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        self.write_raw(request.as_bytes());
    }

    pub fn write_raw(&mut self, bytes: &[u8]) {
        // An agent that has refused may have closed already.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Reads a response; `None` if the connection ended.
    pub fn read(&mut self) -> Option<Answer> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut fields = BTreeMap::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            fields.insert(name.to_owned(), value.to_owned());
        }
        let length = fields.get("content-length")?.parse().ok()?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some(Answer {
            status,
            fields,
            body: String::from_utf8(body).unwrap(),
        })
    }
}
