//! Units of measured numbers, and how pages show them.

use serde::{Deserialize, Serialize};

use crate::number::Grouped;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A ratio.
    Times,
    /// Calls, or records, a second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Write units.
    WriteUnits,
    /// Read units.
    ReadUnits,
    /// Requests.
    Requests,
    /// Hundredths.
    Percent,
    /// Something else that is counted.
    Count,
    /// Bytes of a file.
    Bytes,
    /// Bytes of memory.
    Memory,
    /// Dollars.
    Dollars,
}

impl Unit {
    /// Whether it counts something that no machine makes faster.
    #[must_use]
    pub const fn is_count(self) -> bool {
        !matches!(self, Self::Times | Self::PerSecond | Self::Seconds)
    }

    /// Returns a number with its unit, to three digits.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        let number = digits(value);
        match self {
            Self::Times => format!("{number} times"),
            Self::PerSecond => format!("{number}/s"),
            Self::Seconds => time(value),
            Self::WriteUnits => format!("{number} write units"),
            Self::ReadUnits => format!("{number} read units"),
            Self::Requests => format!("{number} requests"),
            Self::Percent => format!("{number} %"),
            Self::Count => number,
            Self::Bytes => format!("{} MB", digits(value / 1e6)),
            Self::Memory => format!("{} MiB", digits(value / 1_048_576.0)),
            Self::Dollars => format!("${number}"),
        }
    }
}

impl Unit {
    /// Returns a range, its unit once where both ends have the same.
    #[must_use]
    pub fn range(self, low: f64, high: f64) -> String {
        let [low, high] = [low, high].map(|value| self.shown(value));
        let unit = |shown: &str| {
            let is_number = |c: char| c.is_ascii_digit() || ".,$".contains(c);
            shown.trim_start_matches(is_number).to_owned()
        };
        let low = if unit(&low) == unit(&high) {
            low.trim_end_matches(&unit(&low))
        } else {
            &low
        };
        format!("{low} to {high}")
    }
}

fn time(seconds: f64) -> String {
    let (size, unit) = match seconds {
        ..1e-6 => (1e-9, "ns"),
        ..1e-3 => (1e-6, "µs"),
        ..1.0 => (1e-3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", digits(seconds / size))
}

/// Returns three digits of a number; those before the point all, the others zero.
#[must_use]
pub fn digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let exponent = format!("{rounded:e}")
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    let decimals = usize::try_from(2 - exponent.unwrap_or_default()).unwrap_or_default();
    if decimals == 0 && rounded >= 0.0 {
        let whole: u64 = format!("{rounded:.0}").parse().unwrap_or_default();
        return Grouped(whole).to_string();
    }
    let shown = format!("{rounded:.decimals$}");
    if shown.contains('.') {
        shown.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, shown) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.033_46, "0.0335"),
            (0.2, "0.2"),
            (1.304, "1.3"),
            (36.24, "36.2"),
            (99.96, "100"),
            (999.6, "1,000"),
            (41_263.0, "41,300"),
            (1_142_000.0, "1,140,000"),
        ] {
            assert_eq!(digits(value), shown, "{value}");
        }
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        for (seconds, shown) in [
            (0.000_000_052, "52 ns"),
            (0.000_001_2, "1.2 µs"),
            (0.0061, "6.1 ms"),
            (2.5, "2.5 s"),
        ] {
            assert_eq!(Unit::Seconds.shown(seconds), shown);
        }
        assert_eq!(Unit::Seconds.range(0.000_9, 0.0011), "900 µs to 1.1 ms");
        assert_eq!(Unit::Seconds.range(0.001, 0.0011), "1 to 1.1 ms");
        assert_eq!(Unit::PerSecond.range(100.0, 1_000.0), "100 to 1,000/s");
        assert_eq!(Unit::Bytes.shown(2_310_000.0), "2.31 MB");
        assert_eq!(Unit::Dollars.shown(0.626), "$0.626");
    }
}
