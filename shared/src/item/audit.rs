//! An audit event's item.

use std::collections::BTreeMap;

use super::config::{config, entity};
use super::parse::{entries, integer, name};
use super::{Attr, ItemError, read_key};
use crate::write::Value;
use crate::{
    AuditChange, AuditEvent, AuditKey, AuditSubject, Config, ConfigLevel, EntityId, EpochMillis,
    ItemKey, LimitName, MilliTokens, OnUnavailable, Resource, Switch, attr, item,
};

const SET_CONFIG: &str = "set_config";
const DELETE_CONFIG: &str = "delete_config";
const SET_ENTITY: &str = "set_entity";
const DELETE_ENTITY: &str = "delete_entity";
const DESCRIBE_ENTITY: &str = "describe_entity";
/// Action of the event of a purge.
pub const PURGE: &str = "purge";
const SET_SWITCH: &str = "set_switch";
const SET_ON_UNAVAILABLE: &str = "set_on_unavailable";
const SET_BALANCES: &str = "set_balances";
const APPLY_LIMITS: &str = "apply_limits";
const ERASE_ENTITY: &str = "erase_entity";
const PAUSE: &str = "pause";
const RELEASE_LEASE: &str = "release_lease";
const SET_SHARDS: &str = "set_shards";
const ACTIONS: &str = "set_config, delete_config, set_entity, delete_entity, describe_entity, erase_entity, purge, set_switch, set_on_unavailable, set_balances, apply_limits, pause, release_lease or set_shards";

/// Returns all attributes of an audit event except its keys and its `ttl`.
#[must_use]
pub fn write_audit(event: &AuditEvent) -> BTreeMap<String, Value> {
    let (entity, resource) = names(&event.change);
    let (action, before, after) = values(&event.change);
    let attributes = [
        Some((attr::AT, Value::Int(event.id.at().0))),
        Some((attr::PRINCIPAL, Value::text(&event.principal))),
        Some((attr::ACTION, Value::text(action))),
        entity.map(|entity| (attr::ENTITY_ID, Value::text(entity.as_str()))),
        resource.map(|resource| (attr::RESOURCE, Value::text(resource.as_str()))),
        lease(&event.change).map(|lease| (attr::LEASE, Value::text(lease))),
        (event.operation.as_deref()).map(|what| (attr::WHAT, Value::text(what))),
        (event.key.as_deref()).map(|key| (attr::IDEMPOTENCY_KEY, Value::text(key))),
        before.map(|before| (attr::BEFORE, Value::Map(before))),
        after.map(|after| (attr::AFTER, Value::Map(after))),
    ];
    attributes.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the entity and the resource of a change.
const fn names(change: &AuditChange) -> (Option<&EntityId>, Option<&Resource>) {
    match change {
        AuditChange::Config { level, .. } | AuditChange::Switch { level, .. } => {
            (level.entity(), level.resource())
        }
        AuditChange::Entity { id, .. }
        | AuditChange::EntityDescription { id, .. }
        | AuditChange::Erased { id } => (Some(id), None),
        AuditChange::OnUnavailable { .. } | AuditChange::Purged => (None, None),
        AuditChange::Balances { entity, resource, .. }
        | AuditChange::Limits { entity, resource, .. }
        | AuditChange::Pause { entity, resource, .. }
        | AuditChange::LeaseEnded { entity, resource, .. }
        | AuditChange::Shards { entity, resource, .. } => (Some(entity), Some(resource)),
    }
}

/// Returns the lease that a change ended.
const fn lease(change: &AuditChange) -> Option<&str> {
    match change {
        AuditChange::LeaseEnded { lease, .. } => Some(lease.as_str()),
        _ => None,
    }
}

fn write_amounts(amounts: &BTreeMap<LimitName, MilliTokens>) -> Map {
    let amount =
        |(limit, amount): (&LimitName, &MilliTokens)| (limit.to_string(), Value::Int(amount.0));
    amounts.iter().map(amount).collect()
}

type Map = BTreeMap<String, Value>;

/// Returns the name of a change, and the values before and after it.
fn values(change: &AuditChange) -> (&'static str, Option<Map>, Option<Map>) {
    match change {
        AuditChange::Config { before, after, .. } => {
            let action = if after.is_some() { SET_CONFIG } else { DELETE_CONFIG };
            let [before, after] = [before, after].map(|of| of.as_ref().map(item::write_config));
            (action, before, after)
        }
        AuditChange::Entity { before, after, .. } => {
            let action = if after.is_some() { SET_ENTITY } else { DELETE_ENTITY };
            let [before, after] = [before, after].map(|of| of.as_ref().map(item::write_entity));
            (action, before, after)
        }
        AuditChange::EntityDescription { before, after, .. } => {
            let [before, after] = [before, after].map(|of| Some(item::write_description(of)));
            (DESCRIBE_ENTITY, before, after)
        }
        AuditChange::Erased { .. } => (ERASE_ENTITY, None, None),
        AuditChange::Purged => (PURGE, None, None),
        AuditChange::Switch { before, after, .. } => {
            let word = |switch: Switch| Value::text(switch.as_str());
            let map = |switch| Map::from([(attr::SWITCH.to_owned(), word(switch))]);
            (SET_SWITCH, before.map(map), after.map(map))
        }
        AuditChange::OnUnavailable { before, after } => {
            let words = |policy: OnUnavailable| Value::Text(policy.to_string());
            let map = |policy| Map::from([(attr::ON_UNAVAILABLE.to_owned(), words(policy))]);
            (SET_ON_UNAVAILABLE, before.map(map), after.map(map))
        }
        AuditChange::Balances { before, after, .. } => {
            let [before, after] = [before, after].map(|of| Some(write_amounts(of)));
            (SET_BALANCES, before, after)
        }
        AuditChange::Pause { before, after, .. } => {
            let end =
                |of: &EpochMillis| Map::from([(attr::PAUSED_UNTIL.to_owned(), Value::Int(of.0))]);
            (PAUSE, before.as_ref().map(end), after.as_ref().map(end))
        }
        AuditChange::LeaseEnded { held, .. } => (RELEASE_LEASE, Some(write_amounts(held)), None),
        AuditChange::Shards { before, after, .. } => {
            let count = |count: &u32| {
                Some(Map::from([(attr::SHARDS.to_owned(), Value::Int((*count).into()))]))
            };
            (SET_SHARDS, count(before), count(after))
        }
        AuditChange::Limits { before, after, .. } => {
            let config = |limits: &Vec<_>| Some(item::write_config(&Config::of(limits.clone())));
            (APPLY_LIMITS, config(before), config(after))
        }
    }
}

/// Reads an audit event from all attributes of its item, keys included.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_audit<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<AuditEvent, ItemError> {
    let attributes: Vec<_> = item.collect();
    let key = read_key(attributes.iter().cloned())
        .unwrap_or_else(|| ItemKey { pk: String::new(), sk: String::new() });
    let key = AuditKey::parse(&key)
        .ok_or_else(|| ItemError::missing(attr::SK, "the key of an audit event"))?;
    let find =
        |wanted: &str| attributes.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    let text = |name: &str, takes| match find(name) {
        Some(Attr::S(text)) => Ok(*text),
        Some(other) => Err(ItemError::new(name, other, takes)),
        None => Err(ItemError::missing(name, takes)),
    };
    let map = |name: &str| find(name).map(|value| entries(name, value)).transpose();
    let resource: Option<Resource> =
        find(attr::RESOURCE).map(|value| name(attr::RESOURCE, value)).transpose()?;
    let (before, after) = (map(attr::BEFORE)?, map(attr::AFTER)?);
    let change = match (text(attr::ACTION, ACTIONS)?, &key.of) {
        (SET_CONFIG | DELETE_CONFIG, of) => AuditChange::Config {
            level: level(of, resource),
            before: before.map(config).transpose()?,
            after: after.map(config).transpose()?,
        },
        (SET_ENTITY | DELETE_ENTITY, AuditSubject::Entity(id)) => {
            let of = |attributes| entity(EntityId::clone(id), attributes);
            let (before, after) = (before.map(of).transpose()?, after.map(of).transpose()?);
            AuditChange::Entity { id: id.clone(), before, after }
        }
        (DESCRIBE_ENTITY, AuditSubject::Entity(id)) => AuditChange::EntityDescription {
            id: id.clone(),
            before: item::read_description(before.unwrap_or_default())?,
            after: item::read_description(after.unwrap_or_default())?,
        },
        (ERASE_ENTITY, AuditSubject::Entity(id)) => AuditChange::Erased { id: id.clone() },
        (PURGE, AuditSubject::System) => AuditChange::Purged,
        (SET_SWITCH, of) => AuditChange::Switch {
            level: level(of, resource),
            before: before.map(switch).transpose()?,
            after: after.map(switch).transpose()?,
        },
        (SET_ON_UNAVAILABLE, _) => AuditChange::OnUnavailable {
            before: before.map(on_unavailable).transpose()?,
            after: after.map(on_unavailable).transpose()?,
        },
        (
            action @ (SET_BALANCES | APPLY_LIMITS | PAUSE | RELEASE_LEASE | SET_SHARDS),
            AuditSubject::Entity(entity),
        ) => {
            let resource = resource.ok_or_else(|| ItemError::missing(attr::RESOURCE, "a name"))?;
            let (entity, before) = (entity.clone(), before.unwrap_or_default());
            let after = after.unwrap_or_default();
            match action {
                SET_BALANCES => AuditChange::Balances {
                    entity,
                    resource,
                    before: amounts(before)?,
                    after: amounts(after)?,
                },
                APPLY_LIMITS => AuditChange::Limits {
                    entity,
                    resource,
                    before: config(before)?.limits,
                    after: config(after)?.limits,
                },
                PAUSE => AuditChange::Pause {
                    entity,
                    resource,
                    before: pause_end(before)?,
                    after: pause_end(after)?,
                },
                RELEASE_LEASE => AuditChange::LeaseEnded {
                    entity,
                    resource,
                    lease: text(attr::LEASE, "the id of a lease")?.to_owned(),
                    held: amounts(before)?,
                },
                _ => AuditChange::Shards {
                    entity,
                    resource,
                    before: shards(before)?,
                    after: shards(after)?,
                },
            }
        }
        (other, _) => return Err(ItemError::new(attr::ACTION, &Attr::S(other), ACTIONS)),
    };
    let maybe = |name: &str| find(name).map(|_| text(name, "a string").map(str::to_owned));
    Ok(AuditEvent {
        id: key.id,
        principal: text(attr::PRINCIPAL, "a string")?.to_owned(),
        operation: maybe(attr::WHAT).transpose()?,
        key: maybe(attr::IDEMPOTENCY_KEY).transpose()?,
        change,
    })
}

fn level(of: &AuditSubject, resource: Option<Resource>) -> ConfigLevel {
    match (of.clone(), resource) {
        (AuditSubject::Entity(entity), Some(resource)) => {
            ConfigLevel::EntityResource(entity, resource)
        }
        (AuditSubject::Entity(entity), None) => ConfigLevel::Entity(entity),
        (AuditSubject::Plan(plan), Some(resource)) => ConfigLevel::PlanResource(plan, resource),
        (AuditSubject::Plan(plan), None) => ConfigLevel::Plan(plan),
        (AuditSubject::Resource(resource), _) => ConfigLevel::Resource(resource),
        (AuditSubject::System, _) => ConfigLevel::System,
    }
}

fn shards(entries: &[(&str, Attr<'_>)]) -> Result<u32, ItemError> {
    let found = entries.iter().find(|(name, _)| *name == attr::SHARDS);
    let (name, value) = found.ok_or_else(|| ItemError::missing(attr::SHARDS, "a whole number"))?;
    u32::try_from(integer(name, value)?)
        .map_err(|_| ItemError::new(name, value, "a number of shards"))
}

fn pause_end(entries: &[(&str, Attr<'_>)]) -> Result<Option<EpochMillis>, ItemError> {
    let found = entries.iter().find(|(name, _)| *name == attr::PAUSED_UNTIL);
    found.map(|(name, value)| integer(name, value).map(EpochMillis)).transpose()
}

fn switch(entries: &[(&str, Attr<'_>)]) -> Result<Switch, ItemError> {
    let found = entries.iter().find(|(name, _)| *name == attr::SWITCH);
    let (name, value) = found.ok_or_else(|| ItemError::missing(attr::SWITCH, Switch::WORDS))?;
    let word = if let Attr::S(word) = value { Switch::parse(word) } else { None };
    word.ok_or_else(|| ItemError::new(name, value, Switch::WORDS))
}

fn on_unavailable(entries: &[(&str, Attr<'_>)]) -> Result<OnUnavailable, ItemError> {
    let name = attr::ON_UNAVAILABLE;
    let found = entries.iter().find(|(known, _)| *known == name);
    let (_, value) = found.ok_or_else(|| ItemError::missing(name, OnUnavailable::WORDS))?;
    let policy = if let Attr::S(words) = value { OnUnavailable::parse(words) } else { None };
    policy.ok_or_else(|| ItemError::new(name, value, OnUnavailable::WORDS))
}

fn amounts(entries: &[(&str, Attr<'_>)]) -> Result<BTreeMap<LimitName, MilliTokens>, ItemError> {
    let amount = |(limit, value): &(&str, Attr<'_>)| {
        let name = name(limit, &Attr::S(limit))?;
        Ok((name, MilliTokens(integer(limit, value)?)))
    };
    entries.iter().map(amount).collect()
}
