//! A measured number: its range over rounds, its target, and whether it is worse than before.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::number::Unit;

/// What some rounds measured, by the id of the row.
pub type Rounds = (String, Vec<f64>);

/// A measured number. What it is and must reach stands in `docs/benchmarks.json`, where a new row is
/// written first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its part and its name in there; each is unique in a run.
    pub id: String,
    /// What was measured, for readers.
    pub what: String,
    /// Unit of the numbers.
    pub unit: Unit,
    /// Median of the rounds.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// What it must reach, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Whether a larger or a smaller number is better.
    pub better: Better,
    /// How it is compared with another run.
    pub compared: Compared,
}

/// What a number must reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Within both, which are included.
    Between(f64, f64),
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

/// Ratios differ by so much from run to run, beyond the range of the rounds.
const RATIO_NOISE: f64 = 0.1;
/// Times and rates do so in multiples of a bare write, which others of the machine delay as well.
const TIME_NOISE: f64 = 0.25;

impl Row {
    /// Returns the row with what some rounds measured, to four digits.
    pub fn measured(&self, rounds: &[f64]) -> Self {
        let (id, mut sorted) = (&self.id, rounds.to_vec());
        assert!(sorted.iter().all(|value| value.is_finite()), "{id}: {rounds:?}");
        sorted.sort_by(f64::total_cmp);
        let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        let four_digits = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
        Self {
            median: four_digits(middle),
            low: four_digits(sorted[0]),
            high: four_digits(sorted[sorted.len() - 1]),
            ..self.clone()
        }
    }

    /// The median, with its unit.
    pub fn median(&self) -> String {
        self.unit.shown(self.median)
    }

    /// Whether it is worse than a committed row by more than noise, where a bare write takes
    /// `slower` times as long.
    pub fn is_worse_than(&self, before: &Self, slower: f64) -> bool {
        let scale = match (before.compared, self.unit) {
            (Compared::ByRange, Unit::Seconds) => 1.0 / slower,
            (Compared::ByRange, Unit::PerSecond) => slower,
            // On virtual time no machine is slower.
            _ => 1.0,
        };
        // As costs: the larger one is worse.
        let sign = match before.better {
            Better::More => -1.0,
            Better::Less => 1.0,
        };
        let [median, one, other] = [self.median, self.low, self.high].map(|of| of * scale * sign);
        let worst_before = (before.low * sign).max(before.high * sign);
        let before_median = before.median * sign;
        match before.compared {
            Compared::Shown => false,
            Compared::Within(hundredths) => {
                let size = match before.target {
                    Some(
                        Target::AtLeast(size) | Target::AtMost(size) | Target::Between(_, size),
                    ) => size,
                    None => 0.0,
                };
                median > before_median + hundredths / 100.0 * before.median.abs().max(size.abs())
            }
            Compared::ByRange => {
                let noise = match self.unit {
                    Unit::Seconds | Unit::PerSecond => TIME_NOISE,
                    _ => RATIO_NOISE,
                };
                let best = one.min(other);
                median > worst_before + noise * before.median.abs() && best > before_median
            }
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |of| self.unit.shown(of);
        write!(f, "{:<70} {}", self.what, self.median())?;
        if self.low < self.high {
            write!(f, " ({} to {})", shown(self.low), shown(self.high))?;
        }
        let (target, is_met) = match self.target {
            Some(Target::AtLeast(least)) => {
                (format!("at least {}", shown(least)), self.median >= least)
            }
            Some(Target::AtMost(most)) => (format!("at most {}", shown(most)), self.median <= most),
            Some(Target::Between(least, most)) => {
                let is_met = (least..=most).contains(&self.median);
                (format!("{} to {}", shown(least), shown(most)), is_met)
            }
            None => return Ok(()),
        };
        write!(f, "; {}: {target}", if is_met { "met" } else { "MISSED" })
    }
}
