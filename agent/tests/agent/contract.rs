//! The contract of the agent (`clients/contract`) over HTTP, and faults that its scenarios must find.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fixtures::{Agent, Answer, Serving, Settings};

type Request = Map<String, Value>;

#[test]
fn the_agent_keeps_the_contract() {
    let mut names = vec![];
    for file in files() {
        for scenario in &file.scenarios {
            let kept = scenario.run(&file, &mut Subject::new(&file, None), "http");
            kept.unwrap_or_else(|broken| panic!("{broken}"));
            let expectations = scenario.steps.iter().map(|step| step.expect.len());
            assert!(expectations.sum::<usize>() > 0, "{}", scenario.name);
            assert!(!names.contains(&scenario.name), "{}", scenario.name);
            names.push(scenario.name.clone());
        }
    }
    assert!(names.len() >= 30, "{} scenarios", names.len());
}

#[test]
fn every_fault_breaks_a_scenario_and_every_scenario_finds_a_fault() {
    let mut unbroken: Vec<_> = FAULTS.iter().map(|fault| fault.name).collect();
    let mut blind = vec![];
    for file in files() {
        for scenario in &file.scenarios {
            let mut is_blind = true;
            for fault in &FAULTS {
                if !is_blind && !unbroken.contains(&fault.name) {
                    continue;
                }
                let mut subject = Subject::new(&file, Some(fault));
                if scenario.run(&file, &mut subject, "fault").is_err() {
                    unbroken.retain(|name| *name != fault.name);
                    is_blind = false;
                }
            }
            blind.extend(is_blind.then(|| scenario.name.clone()));
        }
    }
    assert_eq!(unbroken, [""; 0], "no scenario finds these faults");
    assert_eq!(blind, [""; 0], "these scenarios find no fault");
}

/// An agent, perhaps with a fault: what a server or client that is wrong in one thing would do.
struct Subject<'f> {
    agent: Agent,
    fault: Option<&'f Fault>,
}

impl<'f> Subject<'f> {
    fn new(file: &ScenarioFile, fault: Option<&'f Fault>) -> Self {
        let limits = folder().join("limits.yaml");
        let limits = std::fs::read_to_string(limits).unwrap();
        let mut agent = Agent::with_limits(Settings::default(), &limits);
        if file.database == Database::Unavailable {
            agent.without_database();
        }
        Self { agent, fault }
    }

    fn post(&self, path: &str, request: &Request) -> Answer {
        let mut request = request.clone();
        match self.fault.map(|fault| &fault.change) {
            Some(Change::Without(field)) => drop(request.remove(*field)),
            Some(Change::Request(change)) => change(&mut request),
            Some(Change::Answer(_)) | None => {}
        }
        self.agent.post(path, &Value::Object(request))
    }

    fn answered(&self, mut answer: Value) -> Value {
        if let Some(Change::Answer(change)) = self.fault.map(|fault| &fault.change) {
            change(&mut answer);
        }
        answer
    }

    fn acquire(&self, request: &Request) -> Value {
        self.answered(held(&self.post("/v1/acquire", request), json!("granted")))
    }

    fn settle(&self, request: &Request) -> Value {
        let answer = self.post("/v1/settle", request);
        let settlement = answer.json()["settlement"].clone();
        self.answered(held(&answer, settlement))
    }

    fn peek(&self, request: &Request) -> Value {
        let answer = self.post("/v1/peek", request);
        self.answered(match answer.status {
            200 => {
                let body = answer.json();
                json!({
                    "outcome": "balances",
                    "status": body["status"],
                    "retry_after_ms": body["retry_after_ms"],
                    "remaining": remaining(&body["limits"]),
                })
            }
            _ => refused(&answer),
        })
    }
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
    limits: BTreeMap<String, Value>,
    scenarios: Vec<Scenario>,
}

/// Whether the agent reaches its database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Database {
    #[default]
    Available,
    Unavailable,
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
    peek: Option<Request>,
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
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths.iter().map(read).collect()
}

impl Scenario {
    /// Runs the steps. `run` stands before the entities, so that runs on one table are apart.
    ///
    /// # Errors
    /// The first answer that is not what its step expects.
    fn run(&self, file: &ScenarioFile, subject: &mut Subject<'_>, run: &str) -> Result<(), String> {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let prefix = format!("{run}:{name}:");
        let mut grants: BTreeMap<&str, String> = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let answer = if let Some(request) = &step.acquire {
                let request = prepared(request, file, &prefix);
                subject.acquire(&request)
            } else if let Some(request) = &step.settle {
                let mut request = request.clone();
                if let Some(token) = request.remove("token") {
                    request.insert("grant".to_owned(), token);
                } else {
                    let name = request["grant"].as_str().unwrap();
                    let grant = grants.get(name);
                    let grant = grant.ok_or_else(|| format!("step {at}: no grant {name}"))?;
                    request.insert("grant".to_owned(), json!(grant));
                }
                subject.settle(&request)
            } else if let Some(request) = &step.peek {
                subject.peek(&prepared(request, file, &prefix))
            } else {
                assert!(step.restart.is_some(), "step {at} of {:?}", self.name);
                subject.agent.restart();
                continue;
            };
            let settled = step
                .settle
                .as_ref()
                .and_then(|request| request.get("grant"));
            let name = step.name.as_deref().or(settled.and_then(Value::as_str));
            if let (Some(name), Some(grant)) = (name, answer["grant"].as_str()) {
                grants.insert(name, grant.to_owned());
            }
            for (key, expected) in &step.expect {
                if !holds(key, expected, &answer) {
                    let name = &self.name;
                    return Err(format!(
                        "{run}, {name:?}, step {at}: {key} must be {expected}, got {answer:#}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the request with its named limits, and with entities of this scenario alone.
fn prepared(request: &Request, file: &ScenarioFile, prefix: &str) -> Request {
    let mut request = request.clone();
    for (key, value) in &mut request {
        match (key.as_str(), value) {
            ("entity", Value::String(entity)) if !entity.is_empty() => {
                entity.insert_str(0, prefix);
            }
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

/// Returns whether an answer keeps an expectation.
fn holds(key: &str, expected: &Value, answer: &Value) -> bool {
    let actual = &answer[key];
    match key {
        "outcome" | "lease" | "ended" | "degraded" | "applied" | "status" | "short"
        | "would_deny" => actual == expected,
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
        "retry_after_ms" => match expected.as_array() {
            None => actual == expected,
            Some(range) => {
                let bounds: Vec<_> = range.iter().filter_map(Value::as_f64).collect();
                let ms = actual.as_f64();
                ms.is_some_and(|ms| (bounds[0]..=bounds[1]).contains(&ms))
            }
        },
        "mentions" => expected.as_array().unwrap().iter().all(|word| {
            answer["text"]
                .as_str()
                .is_some_and(|text| text.contains(word.as_str().unwrap()))
        }),
        _ => panic!("there is no expectation {key:?}: correct the scenario"),
    }
}

fn numbers(value: &Value) -> BTreeMap<&str, f64> {
    let entries = value.as_object().into_iter().flatten();
    let number = |(name, value): (_, &Value)| (String::as_str(name), value.as_f64().unwrap());
    entries.map(number).collect()
}

/// A fault, in requests or in answers.
struct Fault {
    name: &'static str,
    change: Change,
}

enum Change {
    /// A field of requests is ignored.
    Without(&'static str),
    Request(fn(&mut Request)),
    Answer(fn(&mut Value)),
}

/// The faults.
const FAULTS: [Fault; 27] = [
    without("adjust"),
    without("give_back"),
    without("take_more"),
    without("renew_ms"),
    without("end"),
    without("bucket"),
    without("need"),
    without("wait_ms"),
    without("lease_ms"),
    without("bypass"),
    without("on_unavailable"),
    without("limits"),
    request("every acquire bypasses", |request| {
        if request.contains_key("take") {
            request.insert("bypass".to_owned(), json!(true));
        }
    }),
    request("a rollback releases", |request| {
        request
            .entry("end")
            .and_modify(|end| *end = json!("release"));
    }),
    request("a release rolls back", |request| {
        request
            .entry("end")
            .and_modify(|end| *end = json!("roll_back"));
    }),
    request("all entities are one", |request| {
        request
            .entry("entity")
            .and_modify(|entity| *entity = json!("one"));
    }),
    request("all resources are one", |request| {
        let resource = request.entry("resource");
        resource.and_modify(|resource| *resource = json!("api"));
    }),
    request("only the first bucket counts", |request| {
        if let Some(Value::Array(buckets)) = request.get_mut("buckets") {
            buckets.truncate(1);
        }
    }),
    request("a range takes its least", |request| {
        for amount in request
            .get_mut("take")
            .and_then(Value::as_object_mut)
            .into_iter()
            .flatten()
        {
            if amount.1.is_object() {
                *amount.1 = amount.1["at_least"].clone();
            }
        }
    }),
    request("amounts are whole", |request| {
        for field in ["take", "adjust"] {
            let amounts = request.get_mut(field).and_then(Value::as_object_mut);
            for amount in amounts.into_iter().flatten() {
                if amount.1.is_f64() {
                    *amount.1 = json!(1);
                }
            }
        }
    }),
    answer("short limits are not named", |answer| {
        answer["short"] = json!([])
    }),
    answer("waived denials are not named", |answer| {
        answer["would_deny"] = json!([])
    }),
    answer("errors have no text", |answer| answer["text"] = json!("")),
    answer("there is never a lease", |answer| {
        answer["lease"] = json!(false)
    }),
    answer("every retry is at once", |answer| {
        answer["retry_after_ms"] = json!(-1)
    }),
    answer("no decision says that it was degraded", |answer| {
        answer["degraded"] = json!(false)
    }),
    answer("what has ended settles", |answer| {
        if answer["outcome"] == "lease_gone" {
            answer["outcome"] = json!("settled");
        }
    }),
];

const fn without(field: &'static str) -> Fault {
    let change = Change::Without(field);
    Fault {
        name: field,
        change,
    }
}

const fn request(name: &'static str, change: fn(&mut Request)) -> Fault {
    let change = Change::Request(change);
    Fault { name, change }
}

const fn answer(name: &'static str, change: fn(&mut Value)) -> Fault {
    let change = Change::Answer(change);
    Fault { name, change }
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
