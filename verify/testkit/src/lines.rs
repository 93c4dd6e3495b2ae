//! What is logged, kept in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;
use tracing::dispatcher::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::emf::{Point, STACK, points};
use crate::template::properties;

/// Beside a subscriber that is the only one, tracing asks the thread that logs a line first whether
/// anything listens, and keeps its answer for all threads. With a second one it asks all.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// A log's lines. Clones share them.
#[derive(Debug, Clone)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Default for Lines {
    fn default() -> Self {
        LazyLock::force(&SECOND);
        Self(Arc::default())
    }
}

impl Lines {
    /// Returns the lines with this message.
    pub fn of(&self, message: &str) -> Vec<String> {
        let is_of = |line: &&str| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            line["message"] == message
        };
        self.text().lines().filter(is_of).map(str::to_owned).collect()
    }

    /// Returns the metrics that CloudWatch makes of the lines.
    pub fn points(&self) -> Vec<Point> {
        let text = self.text();
        let lines = text.lines().map(serde_json::from_str::<Value>);
        lines.flat_map(|line| points(&line.expect("a line is JSON"))).collect()
    }

    /// Returns the values of the metric that the template's alarm `name` watches.
    pub fn watched(&self, name: &str) -> Vec<i64> {
        let alarm = properties(name);
        let dimension = |dimension: &Value| {
            let value = match &dimension["Value"] {
                stack if stack["Ref"] == "AWS::StackName" => STACK.to_owned(),
                value => value.as_str().expect("a value is a text").to_owned(),
            };
            let name = dimension["Name"].as_str().expect("a dimension has a name");
            (name.to_owned(), value)
        };
        let dimensions = alarm["Dimensions"].as_array().expect("it has dimensions");
        let dimensions: BTreeMap<_, _> = dimensions.iter().map(dimension).collect();
        let is_watched = |point: &Point| {
            alarm["Namespace"] == *point.namespace
                && alarm["MetricName"] == *point.name
                && dimensions == point.dimensions
        };
        let points = self.points().into_iter().filter(is_watched);
        points.map(|point| point.value).collect()
    }

    /// All of it so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
