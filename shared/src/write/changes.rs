//! Changes that several writes to a shard share.

use super::update::{AttributeUpdate, Path, Value};
use crate::attr::{self, Field};
use crate::{LimitName, MilliTokens, RefillRule, WriteId};

/// Returns the change of every write to a shard: `v` rises by one.
pub(super) fn count_write() -> Vec<AttributeUpdate> {
    vec![AttributeUpdate::Add(Path::of(attr::WRITE_SEQ), Value::Int(1))]
}

/// Sets the write id, by which a writer finds out whether an unconfirmed write was applied. Writes
/// that can be repeated safely leave the last id in place.
pub(super) fn set_write_id(op: &WriteId) -> AttributeUpdate {
    AttributeUpdate::Set(Path::of(attr::LAST_WRITE_ID), Value::text(op.as_str()))
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
