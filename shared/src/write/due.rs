//! `due`: at or before everything the reconciler must look at, moved without touching the index where it can stay.

use super::{Change, Condition, Path, Update, Value};
use crate::{BucketKey, EpochMillis, attr};

/// Makes `update` leave `due` at or before `at`, whatever others do to it meanwhile; `seen` is what it was.
pub(super) fn not_after(update: &mut Update, key: &BucketKey, seen: Option<EpochMillis>, at: EpochMillis) {
    let (due, shard) = (Path::of(attr::DUE), Path::of(attr::DUE_SHARD));
    let (value, partition) = (Value::Int(at.0), Value::Text(key.due_shard()));
    if seen.is_some_and(|due| due > at) {
        update.conditions.push(Condition::AtLeast(due.clone(), value.clone()));
        update.changes.push(Change::Set(due, value));
        update.changes.push(Change::Set(shard, partition));
    } else {
        let early = Condition::AtMost(due.clone(), value.clone());
        update.conditions.push(Condition::AbsentOr(due.clone(), Box::new(early)));
        update.changes.push(Change::SetIfAbsent(due, value));
        update.changes.push(Change::SetIfAbsent(shard, partition));
    }
}
