//! Metrics: values as they arose, and what an alarm of the template sees of them.

use std::collections::BTreeMap;

use serde_json::Value;
use weirgate_testkit::alarm::rings;
use weirgate_testkit::emf;
use weirgate_testkit::template::resources;

/// One value of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) namespace: String,
    pub(super) metric: String,
    pub(super) dimensions: BTreeMap<String, String>,
    pub(super) value: i64,
}

impl Point {
    pub(super) fn new(
        namespace: &str,
        metric: &str,
        dimensions: &[(&str, &str)],
        value: i64,
    ) -> Self {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            namespace: namespace.to_owned(),
            metric: metric.to_owned(),
            dimensions: dimensions.iter().map(text).collect(),
            value,
        }
    }
}

impl From<emf::Point> for Point {
    fn from(point: emf::Point) -> Self {
        Self {
            namespace: point.namespace,
            metric: point.name,
            dimensions: point.dimensions,
            value: point.value,
        }
    }
}

/// Names of the deployed stack's resources, and of the stack.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(pub(super) BTreeMap<String, String>);

impl Names {
    /// Returns a text of the template as it is deployed: a plain one, a reference, or one with
    /// the stack's name in it.
    pub(super) fn text(&self, of: &Value) -> Option<String> {
        if let Some(plain) = of.as_str() {
            return Some(plain.to_owned());
        }
        if let Some(resource) = of["Ref"].as_str() {
            return self.0.get(resource).cloned();
        }
        if let Some(attribute) = of["Fn::GetAtt"].as_str() {
            // The name of a queue is the end of its URL, which is its id.
            let id = self.0.get(attribute.split('.').next()?)?;
            return id.rsplit('/').next().map(str::to_owned);
        }
        let stack = self.0.get(STACK)?;
        Some(of["Fn::Sub"].as_str()?.replace("${AWS::StackName}", stack))
    }

    /// Returns the points of a metric as the template describes it.
    fn of<'a>(&self, metric: &Value, points: &'a [Point]) -> impl Iterator<Item = &'a Point> {
        let (namespace, name) = (
            self.text(&metric["Namespace"]),
            self.text(&metric["MetricName"]),
        );
        let dimension = |of: &Value| Some((self.text(&of["Name"])?, self.text(&of["Value"])?));
        let named = metric["Dimensions"].as_array();
        let dimensions: Option<BTreeMap<_, _>> =
            named.into_iter().flatten().map(dimension).collect();
        points.iter().filter(move |point| {
            namespace.as_ref() == Some(&point.namespace)
                && name.as_ref() == Some(&point.metric)
                && dimensions.as_ref() == Some(&point.dimensions)
        })
    }

    /// Returns what an alarm compares with its threshold; `None` if its metric has no value.
    ///
    /// # Errors
    /// If the alarm is of a kind that the template does not have.
    fn watched(&self, alarm: &Value, points: &[Point]) -> Result<Option<i64>, String> {
        if let Some(metrics) = alarm["Metrics"].as_array() {
            return self.sum(metrics, points).map(Some);
        }
        let values: Vec<_> = self.of(alarm, points).map(|point| point.value).collect();
        statistic(&alarm["Statistic"], &values)
    }

    /// The sum of metrics that are 0 where they have no value: `FILL(a, 0) + FILL(b, 0)`.
    fn sum(&self, metrics: &[Value], points: &[Point]) -> Result<i64, String> {
        let expression = metrics
            .iter()
            .find_map(|metric| metric["Expression"].as_str())
            .ok_or_else(|| format!("no expression in {metrics:?}"))?;
        let term = |term: &str| {
            let id = term
                .strip_prefix("FILL(")
                .and_then(|term| term.strip_suffix(", 0)"));
            let metric = metrics
                .iter()
                .find(|metric| id.is_some() && metric["Id"].as_str() == id);
            let of =
                &metric.ok_or_else(|| format!("{term:?} is no FILL(metric, 0)"))?["MetricStat"];
            let values: Vec<_> = self
                .of(&of["Metric"], points)
                .map(|point| point.value)
                .collect();
            Ok::<_, String>(statistic(&of["Stat"], &values)?.unwrap_or(0))
        };
        expression.split(" + ").map(term).sum()
    }
}

/// Name of the stack among [`Names`].
pub(super) const STACK: &str = "AWS::StackName";

fn statistic(statistic: &Value, values: &[i64]) -> Result<Option<i64>, String> {
    if values.is_empty() {
        return Ok(None);
    }
    Ok(match statistic.as_str() {
        Some("Sum") => Some(values.iter().sum()),
        Some("Maximum") => values.iter().max().copied(),
        Some("Minimum") => values.iter().min().copied(),
        Some("SampleCount") => i64::try_from(values.len()).ok(),
        other => return Err(format!("the statistic {other:?} is unknown here")),
    })
}

/// Seconds that a fault lasts before on-call acts: enough for each alarm of the template.
const LASTS: u64 = 900;
/// Periods of health before and after the fault.
const HEALTHY: usize = 20;

/// Returns the alarms that ring when a stack that showed `before` has shown `trouble` for 15
/// minutes, by their definitions in the template. With `after`, those that still ring when it has
/// shown that for a while.
///
/// # Errors
/// If an alarm cannot be evaluated.
pub(super) fn ringing(
    names: &Names,
    before: &[Point],
    trouble: &[Point],
    after: Option<&[Point]>,
) -> Result<Vec<String>, String> {
    let mut ringing = vec![];
    for (name, resource) in resources() {
        if resource["Type"] != "AWS::CloudWatch::Alarm" {
            continue;
        }
        let alarm = &resource["Properties"];
        let period = alarm["Period"]
            .as_u64()
            .or_else(|| alarm["Metrics"][1]["MetricStat"]["Period"].as_u64())
            .ok_or_else(|| format!("{name} has no period"))?;
        let lasts = usize::try_from(LASTS.div_ceil(period)).unwrap_or(1);
        let mut series = vec![names.watched(alarm, before)?; HEALTHY];
        series.extend(vec![names.watched(alarm, trouble)?; lasts]);
        if let Some(after) = after {
            series.extend(vec![names.watched(alarm, after)?; HEALTHY]);
        }
        if rings(&name, &series) {
            ringing.push(name);
        }
    }
    Ok(ringing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let of = [
            (STACK, "s"),
            ("Table", "t"),
            ("AggregatorStream", "u"),
            ("Reconciler", "s-reconciler"),
            ("ArchiverExpired", "v"),
        ];
        Names(of.map(|(name, id)| (name.to_owned(), id.to_owned())).into())
    }

    fn healthy() -> Vec<Point> {
        let polled = |uuid| {
            let of = [("EventSourceMappingUUID", uuid)];
            Point::new("AWS/Lambda", "PolledEventCount", &of, 0)
        };
        let of = [("FunctionName", "s-reconciler")];
        let run = Point::new("AWS/Lambda", "Invocations", &of, 1);
        vec![polled("u"), polled("v"), run]
    }

    #[test]
    fn what_a_stack_does_not_show_any_more_rings_and_ends_when_it_shows_it_again() {
        let (names, healthy) = (names(), healthy());
        let rung = |trouble: &[Point]| ringing(&names, &healthy, trouble, None).unwrap();
        assert!(rung(&healthy).is_empty());
        assert_eq!(rung(&healthy[1..]), ["StreamUnreadAlarm"]);
        assert_eq!(rung(&healthy[..2]), ["ReconcilerAbsentAlarm"]);
        let after = ringing(&names, &healthy, &[], Some(&healthy)).unwrap();
        assert!(after.is_empty());
    }

    #[test]
    fn refused_writes_add_up_for_the_alarm_of_metric_math() {
        let (names, healthy) = (names(), healthy());
        let rung = |operation| {
            let of = [("TableName", "t"), ("Operation", operation)];
            let refused = Point::new("AWS/DynamoDB", "ThrottledRequests", &of, 1);
            let trouble = [healthy.clone(), vec![refused]].concat();
            ringing(&names, &healthy, &trouble, None).unwrap()
        };
        assert_eq!(rung("UpdateItem"), ["TableThrottledAlarm"]);
        assert!(rung("Query").is_empty());
    }
}
