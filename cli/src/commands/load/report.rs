//! What a load counted.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use weirgate::Error;
use weirgate_shared::rounded_span;

use crate::output::Output;

/// Times above an hour count as an hour.
const LONGEST_US: u64 = 3_600_000_000;
const COLUMNS: [&str; 8] = [
    "outcome",
    "#acquires",
    "#per s",
    "#p50 ms",
    "#p90 ms",
    "#p99 ms",
    "#p99.9 ms",
    "#max ms",
];

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Granted,
    Denied,
    NeverFits,
    Disabled,
    /// Without a decision, or not released.
    Failed,
}

impl Ending {
    const ALL: [Self; 5] = [
        Self::Granted,
        Self::Denied,
        Self::NeverFits,
        Self::Disabled,
        Self::Failed,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::NeverFits => "never fits",
            Self::Disabled => "disabled",
            Self::Failed => "failed",
        }
    }
}

/// What one acquire brought, from the moment it was due to its decision.
#[derive(Debug)]
pub struct Answer {
    pub ending: Result<Ending, Error>,
    pub time: Duration,
}

/// Counts of a load while it runs.
#[derive(Debug, Default)]
pub struct Tally {
    times: BTreeMap<Ending, Histogram<u64>>,
    failures: BTreeMap<String, u64>,
    not_begun: u64,
    shown: BTreeMap<Ending, u64>,
}

impl Tally {
    /// Counts an answer.
    pub fn count(&mut self, answer: Answer) {
        let ending = answer.ending.unwrap_or_else(|error| {
            *self.failures.entry(error.to_string()).or_default() += 1;
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
            outcomes: tally
                .times
                .iter()
                .map(|(at, times)| (*at, row(times)))
                .collect(),
            failures: tally.failures,
        }
    }

    /// Returns whether an acquire was without a decision.
    pub fn has_failures(&self) -> bool {
        !self.failures.is_empty()
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
        let answer = |ending, ms| Answer {
            ending,
            time: Duration::from_millis(ms),
        };
        for ms in 1..=99 {
            tally.count(answer(Ok(Ending::Granted), ms));
        }
        for _ in 0..2 {
            tally.count(answer(Err(Error::Invalid("broken".to_owned())), 7));
        }
        tally.count(answer(Ok(Ending::Denied), 2_000_000_000));
        assert!(tally.rates(1, 3).contains("granted     99/s"));
        assert!(tally.rates(2, 3).contains("granted      0/s"));
        let report = Report::new(tally, 51, Duration::from_secs(2));
        assert_eq!((report.acquires, report.has_failures()), (102, true));
        let granted = &report.outcomes[&Ending::Granted];
        assert_eq!((granted.acquires, granted.per_second), (99, 49.5));
        assert!((granted.p50_ms - 50.0).abs() < 0.1 && (granted.max_ms - 99.0).abs() < 0.1);
        assert!(report.outcomes[&Ending::Denied].max_ms >= 3_600_000.0);
        assert_eq!(report.failures.values().sum::<u64>(), 2);
    }
}
