//! Lambda's side of an extension: the Extensions API, the start of the executable, its freezes and
//! its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weirgate_testkit::{Dynamo, server};

/// The value of `AWS_SESSION_TOKEN`.
pub const TOKEN: &str = "session-token";

/// Time from SHUTDOWN until Lambda kills an extension.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// A call of the Extensions API.
#[derive(Debug)]
pub struct Call {
    pub path: String,
    pub head: String,
    pub body: Value,
    /// Whether the agent accepted connections when the call came.
    pub is_listening: bool,
}

/// An extension under an Extensions API.
pub struct Lambda {
    pub process: Child,
    port: u16,
    calls: Receiver<Call>,
    events: Sender<Value>,
}

/// Serves a new database with the table; says where.
pub fn database() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    server::serve(&runtime.block_on(Dynamo::new()))
}

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Lambda {
    /// Starts the extension with these variables beside those that Lambda sets.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = listener.local_addr().unwrap().to_string();
        let port = free_port();
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
        Self {
            process,
            port,
            calls,
            events,
        }
    }

    /// Returns the next call of the Extensions API.
    pub fn call(&self) -> Call {
        self.calls
            .recv_timeout(Duration::from_secs(60))
            .expect("a call")
    }

    /// Waits until the extension waits for an event, as the end of its init.
    pub fn ready(self) -> Self {
        assert!(self.call().path.ends_with("/extension/register"));
        assert!(self.call().path.ends_with("/extension/event/next"));
        self
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    /// Sends SHUTDOWN, and returns how the process ended, within the time that Lambda gives it.
    pub fn shut_down(&mut self) -> ExitStatus {
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
    pub fn lose_answer(&self) {
        self.events.send(json!("lost")).unwrap();
    }

    /// Refuses the next call for an event.
    pub fn refuse(&self) {
        self.events.send(json!("refused")).unwrap();
    }

    /// Asks the extension as the function does.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_with(TOKEN, path, body).expect("an answer")
    }

    pub fn post_with(&self, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        post(self.port, token, path, body)
    }

    /// Returns the status of the answer.
    pub fn get(&self, token: &str, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\nx-weirgate-token: {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    /// Sends a request for tokens, and goes on; the extension may end before it answers.
    pub fn post_in_background(&self, body: &Value) -> JoinHandle<Option<(u16, Value)>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let body = body.clone();
        std::thread::spawn(move || post_on(stream, TOKEN, "/v1/acquire", &body))
    }

    /// Returns the balance of slots.
    pub fn slots(&self) -> f64 {
        let (status, balances) = self.post(
            "/v1/peek",
            &json!({"entity": "e", "resource": "r", "limits": limits()}),
        );
        assert_eq!(status, 200, "{balances}");
        balances["limits"][0]["available_tokens"].as_f64().unwrap()
    }
}

fn post(port: u16, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    post_on(
        TcpStream::connect(("127.0.0.1", port)).ok()?,
        token,
        path,
        body,
    )
}

fn post_on(mut stream: TcpStream, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\nx-weirgate-token: {token}\r\n\
             content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// The limits that the function brings.
pub fn limits() -> Value {
    json!([{"name": "slots", "slots": 20}])
}

/// Returns a request for slots.
pub fn acquire(slots: u32) -> Value {
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
    let call = Call {
        path,
        head,
        body,
        is_listening,
    };
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
