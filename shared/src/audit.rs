//! What an audit event tells: who changed what, and when.

use crate::{AuditId, AuditSubject, Config, ConfigLevel, Entity, EntityId};

/// One change of what is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// When, and which one.
    pub id: AuditId,
    /// Who made it, as they called themselves.
    pub principal: String,
    /// What was changed.
    pub change: AuditChange,
}

/// What was changed. Nothing before is something new; nothing after was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditChange {
    /// The limits of a level.
    Config {
        /// Whose.
        level: ConfigLevel,
        /// What they were.
        before: Option<Config>,
        /// What they are from then on.
        after: Option<Config>,
    },
    /// An entity.
    Entity {
        /// Which.
        id: EntityId,
        /// What it was.
        before: Option<Entity>,
        /// What it is from then on.
        after: Option<Entity>,
    },
}

impl AuditChange {
    /// Whose events tell of it.
    #[must_use]
    pub fn of(&self) -> AuditSubject {
        match self {
            Self::Config { level, .. } => level.into(),
            Self::Entity { id, .. } => AuditSubject::Entity(id.clone()),
        }
    }
}
