//! By how much a limit is scaled.

use std::fmt;
use std::str::FromStr;

use crate::WindowError;

/// Maximum number of a scale's ratio.
const MAX_SCALE: u32 = 1_000_000;

/// A ratio of two positive integers: `2/1` doubles a limit, `1/2` halves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scale {
    numerator: u32,
    denominator: u32,
}

impl Scale {
    /// The scale while no rule holds.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// Returns the ratio of two numbers.
    ///
    /// # Errors
    /// [`WindowError::Field`] for a number outside 1 to 1,000,000.
    pub fn new(numerator: u32, denominator: u32) -> Result<Self, WindowError> {
        let scale = Self { numerator, denominator };
        let is_valid = |number| (1..=MAX_SCALE).contains(&number);
        match is_valid(numerator) && is_valid(denominator) {
            true => Ok(scale),
            false => Err(scale_error(&scale.to_string())),
        }
    }

    /// Returns the number by which a limit is multiplied.
    #[must_use]
    pub const fn numerator(self) -> u32 {
        self.numerator
    }

    /// Returns the number by which a limit is divided.
    #[must_use]
    pub const fn denominator(self) -> u32 {
        self.denominator
    }
}

fn scale_error(value: &str) -> WindowError {
    let takes = "a ratio of two numbers from 1 to 1000000";
    WindowError::field("scale", value, takes, "write for example 2/1 or 1/2")
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

impl FromStr for Scale {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let digits = |text: &str| {
            let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let ratio = text.split_once('/');
        let ratio = ratio.and_then(|(over, under)| Some((digits(over)?, digits(under)?)));
        let (numerator, denominator) = ratio.ok_or_else(|| scale_error(text))?;
        Self::new(numerator, denominator)
    }
}
