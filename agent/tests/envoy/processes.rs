//! The real Envoy and the real agent, with the two files of the guide, in front of a server that
//! tells what reached it.

use std::convert::Infallible;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use weirgate::RateLimiter;
use weirgate_testkit::Dynamo;
use weirgate_testkit::server::{self, free_port};

const PAGE: &str = include_str!("../../../docs/guide/envoy.md");
const CONFIG: &str = include_str!("../../../docs/guide/envoy.yaml");
/// Longest wait for a process, or for what follows from a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a gateway differs from the guide's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Differences<'d> {
    /// Texts of the configuration of Envoy, and what stands there instead.
    pub envoy: &'d [(&'d str, &'d str)],
    /// Flags of the agent.
    pub agent: &'d [&'d str],
    /// Whether DynamoDB accepts connections and never answers.
    pub is_silent: bool,
}

/// A gateway: Envoy, the agent and the server behind them.
pub struct Gateway {
    /// Another process on the same table.
    pub limiter: RateLimiter,
    port: u16,
    _silent: Option<TcpListener>,
    _envoy: Process,
    agent: Option<Process>,
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An HTTP response.
pub type Response = http::Response<String>;

impl Gateway {
    /// Starts the processes, and waits until Envoy has a connection to the agent.
    pub async fn new(differences: Differences<'_>) -> Self {
        let dynamo = Dynamo::new().await;
        let limiter = RateLimiter::builder("weirgate").table(dynamo.table().await);
        let limiter = limiter.build().await.unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let table = match differences.is_silent {
            true => format!("http://{}", silent.local_addr().unwrap()),
            false => server::serve(&dynamo),
        };
        let [grpc, port, admin] = [free_port(), free_port(), free_port()];
        let rules = file("rules.yaml", port, &rules());
        let agent = Command::new(env!("CARGO_BIN_EXE_weirgate-agent"))
            .args(["--table", "weirgate", "--endpoint-url", &table])
            .args(["--region", "eu-central-1", "--listen", "127.0.0.1:0"])
            .args(["--grpc", &format!("127.0.0.1:{grpc}"), "--rules"])
            .arg(&rules)
            .args(differences.agent)
            .env_remove("AWS_LAMBDA_RUNTIME_API")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let agent = Process(agent);
        connected(grpc).await;
        let mut config = CONFIG.to_owned();
        let upstream = upstream().await;
        let ports = [("10000", port), ("8081", grpc), ("8080", upstream)];
        for (written, used) in ports {
            config = replaced(&config, written, &used.to_string());
        }
        for (written, used) in differences.envoy {
            config = replaced(&config, written, used);
        }
        config.push_str(&format!(
            "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n"
        ));
        let config = file("envoy.yaml", port, &config);
        let envoy = Command::new(binary())
            .arg("-c")
            .arg(&config)
            .args(["--concurrency", "1", "--log-level", "warn"])
            .args(["--use-dynamic-base-id", "--disable-hot-restart"])
            .spawn()
            .unwrap();
        let envoy = Process(envoy);
        let gateway = Self {
            limiter,
            port,
            _silent: differences.is_silent.then_some(silent),
            _envoy: envoy,
            agent: Some(agent),
        };
        connected(port).await;
        gateway
    }

    /// Kills the agent.
    pub fn end_agent(&mut self) {
        self.agent = None;
    }

    /// Returns the process id of the agent.
    pub fn agent(&self) -> u32 {
        let agent = self.agent.as_ref().expect("the agent runs");
        agent.0.id()
    }

    /// Sends the agent a signal.
    pub fn signal_agent(&self, name: &str) {
        signal(name, &self.agent().to_string());
    }

    /// Sends a GET with these headers, and disconnects after what is done `meanwhile`.
    pub async fn abort(&self, path: &str, headers: &[(&str, &str)], meanwhile: impl AsyncFnOnce()) {
        let mut get = std::pin::pin!(self.get(path, headers));
        tokio::select! {
            _ = &mut get => panic!("the upstream does not answer"),
            () = meanwhile() => {}
        }
    }

    /// Sends a GET with these headers.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port));
        let stream = TokioIo::new(stream.await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        // Ends with the request, so a dropped one disconnects.
        let mut connections = tokio::task::JoinSet::new();
        connections.spawn(connection);
        let mut request = http::Request::get(path).header("host", "gateway");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        http::Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Waits until acme's limit has so many tokens left, of which some come back meanwhile.
    pub async fn left(&self, resource: &str, limit: &weirgate::Limit, tokens: Range<i64>) {
        self.left_of("acme", resource, limit, tokens).await;
    }

    /// Waits until a tenant's limit has so many tokens left.
    pub async fn left_of(
        &self,
        tenant: &str,
        resource: &str,
        limit: &weirgate::Limit,
        tokens: Range<i64>,
    ) {
        let name = limit.name().as_str();
        let limits = [limit.clone()];
        let found = until(async || {
            let peek = self.limiter.peek(tenant, resource).limits(&limits);
            // Without a need a debt counts as nothing left.
            let balances = peek.need(name, 0).send().await.unwrap();
            let left = balances.limit(name).unwrap().available.whole_tokens();
            tokens.contains(&left).then_some(())
        });
        assert!(found.await.is_some(), "{tokens:?} of {name} are never left");
    }
}

/// Returns what `found` finds, asked again until then, for a bounded time.
async fn until<T>(found: impl AsyncFn() -> Option<T>) -> Option<T> {
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    let asking = async {
        loop {
            pause.tick().await;
            if let Some(found) = found().await {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.ok()
}

async fn connected(port: u16) {
    let connect = async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .ok()
    };
    assert!(
        until(connect).await.is_some(),
        "port {port} does not listen"
    );
}

/// Envoy, as `make envoy` installs it.
fn binary() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/envoy/lib");
    let versions = std::fs::read_dir(&root).expect("`make envoy` installs Envoy");
    let mut binaries = versions.map(|version| {
        let version = version.unwrap().path();
        version.join("site-packages/envoy/_bin/envoy")
    });
    binaries
        .find(|binary| binary.exists())
        .expect("Envoy is installed")
}

/// The rules that the guide shows.
fn rules() -> String {
    let (_, block) = PAGE
        .split_once("```yaml rules.yaml\n")
        .expect("the guide shows rules");
    block.split_once("\n```").unwrap().0.to_owned() + "\n"
}

fn replaced(text: &str, written: &str, used: &str) -> String {
    assert!(text.contains(written), "the guide has no {written:?}");
    text.replace(written, used)
}

fn file(name: &str, number: u16, text: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("envoy-{number}-{name}"));
    std::fs::write(&path, text).unwrap();
    path
}

fn signal(name: &str, process: &str) {
    let mut kill = Command::new("kill");
    let status = kill.args(["-s", name, process]).status().unwrap();
    assert!(status.success(), "kill -s {name} {process}: {status}");
}

/// A server that answers with the tokens that it used, or without if a request says so, or never.
/// Before the answer it resumes the process that a request names.
async fn upstream() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = async |request: http::Request<Incoming>| {
        if let Some(process) = request.headers().get("x-resume") {
            signal("CONT", process.to_str().unwrap());
        }
        if request.headers().contains_key("x-hang") {
            std::future::pending::<()>().await;
        }
        let used = request.headers().get("x-use").cloned();
        let used = used.unwrap_or_else(|| http::HeaderValue::from_static("0"));
        let body = Full::new(Bytes::from_static(b"from the upstream"));
        let mut response = http::Response::builder();
        if used != "none" {
            response = response.header("x-tokens-used", used);
        }
        Ok::<_, Infallible>(response.body(body).unwrap())
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(connection);
        }
    });
    port
}
