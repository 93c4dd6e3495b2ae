//! Every status that `openapi.yaml` describes is provoked here, and the agent gives no other one.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use weirgate::{ConnectOptions, RateLimiter};
use weirgate_agent::Token;
use weirgate_agent::decide::Decider;
use weirgate_agent::http::{Address, Api, Bounds, Health, Server};
use weirgate_testkit::{Dynamo, server};

use crate::fixtures::{Agent, Answer, Client, File, database};
use crate::openapi::{api, check_answer, day};

const CALLS: [&str; 4] = ["/v1/acquire", "/v1/settle", "/v1/peek", "/v1/usage"];
const PROBES: [&str; 2] = ["/healthz", "/metrics"];

/// The statuses that were given.
struct Given {
    api: Value,
    seen: BTreeSet<(String, String)>,
}

impl Given {
    /// Checks that an answer is described, and has the status that it should have.
    fn add(&mut self, path: &str, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let operations = self.api["paths"][path].as_object().unwrap();
        let operation = operations.values().next().unwrap();
        check_answer(&self.api, operation, answer, path);
        self.seen.insert((path.to_owned(), status.to_string()));
    }
}

fn take(resource: &str, rpm: u32) -> Value {
    json!({"entity": "e", "resource": resource, "take": {"rpm": rpm}})
}

/// Returns a request that each operation grants.
fn request(path: &str, grant: &Value) -> Value {
    match path {
        "/v1/acquire" => take("r", 1),
        "/v1/settle" => json!({"grant": grant, "adjust": {"rpm": 2}}),
        "/v1/peek" => json!({"entity": "e", "resource": "r"}),
        _ => day(&json!({"entity": "e"}), true),
    }
}

#[test]
fn every_status_is_described_and_every_described_one_is_given() {
    let mut given = Given {
        api: api(),
        seen: BTreeSet::new(),
    };
    on_any_agent(&mut given);
    with_a_token(&mut given);
    without_a_decision(&mut given);
    too_slow(&mut given);
    let described: BTreeSet<_> = given.api["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, operations)| {
            let operations = operations.as_object().unwrap().values();
            let statuses = operations.flat_map(|one| one["responses"].as_object().unwrap().keys());
            statuses.map(|status| (path.clone(), status.clone()))
        })
        .collect();
    assert_eq!(given.seen, described);
}

fn on_any_agent(given: &mut Given) {
    let agent = Agent::new(&[]);
    let grant = agent.acquire(&take("r", 1))["grant"].clone();
    for path in CALLS {
        let send =
            |fields: &[(&str, &str)], body: &str| agent.connect().send("POST", path, fields, body);
        let body = request(path, &grant).to_string();
        given.add(path, 200, &send(&[], &body));
        given.add(path, 400, &send(&[], "nonsense"));
        given.add(path, 403, &send(&[("origin", "https://a.example")], &body));
        let large = " ".repeat(if path == "/v1/settle" { 32 } else { 1 } * 65_536 + 1);
        given.add(path, 413, &send(&[], &large));
        let other = agent.get(path);
        given.add(path, 405, &other);
        assert_eq!(other.field("allow"), "POST");
    }
    for path in PROBES {
        given.add(path, 200, &agent.get(path));
        let other = agent.connect().send("POST", path, &[], "");
        given.add(path, 405, &other);
        assert_eq!(other.field("allow"), "GET");
    }
    for path in CALLS.into_iter().chain(PROBES) {
        let long = "a".repeat(20_000);
        let method = if CALLS.contains(&path) { "POST" } else { "GET" };
        let answer = agent.connect().send(method, path, &[("x-long", &long)], "");
        given.add(path, 431, &answer);
        let mut client = agent.connect();
        client.write_raw(format!("{method} {path} NO\r\n\r\n").as_bytes());
        given.add(path, 400, &client.read().unwrap());
    }
    let disabled = agent.post("/v1/acquire", &take("stopped", 1));
    given.add("/v1/acquire", 403, &disabled);
    given.add(
        "/v1/acquire",
        413,
        &agent.post("/v1/acquire", &take("r", 601)),
    );
    agent.post("/v1/acquire", &take("r", 600));
    given.add(
        "/v1/acquire",
        429,
        &agent.post("/v1/acquire", &take("r", 600)),
    );
    let more = json!({"grant": grant, "take_more": {"rpm": 600}});
    given.add("/v1/settle", 429, &agent.post("/v1/settle", &more));
    let nowhere = agent.get("/v2/acquire");
    assert_eq!(nowhere.status, 404, "{nowhere:?}");
    let responses = json!({"responses": {"404": {"$ref": "#/components/responses/NotFound"}}});
    check_answer(&given.api, &responses, &nowhere, "/v2/acquire");
}

fn with_a_token(given: &mut Given) {
    let token = File::new("s3cret");
    let agent = Agent::new(&["--token-file", token.path()]);
    for path in CALLS {
        given.add(path, 401, &agent.connect().send("POST", path, &[], "{}"));
    }
    for path in PROBES {
        given.add(path, 200, &agent.get(path));
    }
    // As an extension has it.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let token = Token::new("s3cret").unwrap().for_all();
    let (server, address, api) = runtime.block_on(bound(Some(token)));
    runtime.spawn(server.serve(api, std::future::pending()));
    for path in PROBES {
        let mut client = Client::to(TcpStream::connect(address).unwrap());
        given.add(path, 401, &client.send("GET", path, &[], ""));
    }
}

fn without_a_decision(given: &mut Given) {
    let here = database();
    let grant = Agent::on(&here, &[]).acquire(&take("r", 1))["grant"].clone();
    let without_table = server::serve(&Dynamo::empty());
    let broken = Agent::on(&without_table, &[]);
    let closed = Agent::on("http://127.0.0.1:1", &["--timeout", "0.5"]);
    for path in CALLS {
        let request = request(path, &grant);
        given.add(path, 500, &broken.post(path, &request));
        given.add(path, 503, &closed.post(path, &request));
    }
    given.add("/healthz", 503, &closed.get("/healthz"));
}

/// Returns a server in this process that does not serve yet, where it listens, and the API. No
/// table is behind it.
async fn bound(token: Option<Token>) -> (Server, SocketAddr, Api) {
    let nowhere = ConnectOptions {
        local_endpoint: Some("http://127.0.0.1:1".to_owned()),
        ..ConnectOptions::default()
    };
    let limiter = RateLimiter::builder("limits").connection(nowhere);
    let decider = Arc::new(Decider::new(limiter.build().await.unwrap(), 10));
    let bounds = Bounds {
        max_connections: 10,
        grace: Duration::ZERO,
    };
    let any = Address::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&[any], bounds).await.unwrap();
    let [Address::Tcp(address)] = server.addresses()[..] else {
        panic!("one address");
    };
    let api = Api::new(decider, token, Arc::new(Health::default()));
    (server, address, api)
}

/// The 10 s for a body pass at once: the server waits for nothing but its timer.
fn too_slow(given: &mut Given) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let (server, address, api) = runtime.block_on(bound(None));
    // Before the server begins, so its timers do not run ahead of the requests.
    let clients = CALLS.map(|path| {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-length: 9\r\n\r\n{{");
        stream.write_all(head.as_bytes()).unwrap();
        (path, Client::to(stream))
    });
    let (ended, is_ended) = tokio::sync::oneshot::channel::<()>();
    let reading = std::thread::spawn(move || {
        let answers = clients.map(|(path, mut client)| (path, client.read()));
        drop(ended);
        answers
    });
    runtime.block_on(server.serve(api, async {
        let _ = is_ended.await;
    }));
    for (path, answer) in reading.join().unwrap() {
        given.add(path, 408, &answer.expect(path));
    }
}
