//! Changes of an operator: switches, and the record of a change under its idempotency key.

use super::{Action, AttributeUpdate, Condition, Path, Update, Value};
use crate::{
    EpochSeconds, IdempotencyKey, Namespace, Operation, Switches, attr, item, operation_key,
    switches_key,
};

/// Sets all switches of a namespace to those of `next`, on condition that their version is `seen`.
#[must_use]
pub fn write_switches(namespace: &Namespace, seen: i64, next: &Switches) -> Action {
    let version = Path::of(attr::VERSION);
    let condition = match seen {
        0 => Condition::Absent(version.clone()),
        seen => Condition::Equals(version.clone(), Value::Int(seen)),
    };
    let switches = Path::of(attr::SWITCHES);
    let on_unavailable = Path::of(attr::ON_UNAVAILABLE);
    let on_unavailable = match next.on_unavailable {
        Some(policy) => AttributeUpdate::Set(on_unavailable, Value::Text(policy.to_string())),
        None => AttributeUpdate::Remove(on_unavailable),
    };
    Action::Update(Update {
        key: switches_key(namespace),
        conditions: vec![condition],
        changes: vec![
            AttributeUpdate::Set(version, Value::Int(next.version)),
            AttributeUpdate::Set(switches, item::write_switches(next)),
            on_unavailable,
        ],
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
    let numbers = numbers
        .into_iter()
        .chain(kept_until.map(|until| (attr::TTL, until.0)));
    let numbers =
        numbers.map(|(name, number)| AttributeUpdate::Set(Path::of(name), Value::Int(number)));
    let what = AttributeUpdate::Set(Path::of(attr::WHAT), Value::text(&operation.what));
    Action::Update(Update {
        key: operation_key(namespace, key),
        conditions: vec![Condition::Absent(Path::of(attr::PK))],
        changes: numbers.chain([what]).collect(),
    })
}
