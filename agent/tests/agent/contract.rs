//! The contract of the agent (`clients/contract`) over HTTP.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weirgate::Clock;

use crate::fixtures::{Agent, Answer, START, Serving, Settings};

type Request = Map<String, Value>;

#[test]
fn the_agent_keeps_the_contract() {
    let mut names = vec![];
    for file in files() {
        for scenario in &file.scenarios {
            scenario.run(&file, &mut agent(&file));
            let expectations = scenario.steps.iter().map(|step| step.expect.len());
            assert!(expectations.sum::<usize>() > 0, "{}", scenario.name);
            assert!(!names.contains(&scenario.name), "{}", scenario.name);
            names.push(scenario.name.clone());
        }
    }
    assert!(names.len() >= 30, "{} scenarios", names.len());
}

/// Starts an agent with the limits of the contract, which reaches the database that a file wants.
fn agent(file: &ScenarioFile) -> Agent {
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).unwrap();
    let mut limits = read("limits.yaml");
    if file.has_file {
        limits += &read("agent.yaml").replace("weirgate: 1", "");
    }
    let settings = Settings {
        has_table: file.database != Database::WithoutTable,
        allows_limit_changes: file.allows_limit_changes,
        ..Settings::default()
    };
    let mut agent = Agent::with_limits(settings, &limits);
    if file.database == Database::Unavailable {
        agent.without_database();
    }
    agent
}

fn acquire(agent: &Agent, request: &Request) -> Value {
    let answer = agent.post("/v1/acquire", &json!(request));
    let mut held = held(&answer, json!("granted"));
    if let Some(starts_at) = answer.json()["starts_at_ms"].as_i64() {
        let now = agent.runtime.block_on(async { agent.clock.now() });
        held["starts_ms"] = json!(starts_at - now.0);
    }
    held
}

fn settle(agent: &Agent, request: &Request) -> Value {
    let answer = agent.post("/v1/settle", &json!(request));
    let settlement = answer.json()["settlement"].clone();
    held(&answer, settlement)
}

/// Tells what a vendor said, of a bucket or of the buckets of a grant.
fn report(agent: &Agent, request: &Request) -> Value {
    let path = match request.contains_key("grant") {
        true => "/v1/settle",
        false => "/v1/report",
    };
    let answer = agent.post(path, &json!(request));
    if answer.status != 200 {
        return refused(&answer);
    }
    let until = answer.json()["paused_until_ms"].as_i64();
    let grant = answer.json()["grant"].clone();
    json!({"outcome": "reported", "grant": grant, "paused_ms": until.map(|until| until - START.0)})
}

fn peek(agent: &Agent, request: &Request) -> Value {
    let answer = agent.post("/v1/peek", &json!(request));
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

/// Asks for usage from yesterday to the end of today.
fn usage(agent: &Agent, request: &Request) -> Value {
    const DAY: i64 = 86_400_000;
    let (mut request, today) = (request.clone(), START.0 / DAY * DAY);
    request.insert("from_ms".to_owned(), json!(today - DAY));
    request.insert("to_ms".to_owned(), json!(today + DAY));
    let answer = agent.post("/v1/usage", &json!(request));
    if answer.status != 200 {
        return refused(&answer);
    }
    let body = answer.json();
    let (outcome, row) = match body["items"].as_array() {
        None => ("usage", &body),
        Some(rows) => ("rows", rows.last().unwrap_or(&Value::Null)),
    };
    json!({
        "outcome": outcome,
        "used": row["usage"]["tokens"],
        "acquires": row["usage"]["acquires"].as_i64().unwrap_or_default(),
        "state": row["state"],
    })
}

/// Reads the limits in force.
fn limits(agent: &Agent, request: &Request) -> Value {
    let answer = agent.post("/v1/limits", &json!(request));
    if answer.status != 200 {
        return refused(&answer);
    }
    let body = answer.json();
    let bucket = &body["buckets"][0];
    json!({
        "outcome": "limits",
        "level": bucket["level"]["level"],
        "status": bucket["status"],
        "limits": plain(&bucket["limits"]),
    })
}

/// Sets or deletes limits.
fn change(agent: &Agent, path: &str, request: &Request) -> Value {
    let answer = agent.post(path, &json!(request));
    if answer.status != 200 {
        return refused(&answer);
    }
    let body = answer.json();
    let limits = |of: &str| body[of].as_object().map(|config| plain(&config["limits"]));
    json!({
        "outcome": if body["changed"] == true { "changed" } else { "unchanged" },
        "class": body["after"]["class"],
        "before": limits("before"),
        "after": limits("after"),
    })
}

/// Returns limits in the order of their names, as the files have them.
fn plain(limits: &Value) -> Vec<Value> {
    let mut limits: Vec<_> = limits.as_array().unwrap().clone();
    for limit in &mut limits {
        let fields = limit.as_object_mut().unwrap();
        fields.retain(|name, value| name != "text" && *value != "enforced");
    }
    limits.sort_by_key(|limit| limit["name"].to_string());
    limits
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/contract")
}

/// A file of scenarios.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    database: Database,
    #[serde(default = "yes")]
    allows_limit_changes: bool,
    /// Whether the agent has the limits file of the contract.
    #[serde(default)]
    has_file: bool,
    limits: BTreeMap<String, Value>,
    scenarios: Vec<Scenario>,
}

fn yes() -> bool {
    true
}

/// Whether the agent reaches its database, and its table there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Database {
    #[default]
    Available,
    Unavailable,
    WithoutTable,
}

/// Steps on buckets of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    steps: Vec<Step>,
}

/// One call, and what its answer must say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    acquire: Option<Request>,
    settle: Option<Request>,
    report: Option<Request>,
    peek: Option<Request>,
    usage: Option<Request>,
    limits: Option<Request>,
    set_limits: Option<Request>,
    delete_limits: Option<Request>,
    restart: Option<Request>,
    /// Name of the grant.
    #[serde(rename = "as")]
    name: Option<String>,
    #[serde(default)]
    expect: Request,
}

/// Reads all files.
fn files() -> Vec<ScenarioFile> {
    let entries = std::fs::read_dir(folder()).expect("the contract is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths.iter().map(read).collect()
}

impl Scenario {
    /// Runs the steps, on entities of its own.
    fn run(&self, file: &ScenarioFile, agent: &mut Agent) {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let prefix = format!("{name}:");
        let mut grants: BTreeMap<&str, String> = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let answer = if let Some(request) = &step.acquire {
                let request = prepared(request, file, &prefix);
                acquire(agent, &request)
            } else if let Some(request) = &step.settle {
                let mut request = request.clone();
                if let Some(token) = request.remove("token") {
                    request.insert("grant".to_owned(), token);
                } else {
                    let name = request["grant"].as_str().unwrap();
                    request.insert("grant".to_owned(), json!(grants[name]));
                }
                settle(agent, &request)
            } else if let Some(request) = &step.report {
                let mut request = prepared(request, file, &prefix);
                if let Some(grant) = request.get_mut("grant") {
                    *grant = json!(grants[grant.as_str().unwrap()]);
                }
                report(agent, &request)
            } else if let Some(request) = &step.peek {
                peek(agent, &prepared(request, file, &prefix))
            } else if let Some(request) = &step.usage {
                usage(agent, &prepared(request, file, &prefix))
            } else if let Some(request) = &step.limits {
                limits(agent, &prepared(request, file, &prefix))
            } else if let Some(request) = &step.set_limits {
                change(agent, "/v1/limits/set", &prepared(request, file, &prefix))
            } else if let Some(request) = &step.delete_limits {
                change(agent, "/v1/limits/delete", &prepared(request, file, &prefix))
            } else {
                assert!(step.restart.is_some(), "step {at} of {:?}", self.name);
                agent.restart();
                continue;
            };
            let settled = step.settle.as_ref().and_then(|request| request.get("grant"));
            let name = step.name.as_deref().or(settled.and_then(Value::as_str));
            if let (Some(name), Some(grant)) = (name, answer["grant"].as_str()) {
                grants.insert(name, grant.to_owned());
            }
            for (key, expected) in &step.expect {
                let is_kept = holds(key, &named(key, expected, file), &answer);
                let name = &self.name;
                assert!(is_kept, "{name:?}, step {at}: {key} must be {expected}, got {answer:#}");
            }
        }
    }
}

/// Returns the request with its named limits, and with entities of this scenario alone.
fn prepared(request: &Request, file: &ScenarioFile, prefix: &str) -> Request {
    let mut request = request.clone();
    for (key, value) in &mut request {
        match (key.as_str(), value) {
            ("entity", Value::String(entity)) if !entity.is_empty() && entity != "orphan" => {
                entity.insert_str(0, prefix);
            }
            ("scope" | "level", Value::Object(of)) => *of = prepared(of, file, prefix),
            ("limits", Value::Array(limits)) => {
                for limit in limits {
                    *limit = file.limits[limit.as_str().unwrap()].clone();
                }
            }
            ("buckets", Value::Array(buckets)) => {
                for bucket in buckets {
                    *bucket = prepared(bucket.as_object().unwrap(), file, prefix).into();
                }
            }
            _ => {}
        }
    }
    request
}

/// Returns an expectation with the file's limits in place of their names.
fn named(key: &str, expected: &Value, file: &ScenarioFile) -> Value {
    match (key, expected.as_array()) {
        ("limits" | "before" | "after", Some(names)) => {
            let limits = names.iter().map(|name| file.limits[name.as_str().unwrap()].clone());
            plain(&limits.collect()).into()
        }
        _ => expected.clone(),
    }
}

/// Returns whether an answer keeps an expectation.
fn holds(key: &str, expected: &Value, answer: &Value) -> bool {
    let actual = &answer[key];
    match key {
        "outcome" | "missing_plan" | "lease" | "ended" | "degraded" | "applied" | "status"
        | "short" | "would_deny" | "paused" | "acquires" | "state" | "level" | "class"
        | "limits" | "before" | "after" => actual == expected,
        "used" => numbers(expected) == numbers(actual),
        "amounts" => {
            let buckets = |value: &Value| value.as_array().cloned().unwrap_or_default();
            let pairs = buckets(expected).into_iter().zip(buckets(actual));
            buckets(expected).len() == buckets(actual).len()
                && pairs
                    .into_iter()
                    .all(|(expected, actual)| numbers(&expected) == numbers(&actual))
        }
        // A limit that refills may have gained while the scenario ran.
        "remaining" => numbers(expected).into_iter().all(|(limit, tokens)| {
            let now = actual[limit].as_f64();
            now.is_some_and(|now| (0.0..0.01).contains(&(now - tokens)))
        }),
        "retry_after_ms" | "starts_ms" | "paused_ms" => match expected.as_array() {
            None => actual == expected,
            Some(range) => {
                let bounds: Vec<_> = range.iter().filter_map(Value::as_f64).collect();
                let ms = actual.as_f64();
                ms.is_some_and(|ms| (bounds[0]..=bounds[1]).contains(&ms))
            }
        },
        "mentions" => expected.as_array().unwrap().iter().all(|word| {
            answer["text"].as_str().is_some_and(|text| text.contains(word.as_str().unwrap()))
        }),
        _ => panic!("there is no expectation {key:?}: correct the scenario"),
    }
}

fn numbers(value: &Value) -> BTreeMap<&str, f64> {
    let entries = value.as_object().into_iter().flatten();
    let number = |(name, value): (_, &Value)| (String::as_str(name), value.as_f64().unwrap());
    entries.map(number).collect()
}

fn held(answer: &Answer, outcome: Value) -> Value {
    if answer.status != 200 {
        return refused(answer);
    }
    let body = answer.json();
    let waived = body["would_deny"]["limits"].as_array();
    let would_deny = waived.into_iter().flatten().filter(|status| is_short(status));
    json!({
        "outcome": outcome,
        "grant": body["grant"],
        "ended": body["grant"].is_null(),
        "amounts": body["amounts"],
        "remaining": remaining(&body["limits"]),
        "lease": !body["lease"].is_null(),
        "would_deny": would_deny.map(|status| &status["limit"]).collect::<Vec<_>>(),
        "degraded": body["degraded"].is_object(),
        "missing_plan": body["missing_plan"],
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
        403 if body["type"] == "limit-changes-not-allowed" => "not_allowed",
        403 => "disabled",
        404 if body["type"] == "limits-not-configured" => "not_configured",
        500 if body["type"] == "misconfigured" => "misconfigured",
        503 => "unavailable",
        400 => "invalid",
        status => panic!("no answer of the contract has status {status}: {answer:?}"),
    };
    if outcome == "denied" {
        let has_time = body["retry_after_ms"].is_number();
        assert_eq!(has_time, !answer.field("retry-after").is_empty(), "{answer:?}");
    }
    if outcome != "unavailable" {
        assert_eq!((&body["applied"], &body["retry"]), (&json!("no"), &json!(false)));
    }
    json!({
        "outcome": outcome,
        "short": body["violated-policies"],
        "paused": body["paused"] == true,
        "retry_after_ms": body["retry_after_ms"],
        "starts_ms": body["starts_in_ms"],
        "applied": body["applied"],
        "missing_plan": body["missing_plan"],
        "text": body["detail"],
    })
}

fn is_short(status: &Value) -> bool {
    let tokens = |field: &str| status[field].as_f64();
    let lacks = tokens("requested_tokens") > tokens("available_tokens");
    status["is_requested"] == true && (lacks || status["paused_ms"].is_number())
}

fn remaining(limits: &Value) -> Value {
    let limits = limits.as_array().into_iter().flatten();
    let balance = |status: &Value| {
        let limit = status["limit"].as_str().unwrap().to_owned();
        (limit, status["available_tokens"].clone())
    };
    Value::Object(limits.map(balance).collect())
}
