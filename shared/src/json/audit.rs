//! JSON of levels and audit events.

use serde::{Deserialize, Serialize};

use crate::{
    AuditChange, AuditEvent, AuditId, ConfigLevel, EntityId, EpochMillis, PlanName, Resource,
};

/// A level: its name, and what it is for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "level", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum LevelFields {
    EntityResource { entity: EntityId, resource: Resource },
    Entity { entity: EntityId },
    PlanResource { plan: PlanName, resource: Resource },
    Plan { plan: PlanName },
    Resource { resource: Resource },
    System,
}

impl From<ConfigLevel> for LevelFields {
    fn from(level: ConfigLevel) -> Self {
        match level {
            ConfigLevel::EntityResource(entity, resource) => {
                Self::EntityResource { entity, resource }
            }
            ConfigLevel::Entity(entity) => Self::Entity { entity },
            ConfigLevel::PlanResource(plan, resource) => Self::PlanResource { plan, resource },
            ConfigLevel::Plan(plan) => Self::Plan { plan },
            ConfigLevel::Resource(resource) => Self::Resource { resource },
            ConfigLevel::System => Self::System,
        }
    }
}

impl From<LevelFields> for ConfigLevel {
    fn from(fields: LevelFields) -> Self {
        match fields {
            LevelFields::EntityResource { entity, resource } => {
                Self::EntityResource(entity, resource)
            }
            LevelFields::Entity { entity } => Self::Entity(entity),
            LevelFields::PlanResource { plan, resource } => Self::PlanResource(plan, resource),
            LevelFields::Plan { plan } => Self::Plan(plan),
            LevelFields::Resource { resource } => Self::Resource(resource),
            LevelFields::System => Self::System,
        }
    }
}

/// An audit event, with its time beside the id that contains it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventFields {
    id: AuditId,
    #[serde(default, skip_deserializing)]
    at_ms: EpochMillis,
    principal: String,
    #[serde(default)]
    operation: Option<String>,
    #[serde(default)]
    key: Option<String>,
    change: AuditChange,
}

impl From<AuditEvent> for EventFields {
    fn from(event: AuditEvent) -> Self {
        Self {
            at_ms: event.id.at(),
            id: event.id,
            principal: event.principal,
            operation: event.operation,
            key: event.key,
            change: event.change,
        }
    }
}

impl From<EventFields> for AuditEvent {
    fn from(fields: EventFields) -> Self {
        Self {
            id: fields.id,
            principal: fields.principal,
            operation: fields.operation,
            key: fields.key,
            change: fields.change,
        }
    }
}
