//! Pausing a shard, and ending its pause.

use super::{AttributeUpdate, Condition, Path, Update, Value, count_write, require_shard_count};
use crate::{BucketKey, EditId, EpochMillis, EpochSeconds, Pause, Shard, attr};

/// Requires that no pause lasts longer than until `at`.
pub(super) fn not_paused_after(at: EpochMillis) -> Condition {
    let until = Path::of(attr::PAUSED_UNTIL);
    let is_over = Condition::AtMost(until.clone(), Value::Int(at.0));
    Condition::AbsentOr(until, Box::new(is_over))
}

/// Requires the pause of the view.
pub(super) fn same_pause(view: &Shard) -> Condition {
    let until = Path::of(attr::PAUSED_UNTIL);
    match view.pause {
        Some(pause) => Condition::Equals(until, Value::Int(pause.until.0)),
        None => Condition::Absent(until),
    }
}

fn set(name: &'static str, number: i64) -> AttributeUpdate {
    AttributeUpdate::Set(Path::of(name), Value::Int(number))
}

/// Pauses a shard as its vendor asked, on condition that it exists, and that its pause does not end as
/// late. It can be repeated.
#[must_use]
pub fn pause_reported(key: &BucketKey, pause: Pause) -> Update {
    let mut changes = count_write();
    changes
        .extend([set(attr::PAUSED_UNTIL, pause.until.0), set(attr::PAUSE_LENGTH, pause.lasts.0)]);
    let earlier = EpochMillis(pause.until.0.saturating_sub(1));
    Update {
        key: key.item_key(),
        conditions: vec![
            Condition::Present(Path::of(attr::REFILLED_AT)),
            not_paused_after(earlier),
        ],
        changes,
    }
}

/// Sets the pause of a shard as an operator's change `edit` says, or ends it. Requires that the shard has
/// neither this change nor a later one. A bucket that would be deleted before the end is kept for it.
/// Returns `None` if a split is unfinished, because the new half has the pause from before.
#[must_use]
pub fn pause_ordered(view: &Shard, edit: EditId, until: Option<EpochMillis>) -> Option<Update> {
    if view.escrow.is_some() {
        return None;
    }
    let id = Path::of(attr::EDIT);
    let is_earlier = Condition::AtMost(id.clone(), Value::Int(edit.0.saturating_sub(1)));
    let mut changes = count_write();
    // An end that is named says nothing of the length of the next pause.
    changes.extend([
        set(attr::EDIT, edit.0),
        AttributeUpdate::Remove(Path::of(attr::PAUSE_LENGTH)),
        match until {
            Some(until) => set(attr::PAUSED_UNTIL, until.0),
            None => AttributeUpdate::Remove(Path::of(attr::PAUSED_UNTIL)),
        },
    ]);
    let mut conditions = vec![
        Condition::Present(Path::of(attr::REFILLED_AT)),
        require_shard_count(view.shard()),
        Condition::AbsentOr(id, Box::new(is_earlier)),
    ];
    let end = until.map(EpochSeconds::not_before);
    if let Some((end, ttl)) = end.zip(view.ttl).filter(|(end, ttl)| ttl < end) {
        // A take since may have moved it past the end of the pause.
        conditions.push(Condition::Equals(Path::of(attr::TTL), Value::Int(ttl.0)));
        changes.push(set(attr::TTL, end.0));
    }
    Some(Update { key: view.key.item_key(), conditions, changes })
}
