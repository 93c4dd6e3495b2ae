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

/// Reads how far a snapshot has counted `shard`.
///
/// # Errors
/// [`ItemError`] if `q{shard}` or `g{shard}` is not what it takes, or a range of the one is not below the other.
pub fn read_counted<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>, shard: u32) -> Result<Counted, ItemError> {
    let (through, gaps) = (attr::counted_through(shard), attr::not_counted(shard));
    let mut counted = Counted::default();
    for (name, value) in item {
        if name == through {
            counted.through = Some(integer(name, &value)?);
        } else if name == gaps {
            let parsed = if let Attr::S(text) = value { text.parse().ok() } else { None };
            counted.gaps = parsed.ok_or_else(|| ItemError::new(name, &value, "ranges like 4-7 9-12, or nothing"))?;
        }
    }
    let is_above = |end: i64| counted.through.is_some_and(|counted_through| counted_through < end);
    if counted.gaps.end().is_some_and(is_above) {
        let value = counted.gaps.to_string();
        return Err(ItemError::new(&gaps, &Attr::S(&value), "ranges that end at what was counted, or before"));
    }
    Ok(counted)
}
