//! The saved queries of Logs Insights: they ask for fields and messages that the functions write.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weirgate_testkit::template::resources;

use super::invocations::all;

/// Fields that CloudWatch adds.
const OF_CLOUDWATCH: [&str; 2] = ["@timestamp", "@message"];
/// Fields of lines that no invocation of these tests writes.
const RARE: [&str; 1] = ["xrayTraceId"];

fn queries() -> Vec<(String, Value)> {
    let all = resources().into_iter();
    let queries = all.filter(|(_, resource)| resource["Type"] == "AWS::Logs::QueryDefinition");
    queries
        .map(|(name, mut resource)| (name, resource["Properties"].take()))
        .collect()
}

/// The names of a line's fields, with those inside of `span`.
fn fields(line: &Value) -> BTreeSet<String> {
    let mut names: BTreeSet<_> = line.as_object().unwrap().keys().cloned().collect();
    let span = line["span"].as_object().unwrap();
    names.extend(span.keys().map(|name| format!("span.{name}")));
    names
}

/// The words of a query that are fields: not of the language, not quoted, no name that it gives.
fn asked(query: &str) -> BTreeSet<String> {
    let language = [
        "fields",
        "filter",
        "stats",
        "sort",
        "by",
        "as",
        "in",
        "like",
        "and",
        "desc",
        "asc",
        "count",
        "sum",
        "max",
        "latest",
        "bin",
        "5m",
        "ispresent",
    ];
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
    let words: Vec<_> = bare
        .split(|char| !is_part(char))
        .filter(|word| !word.is_empty())
        .collect();
    let given: BTreeSet<_> = words
        .windows(2)
        .filter(|pair| pair[0] == "as")
        .map(|pair| pair[1])
        .collect();
    let is_field = |word: &&&str| !language.contains(*word) && !given.contains(**word);
    words
        .iter()
        .filter(is_field)
        .map(|word| (*word).to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_field_and_every_message_of_a_query_is_one_of_the_functions_lines() {
    let lines = all().await;
    let text = lines.text();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let known: BTreeSet<_> = lines.iter().flat_map(fields).collect();
    let queries = queries();
    assert_eq!(queries.len(), 9);
    for (name, query) in queries {
        let query = query["QueryString"].as_str().unwrap();
        for field in asked(query) {
            let is_known = known.contains(&field)
                || OF_CLOUDWATCH.contains(&&*field)
                || RARE.contains(&&*field);
            assert!(is_known, "{name} asks for {field}, which no line has");
        }
        let first = query.lines().next().unwrap();
        if !first.contains("message") {
            continue;
        }
        for message in first.split('"').skip(1).step_by(2) {
            let is_written = lines.iter().any(|line| line["message"] == message);
            assert!(
                is_written,
                "{name} looks for {message:?}, which no line says"
            );
        }
        if let Some((_, pattern)) = first.split_once("/^") {
            let start = pattern.split('/').next().unwrap();
            let is_written = lines
                .iter()
                .any(|line| line["message"].as_str().unwrap().starts_with(start));
            assert!(is_written, "{name} looks for {start:?}, which no line says");
        }
    }
}

/// With an archive, the archiver is among them.
#[test]
fn queries_about_every_function_ask_the_logs_of_all_three() {
    for (name, query) in queries() {
        if ["ProblemsQuery", "InvocationQuery"].contains(&&*name) {
            assert_eq!(
                query["LogGroupNames"],
                json!([
                    {"Ref": "AggregatorLogs"},
                    {"Fn::If": ["ArchivesAudit", {"Ref": "ArchiverLogs"}, {"Ref": "AWS::NoValue"}]},
                    {"Ref": "ReconcilerLogs"},
                ]),
                "{name}"
            );
        }
    }
}

/// A query without its log groups would ask none, and names are a folder of the stack's.
#[test]
fn every_query_asks_the_stacks_own_logs() {
    for (name, query) in queries() {
        let title = query["Name"]["Fn::Sub"].as_str().unwrap();
        assert!(title.starts_with("${AWS::StackName}/"), "{name}: {title}");
        let groups = query["LogGroupNames"].as_array().unwrap();
        assert!(!groups.is_empty(), "{name}");
        for group in groups {
            // The archiver has a log group only with an archive.
            let group = group.pointer("/Fn::If/1").unwrap_or(group);
            let group = &resources()[group["Ref"].as_str().unwrap()];
            assert_eq!(group["Type"], "AWS::Logs::LogGroup", "{name}");
        }
    }
}
