//! Writing a bucket shard anew, if nobody has written to it since it was seen: then everything
//! about it is known.

use std::collections::BTreeMap;

use super::{AttributeUpdate, Condition, Path, Update, Value, ttl};
use crate::{EpochMillis, Millis, Shard, attr, item};

/// How long after a look at a shard the next one is due.
pub const REVIEW_INTERVAL: Millis = Millis(60_000);

/// Requires that `bucket` was not written to since it was seen.
pub(super) fn unchanged(shard: &Shard) -> Condition {
    Condition::Equals(Path::of(attr::V), Value::Int(shard.write_seq))
}

/// Makes `old` what `next` says, with one more `v` if `next` has none of its own. What only others
/// know of the item stays.
pub(super) fn replace(old: &Shard, mut next: Shard) -> Update {
    next.write_seq = next.write_seq.max(old.write_seq.saturating_add(1));
    change(old, attributes(&next))
}

/// Leaves of `old` what it has counted, by `freed`, which is the shard without its expired leases:
/// nothing that can be taken, and no entry in an index. In the end DynamoDB deletes it.
pub(super) fn retire(old: &Shard, freed: &Shard, now: EpochMillis) -> Update {
    let mut left = attributes(&Shard {
        write_seq: old.write_seq.saturating_add(1),
        ..freed.clone()
    });
    left.retain(|path, _| *path == Path::of(attr::V) || attr::counts_usage(&path.0[0]));
    left.insert(Path::of(attr::TTL), Value::Int(ttl::of_buried(now).0));
    change(old, left)
}

/// Makes a shard that is not there, or that was merged away. The latter goes on counting where it
/// stopped, so what it used in its windows stays in their numbers.
pub(super) fn make(shard: &Shard) -> Update {
    let keep = |(path, value): (Path, Value)| match (attr::counts_usage(&path.0[0]), &value) {
        // The same in fewer bytes: there are three counters for each limit, and an expression takes
        // 4 KB.
        (true, Value::Int(0)) => AttributeUpdate::Add(path, value),
        (true, _) => AttributeUpdate::SetIfAbsent(path, value),
        (false, _) => AttributeUpdate::Set(path, value),
    };
    let mut changes: Vec<_> = attributes(shard).into_iter().map(keep).collect();
    // One that was merged away had an end.
    changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
    let v = Path::of(attr::V);
    let is_older = Condition::AtMost(v.clone(), Value::Int(shard.write_seq.saturating_sub(1)));
    let conditions = vec![
        Condition::Absent(Path::of(attr::RF)),
        Condition::AbsentOr(v, Box::new(is_older)),
    ];
    Update {
        key: shard.key.item_key(),
        conditions,
        changes,
    }
}

fn attributes(shard: &Shard) -> BTreeMap<Path, Value> {
    let set = |change| match change {
        AttributeUpdate::Set(path, value) => (path, value),
        other => unreachable!("a bucket is written by setting its attributes: {other:?}"),
    };
    item::write_bucket(shard).into_iter().map(set).collect()
}

/// Turns the attributes of `old` into those of `after`, if it was not written to since it was seen.
fn change(old: &Shard, after: BTreeMap<Path, Value>) -> Update {
    let mut before = attributes(old);
    let mut changes: Vec<_> = after
        .into_iter()
        .filter(|(path, value)| before.remove(path).as_ref() != Some(value))
        .map(|(path, value)| AttributeUpdate::Set(path, value))
        .collect();
    changes.extend(before.into_keys().map(AttributeUpdate::Remove));
    Update {
        key: old.key.item_key(),
        conditions: vec![unchanged(old)],
        changes,
    }
}

/// When the reconciler must come back to `bucket`: at the first expiry of a lease, and for a look
/// if it is one of several shards.
pub(super) fn next_due(shard: &Shard, now: EpochMillis) -> Option<EpochMillis> {
    let looked = shard.scaling.sample.map_or(now, |look| look.at);
    let review = (shard.shard().count > 1).then(|| looked.plus(REVIEW_INTERVAL));
    first_expiry(shard).into_iter().chain(review).min()
}

/// When the first of its leases expires.
pub(super) fn first_expiry(shard: &Shard) -> Option<EpochMillis> {
    shard
        .leases
        .iter()
        .flatten()
        .map(|(_, lease)| lease.expires_at)
        .min()
}

/// `bucket` after one write more: its write units are counted.
pub(super) fn count_units(shard: &mut Shard, per_kb: i64) {
    let units = crate::MilliTokens::from_tokens(shard.write_units().saturating_mul(per_kb));
    shard.write_units_left -= units;
}
