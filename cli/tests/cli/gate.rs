//! A way to the table that tests open and close.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longest wait for a request that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    /// Operation of the requests that are held.
    holds: Option<&'static str>,
    /// Whether their answers are held instead.
    holds_answers: bool,
    held: usize,
    is_down: bool,
}

/// Passes requests on to an endpoint, holds some of them, or answers none.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

impl Gate {
    /// Returns an open gate, and its URL.
    pub fn to(endpoint: &str) -> (Self, String) {
        let gate = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (passing, endpoint) = (gate.clone(), endpoint.replace("http://", ""));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (gate, endpoint) = (passing.clone(), endpoint.clone());
                // A client that goes away has its own reasons.
                std::thread::spawn(move || gate.pass(stream, &endpoint));
            }
        });
        (gate, url)
    }

    /// Holds requests of this operation.
    pub fn hold(&self, operation: &'static str) {
        let mut state = self.state();
        (state.holds, state.held, state.holds_answers) = (Some(operation), 0, false);
    }

    /// Passes requests of this operation on, and holds their answers.
    pub fn hold_answers(&self, operation: &'static str) {
        self.hold(operation);
        self.state().holds_answers = true;
    }

    /// Waits until a request is held.
    pub fn until_held(&self) {
        let (_, changed) = &*self.0;
        let state = changed.wait_timeout_while(self.state(), PATIENCE, |state| state.held == 0);
        assert!(state.expect("no panic").0.held > 0, "no request comes");
    }

    /// Lets go what is held, and everything after it.
    pub fn open(&self) {
        self.state().holds = None;
        self.0.1.notify_all();
    }

    /// Answers nothing from now on, or everything again.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no panic")
    }

    fn pass(&self, stream: TcpStream, endpoint: &str) -> std::io::Result<()> {
        let backend = BufReader::new(TcpStream::connect(endpoint)?);
        let (mut client, mut backend) = (BufReader::new(stream), backend);
        while let Some(request) = message(&mut client, endpoint)? {
            if self.state().is_down {
                return Ok(());
            }
            self.pass_held(&request, false);
            backend.get_mut().write_all(&request)?;
            let Some(answer) = message(&mut backend, endpoint)? else {
                return Ok(());
            };
            self.pass_held(&request, true);
            client.get_mut().write_all(&answer)?;
        }
        Ok(())
    }

    /// Waits until the gate lets a request go, or its answer.
    fn pass_held(&self, request: &[u8], is_answer: bool) {
        let mut state = self.state();
        let holds = |operation| has(request, operation) && state.holds_answers == is_answer;
        if state.holds.is_some_and(holds) {
            state.held += 1;
            self.0.1.notify_all();
            let opened = self.0.1.wait_while(state, |state| state.holds.is_some());
            drop(opened.expect("no panic"));
        }
    }
}

fn has(request: &[u8], operation: &str) -> bool {
    let head = String::from_utf8_lossy(request);
    head.contains(&format!("DynamoDB_20120810.{operation}"))
}

/// Reads a request or a response with its body; `None` at the end of the stream.
fn message(stream: &mut impl BufRead, host: &str) -> std::io::Result<Option<Vec<u8>>> {
    let (mut bytes, mut length) = (vec![], 0);
    loop {
        let from = bytes.len();
        if stream.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
        let line = String::from_utf8_lossy(&bytes[from..]).to_lowercase();
        if line.starts_with("host:") {
            // The table answers to its own address alone.
            bytes.truncate(from);
            write!(bytes, "host: {host}\r\n")?;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            break;
        }
    }
    let from = bytes.len();
    bytes.resize(from + length, 0);
    stream.read_exact(&mut bytes[from..])?;
    Ok(Some(bytes))
}
