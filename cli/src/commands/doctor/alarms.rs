//! The alarms of the stack.

use aws_config::SdkConfig;
use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::types::{MetricAlarm, StateValue};

use super::finding::Finding;

/// Returns the findings about the alarms of a stack: one for each that rings, and one for all.
pub async fn findings(config: &SdkConfig, stack: Option<&str>) -> Vec<Finding> {
    let Some(stack) = stack else {
        let text = "not checked: the stack is not known";
        return vec![Finding::unknown("alarms", text, "name it: --stack")];
    };
    let request = Client::new(config).describe_alarms();
    let request = request.alarm_name_prefix(format!("{stack}-"));
    let pages = request
        .into_paginator()
        .send()
        .collect::<Result<Vec<_>, _>>();
    match pages.await {
        Ok(pages) => {
            let alarms = pages
                .into_iter()
                .flat_map(|page| page.metric_alarms.unwrap_or_default());
            of_alarms(stack, &alarms.collect::<Vec<_>>())
        }
        Err(error) => vec![Finding::failed(
            "alarms",
            "cloudwatch:DescribeAlarms",
            &error,
        )],
    }
}

fn of_alarms(stack: &str, alarms: &[MetricAlarm]) -> Vec<Finding> {
    let ours: Vec<_> = alarms
        .iter()
        .filter_map(|alarm| Some((logical_name(stack, alarm)?, alarm)))
        .collect();
    if ours.is_empty() {
        let text = format!("the stack {stack} has none: no one is told when usage is not counted");
        return vec![Finding::problem(
            "alarms",
            text,
            "deploy the template again: docs/deployment.md",
        )];
    }
    let is_ringing = |alarm: &MetricAlarm| alarm.state_value() == Some(&StateValue::Alarm);
    let ringing = ours.iter().filter(|(_, alarm)| is_ringing(alarm));
    let mut findings: Vec<_> = ringing
        .map(|(name, alarm)| of_ringing(name, alarm))
        .collect();
    let number = ours.len();
    if findings.is_empty() {
        findings.push(Finding::fine("alarms", format!("{number}, none rings")));
    }
    if ours
        .iter()
        .all(|(_, alarm)| alarm.alarm_actions().is_empty())
    {
        findings.push(Finding::advice(
            "alarms",
            format!("none of the {number} notifies anything"),
            "give the stack a topic: the parameter AlarmTopicArn",
        ));
    }
    findings
}

/// Returns the name of an alarm in the template, if it is one of the stack's own. CloudFormation
/// names it STACK-NAME-RANDOM; a stack's name may begin with another one's.
fn logical_name<'a>(stack: &str, alarm: &'a MetricAlarm) -> Option<&'a str> {
    let rest = alarm.alarm_name()?.strip_prefix(stack)?.strip_prefix('-')?;
    let name = rest.split('-').next()?;
    name.ends_with("Alarm").then_some(name)
}

/// The description ends with the page and section that end the alarm.
fn of_ringing(name: &str, alarm: &MetricAlarm) -> Finding {
    let description = alarm.alarm_description().unwrap_or_default();
    let (found, section) = description
        .split_once("docs/operations.md")
        .unwrap_or((description, ""));
    let found = format!("{name} rings: {}", found.trim());
    Finding::problem("alarms", found, format!("docs/operations.md{section}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::State;

    fn alarm(name: &str, state: StateValue, action: &str) -> MetricAlarm {
        let alarm = MetricAlarm::builder()
            .alarm_name(name)
            .alarm_description("Records are late. docs/operations.md: A function is stuck")
            .state_value(state);
        match action {
            "" => alarm.build(),
            action => alarm.alarm_actions(action).build(),
        }
    }

    #[test]
    fn an_alarm_that_rings_is_a_problem_with_its_section_and_other_stacks_do_not_count() {
        let ringing = alarm("limits-AggregatorLagAlarm-1X", StateValue::Alarm, "arn");
        let quiet = alarm("limits-DeadLettersAlarm-2Y", StateValue::Ok, "arn");
        let other = alarm("limits-dev-AggregatorLagAlarm-3Z", StateValue::Alarm, "arn");
        let found = of_alarms("limits", &[ringing, quiet.clone(), other.clone()]);
        let problem = Finding::problem(
            "alarms",
            "AggregatorLagAlarm rings: Records are late.",
            "docs/operations.md: A function is stuck",
        );
        assert_eq!(found, [problem]);
        let found = of_alarms("limits", &[quiet, other.clone()]);
        assert_eq!(found, [Finding::fine("alarms", "1, none rings")]);
        assert_eq!(of_alarms("limits", &[other])[0].state, State::Problem);
    }

    #[test]
    fn alarms_that_notify_nothing_are_worth_a_topic() {
        let quiet = alarm("limits-DeadLettersAlarm-2Y", StateValue::Ok, "");
        let states = of_alarms("limits", &[quiet])
            .into_iter()
            .map(|finding| finding.state);
        assert_eq!(states.collect::<Vec<_>>(), [State::Fine, State::Advice]);
    }
}
