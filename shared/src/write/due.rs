//! `due`: at or before the reconciler's next work on a shard. A `due` that is early enough stays,
//! so the index is not written.

use super::{AttributeUpdate, Condition, Path, Update, Value};
use crate::{BucketKey, EpochMillis, ItemKey, Millis, attr};

/// Time until the reconciler tries an unprocessable item again.
const POSTPONED: Millis = Millis(3_600_000);

/// Moves the `due` of an item that the reconciler cannot process at `now` to an hour later, if it
/// is still due. Touches no other attribute, because they may be damaged.
#[must_use]
pub fn postpone(key: &ItemKey, now: EpochMillis) -> Update {
    let later = AttributeUpdate::Set(Path::of(attr::DUE), Value::Int(now.plus(POSTPONED).0));
    Update { key: key.clone(), conditions: vec![is_due(now)], changes: vec![later] }
}

/// Removes an item without room for a later `due` from the index, if it is still due.
#[must_use]
pub fn forget_due(key: &ItemKey, now: EpochMillis) -> Update {
    let changes =
        [attr::DUE, attr::DUE_SHARD].map(|name| AttributeUpdate::Remove(Path::of(name))).into();
    Update { key: key.clone(), conditions: vec![is_due(now)], changes }
}

fn is_due(now: EpochMillis) -> Condition {
    Condition::AtMost(Path::of(attr::DUE), Value::Int(now.0))
}

/// Adds to `update` that `due` ends up at or before `at`, whatever concurrent writes do to it;
/// `seen` is its last known value.
pub(super) fn not_after(
    update: &mut Update,
    key: &BucketKey,
    seen: Option<EpochMillis>,
    at: EpochMillis,
) {
    let (due, shard) = (Path::of(attr::DUE), Path::of(attr::DUE_SHARD));
    let (value, partition) = (Value::Int(at.0), Value::Text(key.due_shard()));
    if seen.is_some_and(|due| due > at) {
        update.conditions.push(Condition::AtLeast(due.clone(), value.clone()));
        update.changes.push(AttributeUpdate::Set(due, value));
        update.changes.push(AttributeUpdate::Set(shard, partition));
    } else {
        let early = Condition::AtMost(due.clone(), value.clone());
        update.conditions.push(Condition::AbsentOr(due.clone(), Box::new(early)));
        update.changes.push(AttributeUpdate::SetIfAbsent(due, value));
        update.changes.push(AttributeUpdate::SetIfAbsent(shard, partition));
    }
}
