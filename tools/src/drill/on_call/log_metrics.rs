//! Metrics that CloudWatch makes of a function's log lines: of those in the embedded metric format,
//! and by the template's metric filters.

use serde_json::Value;
use weirgate_testkit::template::resources;

use super::metric::{Names, Point};

/// Returns the points of a line that the function with the log group `group` (its name in the
/// template) has written.
///
/// # Errors
/// If the line claims to have metrics and has not.
pub(super) fn points(names: &Names, group: &str, line: &Value) -> Result<Vec<Point>, String> {
    let mut points = embedded(line)?;
    points.extend(filtered(names, group, line)?);
    Ok(points)
}

fn embedded(line: &Value) -> Result<Vec<Point>, String> {
    let mut points = vec![];
    for directive in list(&line["_aws"]["CloudWatchMetrics"]) {
        for metric in list(&directive["Metrics"]) {
            let name = metric["Name"].as_str().unwrap_or_default();
            let value = line[name]
                .as_i64()
                .ok_or_else(|| format!("no number {name:?} in {line}"))?;
            for set in list(&directive["Dimensions"]) {
                let dimensions: Vec<_> = list(set)
                    .iter()
                    .filter_map(|name| Some((name.as_str()?, line[name.as_str()?].as_str()?)))
                    .collect();
                let namespace = directive["Namespace"].as_str().unwrap_or_default();
                points.push(Point::new(namespace, name, &dimensions, value));
            }
        }
    }
    Ok(points)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn filtered(names: &Names, group: &str, line: &Value) -> Result<Vec<Point>, String> {
    let mut points = vec![];
    for (name, filter) in resources() {
        let of = &filter["Properties"];
        if filter["Type"] != "AWS::Logs::MetricFilter" || of["LogGroupName"]["Ref"] != *group {
            continue;
        }
        if !is_met(&of["FilterPattern"], line).ok_or_else(|| format!("the pattern of {name}"))? {
            continue;
        }
        for made in list(&of["MetricTransformations"]) {
            let value = made["MetricValue"].as_str().unwrap_or_default();
            let value = match value.strip_prefix("$.") {
                Some(field) => line[field].as_i64(),
                None => value.parse().ok(),
            };
            let metric = names.text(&made["MetricName"]);
            let (Some(metric), Some(value)) = (metric, value) else {
                return Err(format!("the metric of {name}: {made}"));
            };
            let namespace = made["MetricNamespace"].as_str().unwrap_or_default();
            points.push(Point::new(namespace, &metric, &[], value));
        }
    }
    Ok(points)
}

/// Returns whether a line meets `{ $.field = "text" && $.field = * }`; `None` for other patterns.
fn is_met(pattern: &Value, line: &Value) -> Option<bool> {
    let terms = pattern.as_str()?.strip_prefix("{ ")?.strip_suffix(" }")?;
    terms.split(" && ").try_fold(true, |is_met, term| {
        let (field, value) = term.strip_prefix("$.")?.split_once(" = ")?;
        let is_so = match value {
            "*" => !line[field].is_null(),
            text => line[field] == *text.strip_prefix('"')?.strip_suffix('"')?,
        };
        Some(is_met && is_so)
    })
}
