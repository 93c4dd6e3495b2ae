//! The alarms of the stack.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;
use weirgate_shared::docs;

use super::acceptance::{State, Tried};
use super::aws::{Aws, RequestError, Service};
use super::finding::Finding;

/// Where each alarm of the template has a section.
const RUNBOOK: &str = docs!("operations");

const OPERATION: &str = "GraniteServiceVersion20100801.DescribeAlarms";
const LIST: &str = "GraniteServiceVersion20100801.ListMetrics";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Page {
    metric_alarms: Vec<MetricAlarm>,
    next_token: Option<String>,
}

/// What CloudWatch says about an alarm.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricAlarm {
    alarm_name: String,
    alarm_description: Option<String>,
    state_value: String,
    alarm_actions: Vec<String>,
    namespace: Option<String>,
    metric_name: Option<String>,
    dimensions: BTreeSet<Dimension>,
    metrics: Vec<MetricQuery>,
}

/// A metric of an alarm that computes with several.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricQuery {
    metric_stat: Option<MetricStat>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetricStat {
    metric: Metric,
}

/// A metric by its names: other functions and tables have the same without the dimensions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Metric {
    namespace: String,
    metric_name: String,
    dimensions: BTreeSet<Dimension>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Dimension {
    name: String,
    value: String,
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.namespace, self.metric_name)?;
        for Dimension { name, value } in &self.dimensions {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Metrics {
    metrics: Vec<Metric>,
    next_token: Option<String>,
}

/// Returns whether CloudWatch has each metric that the stack's alarms watch. Metrics of failures
/// have no value while nothing fails.
pub async fn metrics(aws: &Aws, stack: &str) -> Tried {
    let failed = |action: &str, error: &RequestError| {
        Tried::not_checked(Finding::failed("alarms", action, error).found)
    };
    let alarms = match read(aws, stack).await {
        Ok(alarms) => alarms,
        Err(error) => return failed("cloudwatch:DescribeAlarms", &error),
    };
    let ours = alarms.iter().filter(|alarm| logical_name(stack, alarm).is_some());
    let watched: BTreeSet<_> = ours.flat_map(MetricAlarm::watched).collect();
    if watched.is_empty() {
        return Tried::not_checked(format!("the stack {stack} has no alarms"));
    }
    let (mut missing, number) = (vec![], watched.len());
    for metric in watched {
        match is_present(aws, &metric).await {
            Ok(true) => {}
            Ok(false) => missing.push(metric.to_string()),
            Err(error) => return failed("cloudwatch:ListMetrics", &error),
        }
    }
    let figure = format!("{} of {number} present", number - missing.len());
    match missing.is_empty() {
        true => Tried::passed(figure),
        false => Tried::of(
            State::NotChecked,
            figure,
            format!("without a value so far: {}", missing.join(", ")),
        ),
    }
}

/// Returns whether CloudWatch has a metric. It lists those that have these dimensions and others too.
async fn is_present(aws: &Aws, metric: &Metric) -> Result<bool, RequestError> {
    let mut request = json!(metric);
    loop {
        let page: Metrics = aws.call(Service::CloudWatch, LIST, &request).await?;
        if page.metrics.contains(metric) {
            return Ok(true);
        }
        match page.next_token {
            Some(token) if !token.is_empty() => request["NextToken"] = token.into(),
            _ => return Ok(false),
        }
    }
}

impl MetricAlarm {
    fn watched(&self) -> Vec<Metric> {
        let queries = self.metrics.iter();
        let own = self.namespace.clone().zip(self.metric_name.clone());
        let own = own.map(|(namespace, metric_name)| Metric {
            namespace,
            metric_name,
            dimensions: self.dimensions.clone(),
        });
        let stats = queries.filter_map(|query| query.metric_stat.clone());
        stats.map(|stat| stat.metric).chain(own).collect()
    }
}

/// Returns the findings about the alarms of a stack: one for each that rings, and one for all.
pub async fn findings(aws: &Aws, stack: Option<&str>) -> Vec<Finding> {
    let Some(stack) = stack else {
        let text = "not checked: the stack is not known";
        return vec![Finding::unknown("alarms", text, "name it: --stack")];
    };
    match read(aws, stack).await {
        Ok(alarms) => of_alarms(stack, &alarms),
        Err(error) => vec![Finding::failed("alarms", "cloudwatch:DescribeAlarms", &error)],
    }
}

async fn read(aws: &Aws, stack: &str) -> Result<Vec<MetricAlarm>, RequestError> {
    let mut alarms = vec![];
    let mut request =
        json!({"AlarmNamePrefix": format!("{stack}-"), "AlarmTypes": ["MetricAlarm"]});
    loop {
        let page: Page = aws.call(Service::CloudWatch, OPERATION, &request).await?;
        alarms.extend(page.metric_alarms);
        match page.next_token {
            Some(token) if !token.is_empty() => request["NextToken"] = token.into(),
            _ => return Ok(alarms),
        }
    }
}

fn of_alarms(stack: &str, alarms: &[MetricAlarm]) -> Vec<Finding> {
    let ours: Vec<_> =
        alarms.iter().filter_map(|alarm| Some((logical_name(stack, alarm)?, alarm))).collect();
    if ours.is_empty() {
        let text = format!("the stack {stack} has none: nothing tells when usage is not counted");
        let remedy = "set the parameter Alarms to true, or watch the metrics with another tool";
        return vec![Finding::advice("alarms", text, remedy)];
    }
    let is_ringing = |alarm: &MetricAlarm| alarm.state_value == "ALARM";
    let ringing = ours.iter().filter(|(_, alarm)| is_ringing(alarm));
    let mut findings: Vec<_> = ringing.map(|(name, alarm)| of_ringing(name, alarm)).collect();
    let number = ours.len();
    if findings.is_empty() {
        findings.push(Finding::fine("alarms", format!("{number}, none rings")));
    }
    if ours.iter().all(|(_, alarm)| alarm.alarm_actions.is_empty()) {
        findings.push(Finding::advice(
            "alarms",
            format!("none of the {number} notifies anything"),
            "give the stack a topic or an address: the parameter AlarmTopicArn or AlarmEmail",
        ));
    }
    findings
}

/// Returns the name of an alarm in the template, if it is one of the stack's own. CloudFormation
/// names it STACK-NAME-RANDOM; a stack's name may begin with another one's.
fn logical_name<'a>(stack: &str, alarm: &'a MetricAlarm) -> Option<&'a str> {
    let rest = alarm.alarm_name.strip_prefix(stack)?.strip_prefix('-')?;
    let name = rest.split('-').next()?;
    name.ends_with("Alarm").then_some(name)
}

/// The description ends with the page and section that end the alarm: `RunbookUrl#section`.
fn of_ringing(name: &str, alarm: &MetricAlarm) -> Finding {
    let description = alarm.alarm_description.as_deref().unwrap_or_default();
    let (found, link) = description
        .rsplit_once(' ')
        .filter(|(_, link)| link.contains('#'))
        .unwrap_or((description, RUNBOOK));
    let found = format!("{name} rings: {}", found.trim());
    // The default of the template is no address.
    let section = link.strip_prefix("docs/operations.md");
    let link = section.map_or_else(|| link.to_owned(), |section| format!("{RUNBOOK}{section}"));
    Finding::problem("alarms", found, link)
}

#[cfg(test)]
mod tests {
    use aws_config::{Region, SdkConfig};
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    use weirgate_testkit::server::serve_json;

    use super::*;
    use crate::commands::doctor::acceptance::State as Outcome;
    use crate::commands::doctor::finding::State;

    fn alarm(name: &str, state: &str, actions: &[&str]) -> MetricAlarm {
        MetricAlarm {
            alarm_name: name.to_owned(),
            alarm_description: Some(
                "Records are late. https://wiki/run#a-function-is-stuck".to_owned(),
            ),
            state_value: state.to_owned(),
            alarm_actions: actions.iter().map(ToString::to_string).collect(),
            ..MetricAlarm::default()
        }
    }

    #[test]
    fn an_alarm_that_rings_is_a_problem_with_its_section_and_other_stacks_do_not_count() {
        let ringing = alarm("limits-AggregatorLagAlarm-1X", "ALARM", &["arn"]);
        let quiet = alarm("limits-DeadLettersAlarm-2Y", "OK", &["arn"]);
        let other = alarm("limits-dev-AggregatorLagAlarm-3Z", "ALARM", &["arn"]);
        let found = of_alarms("limits", &[ringing.clone(), quiet.clone(), other.clone()]);
        let problem = Finding::problem(
            "alarms",
            "AggregatorLagAlarm rings: Records are late.",
            "https://wiki/run#a-function-is-stuck",
        );
        assert_eq!(found, [problem]);
        let default = "Records are late. docs/operations.md#a-function-is-stuck".to_owned();
        let unset = MetricAlarm { alarm_description: Some(default), ..ringing };
        let remedy = docs!("operations", "a-function-is-stuck");
        assert_eq!(of_alarms("limits", &[unset])[0].remedy, remedy);
        let found = of_alarms("limits", &[quiet, other.clone()]);
        assert_eq!(found, [Finding::fine("alarms", "1, none rings")]);
        assert_eq!(of_alarms("limits", &[other])[0].state, State::Advice);
    }

    /// Answers as CloudWatch with one alarm on the errors of a function, and the errors of others.
    fn cloudwatch(functions: &'static [&'static str]) -> String {
        let dimension = |of: &str| json!([{"Name": "FunctionName", "Value": of}]);
        serve_json(move |operation, request| {
            let metric = json!({
                "Namespace": "AWS/Lambda", "MetricName": "Errors", "Dimensions": dimension("limits-aggregator"),
            });
            let page = usize::from(request["NextToken"] == "2");
            let answer = match operation {
                "DescribeAlarms" => json!({"MetricAlarms": [{
                    "AlarmName": "limits-ErrorsAlarm-1X", "StateValue": "OK", "Namespace": "AWS/Lambda",
                    "MetricName": "Errors", "Dimensions": dimension("limits-aggregator"),
                }]}),
                _ => {
                    assert_eq!(request["Dimensions"], metric["Dimensions"], "{request}");
                    let mut metrics = metric.clone();
                    metrics["Dimensions"] = dimension(functions[page]);
                    let next = (page + 1 < functions.len()).then_some("2");
                    json!({"Metrics": [metrics], "NextToken": next})
                }
            };
            (200, answer.to_string())
        })
    }

    #[tokio::test]
    async fn the_metric_of_another_function_does_not_count() {
        for (functions, state) in [
            (&["limits-aggregator"][..], Outcome::Passed),
            (&["orders", "limits-aggregator"], Outcome::Passed),
            (&["orders", "limits-aggregator-2"], Outcome::NotChecked),
        ] {
            let config = SdkConfig::builder()
                .endpoint_url(cloudwatch(functions))
                .region(Region::new("us-east-1"))
                .credentials_provider(SharedCredentialsProvider::new(Credentials::from_keys(
                    "id", "secret", None,
                )))
                .build();
            let tried = metrics(&Aws::new(config), "limits").await;
            assert_eq!(tried.outcome, state, "{tried:?}");
            let is_named = tried.note.contains("Errors FunctionName=limits-aggregator");
            assert_eq!(is_named, state == Outcome::NotChecked, "{tried:?}");
        }
    }

    #[test]
    fn alarms_that_notify_nothing_are_worth_a_topic() {
        let quiet = alarm("limits-DeadLettersAlarm-2Y", "OK", &[]);
        let states = of_alarms("limits", &[quiet]).into_iter().map(|finding| finding.state);
        assert_eq!(states.collect::<Vec<_>>(), [State::Fine, State::Advice]);
    }
}
