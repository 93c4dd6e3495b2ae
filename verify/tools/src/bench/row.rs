//! A measured number: its spread over rounds, its target, and how it is compared with another run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::unit::Unit;

/// A measured number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its part and its name in there; each is unique in a run.
    pub id: String,
    /// What was measured, for readers.
    pub what: String,
    /// Unit of the numbers.
    pub unit: Unit,
    /// What the rounds measured.
    #[serde(flatten)]
    pub spread: Spread,
    /// What it must reach, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Whether a larger or a smaller number is better.
    pub better: Better,
    /// How it is compared with another run.
    pub compared: Compared,
}

/// The median of some rounds, and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Spread {
    /// Returns the spread of some rounds, to four digits.
    ///
    /// # Panics
    /// If there are none, or one is not a number.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Self {
        let mut sorted = rounds.to_vec();
        assert!(!sorted.is_empty(), "something was measured");
        assert!(
            sorted.iter().all(|value| value.is_finite()),
            "a number was measured: {rounds:?}"
        );
        sorted.sort_by(f64::total_cmp);
        let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        let [median, low, high] = [middle, low, high].map(to_four_digits);
        Self { median, low, high }
    }

    /// Whether all rounds measured the same.
    #[must_use]
    pub fn is_one_number(&self) -> bool {
        self.low == self.high
    }
}

fn to_four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// What a number must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Not outside of these.
    Between(f64, f64),
}

impl Target {
    /// Whether a number reaches it.
    #[must_use]
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::Between(least, most) => (least..=most).contains(&value),
        }
    }

    /// The largest number in it, against which small numbers are compared.
    #[must_use]
    pub const fn size(self) -> f64 {
        match self {
            Self::AtLeast(size) | Self::AtMost(size) | Self::Between(_, size) => size,
        }
    }

    /// Returns it in words.
    #[must_use]
    pub fn shown(self, unit: Unit) -> String {
        match self {
            Self::AtLeast(least) => format!("at least {}", unit.shown(least)),
            Self::AtMost(most) => format!("at most {}", unit.shown(most)),
            Self::Between(least, most) if least == most => unit.shown(least),
            Self::Between(least, most) => unit.range(least, most),
        }
    }
}

/// Which of two numbers is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// The larger one.
    More,
    /// The smaller one.
    Less,
}

/// How a number is compared with that of another run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// A count, of which this part may be noise, in hundredths.
    Within(f64),
    /// By the ranges of both runs; times and rates in multiples of a bare write of the same run.
    ByRange,
    /// Not at all: it depends on the machine, and a ratio beside it is compared.
    Shown,
}

impl Row {
    /// Returns a row of what some rounds measured. Counts may differ by a hundredth from run to
    /// run, everything else by its range.
    #[must_use]
    pub fn new(id: impl Into<String>, what: impl Into<String>, unit: Unit, rounds: &[f64]) -> Self {
        Self {
            id: id.into(),
            what: what.into(),
            unit,
            spread: Spread::of(rounds),
            target: None,
            better: if unit == Unit::PerSecond {
                Better::More
            } else {
                Better::Less
            },
            compared: if unit.is_count() {
                Compared::Within(1.0)
            } else {
                Compared::ByRange
            },
        }
    }

    /// It must be this or more.
    #[must_use]
    pub const fn at_least(mut self, least: f64) -> Self {
        (self.target, self.better) = (Some(Target::AtLeast(least)), Better::More);
        self
    }

    /// It must be this or less.
    #[must_use]
    pub const fn at_most(mut self, most: f64) -> Self {
        (self.target, self.better) = (Some(Target::AtMost(most)), Better::Less);
        self
    }

    /// It must be within these.
    #[must_use]
    pub const fn between(mut self, least: f64, most: f64) -> Self {
        self.target = Some(Target::Between(least, most));
        self
    }

    /// More is better.
    #[must_use]
    pub const fn more_is_better(mut self) -> Self {
        self.better = Better::More;
        self
    }

    /// It may differ by this part from run to run, in hundredths.
    #[must_use]
    pub const fn within(mut self, hundredths: f64) -> Self {
        self.compared = Compared::Within(hundredths);
        self
    }

    /// It depends on how requests meet in time.
    #[must_use]
    pub const fn by_range(mut self) -> Self {
        self.compared = Compared::ByRange;
        self
    }

    /// It is not compared.
    #[must_use]
    pub const fn shown(mut self) -> Self {
        self.compared = Compared::Shown;
        self
    }

    /// The part that measured it.
    #[must_use]
    pub fn part(&self) -> &str {
        self.id.split_once('/').map_or(&self.id, |(part, _)| part)
    }

    /// Whether it reaches its target, if it has one.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        self.target
            .map(|target| target.is_met_by(self.spread.median))
    }

    /// The median, with its unit.
    #[must_use]
    pub fn median(&self) -> String {
        self.unit.shown(self.spread.median)
    }

    /// The range, without what the median says already.
    #[must_use]
    pub fn range(&self) -> String {
        let Spread { low, high, .. } = self.spread;
        if self.unit.shown(low) == self.unit.shown(high) {
            return String::new();
        }
        self.unit.range(low, high)
    }

    /// The median, and the range in brackets.
    #[must_use]
    pub fn with_range(&self) -> String {
        match self.range() {
            range if range.is_empty() => self.median(),
            range => format!("{} ({range})", self.median()),
        }
    }

    /// `met`, `MISSED`, or nothing.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<70} {:<6} {}",
            self.what,
            self.verdict(),
            self.with_range()
        )?;
        match self.target {
            Some(target) => write!(f, "; target: {}", target.shown(self.unit)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_the_ends() {
        let spread = Spread::of(&[3.0, 1.000_04, 2.0]);
        assert_eq!((spread.median, spread.low, spread.high), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 2.0]).median, 3.0);
        assert!(Spread::of(&[123_456.0; 3]).is_one_number());
        assert_eq!(Spread::of(&[123_456.0]).median, 123_500.0);
    }

    #[test]
    fn a_row_says_whether_its_target_is_met() {
        let row = |rounds: &[f64]| Row::new("peer/one", "callers", Unit::Times, rounds);
        assert_eq!(
            row(&[20.0, 19.0, 31.0]).at_least(20.0).to_string(),
            format!(
                "{:<70} met    20 times (19 to 31 times); target: at least 20 times",
                "callers"
            )
        );
        assert_eq!(row(&[19.9]).at_least(20.0).verdict(), "MISSED");
        assert_eq!(row(&[1.3]).at_most(1.3).verdict(), "met");
        assert_eq!(row(&[97.9]).between(98.0, 100.0).verdict(), "MISSED");
        assert_eq!(row(&[1.0]).verdict(), "");
    }
}
