//! Correcting a shard that a fast clock created.

use super::{AttributeUpdate, Path, Update, Value, count_write, require_refilled_at};
use crate::{EpochMillis, MilliTokens, Shard, attr};

/// Sets `refilled_at` of a shard back to `now`; otherwise it would not refill until then. Returns
/// `None` unless `refilled_at` is in the future and still as set at creation. Refill that was
/// credited once must not be credited again.
#[must_use]
pub fn rewind(shard: &Shard, now: EpochMillis) -> Option<Update> {
    let is_of_creation = shard.birth_seq == shard.refilled_at.0.saturating_mul(1000);
    if !is_of_creation || shard.refilled_at <= now {
        return None;
    }
    let mut changes = count_write(Some(shard), MilliTokens::ZERO);
    changes.push(AttributeUpdate::Set(Path::of(attr::RF), Value::Int(now.0)));
    Some(Update {
        key: shard.key.item_key(),
        conditions: require_refilled_at(shard).into(),
        changes,
    })
}
