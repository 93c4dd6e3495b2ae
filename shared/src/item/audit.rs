//! An audit event's item.

use std::collections::BTreeMap;

use super::config::{config, entity};
use super::parse::{entries, name};
use super::{Attr, ItemError, read_key};
use crate::write::Value;
use crate::{
    AuditChange, AuditEvent, AuditKey, AuditSubject, ConfigLevel, EntityId, ItemKey, Resource,
    attr, item,
};

const SET_CONFIG: &str = "set_config";
const DELETE_CONFIG: &str = "delete_config";
const SET_ENTITY: &str = "set_entity";
const DELETE_ENTITY: &str = "delete_entity";
const ACTIONS: &str = "set_config, delete_config, set_entity or delete_entity";

/// Returns all attributes of an audit event except its keys and its `ttl`.
#[must_use]
pub fn write_audit(event: &AuditEvent) -> BTreeMap<String, Value> {
    let (entity, resource) = match &event.change {
        AuditChange::Config {
            level: ConfigLevel::EntityResource(entity, resource),
            ..
        } => (Some(entity), Some(resource)),
        AuditChange::Config {
            level: ConfigLevel::Entity(id),
            ..
        }
        | AuditChange::Entity { id, .. } => (Some(id), None),
        AuditChange::Config {
            level: ConfigLevel::Resource(resource),
            ..
        } => (None, Some(resource)),
        AuditChange::Config {
            level: ConfigLevel::System,
            ..
        } => (None, None),
    };
    let (action, before, after) = match &event.change {
        AuditChange::Config { before, after, .. } => {
            let action = if after.is_some() {
                SET_CONFIG
            } else {
                DELETE_CONFIG
            };
            (
                action,
                before.as_ref().map(item::write_config),
                after.as_ref().map(item::write_config),
            )
        }
        AuditChange::Entity { before, after, .. } => {
            let action = if after.is_some() {
                SET_ENTITY
            } else {
                DELETE_ENTITY
            };
            (
                action,
                before.as_ref().map(item::write_entity),
                after.as_ref().map(item::write_entity),
            )
        }
    };
    let attributes = [
        Some((attr::AT, Value::Int(event.id.at().0))),
        Some((attr::PRINCIPAL, Value::text(&event.principal))),
        Some((attr::ACTION, Value::text(action))),
        entity.map(|entity| (attr::ENTITY_ID, Value::text(entity.as_str()))),
        resource.map(|resource| (attr::RESOURCE, Value::text(resource.as_str()))),
        before.map(|before| (attr::BEFORE, Value::Map(before))),
        after.map(|after| (attr::AFTER, Value::Map(after))),
    ];
    attributes
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Reads an audit event from all attributes of its item, keys included.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_audit<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<AuditEvent, ItemError> {
    let attributes: Vec<_> = item.collect();
    let key = read_key(attributes.iter().cloned()).unwrap_or_else(|| ItemKey {
        pk: String::new(),
        sk: String::new(),
    });
    let key = AuditKey::parse(&key)
        .ok_or_else(|| ItemError::missing(attr::SK, "the key of an audit event"))?;
    let find = |wanted: &str| {
        attributes
            .iter()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    let text = |name: &str, takes| match find(name) {
        Some(Attr::S(text)) => Ok(*text),
        Some(other) => Err(ItemError::new(name, other, takes)),
        None => Err(ItemError::missing(name, takes)),
    };
    let map = |name: &str| find(name).map(|value| entries(name, value)).transpose();
    let resource: Option<Resource> = find(attr::RESOURCE)
        .map(|value| name(attr::RESOURCE, value))
        .transpose()?;
    let (before, after) = (map(attr::BEFORE)?, map(attr::AFTER)?);
    let change = match (text(attr::ACTION, ACTIONS)?, &key.of) {
        (SET_CONFIG | DELETE_CONFIG, of) => AuditChange::Config {
            level: match (of.clone(), resource) {
                (AuditSubject::Entity(entity), Some(resource)) => {
                    ConfigLevel::EntityResource(entity, resource)
                }
                (AuditSubject::Entity(entity), None) => ConfigLevel::Entity(entity),
                (AuditSubject::Resource(resource), _) => ConfigLevel::Resource(resource),
                (AuditSubject::System, _) => ConfigLevel::System,
            },
            before: before.map(config).transpose()?,
            after: after.map(config).transpose()?,
        },
        (SET_ENTITY | DELETE_ENTITY, AuditSubject::Entity(id)) => {
            let of = |attributes| entity(EntityId::clone(id), attributes);
            let (before, after) = (before.map(of).transpose()?, after.map(of).transpose()?);
            AuditChange::Entity {
                id: id.clone(),
                before,
                after,
            }
        }
        (other, _) => return Err(ItemError::new(attr::ACTION, &Attr::S(other), ACTIONS)),
    };
    Ok(AuditEvent {
        id: key.id,
        principal: text(attr::PRINCIPAL, "a string")?.to_owned(),
        change,
    })
}
