//! CloudWatch's side of the template's alarms: whether one rings at the end of a series ("M out of
//! N", missing data).
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarm-evaluation.html>

use serde_json::Value;

use crate::template::properties;

/// Returns the alarm's number of periods, and how many of them must breach: first these.
pub fn periods(alarm: &Value) -> (usize, usize) {
    let number = |name: &str| alarm[name].as_u64().and_then(|number| usize::try_from(number).ok());
    let of = number("EvaluationPeriods").expect("an alarm has EvaluationPeriods");
    (number("DatapointsToAlarm").unwrap_or(of), of)
}

/// Returns whether the template's alarm `name` rings at the end of `series`: a value a period,
/// `None` where the metric has none.
pub fn rings(name: &str, series: &[Option<i64>]) -> bool {
    rings_by(&properties(name), series)
}

/// Returns whether an alarm with these properties rings at the end of `series`.
pub fn rings_by(alarm: &Value, series: &[Option<i64>]) -> bool {
    let (least, of) = periods(alarm);
    let threshold = alarm["Threshold"].as_i64().expect("a threshold is whole");
    let breaches = |value: &Option<i64>| match (value, alarm["ComparisonOperator"].as_str()) {
        (None, _) => alarm["TreatMissingData"] == "breaching",
        (Some(value), Some("GreaterThanThreshold")) => *value > threshold,
        (Some(value), Some("LessThanThreshold")) => *value < threshold,
        other => panic!("{alarm} compares {other:?}"),
    };
    let missing_before = std::iter::repeat_n(&None, of.saturating_sub(series.len()));
    let last = series.iter().rev().chain(missing_before).take(of);
    last.filter(|value| breaches(value)).count() >= least
}
