//! Correcting a shard that a fast clock created.

use super::{AttributeUpdate, Path, Update, Value, count_write, require_refilled_at};
use crate::{EpochMillis, Shard, attr};

/// Sets `refilled_at` of a shard back to `now`; otherwise it would not refill until then. Returns
/// `None` unless `refilled_at` is in the future and still as set at creation. Refill that was
/// credited once must not be credited again.
#[must_use]
pub fn rewind(shard: &Shard, now: EpochMillis) -> Option<Update> {
    // On a tombstone, a life does not begin at the time.
    let is_of_creation = shard.write_seq == shard.birth_seq
        || shard.birth_seq == shard.refilled_at.0.saturating_mul(1000);
    if !is_of_creation || shard.refilled_at <= now {
        return None;
    }
    let mut changes = count_write();
    changes.push(AttributeUpdate::Set(
        Path::of(attr::REFILLED_AT),
        Value::Int(now.0),
    ));
    Some(Update {
        key: shard.key.item_key(),
        conditions: require_refilled_at(shard).into(),
        changes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::Condition;
    use crate::{BucketKey, Limit};

    const NOW: EpochMillis = EpochMillis(1_795_000_000_000);
    const AHEAD: EpochMillis = EpochMillis(1_795_000_240_000);

    fn created(at: EpochMillis) -> Shard {
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
        Shard::full(key, &[Limit::per_minute("rpm", 600).unwrap()], at)
    }

    #[test]
    fn i4_a_shard_created_in_the_future_is_set_back_if_its_refill_time_has_not_moved() {
        let update = rewind(&created(AHEAD), NOW).unwrap();
        let refilled_at = Path::of(attr::REFILLED_AT);
        let is_unmoved = Condition::Equals(refilled_at.clone(), Value::Int(AHEAD.0));
        assert!(update.conditions.contains(&is_unmoved));
        let back = AttributeUpdate::Set(refilled_at, Value::Int(NOW.0));
        assert!(update.changes.contains(&back));
    }

    #[test]
    fn i4_a_shard_created_on_a_tombstone_is_set_back_too() {
        let v = AHEAD.0 * 1000 + 5;
        let made = Shard {
            write_seq: v,
            birth_seq: v,
            ..created(AHEAD)
        };
        assert!(rewind(&made, NOW).is_some());
        let written = Shard {
            write_seq: v + 1,
            ..made
        };
        assert_eq!(rewind(&written, NOW), None);
    }

    /// To credit the same refill again would mint tokens.
    #[test]
    fn i1_a_shard_that_was_refilled_since_its_creation_is_left_alone() {
        let made = created(NOW);
        let refilled = Shard {
            refilled_at: AHEAD,
            // As every write does.
            write_seq: made.write_seq + 1,
            ..made
        };
        assert_eq!(rewind(&refilled, NOW), None);
        assert_eq!(rewind(&created(NOW), NOW), None);
    }
}
