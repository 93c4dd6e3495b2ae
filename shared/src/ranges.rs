//! Sets of `v` as ranges: what a snapshot has not counted yet.

use std::fmt;
use std::str::FromStr;

/// Disjoint, ascending, half-open ranges `(after, through]`, written `4-7 9-12`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// One range; empty if `through` is not after `after`.
    #[must_use]
    pub fn one(after: i64, through: i64) -> Self {
        Self(if through > after { vec![(after, through)] } else { vec![] })
    }

    /// The end of the last one.
    #[must_use]
    pub fn end(&self) -> Option<i64> {
        self.0.last().map(|(_, through)| *through)
    }

    /// Whether nothing is missing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest range.
    #[must_use]
    pub fn first(&self) -> Option<(i64, i64)> {
        self.0.first().copied()
    }

    /// Adds a range above all others.
    pub fn push(&mut self, after: i64, through: i64) {
        if through > after {
            self.0.push((after, through));
        }
    }

    /// Forgets the oldest ranges but for `most`.
    pub fn keep_last(&mut self, most: usize) {
        self.0.drain(..self.0.len().saturating_sub(most));
    }

    /// Takes `(after, through]` out if all of it is in one range; says whether it was.
    pub fn take(&mut self, after: i64, through: i64) -> bool {
        let Some(at) = self.0.iter().position(|&(low, high)| low <= after && through <= high) else {
            return false;
        };
        let (low, high) = self.0[at];
        let rest = [(low, after), (through, high)].into_iter().filter(|(low, high)| low < high);
        self.0.splice(at..=at, rest);
        true
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (after, through)) in self.0.iter().enumerate() {
            write!(f, "{}{after}-{through}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut ranges = Self::default();
        let mut floor = i64::MIN;
        for part in text.split(' ').filter(|part| !part.is_empty()) {
            // The first dash that is no sign.
            let dash = part.char_indices().skip(1).find(|(_, char)| *char == '-').ok_or(())?.0;
            let (after, through) = (&part[..dash], &part[dash + 1..]);
            let (after, through): (i64, i64) = (after.parse().map_err(drop)?, through.parse().map_err(drop)?);
            if after < floor || through <= after {
                return Err(());
            }
            floor = through;
            ranges.0.push((after, through));
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_range_is_none() {
        assert!(Ranges::one(4, 4).is_empty() && Ranges::one(5, 4).is_empty() && Ranges::default().is_empty());
        assert!(!Ranges::one(4, 5).is_empty());
        assert_eq!("4-4".parse::<Ranges>(), Err(()));
        assert_eq!("4-6 6-7".parse::<Ranges>().map(|ranges| ranges.to_string()), Ok("4-6 6-7".to_owned()));
    }

    /// A snapshot must not grow with every shard that comes and goes.
    #[test]
    fn only_the_last_ranges_are_kept() {
        let mut ranges = Ranges::default();
        for at in 0..40 {
            ranges.push(at * 10, at * 10 + 5);
            ranges.keep_last(16);
        }
        assert_eq!(ranges.to_string().split(' ').count(), 16);
        assert!(!ranges.take(230, 235) && ranges.take(240, 245) && ranges.take(390, 395));
    }
}
