//! The line of an invocation: a log line and its metrics at once, in CloudWatch's embedded metric
//! format.
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html>

use std::collections::BTreeMap;
use std::time::Duration;

use lambda_runtime::Context;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use weirgate_shared::{EpochMillis, Iso8601};
use weirgate_store::ThrottleReason;

/// Namespace of all metrics.
pub const NAMESPACE: &str = "Weirgate";
/// Dimensions of all metrics: the stack's name, and which of its functions it is.
pub const DIMENSIONS: [&str; 2] = ["stack", "function"];

/// Unit of a metric, as CloudWatch spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// A number of things.
    Count,
    /// A time.
    Milliseconds,
}

/// A metric that a line may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Metric {
    /// Its name, which is also the line's field with its value.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
}

/// What one invocation reports: a message, metrics and other fields, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsLine {
    message: &'static str,
    fields: Vec<(&'static str, Field)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Count(u64),
    Millis(Option<i64>),
    Number(Option<i64>),
    Text(Option<String>),
}

impl MetricsLine {
    /// Returns a line without fields.
    #[must_use]
    pub const fn new(message: &'static str) -> Self {
        Self { message, fields: vec![] }
    }

    /// Adds a count. It is always a field, and a metric unless it is 0: CloudWatch bills a metric
    /// for every hour in which it has a value.
    #[must_use]
    pub fn count(self, name: &'static str, count: impl TryInto<u64>) -> Self {
        self.field(name, Field::Count(count.try_into().unwrap_or(u64::MAX)))
    }

    /// Adds a time in ms, if it is known. It is a metric also if it is 0.
    #[must_use]
    pub fn millis(self, name: &'static str, millis: Option<i64>) -> Self {
        self.field(name, Field::Millis(millis))
    }

    /// Adds a number that is no metric, if it is known.
    #[must_use]
    pub fn number(self, name: &'static str, number: Option<i64>) -> Self {
        self.field(name, Field::Number(number))
    }

    /// Adds a text, if there is one.
    #[must_use]
    pub fn text(self, name: &'static str, text: Option<String>) -> Self {
        self.field(name, Field::Text(text))
    }

    /// Adds what every function reports.
    #[must_use]
    pub fn of_process(
        self,
        throttles: &BTreeMap<ThrottleReason, u64>,
        is_cold: bool,
        took: Duration,
    ) -> Self {
        let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let throttled = |line: Self, reason| {
            let count = throttles.get(&reason).copied().unwrap_or_default();
            line.count(throttled(reason), count)
        };
        ThrottleReason::ALL
            .into_iter()
            .fold(self, throttled)
            .count("cold_start", u64::from(is_cold))
            .millis("duration_ms", Some(took))
    }

    /// Returns the metrics that the line may have: its counts and times.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.fields.iter().filter_map(|(name, field)| field.metric(name))
    }

    fn field(mut self, name: &'static str, field: Field) -> Self {
        self.fields.push((name, field));
        self
    }
}

/// Returns the name of the count of requests that were throttled for this reason.
const fn throttled(reason: ThrottleReason) -> &'static str {
    match reason {
        ThrottleReason::KeyRange => "throttled_key_range",
        ThrottleReason::Index => "throttled_index",
        ThrottleReason::Account => "throttled_account",
        ThrottleReason::Maximum => "throttled_maximum",
        ThrottleReason::Unnamed => "throttled_unnamed",
    }
}

impl Field {
    const fn metric(&self, name: &'static str) -> Option<Metric> {
        let unit = match self {
            Self::Count(_) => Unit::Count,
            Self::Millis(_) => Unit::Milliseconds,
            Self::Number(_) | Self::Text(_) => return None,
        };
        Some(Metric { name, unit })
    }

    /// Whether the line has a value of it as a metric.
    const fn is_reported(&self) -> bool {
        matches!(self, Self::Count(1..) | Self::Millis(Some(_)))
    }
}

/// A line, and where and when it was made.
pub(crate) struct Written<'a> {
    pub(crate) at: EpochMillis,
    pub(crate) stack: &'a str,
    pub(crate) function: &'a str,
    pub(crate) context: &'a Context,
    pub(crate) is_failed: bool,
    pub(crate) line: &'a MetricsLine,
}

#[derive(Serialize)]
struct Span<'a> {
    #[serde(rename = "requestId")]
    request_id: &'a str,
    #[serde(rename = "xrayTraceId", skip_serializing_if = "Option::is_none")]
    xray_trace_id: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Metadata {
    timestamp: i64,
    #[serde(rename = "CloudWatchMetrics")]
    directives: [Directive; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Directive {
    namespace: &'static str,
    dimensions: [[&'static str; 2]; 1],
    metrics: Vec<Metric>,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("timestamp", &rfc3339(self.at))?;
        let level = if self.is_failed { "ERROR" } else { "INFO" };
        line.serialize_entry("level", level)?;
        line.serialize_entry("message", self.line.message)?;
        for (name, field) in &self.line.fields {
            match field {
                Field::Count(count) => line.serialize_entry(name, count)?,
                Field::Millis(Some(number)) | Field::Number(Some(number)) => {
                    line.serialize_entry(name, number)?;
                }
                Field::Text(Some(text)) => line.serialize_entry(name, text)?,
                Field::Millis(None) | Field::Number(None) | Field::Text(None) => {}
            }
        }
        for (name, value) in DIMENSIONS.into_iter().zip([self.stack, self.function]) {
            line.serialize_entry(name, value)?;
        }
        let span = Span {
            request_id: &self.context.request_id,
            xray_trace_id: self.context.xray_trace_id.as_deref(),
        };
        line.serialize_entry("span", &span)?;
        let reported = self.line.fields.iter();
        let reported = reported.filter(|(_, field)| field.is_reported());
        let directive = Directive {
            namespace: NAMESPACE,
            dimensions: [DIMENSIONS],
            metrics: reported.filter_map(|(name, field)| field.metric(name)).collect(),
        };
        let metadata = Metadata { timestamp: self.at.0, directives: [directive] };
        line.serialize_entry("_aws", &metadata)?;
        line.end()
    }
}

/// Returns the instant as Lambda reads it from a line, to the millisecond.
fn rfc3339(at: EpochMillis) -> String {
    let seconds = Iso8601(at).to_string();
    let millis = at.0.rem_euclid(1000);
    format!("{}.{millis:03}Z", seconds.trim_end_matches('Z'))
}
