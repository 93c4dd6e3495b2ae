//! Numbers and their units, as pages show them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A millionth of a millionth of a dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PicoDollars(
    /// How many.
    pub u64,
);

impl fmt::Display for PicoDollars {
    /// To the cent; below a dollar to the tenth of a cent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DOLLAR: u64 = 1_000_000_000_000;
        let (width, parts) = match self.0 {
            0 => return f.write_str("$0"),
            1..DOLLAR => (3, 1_000),
            _ => (2, 100),
        };
        let unit = DOLLAR / parts;
        let rounded = (self.0 + unit / 2) / unit;
        write!(f, "${}.{:0width$}", Grouped(rounded / parts), rounded % parts)
    }
}

/// A number with commas between its thousands.
#[derive(Debug, Clone, Copy)]
pub struct Grouped(
    /// The number.
    pub u64,
);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return write!(f, "{}", self.0);
        }
        write!(f, "{},{:03}", Grouped(self.0 / 1_000), self.0 % 1_000)
    }
}

/// Returns a count as part of ratios and rates.
pub fn count(number: u64) -> f64 {
    // Through halves of 32 bits, each of which a float has exactly.
    let [high, low] = [number >> 32, number & u64::from(u32::MAX)]
        .map(|half| f64::from(u32::try_from(half).unwrap_or(u32::MAX)));
    high * 4_294_967_296.0 + low
}

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
    /// Returns a number with its unit, to three digits.
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
    fn numbers_have_three_digits_and_times_the_unit_that_fits() {
        for (unit, value, shown) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 0.033_46, "0.0335"),
            (Unit::Count, 1.304, "1.3"),
            (Unit::Percent, 99.96, "100 %"),
            (Unit::Times, 999.6, "1,000 times"),
            (Unit::PerSecond, 1_142_000.0, "1,140,000/s"),
            (Unit::Seconds, 0.000_000_052, "52 ns"),
            (Unit::Seconds, 0.000_001_2, "1.2 µs"),
            (Unit::Seconds, 0.0061, "6.1 ms"),
            (Unit::Bytes, 2_310_000.0, "2.31 MB"),
            (Unit::Dollars, 0.626, "$0.626"),
        ] {
            assert_eq!(unit.shown(value), shown);
        }
    }
}
