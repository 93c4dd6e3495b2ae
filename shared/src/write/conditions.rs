//! Conditions that several writes to a shard share.

use super::changes::rule_numbers;
use super::update::{Condition, Path, Update, Value};
use crate::{LimitName, RefillRule, Shard, ShardIndex, attr, item};

/// Requires the shard count of the view, because the shares depend on it.
pub(super) fn require_shard_count(shard: ShardIndex) -> Condition {
    let count = Path::of(attr::SHARD_COUNT);
    Condition::Equals(count, Value::Int(i64::from(shard.count)))
}

/// Requires that the shard was not credited, split or merged since the view.
pub(super) fn require_refilled_at(shard: &Shard) -> [Condition; 2] {
    [
        Condition::Equals(Path::of(attr::REFILLED_AT), Value::Int(shard.refilled_at.0)),
        require_shard_count(shard.shard()),
    ]
}

/// Requires exactly the leases of the view.
pub(super) fn require_same_leases(shard: &Shard) -> Condition {
    let leases = Path::of(attr::LEASES);
    match &shard.leases {
        Some(seen) => Condition::Equals(leases, item::write_leases(seen)),
        None => Condition::Absent(leases),
    }
}

/// Requires that a limit of the shard has this rule.
pub(super) fn has_rule(limit: &LimitName, rule: &RefillRule) -> [Condition; 3] {
    rule_numbers(rule)
        .map(|(field, number)| Condition::Equals(Path::limit(limit, field), Value::Int(number)))
}

/// Adds a condition unless the update has it already.
pub(super) fn push_new(update: &mut Update, condition: Condition) {
    if !update.conditions.contains(&condition) {
        update.conditions.push(condition);
    }
}
