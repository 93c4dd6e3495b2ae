//! The binary as a Lambda extension, under an Extensions API of our own, on an embedded DynamoDB
//! behind HTTP: init, requests of the function, freezes, a death at any moment, shutdown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::CommandFactory;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weirgate::{ConnectOptions, Limit, RateLimiter};
use weirgate_agent::extension::{REFUSED, check_variables};
use weirgate_agent::options::Options;
use weirgate_testkit::server;

use crate::fixtures::{Client, database};

/// Prefetches as much of a limit as can be.
const PREFETCH: (&str, &str) = ("WEIRGATE_AGENT_PREFETCH", "r=50@60000");
/// The value of `AWS_SESSION_TOKEN`.
const TOKEN: &str = "session-token";

/// Time from SHUTDOWN until Lambda kills an extension.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// A call of the Extensions API.
#[derive(Debug)]
struct Call {
    path: String,
    head: String,
    body: Value,
    /// Whether the agent accepted connections when the call came.
    is_listening: bool,
}

/// An extension under an Extensions API.
struct Lambda {
    process: Child,
    port: u16,
    calls: Receiver<Call>,
    events: Sender<Value>,
}

impl Lambda {
    /// Starts the extension with these variables beside those that Lambda sets.
    fn start(variables: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = listener.local_addr().unwrap().to_string();
        let port = server::free_port();
        let (called, calls) = channel();
        let (events, next) = channel();
        std::thread::spawn(move || {
            let next = std::sync::Arc::new(std::sync::Mutex::new(next));
            for stream in listener.incoming() {
                let (called, next) = (called.clone(), std::sync::Arc::clone(&next));
                std::thread::spawn(move || serve(stream.unwrap(), port, &called, &next));
            }
        });
        let process = Command::new(env!("CARGO_BIN_EXE_weirgate-agent"))
            .env_clear()
            .env("AWS_LAMBDA_RUNTIME_API", api)
            .env("AWS_SESSION_TOKEN", TOKEN)
            .env("WEIRGATE_HTTP_PORT", port.to_string())
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, port, calls, events }
    }

    /// Returns the next call of the Extensions API.
    fn call(&self) -> Call {
        self.calls.recv_timeout(Duration::from_secs(60)).expect("a call")
    }

    /// Waits until the extension waits for an event, as the end of its init.
    fn ready(self) -> Self {
        assert!(self.call().path.ends_with("/extension/register"));
        assert!(self.call().path.ends_with("/extension/event/next"));
        self
    }

    fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    /// Sends SHUTDOWN, and returns how the process ended, within the time that Lambda gives it.
    fn shut_down(&mut self) -> ExitStatus {
        let event = json!({"eventType": "SHUTDOWN", "shutdownReason": "SPINDOWN", "deadlineMs": 0});
        self.events.send(event).unwrap();
        let id = self.process.id();
        let (ended, status) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| ended.send(self.process.wait().unwrap()));
            status.recv_timeout(SHUTDOWN_TIME).unwrap_or_else(|_| {
                kill(Pid::from_raw(i32::try_from(id).unwrap()), Signal::SIGKILL).unwrap();
                panic!("the extension still runs {SHUTDOWN_TIME:?} after SHUTDOWN")
            })
        })
    }

    /// Ends the connection of the next call for an event without an answer.
    fn lose_answer(&self) {
        self.events.send(json!("lost")).unwrap();
    }

    /// Refuses the next call for an event.
    fn refuse(&self) {
        self.events.send(json!("refused")).unwrap();
    }

    /// Asks the extension as the function does.
    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_with(TOKEN, path, body).expect("an answer")
    }

    fn post_with(&self, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        post_on(self.connect(), token, path, body)
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Returns the status of the answer.
    fn get(&self, token: &str, path: &str) -> u16 {
        let token = [("x-weirgate-token", token)];
        let mut client = Client::to(self.connect());
        client.send("GET", path, &token, "").status
    }

    /// Sends a request for tokens, and goes on; the extension may end before it answers.
    fn post_in_background(&self, body: &Value) -> JoinHandle<Option<(u16, Value)>> {
        let (stream, body) = (self.connect(), body.clone());
        std::thread::spawn(move || post_on(stream, TOKEN, "/v1/acquire", &body))
    }

    /// Returns the balance of slots.
    fn slots(&self) -> f64 {
        let (status, balances) =
            self.post("/v1/peek", &json!({"entity": "e", "resource": "r", "limits": limits()}));
        assert_eq!(status, 200, "{balances}");
        balances["limits"][0]["available_tokens"].as_f64().unwrap()
    }
}

fn post_on(stream: TcpStream, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut client = Client::to(stream);
    let token = [("x-weirgate-token", token)];
    client.write("POST", path, &token, &body.to_string());
    let answer = client.read()?;
    Some((answer.status, answer.json()))
}

/// Starts an extension on a database, with more variables.
fn start_on(endpoint: &str, more: &[(&str, &str)]) -> Lambda {
    let variables = [("WEIRGATE_TABLE", "weirgate"), ("AWS_ENDPOINT_URL_DYNAMODB", endpoint)];
    Lambda::start(&[&variables, more].concat())
}

/// The limits that the function brings.
fn limits() -> Value {
    json!([{"name": "slots", "slots": 20}])
}

/// Returns a request for slots.
fn acquire(slots: u32) -> Value {
    json!({"entity": "e", "resource": "r", "limits": limits(), "take": {"slots": slots}})
}

impl Drop for Lambda {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers one call.
fn serve(
    stream: TcpStream,
    port: u16,
    called: &Sender<Call>,
    next: &std::sync::Mutex<Receiver<Value>>,
) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if let Some(number) = line.to_lowercase().strip_prefix("content-length: ") {
            length = number.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        head += &line.to_lowercase();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let is_next = path.ends_with("/event/next");
    let is_listening = TcpStream::connect(("127.0.0.1", port)).is_ok();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let call = Call { path, head, body, is_listening };
    if called.send(call).is_err() {
        return;
    }
    let answer = match is_next {
        true => match next.lock().unwrap().recv() {
            Ok(event) => event,
            Err(_) => return,
        },
        false => json!({"functionName": "f", "functionVersion": "1", "handler": "h"}),
    };
    let status = match answer.as_str() {
        Some("lost") => return,
        Some(_) => "500 Internal Server Error",
        None => "200 OK",
    };
    let answer = answer.to_string();
    let _ = write!(
        reader.get_mut(),
        "HTTP/1.1 {status}\r\nlambda-extension-identifier: id-1\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{answer}",
        answer.len()
    );
}

#[test]
fn it_listens_before_it_registers_and_registers_for_shutdown_alone() {
    let endpoint = database();
    let mut lambda = start_on(&endpoint, &[]);
    let register = lambda.call();
    assert_eq!(register.path, "/2020-01-01/extension/register");
    assert!(register.is_listening, "the function can ask while it is initialised");
    assert_eq!(register.body, json!({"events": ["SHUTDOWN"]}));
    assert!(register.head.contains("lambda-extension-name: weirgate-agent\r\n"), "{register:?}");
    let next = lambda.call();
    assert_eq!(next.path, "/2020-01-01/extension/event/next");
    assert!(next.head.contains("lambda-extension-identifier: id-1\r\n"), "{next:?}");
    assert_eq!(lambda.shut_down().code(), Some(0));
}

#[test]
fn only_the_function_is_answered() {
    let endpoint = database();
    let lambda = start_on(&endpoint, &[]).ready();
    let (status, problem) = lambda.post_with("another", "/v1/acquire", &acquire(1)).unwrap();
    assert_eq!(status, 401, "{problem}");
    // Every request needs the token: health and metrics too.
    for path in ["/healthz", "/metrics"] {
        assert_eq!(lambda.get("another", path), 401, "{path}");
        assert_eq!(lambda.get(TOKEN, path), 200, "{path}");
    }
    let (status, granted) = lambda.post("/v1/acquire", &acquire(3));
    assert_eq!(status, 200, "{granted}");
    assert_eq!(lambda.slots(), 17.0);
    let release = json!({"grant": granted["grant"], "end": "release"});
    let (status, settled) = lambda.post("/v1/settle", &release);
    assert_eq!((status, &settled["settlement"]), (200, &json!("settled")), "{settled}");
    assert_eq!(lambda.slots(), 20.0);
}

/// A limit that does not refill while a test runs.
fn daily() -> Value {
    json!([{"name": "daily", "capacity_tokens": 10000, "refill_tokens": 1, "refill_period_ms": 86400000}])
}

fn daily_balance(lambda: &Lambda) -> f64 {
    let peek = json!({"entity": "e", "resource": "r", "limits": daily()});
    lambda.post("/v1/peek", &peek).1["limits"][0]["available_tokens"].as_f64().unwrap()
}

/// Takes tokens until some are prefetched. Returns how many were taken.
fn take_until_prefetched(lambda: &Lambda) -> f64 {
    let take = json!({"entity": "e", "resource": "r", "limits": daily(), "take": {"daily": 1}});
    let mut taken = 0.0;
    // Until more is taken of the table than was asked for.
    while taken < 10.0 || daily_balance(lambda) >= 10_000.0 - taken {
        let (status, answer) = lambda.post("/v1/acquire", &take);
        assert_eq!(status, 200, "{answer}");
        taken += 1.0;
        assert!(taken < 5_000.0, "nothing was prefetched");
    }
    taken
}

#[test]
fn shutdown_returns_what_was_prefetched() {
    let endpoint = database();
    let mut lambda = start_on(&endpoint, &[PREFETCH]).ready();
    let taken = take_until_prefetched(&lambda);
    assert_eq!(lambda.shut_down().code(), Some(0));
    let next = start_on(&endpoint, &[]).ready();
    assert_eq!(daily_balance(&next), 10_000.0 - taken);
}

#[test]
fn a_lost_connection_to_lambda_is_replaced() {
    let endpoint = database();
    let mut lambda = start_on(&endpoint, &[]).ready();
    for _ in 0..3 {
        lambda.lose_answer();
        assert!(lambda.call().path.ends_with("/extension/event/next"));
    }
    assert_eq!(lambda.post("/v1/acquire", &acquire(1)).0, 200);
    assert_eq!(lambda.shut_down().code(), Some(0));
}

#[test]
fn without_events_it_returns_what_was_prefetched_and_reports_why_it_ends() {
    let endpoint = database();
    let mut lambda = start_on(&endpoint, &[PREFETCH]).ready();
    let taken = take_until_prefetched(&lambda);
    lambda.refuse();
    let report = lambda.call();
    assert!(report.path.ends_with("/extension/exit/error"), "{report:?}");
    let told = report.body["errorMessage"].as_str().unwrap();
    assert!(told.contains("event/next") && told.contains("500"), "{told}");
    assert_eq!(lambda.process.wait().unwrap().code(), Some(1));
    let next = start_on(&endpoint, &[]).ready();
    assert_eq!(daily_balance(&next), 10_000.0 - taken);
}

#[test]
fn options_that_an_extension_does_not_take_are_refused_and_listed() {
    let page = include_str!("../../../docs/guide/lambda-extension.md");
    for name in REFUSED {
        assert!(page.contains(&format!("`{name}`")), "{name}");
        let command = Options::command();
        let is_option = |argument: &clap::Arg| argument.get_env().is_some_and(|env| env == name);
        assert!(command.get_arguments().any(is_option), "{name}");
        let set = |asked: &str| (asked == name).then(|| "7".to_owned());
        let error = check_variables(set).unwrap_err();
        assert!(error.starts_with(name) && error.contains("\"7\""), "{error}");
    }
    assert_eq!(check_variables(|_| None), Ok(()));
}

#[test]
fn it_ends_although_dynamodb_does_not_answer() {
    // Accepts connections by its backlog, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut lambda = start_on(&endpoint, &[]).ready();
    let port = lambda.post_in_background(&acquire(1));
    let ended = lambda.shut_down();
    assert_eq!(ended.code(), Some(0), "{ended}");
    drop(port);
}

#[test]
fn what_keeps_it_from_starting_is_told_to_lambda() {
    let endpoint = database();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (variables, words) in [
        (&[("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str())][..], &["WEIRGATE_TABLE"][..]),
        (&[("WEIRGATE_TABLE", "a b")], &["\"a b\"", "table name"]),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("WEIRGATE_HTTP_PORT", "x")],
            &["WEIRGATE_HTTP_PORT", "\"x\""],
        ),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("WEIRGATE_HTTP_PORT", "0")],
            &["WEIRGATE_HTTP_PORT", "1 to 65535", "\"0\""],
        ),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("WEIRGATE_HTTP_PORT", port.as_str())],
            &["WEIRGATE_HTTP_PORT 127.0.0.1", "give another WEIRGATE_HTTP_PORT"],
        ),
        (
            &[("WEIRGATE_TABLE", "weirgate"), ("WEIRGATE_AGENT_TOKEN_FILE", "/token")],
            &["WEIRGATE_AGENT_TOKEN_FILE", "remove it"],
        ),
        (&[("WEIRGATE_TABLE", "weirgate"), ("AWS_SESSION_TOKEN", "")], &["AWS_SESSION_TOKEN"]),
    ] {
        let mut lambda = Lambda::start(variables);
        assert!(lambda.call().path.ends_with("/extension/register"));
        let error = lambda.call();
        assert!(error.path.ends_with("/extension/init/error"), "{error:?}");
        let told = error.body["errorMessage"].as_str().unwrap();
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
        assert!(error.head.contains("error-type: extension."), "{error:?}");
        let is_taken = variables.iter().any(|(_, value)| *value == port);
        let code = if is_taken { 1 } else { 2 };
        assert_eq!(lambda.process.wait().unwrap().code(), Some(code));
        let mut line = String::new();
        lambda.process.stderr.take().unwrap().read_to_string(&mut line).unwrap();
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn frozen_between_any_two_requests_it_takes_and_returns_each_slot_once() {
    let endpoint = database();
    let lambda = start_on(&endpoint, &[]).ready();
    let freeze = || {
        lambda.freeze();
        lambda.thaw();
    };
    for round in 0..5 {
        freeze();
        let (status, granted) = lambda.post("/v1/acquire", &acquire(1 + round));
        assert_eq!(status, 200, "{granted}");
        freeze();
        assert_eq!(lambda.slots(), f64::from(20 - (1 + round)));
        freeze();
        let end = if round % 2 == 0 { "release" } else { "roll_back" };
        let settle = json!({"grant": granted["grant"], "end": end});
        let (status, settled) = lambda.post("/v1/settle", &settle);
        assert_eq!((status, &settled["settlement"]), (200, &json!("settled")), "{settled}");
    }
    assert_eq!(lambda.slots(), 20.0);
}

#[test]
fn killed_at_any_moment_it_holds_no_slot_without_a_lease_and_none_twice() {
    let endpoint = database();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connection =
        ConnectOptions { local_endpoint: Some(endpoint.clone()), ..ConnectOptions::default() };
    let limiter = RateLimiter::builder("weirgate").connection(connection);
    let limiter = runtime.block_on(limiter.build()).unwrap();
    for round in 0..6_u32 {
        let mut lambda = start_on(&endpoint, &[]).ready();
        // Views and connections are there, then three requests are under way when it is killed.
        let _ = lambda.slots();
        let mut requests = vec![];
        for _ in 0..3 {
            requests.push(lambda.post_in_background(&acquire(1)));
        }
        for _ in 0..round * 400 {
            std::thread::yield_now();
        }
        lambda.process.kill().unwrap();
        lambda.process.wait().unwrap();
        let grants = requests.into_iter().filter_map(|request| request.join().unwrap());
        let grants: Vec<_> = grants.filter(|(status, _)| *status == 200).collect();

        // What the table says is held is exactly what leases hold, so all of it returns by their
        // expiry, and at least what callers were told.
        let (held, leased) = runtime.block_on(async {
            let limits = [Limit::concurrent("slots", 20).unwrap()];
            let balances = limiter.peek("e", "r").limits(&limits).send().await.unwrap();
            let held = 20 - balances.limits[0].available.whole_tokens();
            let leases = limiter.admin().leases("e", "r").await.unwrap().items;
            let tokens = leases.iter().flat_map(|lease| lease.tokens.values());
            (held, tokens.map(|tokens| tokens.whole_tokens()).sum::<i64>())
        });
        assert_eq!(held, leased, "round {round}");
        assert!(held >= i64::try_from(grants.len()).unwrap(), "round {round}: {held}");
        assert!(held <= 3, "round {round}: {held}");
        runtime.block_on(async {
            for lease in limiter.admin().leases("e", "r").await.unwrap().items {
                assert!(limiter.admin().release_lease("e", "r", &lease.id).await.unwrap());
            }
        });
    }
}
