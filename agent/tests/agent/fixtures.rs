//! What the tests set up: agents in this process and of their own, and a client that shows everything.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};
use weirgate::testing::TestTable;
use weirgate::{Builder, EpochMillis, FakeClock, LimitsFile, RateLimiter};
use weirgate_agent::Token;
use weirgate_agent::gated::GatedLimiter;
use weirgate_agent::json_api::{Api, Bounds, serve_in_memory};
use weirgate_agent::net::Clients;
use weirgate_testkit::{Dynamo, Limits, Partitions, Temporary, server};

/// When the time of agents in this process begins: a full hour.
pub const START: EpochMillis = EpochMillis(1_795_197_600_000);
/// The limits of all entities, unless a request brings others.
const LIMITS: &str = "
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

/// Writes a file that is removed at the end.
pub fn file(text: &str) -> Temporary {
    Temporary::file("file", text)
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
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build().unwrap();
    server::serve(&runtime.block_on(Dynamo::new()))
}

/// Returns the command of an agent with the variables that a test gives, and no others.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate-agent"));
    // Without a region the AWS configuration would be asked for one, over the network too.
    command.args(arguments).env_clear().env("AWS_REGION", "us-east-1");
    command
}

/// Sends a signal.
pub fn kill(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id()).unwrap();
    signal::kill(Pid::from_raw(id), signal).unwrap();
}

/// What answers requests.
pub trait Serving {
    fn connect(&self) -> Client;

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.connect().post(path, body)
    }

    fn get(&self, path: &str) -> Answer {
        self.connect().send("GET", path, &[], "")
    }

    /// Takes tokens that there are.
    fn acquire(&self, body: &Value) -> Value {
        let answer = self.post("/v1/acquire", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    fn settle(&self, body: &Value) -> Value {
        let answer = self.post("/v1/settle", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Returns the balance of a limit.
    fn balance(&self, entity: &str, resource: &str, limit: &str) -> f64 {
        let answer = self.post("/v1/peek", &json!({"entity": entity, "resource": resource}));
        assert_eq!(answer.status, 200, "{answer:?}");
        let balances = answer.json();
        let limits = balances["limits"].as_array().unwrap();
        let found = limits.iter().find(|status| status["limit"] == limit);
        found.expect(limit)["available_tokens"].as_f64().unwrap()
    }

    /// Returns a metric.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let line = lines.find(|(found, _)| *found == name);
        let (_, value) = line.unwrap_or_else(|| panic!("{name} is in {text}"));
        value.parse().unwrap()
    }

    /// Waits until a metric is as it should be.
    fn wait_for(&self, name: &str, is_so: impl Fn(f64) -> bool) {
        for _ in 0..20_000 {
            if is_so(self.metric(name)) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{name} is {}", self.metric(name));
    }
}

/// What an agent in this process has.
pub struct Settings {
    /// Time until the table answers.
    pub latency: Duration,
    pub max_in_flight: u32,
    pub max_connections: u32,
    /// Time for requests in flight at the end.
    pub grace: Duration,
    pub token: Option<Token>,
    pub has_table: bool,
    pub allows_limit_changes: bool,
    pub limiter: fn(Builder) -> Builder,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            max_in_flight: 4096,
            max_connections: 16_384,
            grace: Duration::ZERO,
            token: None,
            has_table: true,
            allows_limit_changes: false,
            limiter: |builder| builder,
        }
    }
}

/// An agent in this process, on connections in memory. Its time is virtual: it passes while all wait.
pub struct Agent {
    pub runtime: Rc<Runtime>,
    pub dynamo: Dynamo,
    pub clock: FakeClock,
    pub gated: Arc<GatedLimiter>,
    pub clients: Clients,
    api: Arc<Api>,
    settings: Settings,
    limits: Temporary,
}

impl Agent {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        Self::with_limits(settings, LIMITS)
    }

    pub fn with_limits(settings: Settings, limits: &str) -> Self {
        let runtime = Rc::new(weirgate_testkit::runtime());
        let limits = file(limits);
        let (dynamo, clock) = runtime.block_on(async {
            let clock = FakeClock::at(START);
            let dynamo = match settings.has_table {
                true => Dynamo::new().await,
                false => Dynamo::empty(),
            };
            (dynamo.with_clock(clock.clone()), clock)
        });
        let built = builder(&runtime, &dynamo, &clock, &settings);
        let (gated, clients, api) = start(&runtime, built, &settings, &limits);
        Self { runtime, dynamo, clock, gated, clients, api, settings, limits }
    }

    /// Begins again on the same table: nothing is left of what this process knew.
    pub fn restart(&mut self) {
        let built = builder(&self.runtime, &self.dynamo, &self.clock, &self.settings);
        (self.gated, self.clients, self.api) =
            start(&self.runtime, built, &self.settings, &self.limits);
    }

    /// Begins again on a table that is never reached.
    pub fn without_database(&mut self) {
        let table = self.runtime.block_on(async { TestTable::starting_at(START) });
        table.set_unavailable(true);
        let (settings, limits) = (&self.settings, &self.limits);
        (self.gated, self.clients, self.api) =
            start(&self.runtime, table.builder(), settings, limits);
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.runtime.block_on(self.clock.advance(by));
    }
}

impl Serving for Agent {
    fn connect(&self) -> Client {
        let (client, server) = duplex(64 * 1024);
        let (api, clients) = (Arc::clone(&self.api), self.clients.clone());
        self.runtime.spawn(async move {
            serve_in_memory(api, &clients, tokio::io::BufReader::new(server)).await;
        });
        Client::to(Pipe { runtime: Rc::clone(&self.runtime), stream: client })
    }
}

/// Returns the builder of a limiter on the table.
fn builder(runtime: &Runtime, dynamo: &Dynamo, clock: &FakeClock, settings: &Settings) -> Builder {
    let latency = settings.latency;
    let table = runtime.block_on(async {
        match latency {
            Duration::ZERO => dynamo.table_by(clock.clone()).await,
            _ => {
                let limits = Limits { latency: latency..=latency, ..Limits::default() };
                Partitions::over(dynamo.clone(), limits, 1).table().await
            }
        }
    });
    RateLimiter::builder("weirgate").table(table)
}

fn start(
    runtime: &Runtime,
    builder: Builder,
    settings: &Settings,
    limits: &Temporary,
) -> (Arc<GatedLimiter>, Clients, Arc<Api>) {
    let limits = LimitsFile::open(&**limits).unwrap();
    let limiter = (settings.limiter)(builder.limits_file(limits)).build();
    let limiter = runtime.block_on(limiter).unwrap();
    let gated = Arc::new(GatedLimiter::new(limiter, settings.max_in_flight));
    let clients =
        Clients::new(Bounds { max_connections: settings.max_connections, grace: settings.grace });
    let api = Api::new(Arc::clone(&gated), settings.token.clone(), Arc::default())
        .with_limit_changes(settings.allows_limit_changes);
    (gated, clients, Arc::new(api))
}

/// One end of a connection in memory.
struct Pipe {
    runtime: Rc<Runtime>,
    stream: DuplexStream,
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.read(bytes))
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The binary, which is stopped at the latest at the end.
pub struct Process {
    pub process: Child,
    /// Host and port.
    pub address: String,
    _limits: Temporary,
}

impl Process {
    /// Starts an agent on a new database.
    pub fn new(arguments: &[&str]) -> Self {
        Self::on(&database(), arguments)
    }

    /// Starts an agent on a database.
    pub fn on(endpoint: &str, arguments: &[&str]) -> Self {
        let limits = file(LIMITS);
        let standard = [
            &["--table", "weirgate", "--listen", "127.0.0.1:0"][..],
            &["--endpoint-url", endpoint, "--limits-file", limits.path()],
        ];
        let mut command = command(&[&standard.concat(), arguments].concat());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // Read on, so that the agent can write.
        std::thread::spawn(move || output.read_to_end(&mut vec![]));
        let line: Value = serde_json::from_str(&line).expect("a log line is an object");
        assert_eq!(line["message"], "listening", "{line}");
        let address = line["address"].as_str().unwrap();
        Self { address: address.trim_start_matches("http://").to_owned(), process, _limits: limits }
    }

    pub fn signal(&self, signal: Signal) {
        kill(&self.process, signal);
    }
}

impl Serving for Process {
    fn connect(&self) -> Client {
        Client::to(TcpStream::connect(&self.address).unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// A connection.
pub struct Client(pub BufReader<Box<dyn Stream>>);

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

    /// Returns the status, and whether something was applied.
    pub fn applied(&self) -> (u16, Value) {
        (self.status, self.json()["applied"].clone())
    }
}

impl Client {
    pub fn to(stream: impl Stream + 'static) -> Self {
        Self(BufReader::new(Box::new(stream)))
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
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if fields.iter().all(|(name, _)| *name != "host") {
            request += "host: agent\r\n";
        }
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
        Some(Answer { status, fields, body: String::from_utf8(body).unwrap() })
    }
}
