//! Erasing an entity: what is left of its buckets' shards.

use super::replace::{not_made, tombstone};
use super::{AttributeUpdate, Condition, Path, Update, Value};
use crate::{BucketKey, EpochMillis, EpochSeconds, Limit, Millis, Shard, attr};

/// Time for which an erased shard's tombstone stays. A stream keeps its records for a day.
const STAYS: Millis = Millis(2 * 86_400_000);

/// Replaces the item of a shard, or of the new half of an unfinished split, by a tombstone: its
/// key, the write sequence `v`, usage counters of zero, and a `ttl`. `v` is above every `v` of the
/// bucket's shards and splits. So a late split creates no shard, and an acquire creates shard 0.
///
/// Requires that no write reached the item since it was read: `seen` is its `v`, and `names` are its
/// attributes. `None` stands for a half that no item was read of. It requires that there is no shard,
/// and no later tombstone.
#[must_use]
pub fn erase_shard<'a>(
    key: &BucketKey,
    seen: Option<i64>,
    names: impl Iterator<Item = &'a str>,
    v: i64,
    now: EpochMillis,
) -> Update {
    let nothing: &[Limit] = &[];
    let left = Shard { write_seq: v, birth_seq: v, ..Shard::full(key.clone(), nothing, now) };
    let left = tombstone(&left, EpochSeconds::not_before(now.plus(STAYS)));
    let is_gone = |name: &&str| ![attr::PK, attr::SK].contains(name);
    let mut changes: Vec<_> = names
        .filter(is_gone)
        .map(|name| Path::of(name.to_owned()))
        .filter(|path| !left.contains_key(path))
        .map(AttributeUpdate::Remove)
        .collect();
    let set = |(path, value)| AttributeUpdate::Set(path, value);
    changes.extend(left.into_iter().map(set));
    let path = Path::of(attr::WRITE_SEQ);
    let conditions = match seen {
        Some(v) => vec![Condition::Equals(path, Value::Int(v))],
        None => not_made(v),
    };
    Update { key: key.item_key(), conditions, changes }
}
