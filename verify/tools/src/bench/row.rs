//! A measured number: its range over rounds, its target, and whether it is worse than before.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::number::Unit;

/// A measured number.
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
    /// Returns a row of what some rounds measured, to four digits. Counts may differ by a hundredth
    /// from run to run, everything else by its range.
    ///
    /// # Panics
    /// If there are no rounds, or one is not a number.
    #[must_use]
    pub fn new(id: impl Into<String>, what: impl Into<String>, unit: Unit, rounds: &[f64]) -> Self {
        let (id, what, mut sorted) = (id.into(), what.into(), rounds.to_vec());
        assert!(
            sorted.iter().all(|value| value.is_finite()),
            "{id}: {rounds:?}"
        );
        sorted.sort_by(f64::total_cmp);
        let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        let four_digits = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
        Self {
            id,
            what,
            unit,
            median: four_digits(middle),
            low: four_digits(sorted[0]),
            high: four_digits(sorted[sorted.len() - 1]),
            target: None,
            better: match unit {
                Unit::PerSecond => Better::More,
                _ => Better::Less,
            },
            compared: match unit {
                Unit::Times | Unit::PerSecond | Unit::Seconds => Compared::ByRange,
                // No machine makes these faster.
                _ => Compared::Within(1.0),
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

    /// The median, with its unit.
    #[must_use]
    pub fn median(&self) -> String {
        self.unit.shown(self.median)
    }

    /// Whether it is worse than a committed row by more than noise, where a bare write takes
    /// `slower` times as long.
    #[must_use]
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
        let [median, low, high] = [self.median, self.low, self.high].map(|of| self.unit.shown(of));
        write!(f, "{:<70} {median}", self.what)?;
        if low != high {
            write!(f, " ({low} to {high})")?;
        }
        let shown = |of| self.unit.shown(of);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(rounds: &[f64]) -> Row {
        Row::new("peer/one", "callers", Unit::Times, rounds).at_least(20.0)
    }

    #[test]
    fn a_row_is_the_median_and_the_range_beside_its_target() {
        let row = ratio(&[20.0, 19.000_04, 31.0]);
        assert_eq!((row.median, row.low, row.high), (20.0, 19.0, 31.0));
        let text = "20 times (19 times to 31 times); met: at least 20 times";
        assert_eq!(row.to_string(), format!("{:<70} {text}", "callers"));
        assert!(ratio(&[19.9]).to_string().contains("MISSED"));
    }

    #[test]
    fn a_ratio_is_worse_below_the_committed_range_and_its_noise_in_every_round() {
        let committed = ratio(&[36.0, 30.0, 38.0]);
        for (rounds, is_worse) in [
            ([36.0, 34.0, 38.0], false),
            ([90.0, 80.0, 95.0], false),
            ([27.0, 26.0, 33.0], false),
            // Others used the machine in two of the rounds.
            ([20.0, 19.0, 37.0], false),
            ([25.0, 24.0, 27.0], true),
        ] {
            assert_eq!(
                ratio(&rounds).is_worse_than(&committed, 1.0),
                is_worse,
                "{rounds:?}"
            );
        }
    }

    #[test]
    fn a_count_is_worse_by_more_than_its_hundredths_and_a_shown_row_never() {
        let units = |units| Row::new("cost/one", "units", Unit::WriteUnits, &[units]);
        let is_worse = |before: f64, now: f64| units(now).is_worse_than(&units(before), 1.0);
        assert!(is_worse(1.0, 1.02) && is_worse(0.0, 0.001));
        assert!(!is_worse(1.0, 1.009) && !is_worse(1.0, 0.5));
        let wide = units(0.0).at_most(5.0).within(10.0);
        assert!(units(0.6).is_worse_than(&wide, 1.0) && !units(0.4).is_worse_than(&wide, 1.0));
        assert!(!units(9.0).is_worse_than(&units(1.0).shown(), 1.0));
    }

    #[test]
    fn times_and_rates_are_multiples_of_a_bare_write() {
        let of = |unit, value| Row::new("any", "any", unit, &[value]);
        let slower =
            |now, slower| of(Unit::Seconds, now).is_worse_than(&of(Unit::Seconds, 4.0), slower);
        assert!(slower(8.0, 1.0) && !slower(8.0, 2.0) && !slower(4.5, 1.0) && slower(4.0, 0.5));
        let fewer = |now, slower| {
            of(Unit::PerSecond, now).is_worse_than(&of(Unit::PerSecond, 50.0), slower)
        };
        assert!(fewer(30.0, 1.0) && !fewer(30.0, 2.0) && !fewer(80.0, 1.0));
    }
}
