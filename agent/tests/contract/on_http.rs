//! The agent over HTTP as a subject of the contract: the real binary on an embedded DynamoDB.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Map, Value, json};

use crate::fixtures::{Answer, Client, command};
use crate::scenario::Subject;

type Request = Map<String, Value>;

/// An agent on a database.
pub struct OnHttp {
    database: String,
    process: Child,
    address: String,
}

impl OnHttp {
    pub fn new(database: String) -> Self {
        let (process, address) = start(&database);
        Self {
            database,
            process,
            address,
        }
    }

    fn post(&self, path: &str, request: &Request) -> Answer {
        let stream = TcpStream::connect(&self.address).expect("the agent listens");
        Client::to(stream).post(path, &Value::Object(request.clone()))
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for OnHttp {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Subject for OnHttp {
    async fn acquire(&mut self, request: &Request) -> Value {
        held(&self.post("/v1/acquire", request), json!("granted"))
    }

    async fn settle(&mut self, request: &Request) -> Value {
        let answer = self.post("/v1/settle", request);
        let settlement = answer.json()["settlement"].clone();
        held(&answer, settlement)
    }

    async fn peek(&mut self, request: &Request) -> Value {
        let answer = self.post("/v1/peek", request);
        if answer.status != 200 {
            return refused(&answer);
        }
        let body = answer.json();
        json!({
            "outcome": "balances",
            "status": body["status"],
            "retry_after_ms": body["retry_after_ms"],
            "remaining": remaining(&body["limits"]),
        })
    }

    async fn restart(&mut self) {
        self.stop();
        (self.process, self.address) = start(&self.database);
    }
}

/// Starts the agent; returns it, and where it listens.
fn start(database: &str) -> (Child, String) {
    let limits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/contract/limits.yaml");
    let arguments = [
        "--table",
        "weirgate",
        "--endpoint-url",
        database,
        "--listen",
        "127.0.0.1:0",
        "--limits-file",
        limits.to_str().unwrap(),
    ];
    let mut command = command(&arguments);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    // Read on, so that the agent can write.
    std::thread::spawn(move || output.read_to_end(&mut vec![]));
    let line: Value = serde_json::from_str(&line).expect("a log line is an object");
    let address = line["address"].as_str().expect("the agent listens");
    (process, address.trim_start_matches("http://").to_owned())
}

fn held(answer: &Answer, outcome: Value) -> Value {
    if answer.status != 200 {
        return refused(answer);
    }
    let body = answer.json();
    let waived = body["would_deny"]["limits"].as_array();
    let would_deny = waived
        .into_iter()
        .flatten()
        .filter(|status| is_short(status));
    json!({
        "outcome": outcome,
        "grant": body["grant"],
        "ended": body["grant"].is_null(),
        "amounts": body["amounts"],
        "remaining": remaining(&body["limits"]),
        "lease": !body["lease"].is_null(),
        "would_deny": would_deny.map(|status| &status["limit"]).collect::<Vec<_>>(),
        "degraded": body["degraded"].is_object(),
    })
}

/// Returns what an answer says that is no success. Checks what all of them have in common.
fn refused(answer: &Answer) -> Value {
    let body = answer.json();
    assert_eq!(answer.field("content-type"), "application/problem+json");
    assert_eq!(body["status"], answer.status);
    let outcome = match answer.status {
        429 => "denied",
        413 if body["blocking"].is_object() => "never_fits",
        403 => "disabled",
        500 | 503 => "unavailable",
        400 => "invalid",
        status => panic!("no answer of the contract has status {status}: {answer:?}"),
    };
    if outcome == "denied" {
        let has_time = body["retry_after_ms"].is_number();
        assert_eq!(
            has_time,
            !answer.field("retry-after").is_empty(),
            "{answer:?}"
        );
    }
    if outcome != "unavailable" {
        assert_eq!(
            (&body["applied"], &body["retry"]),
            (&json!("no"), &json!(false))
        );
    }
    json!({
        "outcome": outcome,
        "short": body["violated-policies"],
        "retry_after_ms": body["retry_after_ms"],
        "applied": body["applied"],
        "text": body["detail"],
    })
}

fn is_short(status: &Value) -> bool {
    let tokens = |field: &str| status[field].as_f64();
    status["is_requested"] == true && tokens("requested_tokens") > tokens("available_tokens")
}

fn remaining(limits: &Value) -> Value {
    let limits = limits.as_array().into_iter().flatten();
    let balance = |status: &Value| {
        let limit = status["limit"].as_str().unwrap().to_owned();
        (limit, status["available_tokens"].clone())
    };
    Value::Object(limits.map(balance).collect())
}
