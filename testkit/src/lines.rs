//! What is logged, kept in memory.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;
use tracing::dispatcher::Dispatch;
use tracing::subscriber::NoSubscriber;

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
    /// Returns the lines that the template's metric filter `name` counts.
    ///
    /// # Panics
    /// If there is no such filter, its pattern is not `{ $.field = "text" && $.field = * }` with
    /// any number of terms, or a line is not JSON.
    #[must_use]
    pub fn heard(&self, name: &str) -> Vec<String> {
        let terms = terms(name);
        let is_heard = |line: &&str| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            terms.iter().all(|(field, text)| match text {
                Some(text) => line[field] == **text,
                None => !line[field].is_null(),
            })
        };
        self.text()
            .lines()
            .filter(is_heard)
            .map(str::to_owned)
            .collect()
    }

    /// Returns the values of the metric that the template's filter `name` makes.
    ///
    /// # Panics
    /// As [`Self::heard`], or if the value is no number, or a field that the pattern does not name:
    /// CloudWatch makes no metric of such a field.
    #[must_use]
    pub fn metric(&self, name: &str) -> Vec<i64> {
        let value = properties(name)["MetricTransformations"][0]["MetricValue"].take();
        let value = value.as_str().expect("a metric has a value");
        let field = value.strip_prefix("$.");
        if let Some(field) = field {
            let is_named = terms(name).iter().any(|(named, _)| named == field);
            assert!(is_named, "the pattern of {name} must name {field}");
        }
        let number = |line: String| match field {
            Some(field) => {
                serde_json::from_str::<Value>(&line).expect("a line is JSON")[field].as_i64()
            }
            None => value.parse().ok(),
        };
        self.heard(name)
            .into_iter()
            .map(|line| number(line).expect("a number"))
            .collect()
    }

    /// All of it so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the terms of a metric filter's pattern: a field, and its text; `None` if any value will
/// do.
fn terms(name: &str) -> Vec<(String, Option<String>)> {
    let filter = properties(name);
    let pattern = filter["FilterPattern"]
        .as_str()
        .and_then(|text| text.strip_prefix("{ ")?.strip_suffix(" }"))
        .expect("a filter has a pattern of fields");
    let term = |term: &str| {
        let (field, value) = term.strip_prefix("$.")?.split_once(" = ")?;
        let text = match value {
            "*" => None,
            value => Some(value.strip_prefix('"')?.strip_suffix('"')?.to_owned()),
        };
        Some((field.to_owned(), text))
    };
    pattern
        .split(" && ")
        .map(|text| term(text).unwrap_or_else(|| panic!("{name}: no term of a field: {text}")))
        .collect()
}
