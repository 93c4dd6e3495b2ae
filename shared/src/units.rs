//! The units of all stored numbers: one type per unit, no floats, no silent conversions.

use std::fmt;
use std::time::Duration;

/// An amount of millitokens (1/1000 token). Negative amounts are debts.
///
/// Arithmetic saturates: an amount past `i64` is above every limit (see [`crate::Limit`]).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliTokens(pub i64);

impl MilliTokens {
    /// No tokens.
    pub const ZERO: Self = Self(0);

    /// Returns `tokens` whole tokens, saturating at the largest amount.
    #[must_use]
    pub const fn from_tokens(tokens: i64) -> Self {
        Self(tokens.saturating_mul(1000))
    }

    /// Returns so many percent of it, at most 100, rounded down.
    #[must_use]
    pub fn percent(self, percent: u8) -> Self {
        let percent = i64::from(percent);
        Self(self.0 / 100 * percent + self.0 % 100 * percent / 100)
    }

    /// Returns the whole tokens in this amount, rounded down.
    #[must_use]
    pub const fn whole_tokens(self) -> i64 {
        self.0.div_euclid(1000)
    }
}

/// A count of millitokens over any time, in 128 bits: 10^12 tokens a second pass 64 bits within
/// three hours. Negative if more was returned than taken.
///
/// Arithmetic saturates beyond the 38 digits of a number in DynamoDB.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliTotal(pub i128);

impl MilliTotal {
    /// No tokens.
    pub const ZERO: Self = Self(0);

    /// Returns the whole tokens in this count, rounded down.
    #[must_use]
    pub const fn whole_tokens(self) -> i128 {
        self.0.div_euclid(1000)
    }

    /// Returns the count as an amount, at most the largest one: above every balance.
    #[must_use]
    pub fn bounded(self) -> MilliTokens {
        let bounds = (i128::from(i64::MIN), i128::from(i64::MAX));
        let bounded = i64::try_from(self.0.clamp(bounds.0, bounds.1));
        MilliTokens(bounded.unwrap_or_default())
    }
}

impl From<MilliTokens> for MilliTotal {
    fn from(amount: MilliTokens) -> Self {
        Self(i128::from(amount.0))
    }
}

impl<T: Into<Self>> std::ops::Add<T> for MilliTotal {
    type Output = Self;
    fn add(self, other: T) -> Self {
        Self(self.0.saturating_add(other.into().0))
    }
}

impl<T: Into<Self>> std::ops::Sub<T> for MilliTotal {
    type Output = Self;
    fn sub(self, other: T) -> Self {
        Self(self.0.saturating_sub(other.into().0))
    }
}

impl<T: Into<Self>> std::ops::AddAssign<T> for MilliTotal {
    fn add_assign(&mut self, other: T) {
        *self = *self + other;
    }
}

impl<T: Into<Self>> std::ops::SubAssign<T> for MilliTotal {
    fn sub_assign(&mut self, other: T) {
        *self = *self - other;
    }
}

impl<T: Into<Self>> std::iter::Sum<T> for MilliTotal {
    fn sum<I: Iterator<Item = T>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, |sum, amount| sum + amount)
    }
}

impl PartialEq<MilliTokens> for MilliTotal {
    fn eq(&self, amount: &MilliTokens) -> bool {
        *self == Self::from(*amount)
    }
}

impl PartialOrd<MilliTokens> for MilliTotal {
    fn partial_cmp(&self, amount: &MilliTokens) -> Option<std::cmp::Ordering> {
        self.partial_cmp(&Self::from(*amount))
    }
}

impl std::ops::Add for MilliTokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for MilliTokens {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Rounded towards zero.
impl std::ops::Div<i64> for MilliTokens {
    type Output = Self;
    fn div(self, parts: i64) -> Self {
        Self(self.0.checked_div(parts).unwrap_or_default())
    }
}

impl std::ops::Neg for MilliTokens {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl std::ops::AddAssign for MilliTokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::ops::SubAssign for MilliTokens {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::iter::Sum for MilliTokens {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, |sum, amount| sum + amount)
    }
}

/// In tokens, exact.
impl fmt::Display for MilliTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MilliTotal::from(*self).fmt(f)
    }
}

/// In tokens, exact: `1.25`, `-3`, `0.001`.
impl fmt::Display for MilliTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let milli = self.0.unsigned_abs();
        match milli % 1000 {
            0 => write!(f, "{sign}{}", milli / 1000),
            part => {
                let digits = format!("{part:03}");
                write!(f, "{sign}{}.{}", milli / 1000, digits.trim_end_matches('0'))
            }
        }
    }
}

impl fmt::Debug for MilliTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}mtk", self.0)
    }
}

impl fmt::Debug for MilliTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}mtk", self.0)
    }
}

/// An instant: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochMillis(pub i64);

impl EpochMillis {
    /// Returns the instant `later` after this one.
    #[must_use]
    pub const fn plus(self, later: Millis) -> Self {
        Self(self.0.saturating_add(later.0))
    }

    /// Returns the time from `earlier` to this instant; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        let span = self.0.saturating_sub(earlier.0);
        Millis(if span > 0 { span } else { 0 })
    }
}

impl fmt::Debug for EpochMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}ms", self.0)
    }
}

/// An instant in seconds since 1970-01-01T00:00:00Z, the unit of DynamoDB's TTL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochSeconds(pub i64);

impl EpochSeconds {
    /// Returns the first whole second at or after `at`.
    #[must_use]
    pub const fn not_before(at: EpochMillis) -> Self {
        Self(at.0.saturating_add(999).div_euclid(1000))
    }
}

/// A span of time in milliseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

impl fmt::Debug for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// Negative spans become zero.
impl From<Millis> for Duration {
    fn from(span: Millis) -> Self {
        Duration::from_millis(u64::try_from(span.0).unwrap_or(0))
    }
}

/// Rounds up, so that waiting for the result is always enough; saturates.
impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Self(i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn millitokens_read_as_exact_tokens() {
        for (milli, tokens) in [
            (0, "0"),
            (1, "0.001"),
            (1000, "1"),
            (1250, "1.25"),
            (-1, "-0.001"),
            (-2500, "-2.5"),
            (1_000_000_010, "1000000.01"),
            (i64::MIN, "-9223372036854775.808"),
        ] {
            assert_eq!(MilliTokens(milli).to_string(), tokens);
        }
    }

    #[test]
    fn units_are_told_apart_where_people_read_them() {
        let shown = format!("{:?} {:?} {:?}", MilliTokens(-1), EpochMillis(2), Millis(3));
        assert_eq!(shown, "-1mtk @2ms 3ms");
    }

    #[test]
    fn whole_tokens_are_those_below() {
        assert_eq!(
            [1999, 1000, 999, -1].map(|milli| MilliTokens(milli).whole_tokens()),
            [1, 1, 0, -1]
        );
    }

    #[test]
    fn no_span_is_negative() {
        let spans =
            [(3, 1), (1, 1), (1, 3)].map(|(to, from)| EpochMillis(to).since(EpochMillis(from)));
        assert_eq!(spans, [Millis(2), Millis(0), Millis(0)]);
    }

    #[test]
    fn a_span_rounds_up_to_whole_milliseconds() {
        assert_eq!(Millis::from(Duration::from_nanos(1)), Millis(1));
        assert_eq!(Millis::from(Duration::from_millis(7)), Millis(7));
        assert_eq!(Millis::from(Duration::MAX), Millis(i64::MAX));
        assert_eq!(Duration::from(Millis(-5)), Duration::ZERO);
        assert_eq!(Duration::from(Millis(5)), Duration::from_millis(5));
    }
}
