//! `openapi.yaml` against the agent: every example, and every status, is answered as it describes.

use std::collections::BTreeSet;
use std::time::Duration;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::{Map, Value, json};
use weirgate_agent::Token;
use weirgate_testkit::Fault;

use crate::fixtures::{Agent, Answer, START, Serving, Settings};

const CALLS: [&str; 8] = [
    "/v1/acquire",
    "/v1/settle",
    "/v1/report",
    "/v1/peek",
    "/v1/usage",
    "/v1/limits",
    "/v1/limits/set",
    "/v1/limits/delete",
];
const PROBES: [&str; 2] = ["/healthz", "/metrics"];

/// Sets the range of a request to the hour or the day in progress.
fn to_now(request: &mut Value) {
    const HOUR: i64 = 3_600_000;
    let length = if request["by"] == "hour" { 1 } else { 24 } * HOUR;
    let start = START.0 - START.0 % length;
    request["from_ms"] = start.into();
    request["to_ms"] = (start + length).into();
}

/// The API as it is described, and the statuses that were given.
struct Described {
    api: Value,
    seen: BTreeSet<(String, String)>,
}

impl Described {
    fn new() -> Self {
        Self { api: yaml(include_str!("../../openapi.yaml")), seen: BTreeSet::new() }
    }

    /// Checks that an answer is one that the API describes, and has the status that it should have.
    fn check(&mut self, path: &str, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let operation = self.api["paths"][path].as_object().unwrap();
        let operation = operation.values().next().unwrap();
        self.check_with(operation, answer, path);
        self.seen.insert((path.to_owned(), status.to_string()));
    }

    fn check_with(&self, operation: &Value, answer: &Answer, what: &str) {
        let described = &operation["responses"][answer.status.to_string()];
        let described = resolve(&self.api, described);
        assert!(described.is_object(), "{what}: {} is new", answer.status);
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
        check(&self.api, schema, &value, "$").unwrap_or_else(|error| panic!("{what}: {error}"));
        for (name, header) in described["headers"].as_object().into_iter().flatten() {
            let is_always_there = resolve(&self.api, header)["required"] != false;
            let is_there = !answer.field(&name.to_lowercase()).is_empty();
            assert!(
                is_there || answer.status == 429 || !is_always_there,
                "{what}: {name} is missing"
            );
        }
    }
}

#[test]
fn every_example_is_answered_as_described() {
    let described = Described::new();
    let operation = |path: &str| &described.api["paths"][path]["post"];
    let examples = |path: &str| {
        let content = &operation(path)["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().expect(path).clone();
        (content["schema"].clone(), examples)
    };
    let (_, acquires) = examples("/v1/acquire");
    let mut answered = 0;
    for path in CALLS {
        let (schema, examples) = examples(path);
        for (name, example) in examples {
            let what = format!("{path} {name}");
            // Each has an agent of its own, so the order of examples does not matter.
            let agent = Agent::with(changing_limits());
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
            described.check_with(operation(path), &answer, &what);
            // A request is valid in the description if and only if it is to the agent.
            let is_described = check(&described.api, &schema, &request, "$");
            let is_wrong = ["misspelled", "nothing", "no_status_of_http"].contains(&name.as_str());
            assert_eq!(is_described.is_err(), is_wrong, "{what}: {is_described:?}");
            answered += 1;
        }
    }
    assert!(answered >= 20, "{answered}");
}

fn changing_limits() -> Settings {
    Settings { allows_limit_changes: true, ..Settings::default() }
}

fn take(resource: &str, rpm: u32) -> Value {
    json!({"entity": "e", "resource": resource, "take": {"rpm": rpm}})
}

/// Returns a request that each operation grants.
fn request(path: &str, grant: &Value) -> Value {
    match path {
        "/v1/acquire" => take("r", 1),
        "/v1/settle" => json!({"grant": grant, "adjust": {"rpm": 2}}),
        // Of a bucket that no other call needs.
        "/v1/report" => json!({"entity": "e", "resource": "s", "vendor": {"status": 429}}),
        "/v1/peek" | "/v1/limits" => json!({"entity": "e", "resource": "r"}),
        "/v1/limits/set" => {
            json!({"level": {"level": "entity", "entity": "e"}, "is_shadow": false, "status": "unlimited"})
        }
        "/v1/limits/delete" => json!({"level": {"level": "entity", "entity": "e"}}),
        _ => {
            let mut request = json!({"scope": {"entity": "e"}, "by": "day", "total": true});
            to_now(&mut request);
            request
        }
    }
}

#[test]
fn every_status_is_described_and_every_described_one_is_given() {
    let mut given = Described::new();
    let agent = Agent::with(changing_limits());
    let grant = agent.acquire(&take("r", 1))["grant"].clone();
    for path in CALLS {
        let send =
            |fields: &[(&str, &str)], body: &str| agent.connect().send("POST", path, fields, body);
        let body = request(path, &grant).to_string();
        given.check(path, 200, &send(&[], &body));
        given.check(path, 400, &send(&[], "nonsense"));
        given.check(path, 403, &send(&[("origin", "https://a.example")], &body));
        let large = " ".repeat(if path == "/v1/settle" { 32 } else { 1 } * 65_536 + 1);
        given.check(path, 413, &send(&[], &large));
        given.check(path, 405, &agent.get(path));
        // The 10 s for a body pass at once.
        let mut slow = agent.connect();
        let head = format!("POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-length: 9\r\n\r\n{{");
        slow.write_raw(head.as_bytes());
        given.check(path, 408, &slow.read().unwrap());
    }
    for path in PROBES {
        given.check(path, 200, &agent.get(path));
        given.check(path, 405, &agent.connect().send("POST", path, &[], ""));
    }
    for path in CALLS.into_iter().chain(PROBES) {
        let long = "a".repeat(20_000);
        let method = if CALLS.contains(&path) { "POST" } else { "GET" };
        let answer = agent.connect().send(method, path, &[("x-long", &long)], "");
        given.check(path, 431, &answer);
        let mut client = agent.connect();
        client.write_raw(format!("{method} {path} NO\r\n\r\n").as_bytes());
        given.check(path, 400, &client.read().unwrap());
    }
    agent.acquire(&take("r", 600));
    let mut acquire = |status, resource, rpm| {
        let answer = agent.post("/v1/acquire", &take(resource, rpm));
        given.check("/v1/acquire", status, &answer);
    };
    acquire(403, "stopped", 1);
    acquire(413, "r", 601);
    acquire(429, "r", 600);
    let more = json!({"grant": grant, "take_more": {"rpm": 600}});
    given.check("/v1/settle", 429, &agent.post("/v1/settle", &more));
    let responses = json!({"responses": {"404": {"$ref": "#/components/responses/NotFound"}}});
    given.check_with(&responses, &agent.get("/v2/acquire"), "/v2/acquire");

    let changing_none = Agent::new();
    for path in ["/v1/limits/set", "/v1/limits/delete"] {
        let answer = changing_none.post(path, &request(path, &grant));
        assert_eq!(answer.json()["type"], "limit-changes-not-allowed", "{answer:?}");
        given.check(path, 403, &answer);
    }

    let unconfigured = Agent::with_limits(
        Settings::default(),
        "weirgate: 1\nresources: {other: {limits: {rpm: {per_minute: 1}}}}\n",
    );
    for path in ["/v1/acquire", "/v1/peek"] {
        let answer = unconfigured.post(path, &request(path, &grant));
        assert_eq!(answer.json()["type"], "limits-not-configured", "{answer:?}");
        given.check(path, 404, &answer);
    }

    // As an extension has it.
    let with_token = Agent::with(Settings {
        token: Some(Token::new("s3cret").unwrap().for_all()),
        ..Settings::default()
    });
    for path in CALLS {
        let answer = with_token.post(path, &json!({}));
        given.check(path, 401, &answer);
    }
    for path in PROBES {
        given.check(path, 401, &with_token.get(path));
    }
    let without_table = Agent::with(Settings { has_table: false, ..changing_limits() });
    let unavailable = Agent::with(Settings {
        limiter: |builder| builder.timeout(Duration::from_millis(500)),
        ..changing_limits()
    });
    unavailable.dynamo.fail_when(|_| Some(Fault::ServerError));
    unavailable.dynamo.fail_reads(|_, _| Some(Fault::ServerError));
    for path in CALLS {
        let request = request(path, &grant);
        let answer = without_table.post(path, &request);
        assert_eq!(answer.json()["type"], "misconfigured", "{answer:?}");
        given.check(path, 500, &answer);
        given.check(path, 503, &unavailable.post(path, &request));
    }
    given.check("/healthz", 503, &unavailable.get("/healthz"));
    let not_reached = without_table.get("/healthz");
    assert_eq!(not_reached.status, 503, "{not_reached:?}");
    assert!(not_reached.body.contains("no such table"), "{not_reached:?}");

    let operations = given.api["paths"].as_object().unwrap().iter();
    let described: BTreeSet<_> = operations
        .flat_map(|(path, operations)| {
            let operations = operations.as_object().unwrap().values();
            let statuses = operations.flat_map(|one| one["responses"].as_object().unwrap().keys());
            statuses.map(|status| (path.clone(), status.clone()))
        })
        .collect();
    assert_eq!(given.seen, described);
}

/// Reads YAML as JSON.
fn yaml(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("openapi.yaml is YAML");
    value(&documents[0])
}

fn value(yaml: &Yaml<'_>) -> Value {
    if let Some(mapping) = yaml.as_mapping() {
        let entry = |(name, of): (&Yaml<'_>, &Yaml<'_>)| {
            let name = name.as_str().map(str::to_owned);
            (name.expect("names are quoted"), value(of))
        };
        return Value::Object(mapping.iter().map(entry).collect());
    }
    if let Some(list) = yaml.as_sequence() {
        return list.iter().map(value).collect();
    }
    if let Some(text) = yaml.as_str() {
        return text.into();
    }
    if let Some(bool) = yaml.as_bool() {
        return bool.into();
    }
    if let Some(number) = yaml.as_integer() {
        return number.into();
    }
    if let Some(number) = yaml.as_floating_point() {
        return number.into();
    }
    assert!(yaml.is_null(), "{yaml:?}");
    Value::Null
}

/// Checks a value; says what is wrong, and where.
fn check(api: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = resolve(api, schema);
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let is_kept = match word.as_str() {
            "description" | "properties" | "$ref" => true,
            "type" => match rule {
                Value::Array(all) => all.iter().any(|kind| is_kind(kind, value)),
                kind => is_kind(kind, value),
            },
            "required" => names(rule).all(|name| value.get(name).is_some()),
            "minProperties" => value.as_object().is_none_or(|all| all.len() >= size(rule)),
            "minItems" => value.as_array().is_none_or(|all| all.len() >= size(rule)),
            "maxItems" => value.as_array().is_none_or(|all| all.len() <= size(rule)),
            "minLength" => value.as_str().is_none_or(|text| text.len() >= size(rule)),
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "items" => {
                let elements = value.as_array().into_iter().flatten().enumerate();
                for (place, element) in elements {
                    check(api, rule, element, &format!("{at}[{place}]"))?;
                }
                true
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().unwrap_or(&empty) {
                    match rule {
                        _ if properties.contains_key(name) => {}
                        Value::Bool(false) => return Err(format!("{at}.{name} is not described")),
                        rule => check(api, rule, field, &format!("{at}.{name}"))?,
                    }
                }
                true
            }
            "oneOf" => {
                let checked = rule.as_array().unwrap().iter();
                let checked = checked.map(|one| check(api, one, value, at));
                let wrong: Vec<_> = checked.filter_map(Result::err).collect();
                if wrong.len() + 1 != rule.as_array().unwrap().len() {
                    return Err(format!("{at} is not exactly one of: {wrong:?}"));
                }
                true
            }
            other => panic!("openapi.yaml uses {other}, which this test does not know"),
        };
        if !is_kept {
            return Err(format!("{at}: {word} is {rule}, got {value}"));
        }
    }
    for (name, rule) in properties {
        if let Some(field) = value.get(name) {
            check(api, rule, field, &format!("{at}.{name}"))?;
        }
    }
    Ok(())
}

/// Follows a reference.
fn resolve<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        None => schema,
        Some(path) => {
            let found = api.pointer(path.strip_prefix('#').unwrap());
            resolve(api, found.unwrap_or_else(|| panic!("{path} is not there")))
        }
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap())
}

fn size(rule: &Value) -> usize {
    usize::try_from(rule.as_u64().unwrap()).unwrap()
}

fn is_kind(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{other} is no type"),
    }
}
