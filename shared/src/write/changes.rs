//! Changes that several writes to a shard share.

use super::update::{AttributeUpdate, Path, Value};
use crate::attr::{self, Field};
use crate::{EpochMillis, LimitName, MilliTokens, RefillRule, Shard, WriteId};

/// Returns the changes of every write to a shard: `v` rises by one, and its write units are
/// subtracted.
pub(super) fn count_write(view: Option<&Shard>, units_credit: MilliTokens) -> Vec<AttributeUpdate> {
    let units = MilliTokens::from_tokens(view.map_or(1, Shard::write_units));
    vec![
        AttributeUpdate::Add(Path::of(attr::WRITE_SEQ), Value::Int(1)),
        AttributeUpdate::Add(
            Path::of(attr::WRITE_UNITS),
            Value::Int((units_credit - units).0),
        ),
    ]
}

/// Sets the write id, by which a writer finds out whether an unconfirmed write was applied. Writes
/// that can be repeated safely leave the last id in place.
pub(super) fn set_write_id(op: &WriteId) -> AttributeUpdate {
    AttributeUpdate::Set(Path::of(attr::LAST_WRITE_ID), Value::text(op.as_str()))
}

/// Returns the write units that the partition has gained since `rf`, for a write that moves `rf`.
pub(super) fn units_credit(shard: &Shard, now: EpochMillis) -> MilliTokens {
    shard.write_units_at(now) - shard.write_units_left
}

pub(super) fn add_tokens(limit: &LimitName, field: Field, amount: MilliTokens) -> AttributeUpdate {
    AttributeUpdate::Add(Path::limit(limit, field), Value::Int(amount.0))
}

pub(super) fn add_consumed(name: &LimitName, amount: MilliTokens) -> Option<AttributeUpdate> {
    (amount != MilliTokens::ZERO).then(|| add_tokens(name, Field::Consumed, amount))
}

pub(super) fn set_rule(limit: &LimitName, rule: &RefillRule) -> [AttributeUpdate; 3] {
    rule_numbers(rule)
        .map(|(field, number)| AttributeUpdate::Set(Path::limit(limit, field), Value::Int(number)))
}

pub(super) const fn rule_numbers(rule: &RefillRule) -> [(Field, i64); 3] {
    [
        (Field::Capacity, rule.capacity.0),
        (Field::RefillAmount, rule.refill_amount.0),
        (Field::RefillPeriod, rule.refill_period_ms),
    ]
}
