//! A run beside the committed one: what is worse by more than noise.

use std::fmt;

use super::row::{Better, Compared, Row};
use super::run::{BARE_WRITE, Run};
use super::unit::Unit;

/// Ratios of one run differ by so much from run to run, beyond the range of its rounds.
const RATIO_NOISE: f64 = 0.1;
/// Times and rates do so in multiples of a bare write, which others of the machine delay as well.
const TIME_NOISE: f64 = 0.25;

/// What a run says beside the committed one.
#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    /// Rows that were compared.
    pub compared: usize,
    /// What is worse.
    pub regressions: Vec<Regression>,
    /// Rows that the committed run does not have.
    pub unknown: Vec<String>,
}

/// A number that is worse than the committed one by more than noise.
#[derive(Debug, PartialEq, Eq)]
pub struct Regression {
    /// The row's id.
    pub id: String,
    /// What is worse, with both numbers.
    pub text: String,
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.text)
    }
}

/// Compares a run with the committed one. A committed row that a run of all parts did not measure
/// is a regression too.
#[must_use]
pub fn compare(committed: &Run, now: &Run, has_all_parts: bool) -> Comparison {
    let mut comparison = Comparison::default();
    let bare = |run: &Run| run.median(BARE_WRITE).ok();
    // By how much this machine is slower at a bare write.
    let slower = match (bare(committed), bare(now)) {
        (Some(committed), Some(now)) => now / committed,
        _ => 1.0,
    };
    for row in &now.rows {
        let Some(before) = committed.row(&row.id) else {
            comparison.unknown.push(row.id.clone());
            continue;
        };
        if before.compared == Compared::Shown {
            continue;
        }
        comparison.compared += 1;
        comparison
            .regressions
            .extend(regression(before, row, slower));
    }
    let is_gone = |row: &&Row| has_all_parts && now.row(&row.id).is_none();
    for row in committed.rows.iter().filter(is_gone) {
        comparison.regressions.push(Regression {
            id: row.id.clone(),
            text: format!("{}: it was not measured", row.what),
        });
    }
    comparison
}

fn regression(before: &Row, now: &Row, slower: f64) -> Option<Regression> {
    let scaled = |value: f64| match (before.compared, now.unit) {
        (Compared::ByRange, Unit::Seconds) => value / slower,
        (Compared::ByRange, Unit::PerSecond) => value * slower,
        // On virtual time no machine is slower.
        _ => value,
    };
    // As costs: the larger one is worse.
    let cost = |value: f64| match before.better {
        Better::More => -value,
        Better::Less => value,
    };
    let ends = |row: &Row, of: &dyn Fn(f64) -> f64| {
        let [median, low, high] = [row.spread.median, row.spread.low, row.spread.high].map(of);
        (median, low.min(high), low.max(high))
    };
    let (median, best, _) = ends(now, &|value| cost(scaled(value)));
    let (before_median, _, before_worst) = ends(before, &cost);
    let is_worse = match before.compared {
        Compared::Shown => false,
        Compared::Within(hundredths) => {
            let size = before.target.map_or(0.0, |target| target.size().abs());
            let noise = hundredths / 100.0 * before_median.abs().max(size);
            median > before_median + noise
        }
        Compared::ByRange => {
            let noise = match now.unit {
                Unit::Seconds | Unit::PerSecond => TIME_NOISE,
                _ => RATIO_NOISE,
            };
            median > before_worst + noise * before_median.abs() && best > before_median
        }
    };
    let as_compared = if median == cost(now.spread.median) {
        String::new()
    } else {
        format!(
            ", {} by the time of a bare write",
            now.unit.shown(median.abs())
        )
    };
    is_worse.then(|| Regression {
        id: now.id.clone(),
        text: format!(
            "{}: {} ({}) is worse than {} ({}){as_compared}",
            now.what,
            now.median(),
            shown_range(now),
            before.median(),
            shown_range(before)
        ),
    })
}

fn shown_range(row: &Row) -> String {
    let range = row.range();
    if range.is_empty() {
        "in each round".to_owned()
    } else {
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;

    fn run(rows: Vec<Row>) -> Run {
        Run {
            machine: Machine {
                measured_on: "2026-11-24".to_owned(),
                processor: "any".to_owned(),
                cores: 2,
                system: "Linux".to_owned(),
                versions: vec![],
            },
            minutes: 9,
            rows,
        }
    }

    fn bare(seconds: f64) -> Row {
        Row::new(BARE_WRITE, "a bare write", Unit::Seconds, &[seconds]).shown()
    }

    /// What is worse if `before` is committed and `now` measured.
    fn worse(before: Row, now: Row) -> Vec<String> {
        let comparison = compare(&run(vec![before]), &run(vec![now]), true);
        assert_eq!(comparison.unknown, [""; 0]);
        let texts = comparison.regressions.iter();
        texts.map(ToString::to_string).collect()
    }

    fn ratio(rounds: &[f64]) -> Row {
        Row::new("peer/one", "32 callers", Unit::Times, rounds).at_least(20.0)
    }

    fn units(units: f64) -> Row {
        Row::new("cost/one", "an acquire", Unit::WriteUnits, &[units])
    }

    #[test]
    fn a_lower_ratio_is_named_with_both_numbers() {
        assert_eq!(
            worse(ratio(&[36.0, 34.0, 38.0]), ratio(&[25.0, 24.0, 27.0])),
            [
                "peer/one: 32 callers: 25 times (24 to 27 times) is worse than 36 times (34 to 38 times)"
            ]
        );
    }

    #[test]
    fn noise_is_not_named() {
        let committed = || ratio(&[36.0, 30.0, 38.0]);
        for rounds in [
            [36.0, 34.0, 38.0],
            // The median is within the committed range.
            [31.0, 29.0, 33.0],
            // It is outside by less than the noise of a ratio.
            [27.0, 26.0, 33.0],
            // One round was as good as ever: others used the machine in the other two.
            [20.0, 19.0, 37.0],
            [90.0, 80.0, 95.0],
        ] {
            assert_eq!(worse(committed(), ratio(&rounds)), [""; 0], "{rounds:?}");
        }
    }

    #[test]
    fn a_count_is_named_if_it_grows_by_more_than_a_hundredth() {
        assert_eq!(worse(units(1.0), units(1.009)), [""; 0]);
        assert_eq!(worse(units(1.0), units(0.5)), [""; 0]);
        assert_eq!(worse(units(1.0), units(1.02)).len(), 1);
        assert_eq!(worse(units(0.0), units(0.001)).len(), 1, "it was free");
        let wide = |value| units(value).at_most(5.0).within(10.0);
        assert_eq!(worse(wide(0.0), wide(0.4)), [""; 0]);
        assert_eq!(worse(wide(0.0), wide(0.6)).len(), 1);
    }

    #[test]
    fn times_are_compared_in_multiples_of_a_bare_write() {
        let time = |seconds: f64| {
            let rounds = [seconds, seconds * 0.98, seconds * 1.02];
            Row::new("function/start", "start", Unit::Seconds, &rounds)
        };
        let found = |now: Row, bare_now: f64| {
            let committed = run(vec![bare(0.0001), time(0.004)]);
            compare(&committed, &run(vec![bare(bare_now), now]), true)
                .regressions
                .len()
        };
        assert_eq!(found(time(0.008), 0.0001), 1, "twice as slow");
        assert_eq!(found(time(0.008), 0.0002), 0, "so is the machine");
        assert_eq!(found(time(0.0045), 0.0001), 0, "noise");
        assert_eq!(found(time(0.004), 0.00005), 1, "on a machine twice as fast");
    }

    #[test]
    fn rates_are_worse_if_they_fall() {
        let rate =
            |per_second: f64| Row::new("local/rate", "acquires", Unit::PerSecond, &[per_second]);
        assert_eq!(worse(rate(50_000.0), rate(30_000.0)).len(), 1);
        assert_eq!(worse(rate(50_000.0), rate(80_000.0)), [""; 0]);
    }

    #[test]
    fn what_a_run_of_all_parts_did_not_measure_is_named() {
        let committed = run(vec![units(1.0), ratio(&[36.0])]);
        let now = run(vec![ratio(&[36.0])]);
        let found = compare(&committed, &now, true).regressions;
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "cost/one: an acquire: it was not measured"
        );
        assert_eq!(compare(&committed, &now, false).regressions, []);
    }

    #[test]
    fn new_rows_and_shown_ones_are_not_compared() {
        let committed = run(vec![units(1.0).shown()]);
        let now = run(vec![units(9.0), ratio(&[36.0])]);
        let Comparison {
            compared,
            regressions,
            unknown,
        } = compare(&committed, &now, true);
        assert_eq!((compared, regressions.len()), (0, 0));
        assert_eq!(unknown, ["peer/one"]);
    }
}
