//! Numbers as pages show them.

use std::fmt;

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
        write!(
            f,
            "${}.{:0width$}",
            Grouped(rounded / parts),
            rounded % parts
        )
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
#[must_use]
pub fn count(number: u64) -> f64 {
    // Through halves of 32 bits, each of which a float has exactly.
    let [high, low] = [number >> 32, number & u64::from(u32::MAX)]
        .map(|half| f64::from(u32::try_from(half).unwrap_or(u32::MAX)));
    high * 4_294_967_296.0 + low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_exact() {
        assert_eq!(count(10_000_000_001), 10_000_000_001.0);
        assert_eq!(count(7), 7.0);
    }
}
