//! What is configured: limits at four levels, and the entities they are for (design, section 9).

use std::fmt;

use crate::{EntityId, Limit, Resource};

/// What is configured at one level. The first level that has a configuration wins, all of it: levels are not mixed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The limits, each name once.
    pub limits: Vec<Limit>,
    /// Whether they are asked at all.
    pub status: Status,
    /// All its limits deny nobody, and count whom they would deny.
    pub is_shadow: bool,
}

/// Whether limits are asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// They are.
    #[default]
    Enforced,
    /// Nobody gets anything: a switch for emergencies.
    Disabled,
    /// Everybody gets everything, and nothing is counted.
    Unlimited,
}

/// Whom or what a configuration is for; the first of these that has one wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One entity on one resource.
    EntityResource(EntityId, Resource),
    /// One entity on every resource that has none of its own.
    Entity(EntityId),
    /// Every entity on one resource.
    Resource(Resource),
    /// Everything else.
    System,
}

impl Level {
    /// The levels of one (entity, resource), the one that wins first.
    #[must_use]
    pub fn of(entity: &EntityId, resource: &Resource) -> [Self; 4] {
        [
            Self::EntityResource(entity.clone(), resource.clone()),
            Self::Entity(entity.clone()),
            Self::Resource(resource.clone()),
            Self::System,
        ]
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntityResource(entity, resource) => write!(f, "entity {entity} on resource {resource}"),
            Self::Entity(entity) => write!(f, "entity {entity}"),
            Self::Resource(resource) => write!(f, "resource {resource}"),
            Self::System => f.write_str("system"),
        }
    }
}

/// Who is limited, and by whom beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// Its name.
    pub id: EntityId,
    /// What it is a part of.
    pub parent: Option<EntityId>,
    /// Whether what it takes is taken of its parent too.
    pub cascades: bool,
}
