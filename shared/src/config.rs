//! What is configured: limits at four levels, and the entities they are for.

use std::fmt;

use crate::{EntityId, Limit, LimitMode, Resource};

/// Version of the table's schema that this code reads and writes.
pub const SCHEMA_VERSION: i64 = 2;

/// The most limits of one configuration, or given with a call: a write that changes and takes all
/// of them still fits into an expression.
pub const MAX_LIMITS: usize = 20;

/// The most limits of one bucket, the hidden `wcu` not counted: a write that splits, credits or
/// counts all of them still fits into an expression, of 4 KB. A bucket keeps every limit that it
/// was ever given, so this is one configuration and another in its place.
pub const MAX_BUCKET_LIMITS: usize = 2 * MAX_LIMITS;

/// A configuration that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A limit's name stands for one limit.
    #[error("limit {0:?} is configured twice: configure it once")]
    Twice(String),
    /// It enforces nothing.
    #[error(
        "a configuration without limits enforces nothing: give it limits, or make it unlimited or disabled"
    )]
    NoLimits,
    /// It has more limits than one write can take of.
    #[error("a configuration of {0} limits, it takes {MAX_LIMITS} at most: use fewer")]
    TooMany(usize),
}

/// What is configured at one level. The first level that has a configuration wins, all of it:
/// levels are not mixed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The limits, each name once.
    pub limits: Vec<Limit>,
    /// Whether they are asked at all.
    pub status: ConfigStatus,
    /// All its limits deny nobody, and count whom they would deny.
    pub is_shadow: bool,
}

impl Config {
    /// These limits, enforced.
    #[must_use]
    pub fn of(limits: impl Into<Vec<Limit>>) -> Self {
        Self {
            limits: limits.into(),
            ..Self::default()
        }
    }

    /// Checks what the types of its parts do not.
    ///
    /// # Errors
    /// [`ConfigError`] with the rule that it breaks.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (at, limit) in self.limits.iter().enumerate() {
            if self.limits[..at]
                .iter()
                .any(|earlier| earlier.name() == limit.name())
            {
                return Err(ConfigError::Twice(limit.name().to_string()));
            }
        }
        if self.limits.len() > MAX_LIMITS {
            return Err(ConfigError::TooMany(self.limits.len()));
        }
        if self.limits.is_empty() && self.status == ConfigStatus::Enforced {
            return Err(ConfigError::NoLimits);
        }
        Ok(())
    }
}

/// What an item holds, and how often it was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// Counts the changes of the item, deletions among them; 0 if there never was one.
    pub version: i64,
    /// Nothing, if there never was anything or it was deleted.
    pub value: Option<T>,
}

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self {
            version: 0,
            value: None,
        }
    }
}

/// Whether limits are asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ConfigStatus {
    /// They are.
    #[default]
    Enforced,
    /// Nobody gets anything: a switch for emergencies.
    Disabled,
    /// Everybody gets everything, and nothing is counted.
    Unlimited,
}

impl ConfigStatus {
    pub(crate) const WORDS: &str = "enforced, disabled or unlimited";

    /// The word for it in items.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Disabled => "disabled",
            Self::Unlimited => "unlimited",
        }
    }

    /// What the word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Enforced, Self::Disabled, Self::Unlimited]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

impl LimitMode {
    pub(crate) const WORDS: &str = "enforced, shadow or soft";

    /// The word for it in items.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Shadow => "shadow",
            Self::Soft => "soft",
        }
    }

    /// What the word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Enforced, Self::Shadow, Self::Soft]
            .into_iter()
            .find(|mode| mode.as_str() == word)
    }
}

/// Whom or what a configuration is for; the first of these that has one wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigLevel {
    /// One entity on one resource.
    EntityResource(EntityId, Resource),
    /// One entity on every resource that has none of its own.
    Entity(EntityId),
    /// Every entity on one resource.
    Resource(Resource),
    /// Everything else.
    System,
}

impl ConfigLevel {
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

impl fmt::Display for ConfigLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntityResource(entity, resource) => {
                write!(f, "entity {entity} on resource {resource}")
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(count: usize) -> Vec<Limit> {
        (0..count)
            .map(|at| Limit::custom(&format!("l{at}"), 1, 1, 1000).unwrap())
            .collect()
    }

    #[test]
    fn a_level_is_named_in_full() {
        let (entity, resource) = (
            EntityId::new("e-1").unwrap(),
            Resource::new("gpt-4").unwrap(),
        );
        let levels = ConfigLevel::of(&entity, &resource).map(|level| level.to_string());
        assert_eq!(
            levels,
            [
                "entity e-1 on resource gpt-4",
                "entity e-1",
                "resource gpt-4",
                "system"
            ]
        );
    }

    #[test]
    fn a_configuration_has_one_limit_or_more_and_each_once() {
        assert_eq!(Config::of(limits(2)).check(), Ok(()));
        assert_eq!(Config::of(limits(MAX_LIMITS)).check(), Ok(()));
        assert_eq!(
            Config::of(limits(MAX_LIMITS + 1)).check(),
            Err(ConfigError::TooMany(MAX_LIMITS + 1))
        );
        assert_eq!(
            Config::of([limits(1), limits(1)].concat()).check(),
            Err(ConfigError::Twice("l0".to_owned()))
        );
        assert_eq!(Config::of(limits(0)).check(), Err(ConfigError::NoLimits));
        let disabled = Config {
            status: ConfigStatus::Disabled,
            ..Config::default()
        };
        assert_eq!(disabled.check(), Ok(()));
        assert_eq!(
            Config {
                limits: limits(1),
                ..disabled
            }
            .check(),
            Ok(())
        );
    }
}
