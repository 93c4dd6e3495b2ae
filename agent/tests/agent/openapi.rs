//! `openapi.yaml` against the agent: every route, every example, every answer.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::fixtures::{Agent, Answer, File};
use crate::schema::{check, resolve, yaml};

fn api() -> Value {
    yaml(include_str!("../../openapi.yaml"))
}

/// Returns a request for the usage of today.
pub fn day(scope: &Value, is_total: bool) -> Value {
    let mut request = json!({"scope": scope, "by": "day"});
    to_now(&mut request);
    if is_total {
        request["total"] = true.into();
    }
    request
}

/// Sets the range of a request to the hour or the day in progress.
fn to_now(request: &mut Value) {
    const HOUR: u128 = 3_600_000;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let length = if request["by"] == "hour" {
        HOUR
    } else {
        24 * HOUR
    };
    let start = now - now % length;
    request["from_ms"] = u64::try_from(start).unwrap().into();
    request["to_ms"] = u64::try_from(start + length).unwrap().into();
}

/// Checks that an answer is one that the API describes for an operation.
fn check_answer(api: &Value, operation: &Value, answer: &Answer, what: &str) {
    let described = &operation["responses"][answer.status.to_string()];
    assert!(
        described.is_object(),
        "{what}: {} is not described",
        answer.status
    );
    let described = resolve(api, described);
    let kind = answer.field("content-type").split(';').next().unwrap();
    let schema = &described["content"][kind]["schema"];
    assert!(schema.is_object(), "{what}: {kind} is not described");
    let value = match kind {
        "text/plain" => answer.body.clone().into(),
        _ => answer.json(),
    };
    check(api, schema, &value, "$").unwrap_or_else(|error| panic!("{what}: {error}"));
    let fields = described["headers"].as_object().into_iter().flatten();
    let is_always_there = |header: &Value| resolve(api, header)["required"] != false;
    for (name, _) in fields.filter(|(_, header)| answer.status != 429 && is_always_there(header)) {
        assert!(
            !answer.field(&name.to_lowercase()).is_empty(),
            "{what}: {name} is missing"
        );
    }
}

#[test]
fn every_example_is_answered_as_described() {
    let api = api();
    let operation = |path: &str| &api["paths"][path]["post"];
    let examples = |path: &str| {
        let content = &operation(path)["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().expect(path).clone();
        (content["schema"].clone(), examples)
    };
    let acquires: BTreeMap<_, _> = examples("/v1/acquire").1.into_iter().collect();
    let mut answered = 0;
    for path in ["/v1/acquire", "/v1/settle", "/v1/peek", "/v1/usage"] {
        let (schema, examples) = examples(path);
        for (name, example) in examples {
            let what = format!("{path} {name}");
            // Each has an agent of its own, so the order of examples does not matter.
            let agent = Agent::new(&[]);
            let mut request = example["value"].clone();
            if example["x-now"] == true {
                agent.acquire(&acquires["one_bucket"]["value"]);
                to_now(&mut request);
            }
            if let Some(needed) = example["x-grant"].as_str() {
                request["grant"] = agent.acquire(&acquires[needed]["value"])["grant"].clone();
            }
            for _ in 1..example["x-repeat"].as_u64().unwrap_or(1) {
                agent.post(path, &request);
            }
            let answer = agent.post(path, &request);
            assert_eq!(example["x-status"], answer.status, "{what}: {answer:?}");
            check_answer(&api, operation(path), &answer, &what);
            // A request is valid in the description if and only if it is to the agent.
            let is_described = check(&api, &schema, &request, "$");
            let is_wrong = name == "misspelled";
            assert_eq!(is_described.is_err(), is_wrong, "{what}: {is_described:?}");
            answered += 1;
        }
    }
    assert!(answered >= 20, "{answered}");
}

#[test]
fn every_route_and_every_refusal_is_described() {
    let api = api();
    let token = File::new("s3cret");
    let agent = Agent::new(&["--token-file", token.path()]);
    let paths = api["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 6);
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            let send = |fields: &[(&str, &str)], body: &str| {
                agent
                    .connect()
                    .send(&method.to_uppercase(), path, fields, body)
            };
            if method == "get" {
                check_answer(&api, operation, &send(&[], ""), path);
                continue;
            }
            let shown = [("x-weirgate-token", "s3cret")];
            let most = if path == "/v1/settle" { 32 } else { 1 };
            let large = " ".repeat(most * 65_536 + 1);
            for (answer, status) in [
                (send(&[], "{}"), 401),
                (send(&shown, "nonsense"), 400),
                (send(&shown, &large), 413),
            ] {
                assert_eq!(answer.status, status, "{path}: {answer:?}");
                check_answer(&api, operation, &answer, path);
            }
        }
    }
    let agent = Agent::new(&[]);
    let stopped = json!({"entity": "e", "resource": "stopped", "take": {"rpm": 1}});
    let operation = &paths["/v1/acquire"]["post"];
    let disabled = agent.post("/v1/acquire", &stopped);
    check_answer(&api, operation, &disabled, "disabled");
    let closed = Agent::on("http://127.0.0.1:1", &["--timeout", "0.5"]);
    for path in ["/v1/acquire", "/v1/peek"] {
        let mut take = json!({"entity": "e", "resource": "r"});
        if path == "/v1/acquire" {
            take["take"] = json!({"rpm": 1});
        }
        let failed = closed.post(path, &take);
        assert_eq!(failed.status, 503, "{failed:?}");
        check_answer(&api, &paths[path]["post"], &failed, path);
    }
    let health = closed.get("/healthz");
    check_answer(&api, &paths["/healthz"]["get"], &health, "health");
}
