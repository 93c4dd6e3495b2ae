//! An audit event: the principal, the time and the change.

use crate::{AuditId, AuditSubject, Config, ConfigLevel, Entity, EntityId};

/// One change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// Time and id of the event.
    pub id: AuditId,
    /// Name of the principal, as given by the caller.
    pub principal: String,
    /// The change.
    pub change: AuditChange,
}

/// A change of limits or of an entity. `before` is `None` for a new one, `after` for a deleted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditChange {
    /// A change of a level's limits.
    Config {
        /// The level.
        level: ConfigLevel,
        /// Limits before the change.
        before: Option<Config>,
        /// Limits after the change.
        after: Option<Config>,
    },
    /// A change of an entity.
    Entity {
        /// Id of the entity.
        id: EntityId,
        /// Entity before the change.
        before: Option<Entity>,
        /// Entity after the change.
        after: Option<Entity>,
    },
}

impl AuditChange {
    /// Returns the subject that the change is listed under.
    #[must_use]
    pub fn of(&self) -> AuditSubject {
        match self {
            Self::Config { level, .. } => level.into(),
            Self::Entity { id, .. } => AuditSubject::Entity(id.clone()),
        }
    }
}
