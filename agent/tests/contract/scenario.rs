//! The scenarios as data: `clients/contract/README.md` describes them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A file of scenarios.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    pub database: Database,
    limits: BTreeMap<String, Value>,
    pub scenarios: Vec<Scenario>,
}

/// Whether the agent reaches its database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    #[default]
    Available,
    Unavailable,
}

/// Steps on buckets of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    steps: Vec<Step>,
}

/// One call, and what its answer must say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    acquire: Option<Map<String, Value>>,
    settle: Option<Map<String, Value>>,
    peek: Option<Map<String, Value>>,
    restart: Option<Map<String, Value>>,
    /// Name of the grant.
    #[serde(rename = "as")]
    name: Option<String>,
    #[serde(default)]
    expect: Map<String, Value>,
}

/// What the contract is held against. Answers are what `clients/contract/README.md` says.
pub trait Subject {
    async fn acquire(&mut self, request: &Map<String, Value>) -> Value;
    async fn settle(&mut self, request: &Map<String, Value>) -> Value;
    async fn peek(&mut self, request: &Map<String, Value>) -> Value;
    async fn restart(&mut self);
}

/// Reads all files.
pub fn files() -> Vec<ScenarioFile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/contract");
    let entries = std::fs::read_dir(&folder).expect("the contract is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths.iter().map(read).collect()
}

impl Scenario {
    /// Returns how many expectations the steps have.
    pub fn expectations(&self) -> usize {
        self.steps.iter().map(|step| step.expect.len()).sum()
    }

    /// Runs the steps. `run` stands before the entities, so that runs on one table are apart.
    ///
    /// # Errors
    /// The first answer that is not what its step expects.
    pub async fn run(
        &self,
        file: &ScenarioFile,
        subject: &mut impl Subject,
        run: &str,
    ) -> Result<(), String> {
        let name = self.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let prefix = format!("{run}:{name}:");
        let mut grants: BTreeMap<&str, String> = BTreeMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            let answer = if let Some(request) = &step.acquire {
                let request = prepared(request, file, &prefix);
                subject.acquire(&request).await
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
                subject.settle(&request).await
            } else if let Some(request) = &step.peek {
                subject.peek(&prepared(request, file, &prefix)).await
            } else {
                assert!(step.restart.is_some(), "step {at} of {:?}", self.name);
                subject.restart().await;
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
fn prepared(request: &Map<String, Value>, file: &ScenarioFile, prefix: &str) -> Map<String, Value> {
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
