//! The functions: what reads the stream, what runs on the schedule, and their versions.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use weirgate_shared::{MAX_SHARDS, docs};
use weirgate_store::{TableFacts, short_name};

use super::aws::{Aws, RequestError, Service};
use super::finding::{DEPLOY, Finding};

/// What comes before the version in a function's description.
const VERSION: &str = "Weirgate ";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Mappings {
    event_source_mappings: Vec<Mapping>,
}

/// What Lambda says about a mapping.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Mapping {
    function_arn: String,
    state: String,
    last_processing_result: Option<String>,
    function_response_types: Option<Vec<String>>,
    maximum_batching_window_in_seconds: u64,
}

/// What Lambda says about a function.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Function {
    description: String,
    environment: Option<Environment>,
    state: Option<String>,
    state_reason: Option<String>,
    last_update_status: Option<String>,
    last_update_status_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Environment {
    variables: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Schedule {
    state: String,
    schedule_expression: String,
}

/// The function that splits.
const AGGREGATOR: &str = "aggregator";

/// The functions of a table as they are deployed. A setting is `None` if it cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deployed {
    /// The stack, after which the functions are named.
    pub stack: String,
    /// How long a record may wait for others, `StreamBatchWindowSeconds`.
    pub batch_window: Option<Duration>,
    /// Time between two runs of the reconciler, `ReconcileRate`.
    pub interval: Option<Duration>,
    /// Most shards of a bucket, `MaxShards`.
    pub max_shards: Option<u32>,
}

impl Deployed {
    /// Returns the functions of a stack of which nothing else is known.
    pub fn of(stack: String) -> Self {
        Self { stack, ..Self::default() }
    }

    /// Returns those of a local backend, which has the template's defaults.
    pub fn local() -> Self {
        Self {
            stack: "local".to_owned(),
            batch_window: Some(Duration::from_secs(1)),
            interval: Some(Duration::from_secs(60)),
            max_shards: Some(MAX_SHARDS),
        }
    }
}

/// Returns the findings about the functions of a table, and what is known of them if their stack is.
pub async fn findings(
    aws: &Aws,
    table: &str,
    facts: &TableFacts,
    stack: Option<String>,
) -> (Vec<Finding>, Option<Deployed>) {
    let (mut findings, mut deployed) = (vec![], stack.map(Deployed::of));
    if let Some(stream) = &facts.stream_arn {
        let path = format!("/2015-03-31/event-source-mappings?EventSourceArn={stream}");
        match aws.get::<Mappings>(Service::Lambda, &path).await {
            Ok(found) => {
                let stack = deployed.as_ref().map(|deployed| &*deployed.stack);
                let (finding, reader) = of_mappings(&found.event_source_mappings, stack);
                findings.push(finding);
                // If none reads it, nothing is to be waited for.
                let batch_window = Some(Duration::ZERO);
                deployed =
                    reader.or(deployed.map(|deployed| Deployed { batch_window, ..deployed }));
            }
            Err(error) => {
                let action = "lambda:ListEventSourceMappings";
                findings.push(Finding::failed("mapping", action, &error));
            }
        }
    }
    let Some(mut deployed) = deployed else {
        let text = "not checked: the stack is not known";
        findings.push(Finding::unknown("functions", text, "name it: --stack"));
        return (findings, None);
    };
    for check in [AGGREGATOR, "reconciler"] {
        let name = format!("{}-{check}", deployed.stack);
        let (finding, max_shards) = function(aws, check, &name, table).await;
        findings.push(finding);
        if check == AGGREGATOR {
            deployed.max_shards = max_shards;
        }
    }
    let name = format!("{}-reconciler", deployed.stack);
    let (finding, interval) = schedule(aws, &name).await;
    findings.push(finding);
    deployed.interval = interval;
    (findings, Some(deployed))
}

/// Returns the finding about what reads the stream, and that aggregator. Other functions may read the
/// stream too.
fn of_mappings(mappings: &[Mapping], stack: Option<&str>) -> (Finding, Option<Deployed>) {
    let of_stack = |mapping: &Mapping| {
        let (_, name) = mapping.function_arn.split_once(":function:")?;
        let name = name.split(':').next()?.strip_suffix("-aggregator")?;
        Some(name.to_owned())
    };
    let ours = mappings.iter().filter_map(|mapping| {
        let name = of_stack(mapping)?;
        stack.is_none_or(|stack| stack == name).then_some((mapping, name))
    });
    let ours: Vec<_> = ours.collect();
    // One that was created manually may be beside a disabled one.
    let is_enabled = |(mapping, _): &&(&Mapping, String)| mapping.state == "Enabled";
    match ours.iter().find(is_enabled).or_else(|| ours.first()) {
        Some((mapping, stack)) => {
            let batch_window = Duration::from_secs(mapping.maximum_batching_window_in_seconds);
            let deployed =
                Deployed { batch_window: Some(batch_window), ..Deployed::of(stack.clone()) };
            (of_mapping(mapping), Some(deployed))
        }
        None => {
            let finding = Finding::problem(
                "mapping",
                "no aggregator reads the table's stream: no usage is counted, no hot bucket is split",
                docs!("operations", "the-stream-is-lost"),
            );
            (finding, None)
        }
    }
}

fn of_mapping(mapping: &Mapping) -> Finding {
    let state = &mapping.state;
    let result = mapping.last_processing_result.as_deref().unwrap_or("No records processed");
    if state != "Enabled" {
        return Finding::problem(
            "mapping",
            format!("it is {state}: usage is counted late, and lost after 24 hours"),
            docs!("operations", "the-stream-is-lost"),
        );
    }
    if result.starts_with("PROBLEM") {
        let remedy = docs!("operations", "a-function-is-stuck");
        return Finding::problem("mapping", result, remedy);
    }
    let responses = mapping.function_response_types.iter().flatten();
    if !responses.into_iter().any(|name| name == "ReportBatchItemFailures") {
        return Finding::problem(
            "mapping",
            "it does not know which record of a batch failed, so it repeats or skips whole batches",
            DEPLOY,
        );
    }
    Finding::fine("mapping", format!("it reads the stream; last result: {result}"))
}

/// Returns the finding about a function, and its maximum of shards, if it is known. Where there is no function, nothing
/// keeps buckets from being split.
async fn function(
    aws: &Aws,
    check: &'static str,
    name: &str,
    table: &str,
) -> (Finding, Option<u32>) {
    let path = format!("/2015-03-31/functions/{name}/configuration");
    match aws.get::<Function>(Service::Lambda, &path).await {
        Ok(function) => {
            let finding = of_function(check, name, &function, table);
            (finding, function.variable("MAX_SHARDS").and_then(|most| most.parse().ok()))
        }
        Err(error) if error.is_not_found() => {
            let text = format!("there is no function {name}");
            (Finding::problem(check, text, DEPLOY), Some(MAX_SHARDS))
        }
        Err(error) => {
            let finding = Finding::failed(check, "lambda:GetFunctionConfiguration", &error);
            (finding, None)
        }
    }
}

impl Function {
    fn variable(&self, name: &str) -> Option<&String> {
        self.environment.as_ref()?.variables.get(name)
    }
}

fn of_function(check: &'static str, name: &str, function: &Function, table: &str) -> Finding {
    let short = short_name(table);
    let of = function.variable("TABLE_NAME");
    if of.is_none_or(|of| of != short) {
        let of = of.map_or("none", String::as_str);
        return Finding::problem(check, format!("{name} works on the table {of}"), DEPLOY);
    }
    let failed = Some("Failed");
    if function.state.as_deref() == failed || function.last_update_status.as_deref() == failed {
        let reason = function.state_reason.as_deref();
        let reason = reason.or(function.last_update_status_reason.as_deref());
        let text = format!("{name} cannot run: {}", reason.unwrap_or("no reason given"));
        return Finding::problem(check, text, DEPLOY);
    }
    let version = function.description.rsplit_once(VERSION).map(|(_, version)| version);
    match version {
        Some(version) if version == env!("CARGO_PKG_VERSION") => {
            Finding::fine(check, format!("{name} is active, version {version}"))
        }
        version => Finding::advice(
            check,
            format!(
                "{name} has version {}, and this command line {}",
                version.unwrap_or("before 0.7"),
                env!("CARGO_PKG_VERSION")
            ),
            "deploy the older of them again",
        ),
    }
}

/// Returns the finding about the schedule of the reconciler, and the time between two runs.
async fn schedule(aws: &Aws, name: &str) -> (Finding, Option<Duration>) {
    let path = format!("/schedules/{name}");
    let found = aws.get::<Schedule>(Service::Scheduler, &path).await;
    let interval = interval(&found);
    (of_schedule(name, found), interval)
}

/// Returns the time between two runs: `rate(10 minutes)` is 10 minutes. Without a schedule nothing is to be waited for.
fn interval(found: &Result<Schedule, RequestError>) -> Option<Duration> {
    let expression = match found {
        Ok(found) => &found.schedule_expression,
        Err(error) => return error.is_not_found().then_some(Duration::ZERO),
    };
    let rate = expression.strip_prefix("rate(")?;
    let (minutes, _) = rate.split_once(" minute")?;
    minutes.parse().ok().map(|minutes: u64| Duration::from_secs(minutes * 60))
}

fn of_schedule(name: &str, found: Result<Schedule, RequestError>) -> Finding {
    match found {
        Ok(schedule) if schedule.state == "ENABLED" => Finding::fine(
            "schedule",
            format!("{name} is enabled, {}", schedule.schedule_expression),
        ),
        Ok(_) => Finding::problem(
            "schedule",
            format!("{name} is disabled: expired leases in unused buckets keep their slots"),
            format!("enable it, or {DEPLOY}"),
        ),
        Err(error) if error.is_not_found() => {
            Finding::problem("schedule", format!("there is no schedule {name}"), DEPLOY)
        }
        Err(error) => Finding::failed("schedule", "scheduler:GetSchedule", &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::State;

    fn state_of_mapping(state: &str, result: &str, has_responses: bool) -> State {
        let responses = has_responses.then(|| vec!["ReportBatchItemFailures".to_owned()]);
        let mapping = Mapping {
            state: state.to_owned(),
            last_processing_result: Some(result.to_owned()),
            function_response_types: responses,
            ..Mapping::default()
        };
        of_mapping(&mapping).state
    }

    #[test]
    fn a_mapping_is_fine_if_it_is_enabled_works_and_knows_what_failed() {
        assert_eq!(state_of_mapping("Enabled", "OK", true), State::Fine);
        for (state, result, has_responses) in [
            ("Disabled", "OK", true),
            ("Enabled", "PROBLEM: Function call failed", true),
            ("Enabled", "OK", false),
        ] {
            assert_eq!(
                state_of_mapping(state, result, has_responses),
                State::Problem,
                "{state} {result} {has_responses}"
            );
        }
    }

    #[test]
    fn the_aggregator_is_found_among_other_readers_and_its_name_tells_the_stack() {
        let mapping = |function: &str, state: &str| Mapping {
            function_arn: format!("arn:aws:lambda:eu-west-1:1:function:{function}"),
            function_response_types: Some(vec!["ReportBatchItemFailures".to_owned()]),
            state: state.to_owned(),
            ..Mapping::default()
        };
        let other = mapping("archive", "Enabled");
        let (finding, deployed) = of_mappings(std::slice::from_ref(&other), None);
        assert_eq!((finding.state, deployed), (State::Problem, None));
        let manual = mapping("limits-aggregator:live", "Enabled");
        let all = [other, mapping("limits-aggregator", "Disabled"), manual];
        let (finding, deployed) = of_mappings(&all, None);
        assert_eq!(finding.state, State::Fine);
        assert_eq!(deployed.map(|deployed| deployed.stack).as_deref(), Some("limits"));
        assert_eq!(of_mappings(&all, Some("other")).0.state, State::Problem);
    }

    #[test]
    fn the_settings_of_a_stack_are_read_as_lambda_and_the_scheduler_tell_them() {
        let mapping = r#"{"FunctionArn":"arn:aws:lambda:eu-west-1:1:function:limits-aggregator",
            "State":"Enabled","MaximumBatchingWindowInSeconds":300}"#;
        let mapping: Mapping = serde_json::from_str(mapping).unwrap();
        let deployed = of_mappings(&[mapping], None).1.unwrap();
        assert_eq!(deployed.batch_window, Some(Duration::from_secs(300)));
        let function = r#"{"Environment":{"Variables":{"MAX_SHARDS":"1"}}}"#;
        let function: Function = serde_json::from_str(function).unwrap();
        assert_eq!(function.variable("MAX_SHARDS").map(String::as_str), Some("1"));
    }

    /// Without a Region no request is sent.
    #[tokio::test]
    async fn settings_that_cannot_be_read_are_unknown() {
        let aws = Aws::new(aws_config::SdkConfig::builder().build());
        let facts = TableFacts {
            stream_arn: Some("arn:aws:dynamodb:eu-west-1:1:table/limits/stream/1".to_owned()),
            status: "ACTIVE".to_owned(),
            is_on_demand: true,
            has_right_keys: true,
            indexes: BTreeMap::new(),
            has_images: true,
            replicas: vec![],
        };
        let stack = "limits".to_owned();
        let (found, deployed) = findings(&aws, "limits", &facts, Some(stack.clone())).await;
        assert!(found.iter().all(|found| found.state == State::Unknown), "{found:?}");
        assert_eq!(deployed, Some(Deployed::of(stack)));
    }

    #[test]
    fn the_interval_is_known_if_the_schedule_is_or_if_there_is_none() {
        let refused =
            |code: &str| Err(RequestError { code: code.to_owned(), message: String::new() });
        let every = |rate: &str| {
            Ok(Schedule { state: "ENABLED".to_owned(), schedule_expression: rate.to_owned() })
        };
        for (found, known) in [
            (every("rate(1 minute)"), Some(60)),
            (every("rate(10 minutes)"), Some(600)),
            (every("cron(0 * * * ? *)"), None),
            (refused("ResourceNotFoundException"), Some(0)),
            (refused("AccessDeniedException"), None),
            (refused(""), None),
        ] {
            assert_eq!(interval(&found), known.map(Duration::from_secs), "{found:?}");
        }
    }

    fn state_of_function(table: &str, version: &str, state: &str) -> State {
        let variables = BTreeMap::from([("TABLE_NAME".to_owned(), table.to_owned())]);
        let function = Function {
            description: format!("Counts. Weirgate {version}"),
            environment: Some(Environment { variables }),
            state: Some(state.to_owned()),
            ..Function::default()
        };
        of_function("aggregator", "limits-aggregator", &function, "limits").state
    }

    #[test]
    fn a_function_is_fine_if_it_can_run_on_this_table_in_this_version() {
        let own = env!("CARGO_PKG_VERSION");
        let state = |table, version, state| state_of_function(table, version, state);
        assert_eq!(state("limits", own, "Active"), State::Fine);
        // Functions that are not called are inactive, and run at the next call.
        assert_eq!(state("limits", own, "Inactive"), State::Fine);
        assert_eq!(state("other", own, "Active"), State::Problem);
        assert_eq!(state("limits", own, "Failed"), State::Problem);
        assert_eq!(state("limits", "0.1.0", "Active"), State::Advice);
    }
}
