//! CloudWatch's side of a log line: the metrics that it makes of one in the embedded metric format.
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html>

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Name of the stack in the metrics of tests.
pub const STACK: &str = "weirgate-test";

/// One value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Namespace of the metric.
    pub namespace: String,
    /// Name of the metric.
    pub name: String,
    /// Values of its dimensions.
    pub dimensions: BTreeMap<String, String>,
    /// Unit, as CloudWatch spells it.
    pub unit: String,
    /// The value.
    pub value: i64,
    /// Time of the value, epoch ms.
    pub at_ms: i64,
}

/// Most metrics of a directive.
const METRICS: usize = 100;
/// Most dimensions of a metric.
const DIMENSIONS: usize = 30;

/// Returns the metrics that CloudWatch makes of a line: none if it has no `_aws`.
pub fn points(line: &Value) -> Vec<Point> {
    let root = line.as_object().expect("a line is an object");
    let Some(metadata) = root.get("_aws") else {
        return vec![];
    };
    let metadata = only(metadata, &["Timestamp", "CloudWatchMetrics"]);
    let at_ms = metadata["Timestamp"].as_i64().expect("Timestamp is a number of ms");
    let directives = list(&metadata["CloudWatchMetrics"]);
    let of_directive = |directive| {
        let directive = only(directive, &["Namespace", "Dimensions", "Metrics"]);
        let namespace = text(&directive["Namespace"]);
        assert!((1..=1024).contains(&namespace.len()), "a namespace has a text: {line}");
        let sets = list(&directive["Dimensions"]).iter().map(|set| {
            let set = list(set);
            assert!(set.len() <= DIMENSIONS, "{line}");
            let value = |name: &Value| (text(name), dimension(root, &text(name)));
            set.iter().map(value).collect::<BTreeMap<_, _>>()
        });
        let sets: Vec<_> = sets.collect();
        let metrics = list(&directive["Metrics"]);
        assert!(metrics.len() <= METRICS, "{line}");
        let mut names = BTreeSet::new();
        let mut points = vec![];
        for metric in metrics {
            let metric = only(metric, &["Name", "Unit"]);
            let (name, unit) = (text(&metric["Name"]), text(&metric["Unit"]));
            assert!(names.insert(name.clone()), "{name} is twice in {line}");
            assert!(["Count", "Milliseconds"].contains(&unit.as_str()), "{unit} is no unit");
            let value = root.get(&name).and_then(Value::as_i64);
            let value = value.unwrap_or_else(|| panic!("no number {name} in {line}"));
            points.extend(sets.iter().map(|dimensions| Point {
                namespace: namespace.clone(),
                name: name.clone(),
                dimensions: dimensions.clone(),
                unit: unit.clone(),
                value,
                at_ms,
            }));
        }
        points
    };
    directives.iter().flat_map(of_directive).collect()
}

/// The value of a dimension: a member at the root, of ASCII that is not blank.
fn dimension(root: &Map<String, Value>, name: &str) -> String {
    let value = root.get(name).map(text).unwrap_or_default();
    let is_value =
        (1..=1024).contains(&value.len()) && value.is_ascii() && !value.trim().is_empty();
    assert!(is_value, "dimension {name} is {value:?}");
    value
}

/// An object with exactly these members: the specification forbids others.
fn only<'a>(value: &'a Value, members: &[&str]) -> &'a Map<String, Value> {
    let object = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    let names: BTreeSet<_> = object.keys().map(String::as_str).collect();
    assert_eq!(names, members.iter().copied().collect(), "{value}");
    object
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_else(|| panic!("no text: {value}"));
    text.to_owned()
}
