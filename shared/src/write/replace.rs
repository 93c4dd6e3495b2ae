//! Writing a bucket shard anew, if nobody has written to it since it was seen: then everything about it is known.

use std::collections::BTreeMap;

use super::{Change, Condition, Path, Update, Value};
use crate::{Bucket, EpochMillis, Millis, attr, item};

/// How long after a look at a shard the next one is due.
pub const REVIEW: Millis = Millis(60_000);

/// That nobody wrote to `bucket` since it was seen. One of other software cannot tell.
pub(super) fn unchanged(bucket: &Bucket) -> Condition {
    Condition::Equals(Path::of(attr::V), Value::Int(bucket.v.unwrap_or(i64::MIN)))
}

/// Makes `old` what `next` says, with one more `v` if `next` has none of its own. What only others know of the item
/// stays.
pub(super) fn replace(old: &Bucket, mut next: Bucket) -> Update {
    next.v = next.v.max(old.v.map(|v| v.saturating_add(1)));
    let attributes = |bucket: &Bucket| -> BTreeMap<Path, Value> {
        let set = |change| match change {
            Change::Set(path, value) => (path, value),
            other => unreachable!("a bucket is written by setting its attributes: {other:?}"),
        };
        item::write_bucket(bucket).into_iter().map(set).collect()
    };
    let (mut before, after) = (attributes(old), attributes(&next));
    let mut changes: Vec<_> = after
        .into_iter()
        .filter(|(path, value)| before.remove(path).as_ref() != Some(value))
        .map(|(path, value)| Change::Set(path, value))
        .collect();
    changes.extend(before.into_keys().map(Change::Remove));
    Update { key: old.key.item_key(), conditions: vec![unchanged(old)], changes }
}

/// When the reconciler must come back to `bucket`: at the first expiry of a lease, and for a look if it is one of
/// several shards.
pub(super) fn next_due(bucket: &Bucket, now: EpochMillis) -> Option<EpochMillis> {
    let looked = bucket.scaling.look.map_or(now, |look| look.at);
    let review = (bucket.shard().count > 1).then(|| looked.after(REVIEW));
    first_expiry(bucket).into_iter().chain(review).min()
}

/// When the first of its leases expires.
pub(super) fn first_expiry(bucket: &Bucket) -> Option<EpochMillis> {
    bucket.leases.iter().flatten().map(|(_, lease)| lease.expires).min()
}

/// `bucket` after one write more: its write units are counted.
pub(super) fn count_units(bucket: &mut Bucket, per_kb: i64) {
    let units = crate::MilliTokens::from_tokens(bucket.write_units().saturating_mul(per_kb));
    if let Some(wcu) = &mut bucket.wcu {
        wcu.tk -= units;
        wcu.tc += units;
    }
}
