//! `openapi.yaml` against the agent: every example, and what each answer must be.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::fixtures::{Agent, Answer};
use crate::schema::{check, resolve, yaml};

pub fn api() -> Value {
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
pub fn check_answer(api: &Value, operation: &Value, answer: &Answer, what: &str) {
    let described = &operation["responses"][answer.status.to_string()];
    assert!(
        described.is_object(),
        "{what}: {} is not described",
        answer.status
    );
    let described = resolve(api, described);
    // What the HTTP library refuses before there is a request has no body.
    if answer.body.is_empty() && [400, 431].contains(&answer.status) {
        return;
    }
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
