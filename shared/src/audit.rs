//! An audit event: the principal, the time and the change.

use std::collections::BTreeMap;

use crate::{
    AuditId, AuditSubject, Config, ConfigLevel, Entity, EntityDescription, EntityId, EpochMillis,
    Limit, LimitName, MilliTokens, OnUnavailable, Resource, Switch,
};

/// One change of the configuration, or of a bucket by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "crate::json::EventFields", into = "crate::json::EventFields")
)]
pub struct AuditEvent {
    /// Time and id of the event.
    pub id: AuditId,
    /// Name of the principal, as given by the caller.
    pub principal: String,
    /// What an operator asked for, in words: `add 500 to tpm of user-1 on gpt-4`; `None` for changes of
    /// the configuration, and for events from before 0.10.
    pub operation: Option<String>,
    /// Idempotency key, if the operator gave one.
    pub key: Option<String>,
    /// The change.
    pub change: AuditChange,
}

/// A change. `before` is `None` for a new value, `after` for a deleted one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(tag = "kind", rename_all = "snake_case")
)]
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
    /// A change of an entity's display name or labels.
    EntityDescription {
        /// Id of the entity.
        id: EntityId,
        /// Display name and labels before the change.
        before: EntityDescription,
        /// Display name and labels after the change.
        after: EntityDescription,
    },
    /// A change of a level's switch.
    Switch {
        /// The level.
        level: ConfigLevel,
        /// Switch before the change.
        before: Option<Switch>,
        /// Switch after the change.
        after: Option<Switch>,
    },
    /// A change of what all limiters decide while DynamoDB is unavailable.
    OnUnavailable {
        /// Stored decision before the change.
        before: Option<OnUnavailable>,
        /// Stored decision after the change.
        after: Option<OnUnavailable>,
    },
    /// A change of a bucket's balances, over all its shards.
    Balances {
        /// Entity of the bucket.
        entity: EntityId,
        /// Resource of the bucket.
        resource: Resource,
        /// Balances of the changed limits as they were read before the change.
        #[cfg_attr(feature = "serde", serde(rename = "before_tokens"))]
        before: BTreeMap<LimitName, MilliTokens>,
        /// Balances after the change, if nothing was taken in between.
        #[cfg_attr(feature = "serde", serde(rename = "after_tokens"))]
        after: BTreeMap<LimitName, MilliTokens>,
    },
    /// An entity was erased, with its earlier events.
    Erased {
        /// Id of the entity.
        id: EntityId,
    },
    /// A purge of the namespace began.
    Purged,
    /// Limits that were written to all shards of a bucket ahead of its next acquire.
    Limits {
        /// Entity of the bucket.
        entity: EntityId,
        /// Resource of the bucket.
        resource: Resource,
        /// Limits of the bucket before the change.
        before: Vec<Limit>,
        /// Limits that were written.
        after: Vec<Limit>,
    },
    /// A pause of a bucket, over all its shards.
    Pause {
        /// Entity of the bucket.
        entity: EntityId,
        /// Resource of the bucket.
        resource: Resource,
        /// End of the pause that was in force; `None` if none was.
        #[cfg_attr(feature = "serde", serde(rename = "before_ms"))]
        before: Option<EpochMillis>,
        /// End of the pause; `None` if the change ended it.
        #[cfg_attr(feature = "serde", serde(rename = "after_ms"))]
        after: Option<EpochMillis>,
    },
    /// A lease that was ended for its holder.
    LeaseEnded {
        /// Entity of the bucket.
        entity: EntityId,
        /// Resource of the bucket.
        resource: Resource,
        /// Id of the lease.
        lease: String,
        /// Amounts that it held.
        #[cfg_attr(feature = "serde", serde(rename = "held_tokens"))]
        held: BTreeMap<LimitName, MilliTokens>,
    },
    /// A change of a bucket's shard count.
    Shards {
        /// Entity of the bucket.
        entity: EntityId,
        /// Resource of the bucket.
        resource: Resource,
        /// Number of shards before the change; 0 if the bucket had no item.
        before: u32,
        /// Number of shards that were requested.
        after: u32,
    },
}

impl AuditChange {
    /// Returns the subject that the change is listed under.
    #[must_use]
    pub fn of(&self) -> AuditSubject {
        match self {
            Self::Config { level, .. } | Self::Switch { level, .. } => level.into(),
            Self::OnUnavailable { .. } | Self::Purged => AuditSubject::System,
            Self::Entity { id: entity, .. }
            | Self::EntityDescription { id: entity, .. }
            | Self::Erased { id: entity }
            | Self::Balances { entity, .. }
            | Self::Limits { entity, .. }
            | Self::Pause { entity, .. }
            | Self::LeaseEnded { entity, .. }
            | Self::Shards { entity, .. } => AuditSubject::Entity(entity.clone()),
        }
    }
}
