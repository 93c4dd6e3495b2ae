//! Conditions that several writes to a shard share.

use std::collections::BTreeSet;

use super::changes::rule_numbers;
use super::update::{Condition, Path, Update, Value, window_end};
use crate::attr::{self, Field};
use crate::{LimitKind, LimitName, LimitState, RefillRule, Shard, ShardIndex, item};

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

/// Requires that a limit of the item is of a kind.
pub(super) fn has_kind(limit: &LimitName, kind: LimitKind) -> impl Iterator<Item = Condition> {
    let number = |field| Path::limit(limit, field);
    let (amount, period) = (Field::RefillAmount, Field::RefillPeriod);
    let (first, second) = match kind {
        LimitKind::Rate => (Condition::AtLeast(number(amount), Value::Int(1)), None),
        LimitKind::Slots => (
            Condition::Equals(number(amount), Value::Int(0)),
            Some(Condition::AtLeast(number(period), Value::Int(1))),
        ),
        // Of no other kind is it negative.
        LimitKind::Quota => (Condition::AtMost(number(period), Value::Int(-1)), None),
    };
    std::iter::once(first).chain(second)
}

/// Requires that the window of a quota is the one that was seen.
pub(super) fn same_window(limit: &LimitName, seen: &LimitState) -> Condition {
    Condition::Equals(window_end(limit), Value::Int(seen.window_end.0))
}

/// Requires that the item has each limit of `seen` that the update changes, with its kind.
///
/// The item may have been deleted and created again with other limits since `seen`. A write to a
/// limit that it lacks would create a part of one, which no process could read.
pub(super) fn require_limits(update: &mut Update, seen: &Shard) {
    let Update { changes, conditions, .. } = update;
    let paths = changes.iter().map(|change| change.path());
    let changed: BTreeSet<_> =
        paths.filter_map(|path| Field::parse(&path.0[0])).map(|(limit, _)| limit).collect();
    for (name, state) in seen.limits.iter().filter(|(name, _)| changed.contains(name.as_str())) {
        // A condition on the whole rule, or on the kind.
        let amount = Path::limit(name, Field::RefillAmount);
        let is_known = |known: &Condition| matches!(known, Condition::Equals(path, _) | Condition::AtLeast(path, _) if *path == amount);
        if !conditions.iter().any(is_known) {
            conditions.extend(has_kind(name, state.rule.kind()));
        }
    }
}

/// Adds a condition unless the update has it already.
pub(super) fn push_new(update: &mut Update, condition: Condition) {
    if !update.conditions.contains(&condition) {
        update.conditions.push(condition);
    }
}
