//! Replacing a shard's whole item. Requires that no write reached it since it was read, so its
//! state is known.

use std::collections::BTreeMap;

use super::{AttributeUpdate, Condition, Path, Update, Value, require_limits, ttl};
use crate::attr::{self, Field};
use crate::{Bases, EpochMillis, EpochSeconds, Hour, Millis, Shard, item};

/// Time between two reviews of a shard.
pub const REVIEW_INTERVAL: Millis = Millis(60_000);
/// Time between two reviews of a shard that is idle, a day. Whatever kept it from being merged, or
/// was deleted beside it, is noticed then.
pub const REST_INTERVAL: Millis = Millis(86_400_000);

/// Requires that the shard was not written to since it was read.
pub(super) fn unchanged(shard: &Shard) -> Condition {
    Condition::Equals(Path::of(attr::WRITE_SEQ), Value::Int(shard.write_seq))
}

/// Turns `old` into `next`, with the next `v` unless `next` has a higher one. Attributes that
/// [`Shard`] does not have stay.
pub(super) fn replace(old: &Shard, mut next: Shard) -> Update {
    next.write_seq = next.write_seq.max(old.write_seq.saturating_add(1));
    change(old, attributes(&next))
}

/// Removes everything from `old` except its usage counters, which are those of `freed`, the shard
/// without its expired leases. It has no tokens then, and no index entry. DynamoDB deletes it by
/// its `ttl`.
pub(super) fn retire(old: &Shard, freed: &Shard, now: EpochMillis) -> Update {
    let mut freed = freed.clone();
    freed.write_seq = old.write_seq.saturating_add(1);
    forget_departed(&mut freed, now);
    let mut update = change(old, tombstone(&freed, ttl::of_buried(now)));
    let gone = old.departed.keys().filter(|name| !freed.departed.contains_key(*name));
    let counters = [Field::Consumed, Field::HourBase, Field::DayBase];
    let paths = gone.flat_map(|name| counters.map(|field| Path::limit(name, field)));
    update.changes.extend(paths.map(AttributeUpdate::Remove));
    update
}

/// Removes the usage of limits that `shard` no longer has, by beginning the hour of `now`. Not on
/// the day in which it counts: they may have been used in it.
pub(super) fn forget_departed(shard: &mut Shard, now: EpochMillis) {
    let hour = Hour::of(now);
    if shard.departed.is_empty() || shard.hour >= hour || shard.hour.is_same_day(hour) {
        return;
    }
    shard.departed.clear();
    shard.hour = hour;
    let begin = |total| Bases { hour: total, day: total };
    shard.acquires.bases = begin(shard.acquires.total);
    for state in shard.limits.values_mut() {
        state.bases = begin(state.consumed.0);
    }
}

/// Returns the attributes of a shard that is merged away or erased: `v`, its usage counters and
/// `ttl`.
pub(super) fn tombstone(shard: &Shard, ttl: EpochSeconds) -> BTreeMap<Path, Value> {
    let mut left = attributes(shard);
    left.retain(|path, _| *path == Path::of(attr::WRITE_SEQ) || attr::counts_usage(&path.0[0]));
    left.insert(Path::of(attr::TTL), Value::Int(ttl.0));
    left
}

/// Creates a shard that does not exist or was merged away. The latter continues its usage counters,
/// so its windows keep their numbers.
pub(super) fn make(shard: &Shard) -> Update {
    let keep = |(path, value): (Path, Value)| match (attr::counts_usage(&path.0[0]), &value) {
        // Has the same effect in fewer bytes: each limit has three counters, and an expression is
        // limited to 4 KB.
        (true, Value::Int(0) | Value::Count(0)) => AttributeUpdate::Add(path, value),
        (true, _) => AttributeUpdate::SetIfAbsent(path, value),
        (false, _) => AttributeUpdate::Set(path, value),
    };
    let mut changes: Vec<_> = attributes(shard).into_iter().map(keep).collect();
    // A shard that was merged away has a `ttl`.
    changes.push(AttributeUpdate::Remove(Path::of(attr::TTL)));
    Update { key: shard.key.item_key(), conditions: not_made(shard.write_seq), changes }
}

/// Requires that there is no shard, and no tombstone with this `v` or a later one.
pub(super) fn not_made(v: i64) -> Vec<Condition> {
    let path = Path::of(attr::WRITE_SEQ);
    let is_older = Condition::AtMost(path.clone(), Value::Int(v.saturating_sub(1)));
    vec![
        Condition::Absent(Path::of(attr::REFILLED_AT)),
        Condition::AbsentOr(path, Box::new(is_older)),
    ]
}

fn attributes(shard: &Shard) -> BTreeMap<Path, Value> {
    let set = |change| match change {
        AttributeUpdate::Set(path, value) => (path, value),
        other => unreachable!("a bucket is written by setting its attributes: {other:?}"),
    };
    item::write_shard(shard).into_iter().map(set).collect()
}

/// Turns the attributes of `old` into `after`. Requires that no write reached it since it was read.
fn change(old: &Shard, after: BTreeMap<Path, Value>) -> Update {
    let mut before = attributes(old);
    let mut changes: Vec<_> = after
        .into_iter()
        .filter(|(path, value)| before.remove(path).as_ref() != Some(value))
        .map(|(path, value)| AttributeUpdate::Set(path, value))
        .collect();
    changes.extend(before.into_keys().map(AttributeUpdate::Remove));
    let mut update = Update { key: old.key.item_key(), conditions: vec![unchanged(old)], changes };
    require_limits(&mut update, old);
    update
}

/// Returns when the reconciler must process the shard again: at the first expiry of a lease, and
/// for a review if the bucket has several shards.
pub(super) fn next_due(shard: &Shard, now: EpochMillis) -> Option<EpochMillis> {
    let sampled_at = shard.scaling.sample.map_or(now, |sample| sample.at);
    let review = (shard.shard().count > 1).then(|| sampled_at.plus(REVIEW_INTERVAL));
    first_expiry(shard).into_iter().chain(review).min()
}

/// Returns the first expiry of its leases.
pub(super) fn first_expiry(shard: &Shard) -> Option<EpochMillis> {
    shard.leases.iter().flatten().map(|(_, lease)| lease.expires_at).min()
}
