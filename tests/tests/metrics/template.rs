//! What the template makes of the functions' metrics and lines: the dashboard, alarms and saved
//! queries ask for what there is.

use std::collections::BTreeSet;

use serde_json::Value;
use weirgate_runtime::{DIMENSIONS, NAMESPACE};
use weirgate_testkit::template::{properties, resources, template};

use super::invocations::{all, metrics, names};

/// Metrics up to which the three dashboards of an account are free.
/// <https://aws.amazon.com/cloudwatch/pricing/>
const FREE: usize = 50;

/// The metrics of AWS services that may be asked for: of a table, of its operations, of a function.
const OF_TABLE: [&str; 7] = [
    "ConditionalCheckFailedRequests",
    "ConsumedReadCapacityUnits",
    "ConsumedWriteCapacityUnits",
    "ReadKeyRangeThroughputThrottleEvents",
    "WriteAccountLimitThrottleEvents",
    "WriteKeyRangeThroughputThrottleEvents",
    "WriteMaxOnDemandThroughputThrottleEvents",
];
const OF_OPERATION: [&str; 3] = ["SuccessfulRequestLatency", "SystemErrors", "ThrottledRequests"];
const OF_FUNCTION: [&str; 5] = ["Duration", "Errors", "Invocations", "IteratorAge", "Throttles"];

/// The dashboard's widgets, with the names of a stack.
fn widgets() -> Vec<Value> {
    let sub = properties("OnCall")["DashboardBody"]["Fn::Sub"].take();
    let mut text = sub[0].as_str().expect("a text with variables").to_owned();
    let mut variables = vec![
        ("AWS::StackName".to_owned(), "weirgate".to_owned()),
        ("AWS::Region".to_owned(), "us-east-1".to_owned()),
    ];
    for (name, value) in sub[1].as_object().unwrap() {
        let value = value["Fn::If"].get(1).unwrap_or(value);
        let value = value.as_str().unwrap_or(name);
        variables.push((name.clone(), value.to_owned()));
    }
    for (name, parameter) in template()["Parameters"].as_object().unwrap() {
        let default = &parameter["Default"];
        let text = default.as_str().map(str::to_owned);
        variables.push((name.clone(), text.unwrap_or_else(|| default.to_string())));
    }
    variables.extend(resources().into_iter().map(|(name, _)| (name.clone(), name)));
    for (name, value) in variables {
        text = text.replace(&format!("${{{name}}}"), &value);
    }
    // What is left is for CloudWatch, such as the average in a label.
    let text = text.replace("${!", "${");
    assert!(!text.contains("${AWS") && !text.contains("${T"), "{text}");
    let mut body: Value = serde_json::from_str(&text).expect("the body is JSON");
    match body["widgets"].take() {
        Value::Array(widgets) => widgets,
        other => panic!("widgets must be a list, got {other}"),
    }
}

/// One metric of a widget: namespace, name, and dimensions with their values.
type Asked = (String, String, Vec<(String, String)>);

/// The metrics of a widget, without expressions.
fn asked(widget: &Value) -> Vec<Asked> {
    let metrics = widget["properties"]["metrics"].as_array();
    let metrics = metrics.into_iter().flatten();
    let texts = metrics.map(|metric| {
        let parts = metric.as_array().expect("a metric is a list").iter();
        let texts: Vec<_> = parts.filter_map(Value::as_str).map(str::to_owned).collect();
        texts
    });
    let metric = |texts: Vec<String>| {
        let (name, dimensions) = texts.split_first_chunk::<2>()?;
        let pairs = dimensions.chunks(2);
        let pairs = pairs.map(|pair| (pair[0].clone(), pair[1].clone()));
        Some((name[0].clone(), name[1].clone(), pairs.collect()))
    };
    texts.filter_map(metric).collect()
}

#[test]
fn every_metric_of_the_dashboard_is_one_that_the_functions_or_aws_report() {
    let declared = metrics();
    let mut count = 0;
    for (namespace, name, dimensions) in widgets().iter().flat_map(asked) {
        count += 1;
        let of: Vec<_> = dimensions.iter().map(|(name, _)| &**name).collect();
        let is_index = of.last() == Some(&"GlobalSecondaryIndexName");
        let own = &of[..of.len() - usize::from(is_index)];
        let type_of = |at: usize| resources()[&dimensions[at].1]["Type"].clone();
        let is_known = match &*namespace {
            NAMESPACE => {
                assert_eq!(dimensions[0].1, "weirgate", "{name}");
                let of_function = |(known, _): &&(&str, _)| *known == dimensions[1].1;
                let (_, metrics) = declared.iter().find(of_function).expect("a function");
                of == DIMENSIONS && metrics.iter().any(|metric| metric.name == name)
            }
            "AWS/Logs" => {
                of == ["LogGroupName"]
                    && name == "IncomingBytes"
                    && type_of(0) == "AWS::Logs::LogGroup"
            }
            "AWS/DynamoDB" if own == ["TableName"] => OF_TABLE.contains(&&*name),
            "AWS/DynamoDB" => own == ["TableName", "Operation"] && OF_OPERATION.contains(&&*name),
            "AWS/Lambda" => {
                own == ["FunctionName"]
                    && OF_FUNCTION.contains(&&*name)
                    && type_of(0) == "AWS::Serverless::Function"
            }
            _ => false,
        };
        assert!(is_known, "{namespace} has no {name} of {of:?}");
    }
    assert!((30..=FREE).contains(&count), "{count} metrics");
}

#[tokio::test(start_paused = true)]
async fn every_metric_of_the_functions_comes_out_of_real_invocations() {
    let seen = names(&all().await.points());
    let shown = widgets().iter().flat_map(asked).collect::<Vec<_>>();
    let shown = shown.into_iter().filter(|(namespace, ..)| namespace == NAMESPACE);
    let shown: BTreeSet<_> = shown.map(|(_, name, of)| (of[1].1.clone(), name)).collect();
    let missing: Vec<_> = shown.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Words of the query language.
const LANGUAGE: &str = "fields filter stats sort by as in like and desc asc count sum max latest \
                        bin 5m ispresent";
/// Fields that CloudWatch adds, and one of lines that no invocation of these tests writes.
const OTHER_FIELDS: [&str; 3] = ["@timestamp", "@message", "xrayTraceId"];

/// The names of a line's fields, with those inside of `span`.
fn fields(line: &Value) -> BTreeSet<String> {
    let mut names: BTreeSet<_> = line.as_object().unwrap().keys().cloned().collect();
    let span = line["span"].as_object().unwrap();
    names.extend(span.keys().map(|name| format!("span.{name}")));
    names
}

/// The words of a query that are fields: not of the language, not quoted, no name that it gives.
fn fields_of_query(query: &str) -> BTreeSet<String> {
    let mut bare = String::new();
    let mut quote = None;
    for char in query.chars() {
        match quote {
            Some(end) if char == end => quote = None,
            Some(_) => {}
            None if ['"', '/'].contains(&char) => quote = Some(char),
            None => bare.push(char),
        }
    }
    let is_part = |char: char| char.is_alphanumeric() || ['_', '.', '@'].contains(&char);
    let words: Vec<_> = bare.split(|char| !is_part(char)).filter(|word| !word.is_empty()).collect();
    let given = words.windows(2).filter(|pair| pair[0] == "as").map(|pair| pair[1]);
    let no_fields: BTreeSet<_> = given.chain(LANGUAGE.split_whitespace()).collect();
    let fields = words.iter().filter(|word| !no_fields.contains(**word));
    fields.map(|word| (*word).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_field_and_every_message_of_a_query_is_one_of_the_functions_lines() {
    let lines = all().await;
    let text = lines.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let known: BTreeSet<_> = lines.iter().flat_map(fields).collect();
    let mut queries = resources();
    queries.retain(|_, resource| resource["Type"] == "AWS::Logs::QueryDefinition");
    assert_eq!(queries.len(), 9);
    for (name, query) in queries {
        let query = query["Properties"]["QueryString"].as_str().unwrap();
        for field in fields_of_query(query) {
            let is_known = known.contains(&field) || OTHER_FIELDS.contains(&&*field);
            assert!(is_known, "{name} asks for {field}, which no line has");
        }
        let first = query.lines().next().unwrap();
        if !first.contains("message") {
            continue;
        }
        let says = |line: &Value| line["message"].as_str().unwrap().to_owned();
        for message in first.split('"').skip(1).step_by(2) {
            let is_written = lines.iter().any(|line| says(line) == message);
            assert!(is_written, "{name} looks for {message:?}, which no line says");
        }
        if let Some((_, pattern)) = first.split_once("/^") {
            let start = pattern.split('/').next().unwrap();
            let is_written = lines.iter().any(|line| says(line).starts_with(start));
            assert!(is_written, "{name} looks for {start:?}, which no line says");
        }
    }
}
