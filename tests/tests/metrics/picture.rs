//! The dashboard of the template: whether every widget has something to show.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weirgate_runtime::{DIMENSIONS, NAMESPACE};
use weirgate_testkit::template::{properties, resources, template};

use super::invocations::{all, metrics, names};

/// Columns of a dashboard.
const COLUMNS: u64 = 24;
/// Metrics up to which the three dashboards of an account are free.
/// <https://aws.amazon.com/cloudwatch/pricing/>
const FREE: usize = 50;

/// The metrics of AWS services that may be asked for, with their dimensions.
const OF_AWS: [(&str, &str, &[&str]); 15] = [
    (
        "AWS/DynamoDB",
        "ConditionalCheckFailedRequests",
        &["TableName"],
    ),
    ("AWS/DynamoDB", "ConsumedReadCapacityUnits", &["TableName"]),
    ("AWS/DynamoDB", "ConsumedWriteCapacityUnits", &["TableName"]),
    (
        "AWS/DynamoDB",
        "ReadKeyRangeThroughputThrottleEvents",
        &["TableName"],
    ),
    (
        "AWS/DynamoDB",
        "SuccessfulRequestLatency",
        &["TableName", "Operation"],
    ),
    ("AWS/DynamoDB", "SystemErrors", &["TableName", "Operation"]),
    (
        "AWS/DynamoDB",
        "ThrottledRequests",
        &["TableName", "Operation"],
    ),
    (
        "AWS/DynamoDB",
        "WriteAccountLimitThrottleEvents",
        &["TableName"],
    ),
    (
        "AWS/DynamoDB",
        "WriteKeyRangeThroughputThrottleEvents",
        &["TableName"],
    ),
    (
        "AWS/DynamoDB",
        "WriteMaxOnDemandThroughputThrottleEvents",
        &["TableName"],
    ),
    ("AWS/Lambda", "Duration", &["FunctionName"]),
    ("AWS/Lambda", "Errors", &["FunctionName"]),
    ("AWS/Lambda", "Invocations", &["FunctionName"]),
    ("AWS/Lambda", "IteratorAge", &["FunctionName"]),
    ("AWS/Lambda", "Throttles", &["FunctionName"]),
];

/// The dashboard's body, with the names of a stack whose runbook has a URL.
fn body() -> Value {
    body_of(Runbook::Url)
}

/// What `RunbookUrl` is.
#[derive(Clone, Copy)]
enum Runbook {
    Url,
    Default,
}

fn body_of(runbook: Runbook) -> Value {
    let sub = properties("OnCall")["DashboardBody"]["Fn::Sub"].take();
    let mut text = sub[0].as_str().expect("a text with variables").to_owned();
    let mut variables = vec![
        ("AWS::StackName".to_owned(), "weirgate".to_owned()),
        ("AWS::Region".to_owned(), "us-east-1".to_owned()),
    ];
    for (name, value) in sub[1].as_object().unwrap() {
        let value = match &value["Fn::If"] {
            Value::Null => value,
            choice => {
                assert_eq!(choice[0], "LinksRunbook");
                match runbook {
                    Runbook::Url => &choice[1],
                    Runbook::Default => &choice[2],
                }
            }
        };
        let value = value.as_str().unwrap_or(name);
        variables.push((name.clone(), value.to_owned()));
    }
    let template = template();
    for (name, parameter) in template["Parameters"].as_object().unwrap() {
        let default = &parameter["Default"];
        let default = default
            .as_str()
            .map_or_else(|| default.to_string(), str::to_owned);
        variables.push((name.clone(), default));
    }
    variables.extend(
        resources()
            .into_iter()
            .map(|(name, _)| (name.clone(), name)),
    );
    for (name, value) in variables {
        text = text.replace(&format!("${{{name}}}"), &value);
    }
    // What is left is for CloudWatch, such as the average in a label.
    let text = text.replace("${!", "${");
    assert!(!text.contains("${AWS") && !text.contains("${T"), "{text}");
    serde_json::from_str(&text).expect("the body is JSON")
}

fn widgets() -> Vec<Value> {
    match body()["widgets"].take() {
        Value::Array(widgets) => widgets,
        other => panic!("widgets must be a list, got {other}"),
    }
}

/// One metric of a widget: namespace, name, dimensions, and its options.
struct Asked {
    namespace: String,
    name: String,
    dimensions: Vec<(String, String)>,
    options: Value,
}

/// The metrics and the expressions of a widget.
fn asked(widget: &Value) -> (Vec<Asked>, Vec<Value>) {
    let (mut metrics, mut expressions) = (vec![], vec![]);
    for entry in widget["properties"]["metrics"]
        .as_array()
        .unwrap_or(&vec![])
    {
        let entry = entry.as_array().expect("a metric is a list");
        if entry[0].is_object() {
            expressions.push(entry[0].clone());
            continue;
        }
        let (texts, options): (Vec<_>, Vec<_>) = entry.iter().partition(|part| part.is_string());
        let mut texts = texts
            .into_iter()
            .map(|text| text.as_str().unwrap().to_owned());
        let (namespace, name) = (texts.next().unwrap(), texts.next().unwrap());
        let mut dimensions = vec![];
        while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
            dimensions.push((name, value));
        }
        metrics.push(Asked {
            namespace,
            name,
            dimensions,
            options: options
                .first()
                .map_or(json!({}), |options| (*options).clone()),
        });
    }
    (metrics, expressions)
}

#[test]
fn every_metric_is_one_that_the_functions_or_aws_report() {
    let declared = metrics();
    let mut count = 0;
    for widget in widgets() {
        for asked in asked(&widget).0 {
            count += 1;
            let dimensions: Vec<_> = asked.dimensions.iter().map(|(name, _)| &**name).collect();
            let name = (&*asked.namespace, &*asked.name);
            match name {
                (NAMESPACE, metric) => {
                    assert_eq!(dimensions, DIMENSIONS, "{metric}");
                    assert_eq!(asked.dimensions[0].1, "weirgate", "{metric}");
                    let function = &asked.dimensions[1].1;
                    let of = declared.iter().find(|(name, _)| name == function);
                    let (_, metrics) = of.unwrap_or_else(|| panic!("no function {function}"));
                    let known = metrics.iter().any(|known| known.name == metric);
                    assert!(known, "the {function} has no metric {metric}");
                }
                ("AWS/Logs", metric) => {
                    assert_eq!(
                        (metric, &*dimensions),
                        ("IncomingBytes", &["LogGroupName"][..])
                    );
                    let group = &resources()[&asked.dimensions[0].1];
                    assert_eq!(group["Type"], "AWS::Logs::LogGroup");
                }
                (namespace, metric) => {
                    let is_index = dimensions.last() == Some(&"GlobalSecondaryIndexName");
                    let own = &dimensions[..dimensions.len() - usize::from(is_index)];
                    let known = OF_AWS.contains(&(namespace, metric, own));
                    assert!(known, "{namespace} has no {metric} of {dimensions:?}");
                    if namespace == "AWS/Lambda" {
                        let function = &resources()[&asked.dimensions[0].1];
                        assert_eq!(function["Type"], "AWS::Serverless::Function");
                    }
                }
            }
        }
    }
    assert!((30..=FREE).contains(&count), "{count} metrics");
}

/// Real invocations report each of the functions' metrics that the dashboard shows.
#[tokio::test(start_paused = true)]
async fn every_metric_of_the_functions_comes_out_of_real_invocations() {
    let seen = names(&all().await.points());
    let shown: BTreeSet<_> = widgets()
        .iter()
        .flat_map(|widget| asked(widget).0)
        .filter(|asked| asked.namespace == NAMESPACE)
        .map(|asked| (asked.dimensions[1].1.clone(), asked.name))
        .collect();
    let missing: Vec<_> = shown.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A hidden metric is for an expression, and an expression is of the widget's metrics.
#[test]
fn expressions_use_the_metrics_beside_them() {
    for widget in widgets() {
        let (metrics, expressions) = asked(&widget);
        let title = &widget["properties"]["title"];
        let mut used = BTreeSet::new();
        for expression in &expressions {
            let text = expression["expression"].as_str().expect("an expression");
            let words = text.split(|char: char| !char.is_alphanumeric());
            used.extend(words.map(str::to_owned));
        }
        let mut ids = BTreeSet::new();
        for asked in metrics {
            let is_hidden = asked.options["visible"] == false;
            let id = asked.options["id"].as_str().unwrap_or_default().to_owned();
            let is_used = used.contains(&id) || used.contains("METRICS");
            assert_eq!(is_hidden, is_used, "{title}: {}", asked.name);
            assert!(
                !is_hidden || ids.insert(id.clone()),
                "{title}: {id} is twice"
            );
            let is_named = asked.options["label"].is_string() || !used.contains("METRICS");
            assert!(is_named, "{title}: {}", asked.name);
        }
        for word in used.iter().filter(|word| {
            let mut chars = word.chars();
            chars.next().is_some_and(char::is_lowercase)
        }) {
            assert!(ids.contains(word), "{title}: {word} is no metric");
        }
    }
}

#[test]
fn widgets_fill_the_columns_row_by_row_and_each_has_a_title() {
    let mut taken = BTreeSet::new();
    let mut rows = BTreeSet::new();
    for widget in widgets() {
        let number = |name: &str| widget[name].as_u64().expect("a number");
        assert!(number("x") + number("width") <= COLUMNS, "{widget}");
        for x in number("x")..number("x") + number("width") {
            for y in number("y")..number("y") + number("height") {
                assert!(taken.insert((x, y)), "two widgets at {x}, {y}");
                rows.insert(y);
            }
        }
        let properties = &widget["properties"];
        assert!(
            properties["markdown"].is_string() || properties["title"].is_string(),
            "{widget}"
        );
        if widget["type"] != "text" {
            assert_eq!(properties["region"], "us-east-1");
        }
    }
    let rows = u64::try_from(rows.len()).unwrap();
    let cells = u64::try_from(taken.len()).unwrap();
    assert_eq!(cells, rows * COLUMNS, "there is no hole");
}

/// Its links lead to sections of the runbook, and its marks are the alarms' thresholds.
#[test]
fn links_lead_to_sections_and_marks_are_thresholds_of_alarms() {
    let page = include_str!("../../../docs/operations.md");
    let mut links = 0;
    for widget in widgets() {
        let text = widget["properties"]["markdown"]
            .as_str()
            .unwrap_or_default();
        for link in text.split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            let Some((file, section)) = target.split_once('#') else {
                continue;
            };
            assert_eq!(file, "docs/operations.md", "the value of RunbookUrl");
            let heading = |line: &str| {
                let heading = line.trim_start_matches('#').trim().to_lowercase();
                line.starts_with('#') && heading.replace(' ', "-") == section
            };
            assert!(page.lines().any(heading), "{section} is no section");
            links += 1;
        }
        let marks = &widget["properties"]["annotations"]["horizontal"];
        for mark in marks.as_array().unwrap_or(&vec![]) {
            let alarm = properties(mark["label"].as_str().unwrap());
            // The alarm's metric is in ms, and the picture in seconds.
            let seconds = alarm["Threshold"].as_i64().unwrap() / 1000;
            assert_eq!(mark["value"], seconds);
            let names: Vec<_> = asked(&widget)
                .0
                .into_iter()
                .map(|asked| asked.name)
                .collect();
            assert!(names.iter().any(|name| alarm["MetricName"] == **name));
        }
    }
    assert!(links >= 8, "{links} links");
}

/// A path leads nowhere from a dashboard, so the default is text. Another value is taken for a URL.
#[test]
fn the_default_of_the_runbook_is_no_link() {
    let template = template();
    let default = &template["Parameters"]["RunbookUrl"]["Default"];
    assert_eq!(
        template["Conditions"]["LinksRunbook"],
        json!({"Fn::Not": [{"Fn::Equals": [{"Ref": "RunbookUrl"}, default]}]})
    );
    let text = body_of(Runbook::Default).to_string();
    assert!(!text.contains("]("), "{text}");
    assert!(text.contains("A limit is wrong (`docs/operations.md#a-limit-is-wrong`)"));
    assert!(text.contains("(`docs/guide/metrics.md`)"));
}

/// The list of hot shards is the saved query of the same log.
#[test]
fn the_list_of_hot_shards_is_the_saved_query() {
    let saved = properties("HotBucketsQuery");
    let query = saved["QueryString"].as_str().expect("a query");
    let lists: Vec<_> = widgets()
        .into_iter()
        .filter(|widget| widget["type"] == "log")
        .collect();
    let [list] = &lists[..] else {
        panic!("one list, got {lists:?}");
    };
    assert_eq!(saved["LogGroupNames"], json!([{"Ref": "AggregatorLogs"}]));
    let words = query.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        list["properties"]["query"],
        format!("SOURCE 'AggregatorLogs' | {words}")
    );
}

#[test]
fn the_dashboard_and_the_queries_can_be_left_out() {
    assert_eq!(template()["Parameters"]["Dashboard"]["Default"], "true");
    assert_eq!(
        template()["Conditions"]["HasDashboard"],
        json!({"Fn::Equals": [{"Ref": "Dashboard"}, "true"]})
    );
    for (name, resource) in resources() {
        let kind = resource["Type"].as_str().unwrap();
        if ["AWS::CloudWatch::Dashboard", "AWS::Logs::QueryDefinition"].contains(&kind) {
            assert_eq!(resource["Condition"], "HasDashboard", "{name}");
        }
    }
}

#[test]
fn alarms_on_the_functions_own_metrics_name_metrics_that_there_are() {
    let declared = metrics();
    let mut alarms = 0;
    for (name, resource) in resources() {
        let alarm = &resource["Properties"];
        if resource["Type"] != "AWS::CloudWatch::Alarm" || alarm["Namespace"] != NAMESPACE {
            continue;
        }
        let [stack, function] = &alarm["Dimensions"].as_array().unwrap()[..] else {
            panic!("{name} has two dimensions");
        };
        assert_eq!(
            *stack,
            json!({"Name": "stack", "Value": {"Ref": "AWS::StackName"}})
        );
        assert_eq!(function["Name"], "function");
        let of = declared
            .iter()
            .find(|(known, _)| function["Value"] == **known);
        let known = of
            .unwrap()
            .1
            .iter()
            .any(|metric| alarm["MetricName"] == *metric.name);
        assert!(known, "{name}");
        alarms += 1;
    }
    assert_eq!(alarms, 4);
}
