//! How far a usage snapshot has counted.

use super::{Attr, ItemError, integer};
use crate::{Ranges, attr};

/// How far a snapshot has counted one bucket shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// The last `v` counted, `q{shard}`; `None` if the shard was never counted.
    pub through: Option<i64>,
    /// What was not counted below it, `g{shard}`.
    pub gaps: Ranges,
}

/// The most missing ranges kept for one bucket shard. A shard that was merged away and made again leaves one behind, of
/// numbers that never were, and the item must not grow with every load that comes and goes. What is given up is a replay
/// of records from before so many of them.
const MOST_GAPS: usize = 16;

impl Counted {
    /// Marks the writes after `after` up to `through` as counted; says whether they were not yet. What lies between them
    /// and the last one counted becomes a missing range, so that a later replay of it still counts.
    pub fn take(&mut self, after: i64, through: i64) -> bool {
        match self.through {
            Some(counted) if after < counted => self.gaps.take(after, through),
            counted => {
                self.gaps.push(counted.unwrap_or_default(), after);
                self.through = Some(through);
                true
            }
        }
    }

    /// Gives up the oldest missing ranges, where there are too many.
    pub fn bound(&mut self) {
        self.gaps.keep_last(MOST_GAPS);
    }

    /// The `v` up to which missing ranges may have been given up, if any were: what [`Self::take`] says to be counted
    /// below it may be missing all the same.
    ///
    /// What lies before the first write counted is a range from 0, and the oldest; the numbers start far above 0, so it
    /// is never counted whole.
    #[must_use]
    pub fn forgotten(&self) -> Option<i64> {
        let through = self.through?;
        match self.gaps.first() {
            Some((0, _)) => None,
            first => Some(first.map_or(through, |(after, _)| after)),
        }
    }
}

const GAPS: &str = "ranges like \"4-7 9-12\", one space apart, or the empty text";

fn parsed(text: &str) -> Option<Ranges> {
    text.parse().ok().filter(|ranges: &Ranges| ranges.to_string() == text)
}

/// Reads how far a snapshot has counted `shard`.
///
/// # Errors
/// [`ItemError`] if `q{shard}` or `g{shard}` is not what it takes, `q{shard}` is there alone, or a range of the one is not
/// below the other.
pub fn read_counted<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>, shard: u32) -> Result<Counted, ItemError> {
    let (through, gaps) = (attr::counted_through(shard), attr::not_counted(shard));
    let (mut counted, mut has_gaps) = (Counted::default(), false);
    for (name, value) in item {
        if name == through {
            counted.through = Some(integer(name, &value)?);
        } else if name == gaps {
            // A count asks that they are as they were, by their text: another spelling would make each one lose its race.
            let parsed = if let Attr::S(text) = value { parsed(text) } else { None };
            counted.gaps = parsed.ok_or_else(|| ItemError::new(name, &value, GAPS))?;
            has_gaps = true;
        }
    }
    if counted.through.is_some() && !has_gaps {
        return Err(ItemError::missing(&gaps, GAPS));
    }
    let is_above = |end: i64| counted.through.is_some_and(|counted_through| counted_through < end);
    if counted.gaps.end().is_some_and(is_above) {
        let value = counted.gaps.to_string();
        return Err(ItemError::new(&gaps, &Attr::S(&value), "ranges that end at what was counted, or before"));
    }
    Ok(counted)
}
