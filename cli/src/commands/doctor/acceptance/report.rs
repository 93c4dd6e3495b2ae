//! What the acceptance found: a row for each check, with the figure of a local backend beside it.

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::text::{Text, one_line};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// An emulator takes what DynamoDB refuses.
    Differs,
    Failed,
    NotChecked,
}

/// What a check found on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub outcome: Outcome,
    pub figure: String,
    /// What failed, differs, or was not checked.
    pub note: String,
}

impl Tried {
    pub fn passed(figure: impl Into<String>) -> Self {
        Self::of(Outcome::Passed, figure, "")
    }

    pub fn failed(figure: impl Into<String>, note: impl Into<String>) -> Self {
        Self::of(Outcome::Failed, figure, note)
    }

    pub fn not_checked(note: impl Into<String>) -> Self {
        Self::of(Outcome::NotChecked, "", note)
    }

    pub fn of(outcome: Outcome, figure: impl Into<String>, note: impl Into<String>) -> Self {
        let (figure, note) = (figure.into(), note.into());
        Self { outcome, figure, note }
    }
}

/// A check on the table, and on a local backend.
#[derive(Debug, Serialize)]
pub struct Row {
    pub check: String,
    pub outcome: Outcome,
    pub figure: String,
    pub note: String,
    /// Figure of the local backend; empty if it was not tried there.
    pub local: String,
    pub local_outcome: Option<Outcome>,
    pub local_note: String,
}

impl Row {
    pub fn new(check: impl Into<String>, here: Tried, local: Option<Tried>) -> Self {
        let local_outcome = local.as_ref().map(|tried| tried.outcome);
        let (local, local_note) =
            local.map_or_else(Default::default, |tried| (tried.figure, tried.note));
        Self {
            check: check.into(),
            outcome: here.outcome,
            figure: here.figure,
            note: here.note,
            local,
            local_outcome,
            local_note,
        }
    }

    /// Returns whether the check failed, here or on the local backend.
    pub fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed || self.local_outcome == Some(Outcome::Failed)
    }

    /// Returns the lines of the row.
    pub fn text(&self) -> Text {
        let (word, color) = match self.outcome {
            Outcome::Passed => ("passed", AnsiColor::Green),
            Outcome::Differs => ("differs", AnsiColor::Yellow),
            Outcome::Failed => ("FAILED", AnsiColor::Red),
            Outcome::NotChecked => ("not checked", AnsiColor::Cyan),
        };
        let style = Style::new().fg_color(Some(color.into())).bold();
        let mut text = Text::default().with(style, format!("{word:11}")).and(format!(
            "  {:22}  {}\n",
            self.check,
            one_line(&self.figure)
        ));
        let is_failed_there = self.local_outcome == Some(Outcome::Failed);
        let there = if is_failed_there { "local FAILED" } else { "local" };
        for (label, line) in [("", &self.note), (there, &self.local), (there, &self.local_note)] {
            if !line.is_empty() {
                let label = if label.is_empty() { String::new() } else { format!("{label}: ") };
                let lines =
                    line.lines().map(|line| format!("{:37}{label}{}\n", "", one_line(line)));
                text = text.and(lines.collect::<String>());
            }
        }
        text
    }
}

/// The whole report. Its JSON is documented in `docs/guide/command-line.md`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub namespace: String,
    /// About the units of all requests, without those of the functions.
    pub estimate: Cost,
    /// Units that the table reported to this process.
    pub write_units: f64,
    pub rows: Vec<Row>,
    /// Items that the clean-up deleted.
    pub deleted: usize,
}

/// Units of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cost {
    pub write_units: u64,
    pub read_units: u64,
}

/// Picodollars for a write unit, and for a read unit, on demand in us-east-1.
const PRICES: [u64; 2] = [625_000, 125_000];

impl Cost {
    /// Returns the price in cents, rounded up.
    pub const fn cents(self) -> u64 {
        let picodollars = self.write_units * PRICES[0] + self.read_units * PRICES[1];
        picodollars.div_ceil(10_000_000_000)
    }
}

impl Report {
    pub fn text(&self) -> Text {
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        let failed = self.rows.iter().filter(|row| row.has_failed()).count();
        let sum = format!(
            "{} passed, {failed} failed, {} differ, {} not checked; {} write units reported of \
             about {}; {} items deleted\n",
            count(Outcome::Passed),
            count(Outcome::Differs),
            count(Outcome::NotChecked),
            self.write_units,
            self.estimate.write_units,
            self.deleted,
        );
        let rows = self.rows.iter().map(Row::text);
        rows.fold(Text::default(), Text::append).and(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prices_are_those_of_the_pages() {
        let facts = include_str!("../../../../../tests/src/scaling/facts.rs");
        for (name, price) in ["WRITE_UNIT_PRICE", "READ_UNIT_PRICE"].iter().zip(PRICES) {
            let line = facts.lines().find(|line| line.contains(&format!("const {name}:")));
            let known = line.and_then(|line| line.split("= ").nth(1)).expect("it has a price");
            assert_eq!(known.replace('_', "").trim_end_matches(';'), price.to_string());
        }
    }
}
