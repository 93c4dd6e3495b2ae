//! The functions: what reads the stream, what runs on the schedule, and their versions.

use aws_config::SdkConfig;
use aws_sdk_lambda::Client;
use aws_sdk_lambda::operation::get_function_configuration::GetFunctionConfigurationOutput;
use aws_sdk_lambda::types::{
    EventSourceMappingConfiguration, FunctionResponseType, LastUpdateStatus, State as FunctionState,
};
use aws_sdk_scheduler::types::ScheduleState;
use weirgate_store::TableFacts;

use super::finding::Finding;

const DEPLOY: &str = "deploy the template again: docs/deployment.md";
/// What comes before the version in a function's description.
const VERSION: &str = "Weirgate ";

/// Returns the findings about the functions of a table. A function is named after its stack.
pub async fn findings(
    config: &SdkConfig,
    table: &str,
    facts: &TableFacts,
    stack: Option<String>,
) -> Vec<Finding> {
    let lambda = Client::new(config);
    let (mut findings, mut stack) = (vec![], stack);
    if let Some(stream) = &facts.stream_arn {
        let request = lambda.list_event_source_mappings().event_source_arn(stream);
        match request.send().await {
            Ok(found) => {
                let found = found.event_source_mappings.unwrap_or_default();
                let (finding, reader) = of_mappings(&found, stack.as_deref());
                findings.push(finding);
                stack = stack.or(reader);
            }
            Err(error) => {
                let action = "lambda:ListEventSourceMappings";
                findings.push(Finding::failed("mapping", action, &error));
            }
        }
    }
    let Some(stack) = stack else {
        let text = "not checked: the stack is not known";
        findings.push(Finding::unknown("functions", text, "name it: --stack"));
        return findings;
    };
    for check in ["aggregator", "reconciler"] {
        let name = format!("{stack}-{check}");
        findings.push(function(&lambda, check, &name, table).await);
    }
    findings.push(schedule(config, &format!("{stack}-reconciler")).await);
    findings
}

/// Returns the finding about what reads the stream, and the stack of that aggregator. Other
/// functions may read the stream too.
fn of_mappings(
    mappings: &[EventSourceMappingConfiguration],
    stack: Option<&str>,
) -> (Finding, Option<String>) {
    let of_stack = |mapping: &EventSourceMappingConfiguration| {
        let (_, name) = mapping.function_arn()?.split_once(":function:")?;
        let name = name.split(':').next()?.strip_suffix("-aggregator")?;
        Some(name.to_owned())
    };
    let ours = mappings.iter().filter_map(|mapping| {
        let name = of_stack(mapping)?;
        stack
            .is_none_or(|stack| stack == name)
            .then_some((mapping, name))
    });
    let ours: Vec<_> = ours.collect();
    // One that was created manually may be beside a disabled one.
    let is_enabled = |(mapping, _): &&(&EventSourceMappingConfiguration, String)| {
        mapping.state() == Some("Enabled")
    };
    match ours.iter().find(is_enabled).or_else(|| ours.first()) {
        Some((mapping, stack)) => (of_mapping(mapping), Some(stack.clone())),
        None => {
            let finding = Finding::problem(
                "mapping",
                "no aggregator reads the table's stream: no usage is counted, no hot bucket is split",
                "docs/operations.md: The stream is lost",
            );
            (finding, None)
        }
    }
}

fn of_mapping(mapping: &EventSourceMappingConfiguration) -> Finding {
    let state = mapping.state.as_deref().unwrap_or("unknown");
    let result = mapping
        .last_processing_result
        .as_deref()
        .unwrap_or("No records processed");
    if state != "Enabled" {
        return Finding::problem(
            "mapping",
            format!("it is {state}: usage is counted late, and lost after 24 hours"),
            "docs/operations.md: The stream is lost",
        );
    }
    if result.starts_with("PROBLEM") {
        return Finding::problem("mapping", result, "docs/operations.md: A function is stuck");
    }
    let responses = mapping.function_response_types();
    if !responses.contains(&FunctionResponseType::ReportBatchItemFailures) {
        return Finding::problem(
            "mapping",
            "it does not know which record of a batch failed, so it repeats or skips whole batches",
            DEPLOY,
        );
    }
    Finding::fine(
        "mapping",
        format!("it reads the stream; last result: {result}"),
    )
}

/// Returns the finding about a function.
async fn function(lambda: &Client, check: &'static str, name: &str, table: &str) -> Finding {
    let request = lambda.get_function_configuration().function_name(name);
    match request.send().await {
        Ok(function) => of_function(check, name, &function, table),
        Err(error)
            if error
                .as_service_error()
                .is_some_and(|error| error.is_resource_not_found_exception()) =>
        {
            Finding::problem(check, format!("there is no function {name}"), DEPLOY)
        }
        Err(error) => Finding::failed(check, "lambda:GetFunctionConfiguration", &error),
    }
}

fn of_function(
    check: &'static str,
    name: &str,
    function: &GetFunctionConfigurationOutput,
    table: &str,
) -> Finding {
    let short = table.rsplit('/').next().unwrap_or(table);
    let variables = function
        .environment()
        .and_then(|environment| environment.variables());
    let of = variables.and_then(|variables| variables.get("TABLE_NAME"));
    if of.is_none_or(|of| of != short) {
        let of = of.map_or("none", String::as_str);
        return Finding::problem(check, format!("{name} works on the table {of}"), DEPLOY);
    }
    if matches!(function.state(), Some(FunctionState::Failed))
        || matches!(
            function.last_update_status(),
            Some(LastUpdateStatus::Failed)
        )
    {
        let reason = function
            .state_reason()
            .or(function.last_update_status_reason());
        let text = format!("{name} cannot run: {}", reason.unwrap_or("no reason given"));
        return Finding::problem(check, text, DEPLOY);
    }
    let description = function.description().unwrap_or_default();
    let version = description.rsplit_once(VERSION).map(|(_, version)| version);
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
            "deploy the older of them again; CHANGELOG.md says what differs",
        ),
    }
}

/// Returns the finding about the schedule of the reconciler.
async fn schedule(config: &SdkConfig, name: &str) -> Finding {
    let scheduler = aws_sdk_scheduler::Client::new(config);
    match scheduler.get_schedule().name(name).send().await {
        Ok(schedule) if schedule.state() == Some(&ScheduleState::Enabled) => {
            let rate = schedule.schedule_expression().unwrap_or_default();
            Finding::fine("schedule", format!("{name} is enabled, {rate}"))
        }
        Ok(_) => Finding::problem(
            "schedule",
            format!("{name} is disabled: expired leases in unused buckets keep their slots"),
            format!("enable it, or {DEPLOY}"),
        ),
        Err(error)
            if error
                .as_service_error()
                .is_some_and(|error| error.is_resource_not_found_exception()) =>
        {
            Finding::problem("schedule", format!("there is no schedule {name}"), DEPLOY)
        }
        Err(error) => Finding::failed("schedule", "scheduler:GetSchedule", &error),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_lambda::types::EnvironmentResponse;

    use super::*;
    use crate::commands::doctor::finding::State;

    fn state_of_mapping(state: &str, result: &str, has_responses: bool) -> State {
        let mapping = EventSourceMappingConfiguration::builder()
            .state(state)
            .last_processing_result(result);
        let mapping = match has_responses {
            true => mapping.function_response_types(FunctionResponseType::ReportBatchItemFailures),
            false => mapping,
        };
        of_mapping(&mapping.build()).state
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
        let mapping = |function: &str, state: &str| {
            EventSourceMappingConfiguration::builder()
                .function_arn(format!("arn:aws:lambda:eu-west-1:1:function:{function}"))
                .function_response_types(FunctionResponseType::ReportBatchItemFailures)
                .state(state)
                .build()
        };
        let other = mapping("archive", "Enabled");
        let (finding, stack) = of_mappings(std::slice::from_ref(&other), None);
        assert_eq!((finding.state, stack), (State::Problem, None));
        let manual = mapping("limits-aggregator:live", "Enabled");
        let all = [other, mapping("limits-aggregator", "Disabled"), manual];
        let (finding, stack) = of_mappings(&all, None);
        assert_eq!(finding.state, State::Fine);
        assert_eq!(stack.as_deref(), Some("limits"));
        assert_eq!(of_mappings(&all, Some("other")).0.state, State::Problem);
    }

    fn state_of_function(table: &str, version: &str, state: FunctionState) -> State {
        let environment = EnvironmentResponse::builder().variables("TABLE_NAME", table);
        let function = GetFunctionConfigurationOutput::builder()
            .environment(environment.build())
            .description(format!("Counts. Weirgate {version}"))
            .state(state);
        of_function(
            "aggregator",
            "limits-aggregator",
            &function.build(),
            "limits",
        )
        .state
    }

    #[test]
    fn a_function_is_fine_if_it_can_run_on_this_table_in_this_version() {
        let own = env!("CARGO_PKG_VERSION");
        let state = |table, version, state| state_of_function(table, version, state);
        assert_eq!(state("limits", own, FunctionState::Active), State::Fine);
        // Functions that are not called are inactive, and run at the next call.
        assert_eq!(state("limits", own, FunctionState::Inactive), State::Fine);
        assert_eq!(state("other", own, FunctionState::Active), State::Problem);
        assert_eq!(state("limits", own, FunctionState::Failed), State::Problem);
        assert_eq!(
            state("limits", "0.1.0", FunctionState::Active),
            State::Advice
        );
    }
}
