//! The binary as a sidecar, on an embedded DynamoDB behind HTTP: its start and what it starts with, and
//! its end.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::CommandFactory;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use weirgate::{Clock, EntityId, Limit, RateLimiter, RedisOptions, SystemClock, Table, Window};
use weirgate_agent::options::Options;
use weirgate_shared::attr::{copied, copied_at};
use weirgate_shared::write::{self, AttributeUpdate, Update};
use weirgate_shared::{Millis, SnapshotKey};
use weirgate_store::ReturnValues;
use weirgate_testkit::{RedisServer, server};

use crate::fixtures::{Client, Process, Serving, command, database, file, kill, temporary};

/// Longest time until a line of a log.
const BOUND: Duration = Duration::from_secs(30);

/// An agent whose log a test reads.
struct Logged {
    process: Child,
    lines: Receiver<String>,
}

impl Logged {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // A line that no test reads any more is dropped.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Self { process, lines }
    }

    /// Returns the next line of the log that has this message in it, and those before it.
    fn until(&self, message: &str) -> Vec<Value> {
        let (mut lines, end) = (vec![], Instant::now() + BOUND);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {message:?} in {lines:?}"));
            let line: Value = serde_json::from_str(&line).unwrap();
            let is_last = line["message"].as_str().unwrap().contains(message);
            lines.push(line);
            if is_last {
                return lines;
            }
        }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_empty_variable_is_one_that_is_not_set() {
    let options = Options::command();
    let names = options.get_arguments().filter_map(|arg| arg.get_env());
    let names = names.map(|name| name.to_str().unwrap());
    let mut names: Vec<_> =
        names.chain(server::AWS_VARIABLES).chain(["WEIRGATE_AGENT_TOKEN"]).collect();
    assert!(names.len() > 25, "{names:?}");
    let unset = command(&[]).output().unwrap();
    let empty = command(&[]).env("WEIRGATE_TABLE", "").output().unwrap();
    assert_eq!((empty.status.code(), empty.stderr), (Some(2), unset.stderr));
    names.retain(|name| *name != "WEIRGATE_TABLE");
    let socket = temporary("start");
    let mut agent = command(&["--table", "weirgate", "--region", "us-east-1"]);
    agent
        .args(["--endpoint-url", &database(), "--unix-socket"])
        .arg(&socket)
        .envs(names.iter().map(|name| (name, "")))
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    let agent = Logged::start(agent);
    agent.until("listening");
    let mut client = Client::to(UnixStream::connect(&socket).unwrap());
    let limits = json!([{"name": "slots", "slots": 9}]);
    let take = json!({"entity": "e", "resource": "r", "limits": limits, "take": {"slots": 1}});
    let answer = client.post("/v1/acquire", &take);
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn agents_on_one_store_run_its_functions_one_after_the_other() {
    let server = RedisServer::start();
    // As the user of the guide, which may do no more.
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/redis.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let user = guide.lines().find_map(|line| line.strip_prefix("user "));
    let user = user.expect("the guide has a user").split(' ');
    let port = server.port().to_string();
    let set = Command::new("redis-cli").args(["-p", &port, "ACL", "SETUSER"]).args(user).output();
    assert_eq!(set.unwrap().stdout, b"OK\n");
    let password = file("change-me\n");
    let url = server.url().replace("//", "//weirgate@");
    let start = || {
        let socket = temporary("store");
        let mut agent = command(&["--store", &url, "--functions", "--log-level", "debug"]);
        agent.args(["--store-password-file", password.path(), "--unix-socket"]);
        agent.arg(&socket);
        (Logged::start(agent), socket)
    };
    let limits = json!([{"name": "rpd", "capacity_tokens": 9, "refill_tokens": 9, "refill_period_ms": 86_400_000}]);
    let take = |socket: &Path, entity: &str| {
        let mut client = Client::to(UnixStream::connect(socket).unwrap());
        let take = json!({"entity": entity, "resource": "r", "limits": limits, "take": {"rpd": 9}});
        let answer = client.post("/v1/acquire", &take);
        assert_eq!(answer.status, 200, "{answer:?}");
        let again = client.post("/v1/acquire", &take);
        assert_eq!(again.status, 429, "{again:?}");
    };
    let (mut first, one) = start();
    first.until("this agent runs the functions");
    let (second, other) = start();
    let lines = second.until("listening");
    let listening = lines.last().unwrap();
    assert_eq!(listening["table"], format!("{}0", server.url()), "{listening}");
    take(&other, "e-1");
    let lines = first.until("aggregator: batch done");
    assert_eq!(lines.last().unwrap()["copied"], 1, "{lines:?}");
    kill(&first.process, Signal::SIGTERM);
    assert_eq!(first.process.wait().unwrap().code(), Some(0));
    second.until("this agent runs the functions");
    assert!(UnixStream::connect(&one).is_err());
    take(&other, "e-2");
    let lines = second.until("aggregator: batch done");
    assert_eq!(lines.last().unwrap()["copied"], 1, "{lines:?}");
}

/// The stream has no record of them any more, so the log alone has their numbers.
#[tokio::test]
async fn i3_the_log_has_each_copy_that_is_refused_on_a_store() {
    let server = RedisServer::start();
    let table = Table::on_redis(&RedisOptions::new(server.url())).unwrap();
    table.records().unwrap().open().await.unwrap();
    let limiter = RateLimiter::builder("weirgate").table(table.clone());
    let (limiter, rpd) = (limiter.build().await.unwrap(), Limit::per_day("rpd", 9));
    let (rpd, mut left) = (rpd.unwrap(), BTreeSet::new());
    for number in 0..300 {
        let entity = format!("e-{number}");
        // A copy that cannot be read, of an earlier life, in the snapshot of the day, whichever it is.
        let now = SystemClock.now();
        for at in [now, now.plus(Millis(86_400_000))] {
            let damaged = SnapshotKey {
                namespace: "default".try_into().unwrap(),
                entity: EntityId::new(&*entity).unwrap(),
                resource: "r".try_into().unwrap(),
                window: Window::Daily,
                start: Window::Daily.start(at),
            };
            let set = |name, value| AttributeUpdate::Set(write::Path::of(name), value);
            let damaged = Update {
                key: damaged.item_key(),
                conditions: vec![],
                changes: vec![
                    set(copied(rpd.name(), 0), write::Value::Text("x".to_owned())),
                    set(copied_at(0), write::Value::Int(1)),
                ],
            };
            let written = table.update(&damaged, ReturnValues::None).await;
            written.unwrap();
        }
        let take = limiter.acquire(&entity, "r").take("rpd", 1);
        let taken = take.limits(std::slice::from_ref(&rpd)).send().await;
        assert!(taken.unwrap().is_granted());
        left.insert(format!("/ENTITY#{entity} "));
    }
    let mut agent = command(&["--store", &server.url(), "--functions", "--unix-socket"]);
    agent.arg(temporary("refused"));
    let agent = Logged::start(agent);
    while !left.is_empty() {
        let lines = agent.until("refused write");
        let what = lines.last().unwrap()["what"].to_string();
        left.retain(|entity| !what.contains(&**entity));
    }
}

#[test]
fn the_password_of_a_store_may_come_through_a_pipe() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    for functions in [&[][..], &["--functions"]] {
        let (pipe, socket) = (temporary("pipe"), temporary("store"));
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let mut writer =
            Command::new("sh").args(["-c", "echo right > \"$0\""]).arg(&pipe).spawn().unwrap();
        let url = server.url();
        let mut agent = command(&[&["--store", &url][..], functions].concat());
        agent.arg("--store-password-file").arg(&pipe);
        agent.arg("--unix-socket").arg(&socket);
        let agent = Logged::start(agent);
        agent.until("listening");
        if !functions.is_empty() {
            agent.until("this agent runs the functions");
        }
        assert!(writer.wait().unwrap().success());
        std::fs::remove_file(&pipe).unwrap();
    }
}

/// The certificate is for the address, and known to the system.
#[test]
fn a_store_is_reached_by_tls_if_its_certificate_is_known() {
    let folder = temporary("tls");
    std::fs::create_dir(&folder).unwrap();
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=redis"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let port = server::free_port().to_string();
    let [key, certificate] = [&key, &certificate].map(|path| path.to_str().unwrap());
    let serve = |clients: &str| {
        let files = [
            "--tls-cert-file",
            certificate,
            "--tls-key-file",
            key,
            "--tls-ca-cert-file",
            certificate,
        ];
        let arguments = ["--tls-port", &port, "--tls-auth-clients", clients];
        RedisServer::with(&[&files[..], &arguments].concat())
    };
    let server = serve("no");
    let url = format!("rediss://127.0.0.1:{port}");
    let start = || {
        let mut agent = command(&["--store", &url, "--functions"]);
        agent.arg("--unix-socket").arg(folder.join("socket"));
        agent
    };
    let agent = Logged::start({
        let mut agent = start();
        agent.env("SSL_CERT_FILE", certificate);
        agent
    });
    agent.until("this agent runs the functions");
    let mut client = Client::to(UnixStream::connect(folder.join("socket")).unwrap());
    let limits = json!([{"name": "slots", "slots": 9}]);
    let take = json!({"entity": "e", "resource": "r", "limits": limits, "take": {"slots": 1}});
    let answer = client.post("/v1/acquire", &take);
    assert_eq!(answer.status, 200, "{answer:?}");
    drop(agent);
    let mut unknown = start();
    unknown.env_remove("SSL_CERT_FILE");
    let unknown = Logged::start(unknown);
    unknown.until("listening");
    let mut client = Client::to(UnixStream::connect(folder.join("socket")).unwrap());
    let answer = client.post("/v1/acquire", &take);
    assert_ne!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("SSL_CERT_FILE"), "{answer:?}");
    drop((server, unknown));
    // The default of Redis.
    let _server = serve("yes");
    let agent = Logged::start({
        let mut agent = start();
        agent.env("SSL_CERT_FILE", certificate);
        agent
    });
    agent.until("listening");
    let mut client = Client::to(UnixStream::connect(folder.join("socket")).unwrap());
    let answer = client.post("/v1/acquire", &take);
    assert_ne!(answer.status, 200, "{answer:?}");
    assert!(answer.body.contains("tls-auth-clients"), "{answer:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Arguments of a store that are wrong, and what the error must name.
const WRONG_STORES: &str = "\
--store http://user:wrong-one@host => --store must be redis:// | redis://
--store {server} --region eu-west-1 => --region is of a table in DynamoDB | leave one of them out
--store {server-as-other} => does not accept the user | URL
--store {server} => allkeys-lru | accept evictions
--store redis://host/ --store-password-file /no/file => /no/file | --store-password-file
--store redis://user:wrong-one@host/ --store-password-file /no/file => leave one out
--table limits --store-password-file /no/file => needs --store,
--table limits --functions => --functions needs --store
--table redis://user:wrong-one@127.0.0.1:1 => got redis://.. | --store
--table valkey://user:wrong-one@127.0.0.1:1 => got valkey://.. | --store";

#[test]
fn a_store_that_is_wrong_is_one_line_without_its_password() {
    let server = RedisServer::with(&["--maxmemory-policy", "allkeys-lru"]);
    let other = server.url().replace("//", "//other:wrong-one@");
    let rows = WRONG_STORES.replace("{server-as-other}", &other);
    for row in rows.replace("{server}", &server.url()).lines() {
        let (arguments, parts) = row.split_once(" => ").expect(row);
        let arguments: Vec<_> = arguments.split(' ').collect();
        // Variables for the other kind of table count only without an argument.
        let others = match arguments[0] {
            "--store" => &["WEIRGATE_TABLE"][..],
            _ if row.contains("password-file") => &["WEIRGATE_STORE"],
            _ => &["WEIRGATE_STORE", "WEIRGATE_STORE_PASSWORD_FILE"],
        };
        let others = others.iter().map(|name| (name, "redis://127.0.0.1:1"));
        let output = command(&arguments).envs(others).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{row}: {text}");
        let says = parts.split(" | ").all(|part| text.contains(part));
        let is_hidden = !text.contains("wrong-one") && text.lines().count() == 1;
        assert!(says && is_hidden, "{row}: {text}");
    }
}

/// The system tells that a client has left, also behind bytes that nothing reads.
#[test]
fn a_client_that_leaves_its_socket_is_noticed_whatever_it_sent_behind_its_request() {
    let socket = temporary("leaves");
    let agent = Process::new(&["--unix-socket", socket.to_str().unwrap()]);
    agent.acquire(&json!({"entity": "e", "resource": "r", "take": {"slots": 20}}));
    let wait = json!({"entity": "e", "resource": "r", "take": {"slots": 1}, "wait_ms": 3_000_000});
    let behind = ["\r\n".to_owned(), "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2_000)];
    for bytes in behind {
        for is_tcp in [true, false] {
            let mut client = match is_tcp {
                true => agent.connect(),
                false => Client::to(UnixStream::connect(&socket).unwrap()),
            };
            client.write("POST", "/v1/acquire", &[], &wait.to_string());
            client.write_raw(bytes.as_bytes());
            agent.wait_for("weirgate_agent_in_flight", |found| found == 1.0);
            drop(client);
            agent.wait_for("weirgate_agent_in_flight", |found| found == 0.0);
        }
    }
}

#[test]
fn what_needs_a_repair_is_one_line_of_the_log_for_each_entity_and_resource() {
    let socket = temporary("repair");
    let mut agent = command(&["--table", "weirgate", "--endpoint-url", &database()]);
    agent.arg("--unix-socket").arg(&socket);
    let mut agent = Logged::start(agent);
    agent.until("listening");
    let mut client = Client::to(UnixStream::connect(&socket).unwrap());
    let buckets = [["e-1", "api"], ["e-2", "api"], ["e-1", "search"]];
    for [entity, resource] in buckets.repeat(3) {
        let take = json!({"entity": entity, "resource": resource, "take": {"rpm": 1}});
        assert_eq!(client.post("/v1/acquire", &take).status, 404);
        let peek = json!({"entity": entity, "resource": resource});
        assert_eq!(client.post("/v1/peek", &peek).status, 404);
    }
    kill(&agent.process, Signal::SIGTERM);
    agent.process.wait().unwrap();
    let lines: Vec<Value> = std::iter::from_fn(|| agent.lines.recv_timeout(BOUND).ok())
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let lines = lines.iter().filter(|line| line["level"] == "WARN");
    let errors: Vec<_> = lines.map(|line| line["error"].as_str().unwrap()).collect();
    assert_eq!(errors.len(), buckets.len(), "{errors:?}");
    for ([entity, resource], error) in buckets.iter().zip(&errors) {
        let names = format!("entity {entity} on resource {resource}: run `weirgate limits set");
        assert!(error.contains(&names), "{error}");
    }
}

fn rules(limit: u32) -> String {
    format!(
        "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}]\n"
    )
}

fn limits(limit: u32) -> String {
    format!("weirgate: 1\nsystem: {{limits: {{rpm: {{per_day: {limit}}}}}}}\n")
}

#[test]
fn a_file_that_is_lost_is_one_line_of_the_log_without_a_call() {
    let folder = temporary("files");
    std::fs::create_dir_all(folder.join("rules")).unwrap();
    let files = [
        (folder.join("rules").join("d.yaml"), "rules", rules(2)),
        (folder.join("limits.yaml"), "limits file", limits(2)),
    ];
    std::fs::write(&files[0].0, rules(1)).unwrap();
    std::fs::write(&files[1].0, limits(1)).unwrap();
    let mut agent = command(&["--table", "weirgate", "--listen", "127.0.0.1:0"]);
    agent
        .args(["--endpoint-url", "http://127.0.0.1:1", "--grpc", "127.0.0.1:0"])
        .arg("--rules")
        .arg(folder.join("rules"))
        .arg("--limits-file")
        .arg(&files[1].0);
    let agent = Logged::start(agent);
    agent.until("listening");
    for (path, name, text) in &files {
        std::fs::remove_file(path).unwrap();
        let line = agent.until(&format!("{name} rejected")).pop().unwrap();
        assert_eq!(line["level"], "ERROR");
        assert!(line["timestamp"].is_string(), "{line}");
        let error = line["error"].as_str().unwrap();
        let is_folder = error.contains("must have a file that ends in .yaml");
        assert!(error.contains("cannot be read") || is_folder, "{error}");
        std::fs::write(path, text).unwrap();
        let lines = agent.until(&format!("{name} reloaded"));
        let again = lines.iter().filter(|line| line["level"] == "ERROR" && line["error"] == error);
        assert_eq!(again.count(), 0, "it is said once: {lines:?}");
    }
    drop(agent);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_agent_without_rules_does_not_start_unless_it_is_told_to() {
    let folder = temporary("rules");
    std::fs::create_dir(&folder).unwrap();
    let (absent, blank) = (folder.join("absent"), folder.join("blank.txt"));
    std::fs::write(&blank, "\n").unwrap();
    for path in [&folder, &absent, &blank] {
        let arguments = ["--table", "weirgate", "--rules", path.to_str().unwrap()];
        let listen = [
            "--listen",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--endpoint-url",
            "http://127.0.0.1:1",
        ];
        let mut refused = command(&[&arguments[..], &listen].concat());
        refused.stderr(Stdio::piped());
        let mut refused = Logged::start(refused);
        let line = refused.lines.recv_timeout(BOUND);
        assert_eq!(line, Err(RecvTimeoutError::Disconnected), "it does not start");
        let mut error = String::new();
        let mut output = refused.process.stderr.take().unwrap();
        output.read_to_string(&mut error).unwrap();
        assert_eq!(refused.process.wait().unwrap().code(), Some(2), "{error}");
        assert!(error.contains("--rules") && error.lines().count() == 1, "{error}");
        let mut allowed = command(&[&arguments[..], &listen].concat());
        allowed.env("WEIRGATE_AGENT_START_WITHOUT_RULES", "true");
        let lines = Logged::start(allowed).until("listening");
        assert!(lines.iter().any(|line| line["message"] == "there are no rules yet"), "{lines:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_signal_ends_it_after_the_requests_in_flight() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut agent = Process::new(&[]);
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
fn take_until_prefetched(agent: &Process) {
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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = 86_400_000;
    let from = u64::try_from(now.as_millis()).unwrap() / day * day;
    let body = json!({
        "scope": {"entity": "e"}, "by": "day", "total": true, "from_ms": from, "to_ms": from + day,
    });
    let row = Process::on(endpoint, &[]).post("/v1/usage", &body);
    row.json()["usage"]["tokens"]["tpm"].as_f64().unwrap()
}

#[test]
fn prefetched_tokens_return_at_the_end_although_a_client_watches_the_health() {
    let endpoint = database();
    let rules = file(
        "{weirgate: 1, domains: {edge: [{match: [tenant], entity: \"{tenant}\", resource: r, take: {tpm: hits}}]}}",
    );
    // The first line of the log has the other address.
    let grpc = format!("127.0.0.1:{}", server::free_port());
    let prefetch = ["--prefetch", "r=50@60000", "--grace", "500ms"];
    let service = ["--grpc", &grpc, "--rules", rules.path()];
    let mut agent = Process::on(&endpoint, &[prefetch, service].concat());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
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
    let mut agent = Process::new(&["--unix-socket", &shown]);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client::to(UnixStream::connect(&path).unwrap());
    let take = json!({"entity": "e", "resource": "r", "take": {"rpm": 1}});
    assert_eq!(client.post("/v1/acquire", &take).status, 200);

    let second = command(&["--table", "weirgate", "--unix-socket", &shown]).output().unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{error}");
    assert!(error.contains(&shown) && error.contains("in use"), "{error}");

    // A killed agent leaves it, and the next one takes its place.
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    assert!(path.exists());
    let mut next = Process::new(&["--unix-socket", &shown]);
    assert!(UnixStream::connect(&path).is_ok());
    next.signal(Signal::SIGTERM);
    assert_eq!(next.process.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_wrong_start_is_one_line_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let agent = Process::new(&[]);
    let broken = file("weirgate: 1\nsystem: {limit: 1}\n");
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
        (&["--table", "weirgate", "--limits-file", "/none"], 2, &["/none"]),
        (&["--table", "weirgate", "--token-file", "/none"], 2, &["--token-file /none"]),
        (&["--table", "a b"], 2, &["\"a b\"", "table name"]),
        (&["--table", "weirgate", "--prefetch", "r=0"], 2, &["--prefetch", "1 to 100"]),
        (&["--table", "weirgate", "--nonsense"], 2, &["--nonsense", "--help"]),
        (&["--table", "weirgate", "--namespace", "a b"], 2, &["a b"]),
    ] {
        let output = command(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
    }
    drop(taken);
}

#[test]
fn its_health_check_succeeds_once_the_table_was_reached() {
    let path = temporary("health");
    let shown = path.to_str().unwrap();
    let ask = |arguments: &[&str], variable: (&str, &str)| {
        let mut check = command(&["healthcheck"]);
        let output = check.args(arguments).env(variable.0, variable.1).output();
        let output = output.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), error)
    };
    let unset = ("WEIRGATE_AGENT_LISTEN", "");
    let agent = Process::new(&["--unix-socket", shown]);
    let socket = ("WEIRGATE_AGENT_UNIX_SOCKET", shown);
    for (arguments, variable) in [
        (&["--listen", &agent.address][..], unset),
        (&["--unix-socket", shown], unset),
        (&["--listen", &agent.address], socket),
    ] {
        let done = (Some(0), String::new());
        assert_eq!(ask(arguments, variable), done, "{arguments:?}");
    }
    drop(agent);
    let nowhere = ["--endpoint-url", "http://127.0.0.1:1"];
    let listen = ["--table", "weirgate", "--listen", "127.0.0.1:0"];
    let agent = Logged::start(command(&[&listen[..], &nowhere].concat()));
    let line = agent.until("listening").pop().unwrap();
    let address = line["address"].as_str().unwrap().to_owned();
    let address = address.trim_start_matches("http://");
    let (code, error) = ask(&["--listen", address], unset);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("HTTP/1.1 503 "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    drop(agent);
    let (code, error) = ask(&["--listen", address], unset);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("no answer: ") && error.contains(address), "{error}");
    // Accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (code, error) = ask(&["--listen", &address, "--timeout", "10ms"], unset);
    assert_eq!(code, Some(1), "{error}");
    for part in [&*address, "no answer within 10ms", "--timeout"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("os error"), "{error}");
}

/// A number that the table does not have any more is refused, and one that it still has is told.
#[test]
fn usage_is_told_as_far_back_as_the_stack_keeps_it() {
    const DAY_MS: u128 = 86_400_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let ago = |days: u128| u64::try_from((now / DAY_MS - days) * DAY_MS).unwrap();
    let database = database();
    for (retention, days, status) in [
        (None, 60, 200),
        (None, 100, 400),
        (Some("30d"), 20, 200),
        (Some("30d"), 60, 400),
        (Some("365d"), 100, 200),
    ] {
        let arguments = retention.map(|span| ["--usage-retention", span]);
        let agent = Process::on(&database, arguments.as_ref().map_or(&[], |both| &both[..]));
        let body = json!({
            "scope": {"entity": "e", "resource": "r"}, "by": "day", "total": true,
            "from_ms": ago(days), "to_ms": ago(days - 2),
        });
        let answer = agent.post("/v1/usage", &body);
        assert_eq!(answer.status, status, "{retention:?}, {days}: {answer:?}");
    }
    for (span, is_right) in [("forever", true), ("1d", true), ("1h", false), ("soon", false)] {
        let arguments = ["weirgate-agent", "--table", "t", "--audit-retention", span];
        assert_eq!(Options::read(arguments).is_ok(), is_right, "{span}");
    }
}
