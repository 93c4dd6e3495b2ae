//! Changes of an operator: switches, and the record of a change under its idempotency key.

use std::collections::BTreeSet;

use super::{Action, AttributeUpdate, Condition, Path, Update, Value};
use crate::switch::level_name;
use crate::{
    EpochSeconds, IdempotencyKey, Namespace, Operation, Switches, attr, item, operation_key,
    switches_key,
};

/// Sets all switches of a namespace to those of `next`, on condition that their version is that of
/// `seen`. What cannot be read of them stays as it is, unless `next` replaces it.
#[must_use]
pub fn write_switches(namespace: &Namespace, seen: &Switches, next: &Switches) -> Action {
    let version = Path::of(attr::VERSION);
    let is_unreadable = |is: fn(&str) -> bool| {
        let mut errors = seen.unreadable.iter();
        errors.any(|(_, error)| is(&error.attribute))
    };
    let is_replaced = is_unreadable(|of| of == attr::SWITCHES);
    let condition = match seen.version {
        // Every change replaces them, so there is nothing to compare.
        _ if is_replaced || is_unreadable(|of| of == attr::VERSION) => None,
        0 => Some(Condition::Absent(version.clone())),
        seen => Some(Condition::Equals(version.clone(), Value::Int(seen))),
    };
    let mut changes = vec![AttributeUpdate::Set(version, Value::Int(next.version))];
    let switches = Path::of(attr::SWITCHES);
    if is_unreadable(|of| of.starts_with("switches.")) {
        let levels: BTreeSet<_> = seen.levels.keys().chain(next.levels.keys()).collect();
        for level in levels {
            let of = |all: &Switches| (all.levels.get(level).copied(), all.is_unreadable(level));
            let path = || switches.clone().then(level_name(level));
            match of(next) {
                same if same == of(seen) => {}
                (Some(switch), _) => {
                    changes.push(AttributeUpdate::Set(path(), Value::text(switch.as_str())));
                }
                (None, _) => changes.push(AttributeUpdate::Remove(path())),
            }
        }
    } else {
        changes.push(AttributeUpdate::Set(switches, item::write_switches(next)));
    }
    let on_unavailable = Path::of(attr::ON_UNAVAILABLE);
    match next.on_unavailable {
        Some(policy) => {
            let policy = Value::Text(policy.to_string());
            changes.push(AttributeUpdate::Set(on_unavailable, policy));
        }
        None if is_replaced || next.unreadable_policy().is_some() => {}
        None => changes.push(AttributeUpdate::Remove(on_unavailable)),
    }
    Action::Update(Update {
        key: switches_key(namespace),
        conditions: condition.into_iter().collect(),
        changes,
    })
}

/// Remembers a change under its idempotency key, on condition that the key is unused. `kept_until`
/// is for a key that only one call uses; others are kept.
#[must_use]
pub fn record_operation(
    namespace: &Namespace,
    key: &IdempotencyKey,
    operation: &Operation,
    kept_until: Option<EpochSeconds>,
) -> Action {
    let numbers = [(attr::AT, operation.at.0)];
    let numbers = numbers.into_iter().chain(kept_until.map(|until| (attr::TTL, until.0)));
    let numbers =
        numbers.map(|(name, number)| AttributeUpdate::Set(Path::of(name), Value::Int(number)));
    let what = AttributeUpdate::Set(Path::of(attr::WHAT), Value::text(&operation.what));
    Action::Update(Update {
        key: operation_key(namespace, key),
        conditions: vec![Condition::Absent(Path::of(attr::PK))],
        changes: numbers.chain([what]).collect(),
    })
}
