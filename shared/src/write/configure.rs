//! Changing the configuration: one transaction of the change, its preconditions, and the audit
//! event.

use std::collections::BTreeMap;

use super::{Action, AttributeUpdate, Condition, Path, Update, Value};
use crate::{
    AuditEvent, AuditKey, Config, ConfigKey, ConfigLevel, Entity, EntityDescription, EntityId,
    EntityKey, EpochMillis, EpochSeconds, LISTED_NAMESPACE, Millis, NAMESPACES, Namespace, PlanKey,
    PlanName, Resource, SCHEMA_VERSION, Versioned, WriteId, attr, functions_key, item, schema_key,
};

/// Maximum number of ancestors of an entity. Their checks, that of a plan, the counts of two plans, the entity, the
/// audit event and the schema version are the 100 parts of a transaction.
pub const MAX_ANCESTORS: usize = 94;

/// What a configuration has that a deleted one does not.
const REMOVED: [&str; 8] = [
    attr::LIMITS,
    attr::STATUS,
    attr::SHADOW,
    attr::CLASS,
    attr::GSI2PK,
    attr::GSI2SK,
    attr::GSI3PK,
    attr::GSI3SK,
];

/// Sets the configuration of a level to `next`, on condition that it is the one seen. A deleted
/// configuration leaves its version, which continues to rise: the version in buckets must never
/// fall.
#[must_use]
pub fn write_config(key: &ConfigKey, seen: &Versioned<Config>, next: Option<&Config>) -> Action {
    let version = Path::of(attr::VERSION);
    let condition = match seen.version {
        0 => Condition::Absent(version.clone()),
        seen => Condition::Equals(version.clone(), Value::Int(seen)),
    };
    let mut changes =
        vec![AttributeUpdate::Set(version, Value::Int(seen.version.saturating_add(1)))];
    let index = key.by_kind();
    match next {
        Some(config) => {
            let attributes = item::write_config(config);
            let gone = seen.value.iter().flat_map(item::write_config);
            let gone = gone.filter(|(name, _)| !attributes.contains_key(name));
            changes.extend(gone.map(|(name, _)| AttributeUpdate::Remove(Path::of(name))));
            changes.extend(set(attributes));
            let names = [
                (attr::ENTITY_ID, key.level.entity().map(EntityId::as_str)),
                (attr::ENTITY_PLAN, key.level.plan().map(PlanName::as_str)),
                (attr::RESOURCE, key.level.resource().map(Resource::as_str)),
            ];
            changes.extend(names.into_iter().filter_map(|(attribute, name)| {
                Some(AttributeUpdate::Set(Path::of(attribute), Value::text(name?)))
            }));
            if let Some((pk, sk)) = index {
                changes.push(AttributeUpdate::Set(Path::of(attr::GSI2PK), Value::Text(pk)));
                changes.push(AttributeUpdate::Set(Path::of(attr::GSI2SK), Value::Text(sk)));
            }
            if let Some((partition, name)) = key.by_namespace() {
                changes.extend(listed(partition, name));
            }
        }
        None => {
            changes.extend(REMOVED.map(|name| AttributeUpdate::Remove(Path::of(name))));
        }
    }
    Action::Update(Update { key: key.item_key(), conditions: vec![condition], changes })
}

/// Deletes the system's configuration in a purge at `now`. Its version becomes larger than every sum of
/// versions before: with less than 1,024 changes a millisecond, or one move between plans a second, a sum
/// is below the time.
#[must_use]
pub fn purge_config(namespace: &Namespace, now: EpochMillis) -> Action {
    let key = ConfigKey { namespace: namespace.clone(), level: ConfigLevel::System };
    let version = Value::Int(now.0.saturating_mul(1_024));
    let version = AttributeUpdate::Set(Path::of(attr::VERSION), version);
    let removed = REMOVED.map(|name| AttributeUpdate::Remove(Path::of(name)));
    Action::Update(Update {
        key: key.item_key(),
        conditions: vec![],
        changes: [version].into_iter().chain(removed).collect(),
    })
}

/// Added to the version of an entity with each change of its plan, 2^20: a process that has the plan of
/// before cached adds the changes of that one, and must not overrule those that know the new one.
pub const PLAN_STEP: i64 = 1 << 20;

/// What an entity leaves when it is deleted after changes of its plan: its keys, version and last write.
const REMOVED_OF_ENTITY: [&str; 12] = [
    attr::ENTITY_ID,
    attr::PARENT_ID,
    attr::CASCADE,
    attr::ENTITY_PLAN,
    attr::DISPLAY_NAME,
    attr::LABELS,
    attr::GSI1PK,
    attr::GSI1SK,
    attr::GSI2PK,
    attr::GSI2SK,
    attr::GSI3PK,
    attr::GSI3SK,
];

/// Sets an entity to `next`, or deletes it. Requires that its last write is the one seen.
///
/// The version of the limits of a bucket is a sum, in which the entity's own is one part. It must not
/// fall when the entity leaves a plan, whose version is then no part of it any more: so `next` has the
/// version seen, and with another plan one that is larger by [`PLAN_STEP`] and the plan's. A deleted
/// entity leaves its version, as a configuration does.
#[must_use]
pub fn set_entity(
    key: &EntityKey,
    seen: Option<&WriteId>,
    next: &Versioned<Entity>,
    op: &WriteId,
) -> Action {
    let last = Path::of(attr::LAST_WRITE_ID);
    let condition = match seen {
        Some(seen) => Condition::Equals(last.clone(), Value::text(seen.as_str())),
        None => Condition::Absent(Path::of(attr::PK)),
    };
    let version = (next.version > 0)
        .then(|| AttributeUpdate::Set(Path::of(attr::VERSION), Value::Int(next.version)));
    let mut changes = vec![AttributeUpdate::Set(last, Value::text(op.as_str()))];
    changes.extend(version);
    let Some(entity) = &next.value else {
        if next.version == 0 {
            return Action::Delete(key.item_key(), vec![condition]);
        }
        let removed = REMOVED_OF_ENTITY.map(|name| AttributeUpdate::Remove(Path::of(name)));
        changes.extend(removed);
        return Action::Update(Update {
            key: key.item_key(),
            conditions: vec![condition],
            changes,
        });
    };
    changes.push(AttributeUpdate::Set(Path::of(attr::ENTITY_ID), Value::text(key.entity.as_str())));
    changes.extend(set(item::write_entity(entity)));
    let (partition, name) = key.by_namespace();
    changes.extend(listed(partition, name));
    let of_parent = entity.parent.clone().map(|entity| {
        let namespace = key.namespace.clone();
        let parent = EntityKey { namespace, entity };
        (parent.children(), key.child())
    });
    let of_plan = entity.plan.as_ref().map(|plan| key.by_plan(plan));
    let lists = [
        ([attr::GSI1PK, attr::GSI1SK], attr::PARENT_ID, of_parent),
        ([attr::GSI2PK, attr::GSI2SK], attr::ENTITY_PLAN, of_plan),
    ];
    for (index, name, listed) in lists {
        let index = index.map(Path::of);
        match listed {
            Some((partition, name)) => {
                let keys = index.into_iter().zip([partition, name].map(Value::Text));
                changes.extend(keys.map(|(path, value)| AttributeUpdate::Set(path, value)));
            }
            // What was never written is not removed: no write of an entity without a plan changes.
            None if name == attr::ENTITY_PLAN && next.version == 0 => {}
            None => {
                changes.extend(index.map(AttributeUpdate::Remove));
                changes.push(AttributeUpdate::Remove(Path::of(name)));
            }
        }
    }
    Action::Update(Update { key: key.item_key(), conditions: vec![condition], changes })
}

/// Sets the display name and the labels of an entity. Requires that its last write is the one seen.
#[must_use]
pub fn describe_entity(
    key: &EntityKey,
    seen: &WriteId,
    next: &EntityDescription,
    op: &WriteId,
) -> Action {
    let last = Path::of(attr::LAST_WRITE_ID);
    let condition = Condition::Equals(last.clone(), Value::text(seen.as_str()));
    let attributes = item::write_description(next);
    let absent = [attr::DISPLAY_NAME, attr::LABELS];
    let absent = absent.into_iter().filter(|name| !attributes.contains_key(*name));
    let mut changes = vec![AttributeUpdate::Set(last, Value::text(op.as_str()))];
    changes.extend(absent.map(|name| AttributeUpdate::Remove(Path::of(name))));
    changes.extend(set(attributes.clone()));
    Action::Update(Update { key: key.item_key(), conditions: vec![condition], changes })
}

/// Counts an entity that gets a plan (1), or leaves it (-1).
#[must_use]
pub fn count_entity(namespace: &Namespace, plan: &PlanName, by: i64) -> Action {
    count(namespace, plan, (attr::ENTITIES, by), vec![])
}

/// Counts a level of a plan that gets a configuration (1), or loses it (-1), on `conditions` of the item
/// that counts: a transaction has one action an item.
#[must_use]
pub fn count_level(
    namespace: &Namespace,
    plan: &PlanName,
    by: i64,
    conditions: Vec<Condition>,
) -> Action {
    count(namespace, plan, (attr::LEVELS, by), conditions)
}

fn count(
    namespace: &Namespace,
    plan: &PlanName,
    (counter, by): (&'static str, i64),
    conditions: Vec<Condition>,
) -> Action {
    // The same keys each time, so only the first write is one of the index too.
    let key = PlanKey { namespace: namespace.clone(), plan: plan.clone() };
    let (partition, name) = key.by_namespace();
    let add = AttributeUpdate::Add(Path::of(counter), Value::Int(by));
    Action::Update(Update {
        key: key.item_key(),
        conditions,
        changes: [add].into_iter().chain(listed(partition, name)).collect(),
    })
}

/// Requires of the item that counts that no entity has the plan.
#[must_use]
pub fn no_entities() -> Condition {
    let count = Path::of(attr::ENTITIES);
    let none = Box::new(Condition::AtMost(count.clone(), Value::Int(0)));
    Condition::AbsentOr(count, none)
}

/// Requires that a level still has the configuration that was read with this version.
#[must_use]
pub fn same_config(key: &ConfigKey, version: i64) -> Action {
    let condition = Condition::Equals(Path::of(attr::VERSION), Value::Int(version));
    Action::Check(key.item_key(), vec![condition])
}

/// Requires that an entity still has the parent it was read with. A missing entity has none.
#[must_use]
pub fn same_parent(key: &EntityKey, parent: Option<&EntityId>) -> Action {
    let path = Path::of(attr::PARENT_ID);
    let condition = match parent {
        Some(parent) => Condition::Equals(path, Value::text(parent.as_str())),
        None => Condition::Absent(path),
    };
    Action::Check(key.item_key(), vec![condition])
}

/// Writes an audit event, which DynamoDB may delete after `kept`; `None` keeps it indefinitely.
#[must_use]
pub fn write_audit_event(
    namespace: &Namespace,
    event: &AuditEvent,
    kept: Option<Millis>,
) -> Action {
    let key = AuditKey { namespace: namespace.clone(), of: event.change.of(), id: event.id };
    let ttl = kept.map(|kept| {
        let EpochSeconds(ttl) = EpochSeconds::not_before(event.id.at().plus(kept));
        AttributeUpdate::Set(Path::of(attr::TTL), Value::Int(ttl))
    });
    let (partition, name) = key.by_namespace();
    let listed = listed(partition, name);
    let changes = set(item::write_audit(event)).chain(ttl).chain(listed);
    let changes = changes.collect();
    let conditions = vec![Condition::Absent(Path::of(attr::PK))];
    Action::Update(Update { key: key.item_key(), conditions, changes })
}

/// Stores the schema version of the namespace, if none is stored yet.
#[must_use]
pub fn write_schema_version(namespace: &Namespace) -> Action {
    Action::Update(Update {
        key: schema_key(namespace),
        conditions: vec![Condition::Absent(Path::of(attr::PK))],
        changes: listed(NAMESPACES.to_owned(), format!("{LISTED_NAMESPACE}{namespace}"))
            .into_iter()
            .chain([AttributeUpdate::Set(Path::of(attr::SCHEMA), Value::Int(SCHEMA_VERSION))])
            .collect(),
    })
}

/// Marks that the functions which are deployed with the table know quotas, if it is not marked yet.
#[must_use]
pub fn mark_functions() -> Update {
    let quotas = Path::of(attr::QUOTAS);
    Update {
        key: functions_key(),
        conditions: vec![Condition::Absent(quotas.clone())],
        changes: vec![AttributeUpdate::Set(quotas, Value::Bool(true))],
    }
}

/// Returns the change that lists an item in `GSI3`.
fn listed(partition: String, name: String) -> [AttributeUpdate; 2] {
    [(attr::GSI3PK, partition), (attr::GSI3SK, name)]
        .map(|(attribute, key)| AttributeUpdate::Set(Path::of(attribute), Value::Text(key)))
}

fn set(attributes: BTreeMap<String, Value>) -> impl Iterator<Item = AttributeUpdate> {
    attributes.into_iter().map(|(name, value)| AttributeUpdate::Set(Path::of(name), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By them people and indexes find what is configured.
    #[test]
    fn a_configuration_names_its_entity_and_resource() {
        let namespace = Namespace::new("ns").unwrap();
        let [entity, resource] = [("entity_id", "e-1"), ("resource", "gpt-4")];
        let names = [vec![entity, resource], vec![entity], vec![resource], vec![]];
        let levels =
            ConfigLevel::of(&EntityId::new("e-1").unwrap(), &Resource::new("gpt-4").unwrap());
        for (level, names) in levels.into_iter().zip(names) {
            let key = ConfigKey { namespace: namespace.clone(), level };
            let Action::Update(update) =
                write_config(&key, &Versioned::default(), Some(&Config::default()))
            else {
                panic!("an update");
            };
            for name in [attr::ENTITY_ID, attr::RESOURCE] {
                let expected = names.iter().find(|(of, _)| *of == name);
                let set = |change: &AttributeUpdate| match change {
                    AttributeUpdate::Set(path, value) if *path == Path::of(name) => {
                        Some(value.clone())
                    }
                    _ => None,
                };
                let found = update.changes.iter().find_map(set);
                assert_eq!(found, expected.map(|(_, text)| Value::text(text)), "{:?}", key.level);
            }
        }
    }
}
