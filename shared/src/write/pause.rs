//! Pausing a shard, and ending its pause.

use super::{AttributeUpdate, Condition, Path, Update, Value, count_write, require_shard_count};
use crate::{BucketKey, EditId, EpochMillis, EpochSeconds, Pause, Shard, attr};

/// Requires that no pause is in force.
pub(super) fn not_paused(now: EpochMillis) -> Condition {
    until_at_most(now)
}

fn until_at_most(at: EpochMillis) -> Condition {
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

fn set(pause: Pause) -> [AttributeUpdate; 2] {
    let number =
        |name: &'static str, number| AttributeUpdate::Set(Path::of(name), Value::Int(number));
    [
        number(attr::PAUSED_UNTIL, pause.until.0),
        number(attr::PAUSE_LENGTH, pause.lasts.0),
    ]
}

/// Pauses a shard as its vendor asked, on condition that it exists, and that its pause does not end as
/// late. It can be repeated.
#[must_use]
pub fn pause_reported(key: &BucketKey, pause: Pause) -> Update {
    let mut changes = count_write();
    changes.extend(set(pause));
    let earlier = EpochMillis(pause.until.0.saturating_sub(1));
    Update {
        key: key.item_key(),
        conditions: vec![
            Condition::Present(Path::of(attr::REFILLED_AT)),
            until_at_most(earlier),
        ],
        changes,
    }
}

/// Sets the pause of a shard as an operator's change `edit` says, or ends it. Requires that the shard has
/// neither this change nor a later one. A bucket that would be deleted before the end is kept for it.
/// Returns `None` if a split is unfinished, because the new half has the pause from before.
#[must_use]
pub fn pause_ordered(view: &Shard, edit: EditId, pause: Option<Pause>) -> Option<Update> {
    if view.escrow.is_some() {
        return None;
    }
    let id = Path::of(attr::EDIT);
    let is_earlier = Condition::AtMost(id.clone(), Value::Int(edit.0.saturating_sub(1)));
    let mut changes = count_write();
    changes.push(AttributeUpdate::Set(id.clone(), Value::Int(edit.0)));
    match pause {
        Some(pause) => {
            changes.extend(set(pause));
            let end = EpochSeconds::not_before(pause.until);
            if view.ttl.is_some_and(|ttl| ttl < end) {
                changes.push(AttributeUpdate::Set(Path::of(attr::TTL), Value::Int(end.0)));
            }
        }
        None => changes.extend(
            [attr::PAUSED_UNTIL, attr::PAUSE_LENGTH]
                .map(|name| AttributeUpdate::Remove(Path::of(name))),
        ),
    }
    Some(Update {
        key: view.key.item_key(),
        conditions: vec![
            Condition::Present(Path::of(attr::REFILLED_AT)),
            require_shard_count(view.shard()),
            Condition::AbsentOr(id, Box::new(is_earlier)),
        ],
        changes,
    })
}
