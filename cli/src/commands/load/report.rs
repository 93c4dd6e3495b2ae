//! What a load counted.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use weirgate::{Error, StoreError};
use weirgate_shared::rounded_span;

use crate::output::Output;

/// Times above an hour count as an hour.
const LONGEST_US: u64 = 3_600_000_000;
const COLUMNS: [&str; 8] =
    ["outcome", "#acquires", "#per s", "#p50 ms", "#p90 ms", "#p99 ms", "#p99.9 ms", "#max ms"];

/// Reasons of failures that a report has.
const MOST: usize = 20;

/// Returns why an acquire failed, without its bucket, item and times: acquires that fail for one reason
/// say the same. `entity` is one of several, and is left out.
pub fn reason(error: &Error, entity: Option<&str>) -> String {
    let of_store = |error: &StoreError| {
        let operation = error.request.split(' ').next().unwrap_or_default();
        format!("{operation}: {}: {}", error.meaning(), error.reason)
    };
    let text = match error {
        Error::Store(error) => of_store(error),
        Error::Timeout { last, .. } => match last {
            Some(last) => format!("no decision within the time allowed: {}", of_store(last)),
            None => "no decision within the time allowed".to_owned(),
        },
        // The error that opened it has an entry of its own.
        Error::Unavailable { .. } => "the table is unavailable; circuit breaker open".to_owned(),
        Error::Contended { .. } => {
            "an item was changed by other processes before each attempt".to_owned()
        }
        Error::UnreadableItem { error, .. } | Error::Unreadable { error, .. } => {
            format!("an item cannot be read: {error}")
        }
        Error::Halfway(error) => {
            format!("{}; other writes of this call were applied", reason(error, entity))
        }
        other => other.to_string(),
    };
    match entity {
        Some(entity) => without(&text, entity),
        None => text,
    }
}

/// Returns a text with `ENTITY` in place of an entity whose name ends with a number.
fn without(text: &str, entity: &str) -> String {
    let mut parts = text.split(entity);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, rest| {
        // A longer number is that of another one.
        let is_other = rest.starts_with(|next: char| next.is_ascii_digit());
        shown + if is_other { entity } else { "ENTITY" } + rest
    })
}

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Granted,
    Denied,
    NeverFits,
    Disabled,
    /// Granted or denied without the table.
    Degraded,
    /// Without a decision, or not released.
    Failed,
}

impl Ending {
    const ALL: [Self; 6] = [
        Self::Granted,
        Self::Denied,
        Self::NeverFits,
        Self::Disabled,
        Self::Degraded,
        Self::Failed,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::NeverFits => "never fits",
            Self::Disabled => "disabled",
            Self::Degraded => "without table",
            Self::Failed => "failed",
        }
    }
}

/// What one acquire brought, from the moment it was due to its decision.
#[derive(Debug)]
pub struct Answer {
    /// How it ended, or why it failed: see [`reason`].
    pub ending: Result<Ending, String>,
    pub time: Duration,
}

/// Counts of a load while it runs.
#[derive(Debug, Default)]
pub struct Tally {
    times: BTreeMap<Ending, Histogram<u64>>,
    failures: BTreeMap<String, u64>,
    other_failures: u64,
    not_begun: u64,
    shown: BTreeMap<Ending, u64>,
}

impl Tally {
    /// Counts an answer.
    pub fn count(&mut self, answer: Answer) {
        let ending = answer.ending.unwrap_or_else(|reason| {
            match self.failures.len() < MOST || self.failures.contains_key(&reason) {
                true => *self.failures.entry(reason).or_default() += 1,
                false => self.other_failures += 1,
            }
            Ending::Failed
        });
        let times = self.times.entry(ending).or_insert_with(|| {
            Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are valid")
        });
        let micros = u64::try_from(answer.time.as_micros()).unwrap_or(LONGEST_US);
        times.saturating_record(micros);
    }

    /// Counts an acquire that was due while too many were without an answer.
    pub fn count_not_begun(&mut self) {
        self.not_begun += 1;
    }

    /// Returns the answers since the last call as a line.
    pub fn rates(&mut self, second: u64, in_flight: usize) -> String {
        let mut parts = vec![format!("{second:>5}s")];
        for (ending, times) in &self.times {
            let before = self.shown.insert(*ending, times.len()).unwrap_or_default();
            parts.push(format!("{} {:>6}/s", ending.name(), times.len() - before));
        }
        parts.push(format!("in flight {in_flight}"));
        parts.join("  ")
    }
}

/// A whole load. Its JSON is documented in `docs/guide/command-line.md`.
#[derive(Debug, Serialize)]
pub struct Report {
    seconds: f64,
    rate: u32,
    acquires: u64,
    not_begun: u64,
    outcomes: BTreeMap<Ending, Row>,
    failures: BTreeMap<String, u64>,
    /// Failures for other reasons.
    #[serde(skip_serializing_if = "is_zero")]
    other_failures: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The acquires that ended alike.
#[derive(Debug, Serialize)]
struct Row {
    acquires: u64,
    per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

impl Report {
    /// Sums up a load of this rate that began acquires for this time.
    pub fn new(tally: Tally, rate: u32, began_for: Duration) -> Self {
        let seconds = began_for.as_secs_f64();
        let row = |times: &Histogram<u64>| {
            let at = |quantile| millis(times.value_at_quantile(quantile));
            Row {
                acquires: times.len(),
                per_second: rounded(number(times.len()) / seconds.max(0.001)),
                p50_ms: at(0.5),
                p90_ms: at(0.9),
                p99_ms: at(0.99),
                p999_ms: at(0.999),
                max_ms: millis(times.max()),
            }
        };
        Self {
            seconds: rounded(seconds),
            rate,
            acquires: tally.times.values().map(Histogram::len).sum(),
            not_begun: tally.not_begun,
            outcomes: tally.times.iter().map(|(at, times)| (*at, row(times))).collect(),
            failures: tally.failures,
            other_failures: tally.other_failures,
        }
    }

    /// Returns whether an acquire was without a decision of the table.
    pub fn is_incomplete(&self) -> bool {
        !self.failures.is_empty() || self.outcomes.contains_key(&Ending::Degraded)
    }

    /// Returns the report for people.
    pub fn text(&self, output: &Output) -> String {
        let rows = Ending::ALL.into_iter().filter_map(|ending| {
            let row = self.outcomes.get(&ending)?;
            let times = [row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms, row.max_ms];
            let mut cells = vec![ending.name().to_owned(), row.acquires.to_string()];
            cells.push(format!("{:.1}", row.per_second));
            cells.extend(times.map(|time| format!("{time:.2}")));
            Some(cells)
        });
        let mut text = format!(
            "{} acquires in {}, {} per second asked\n{}",
            self.acquires,
            rounded_span(Duration::from_secs_f64(self.seconds)),
            self.rate,
            output.table(&COLUMNS, rows)
        );
        if self.not_begun > 0 {
            text += &format!(
                "\n{} acquires did not begin, as too many were without an answer: --in-flight",
                self.not_begun
            );
        }
        for (failure, count) in &self.failures {
            text += &format!("\n{count} failed: {failure}");
        }
        if self.other_failures > 0 {
            text += &format!("\n{} failed for other reasons", self.other_failures);
        }
        text
    }
}

/// Returns microseconds as milliseconds.
fn millis(micros: u64) -> f64 {
    rounded(Duration::from_micros(micros).as_secs_f64() * 1000.0)
}

/// Returns a count as a number. More than 32 bits of acquires are counted as that.
fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Rounds to thousandths, so that JSON has no more digits than were measured.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_counts_once_and_failures_by_what_they_say() {
        let mut tally = Tally::default();
        let answer = |ending, ms| Answer { ending, time: Duration::from_millis(ms) };
        for ms in 1..=99 {
            tally.count(answer(Ok(Ending::Granted), ms));
        }
        for _ in 0..2 {
            tally.count(answer(Err("broken".to_owned()), 7));
        }
        tally.count(answer(Ok(Ending::Denied), 2_000_000_000));
        assert!(tally.rates(1, 3).contains("granted     99/s"));
        assert!(tally.rates(2, 3).contains("granted      0/s"));
        let report = Report::new(tally, 51, Duration::from_secs(2));
        assert_eq!((report.acquires, report.is_incomplete()), (102, true));
        let granted = &report.outcomes[&Ending::Granted];
        assert_eq!((granted.acquires, granted.per_second), (99, 49.5));
        assert!((granted.p50_ms - 50.0).abs() < 0.1 && (granted.max_ms - 99.0).abs() < 0.1);
        assert!(report.outcomes[&Ending::Denied].max_ms >= 3_600_000.0);
        assert_eq!(report.failures.values().sum::<u64>(), 2);
    }

    /// Returns an error of each kind, of an acquire of this entity.
    fn errors(entity: &str) -> [Error; 7] {
        let bucket = format!("default/BUCKET#{entity}#api#0");
        let after = Duration::from_millis(5_000 + u64::try_from(entity.len()).unwrap());
        let store = || {
            std::sync::Arc::new(StoreError {
                kind: weirgate::ErrorKind::Unconfirmed,
                request: format!("UpdateItem of {bucket}"),
                table: "weirgate".to_owned(),
                reason: "the connection was closed".to_owned(),
                source: None,
            })
        };
        [
            Error::Invalid(format!("bucket {bucket} of {entity}: has another kind")),
            Error::Store(store()),
            Error::Timeout { bucket: bucket.clone(), after, last: Some(store()) },
            Error::Unavailable {
                retry_after: after,
                // That of whichever acquire opened it.
                last: format!(
                    "UpdateItem of default/BUCKET#other-{}#api#0: throttled",
                    entity.len()
                ),
            },
            Error::NotConfigured {
                entity: entity.try_into().unwrap(),
                resource: "api".try_into().unwrap(),
                missing_plan: None,
            },
            Error::Contended { what: bucket.clone(), after },
            Error::Halfway(std::sync::Arc::new(Error::Store(store()))),
        ]
    }

    #[test]
    fn one_failure_of_many_entities_is_one_entry() {
        let answer = |reason| Answer { ending: Err(reason), time: Duration::from_millis(1) };
        let mut tally = Tally::default();
        for number in 0..100 {
            let entity = format!("user-{number}");
            for error in errors(&entity) {
                tally.count(answer(reason(&error, Some(&entity))));
            }
        }
        let report = Report::new(tally, 1, Duration::from_secs(1));
        let counts: Vec<_> = report.failures.values().collect();
        assert_eq!(counts, [&100; 7], "{:?}", report.failures);
        let mut tally = Tally::default();
        for number in 0..2 * MOST {
            tally.count(answer(format!("reason {number}")));
        }
        let report = Report::new(tally, 1, Duration::from_secs(1));
        assert_eq!(report.failures.len(), MOST);
        assert_eq!(report.other_failures, u64::try_from(MOST).unwrap());
    }
}
