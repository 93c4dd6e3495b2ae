//! The configuration: limits at six levels, and the entities they are for.

use std::fmt;

use crate::{ClassName, EntityId, Limit, LimitMode, PlanName, Resource};

/// Version of the table's schema that this code reads and writes.
pub const SCHEMA_VERSION: i64 = 2;

/// Maximum number of limits of one configuration or acquire. A write that changes all of them and
/// takes from them still fits into an expression.
pub const MAX_LIMITS: usize = 20;

/// Maximum number of limits of one bucket. A write that splits, credits
/// or counts all of them still fits into an expression of 4 KB. A bucket keeps every limit that it
/// ever had, so this is one configuration and its replacement.
pub const MAX_BUCKET_LIMITS: usize = 2 * MAX_LIMITS;

/// A configuration that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A limit is configured twice.
    #[error("limit {0:?} is configured twice: configure it once")]
    Twice(String),
    /// The configuration has no limits, so it enforces nothing.
    #[error(
        "a configuration without limits enforces nothing: give it limits, or make it unlimited or disabled"
    )]
    NoLimits,
    /// The configuration has more limits than one write can take from.
    #[error(
        "a configuration may have {MAX_LIMITS} limits at most, those of classes among them, got {0}: use fewer"
    )]
    TooMany(usize),
}

/// The configuration of one level. The first level with a configuration wins entirely: levels are
/// not mixed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "crate::json::ConfigFields")
)]
pub struct Config {
    /// Limits, each name once.
    pub limits: Vec<Limit>,
    /// Whether the limits apply.
    pub status: ConfigStatus,
    /// Whether all its limits are in shadow mode: they deny nothing, and count what they would
    /// deny.
    pub is_shadow: bool,
    /// Class of its entities' callers, here and at parents. It overrides the request's class; `None` leaves
    /// it to the request.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub class: Option<ClassName>,
}

impl Config {
    /// Returns a configuration of these enforced limits.
    #[must_use]
    pub fn of(limits: impl Into<Vec<Limit>>) -> Self {
        Self { limits: limits.into(), ..Self::default() }
    }

    /// Checks the rules that the types of its parts do not.
    ///
    /// # Errors
    /// [`ConfigError`] with the rule that it breaks.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (at, limit) in self.limits.iter().enumerate() {
            if self.limits[..at].iter().any(|earlier| earlier.name() == limit.name()) {
                return Err(ConfigError::Twice(limit.name().to_string()));
            }
        }
        let count = self.limits.iter().flat_map(Limit::pools).count();
        if count > MAX_LIMITS {
            return Err(ConfigError::TooMany(count));
        }
        if self.limits.is_empty() && self.status == ConfigStatus::Enforced {
            return Err(ConfigError::NoLimits);
        }
        Ok(())
    }
}

/// What a change of a configuration names. The rest of the level stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigPatch {
    /// Limits to set, each name once, in place of those with their names: without their mode, classes and
    /// schedule.
    pub limits: Vec<Limit>,
    /// Whether the limits apply.
    pub status: Option<ConfigStatus>,
    /// Whether all its limits are in shadow mode.
    pub is_shadow: Option<bool>,
    /// Class of the callers of its entities.
    pub class: Option<ClassName>,
}

impl ConfigPatch {
    /// Returns whether it names nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.limits.is_empty()
            && self.status.is_none()
            && self.is_shadow.is_none()
            && self.class.is_none()
    }

    /// Returns the configuration after the change, its limits by name. `kept` is the one before.
    #[must_use]
    pub fn onto(&self, kept: Option<&Config>) -> Config {
        let is_named = |limit: &Limit| self.limits.iter().any(|named| named.name() == limit.name());
        let kept_limits = kept.into_iter().flat_map(|config| &config.limits);
        let kept_limits = kept_limits.filter(|limit| !is_named(limit));
        let mut limits: Vec<_> = self.limits.iter().chain(kept_limits).cloned().collect();
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        Config {
            limits,
            status: self.status.or(kept.map(|config| config.status)).unwrap_or_default(),
            is_shadow: self
                .is_shadow
                .unwrap_or_else(|| kept.is_some_and(|config| config.is_shadow)),
            class: self.class.clone().or_else(|| kept.and_then(|config| config.class.clone())),
        }
    }
}

/// A stored value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// Number of changes of the item, deletions included; 0 if there was none.
    pub version: i64,
    /// Value; `None` if it was never set, or deleted.
    pub value: Option<T>,
}

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self { version: 0, value: None }
    }
}

/// Whether limits apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum ConfigStatus {
    /// Limits apply.
    #[default]
    Enforced,
    /// All requests are denied: a switch for emergencies.
    Disabled,
    /// All requests are granted, and nothing is counted.
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
        [Self::Enforced, Self::Shadow, Self::Soft].into_iter().find(|mode| mode.as_str() == word)
    }
}

/// What a configuration is for. The first level that has one wins, in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "crate::json::LevelFields", into = "crate::json::LevelFields")
)]
pub enum ConfigLevel {
    /// One entity on one resource.
    EntityResource(EntityId, Resource),
    /// One entity on every resource without a configuration for this entity.
    Entity(EntityId),
    /// Every entity of a plan, on one resource.
    PlanResource(PlanName, Resource),
    /// Every entity of a plan, on every resource without a configuration for this plan.
    Plan(PlanName),
    /// Every entity on one resource.
    Resource(Resource),
    /// Everything else.
    System,
}

impl ConfigLevel {
    /// Returns the levels of one (entity, resource), the winning one first, for an entity without a
    /// plan.
    #[must_use]
    pub fn of(entity: &EntityId, resource: &Resource) -> [Self; 4] {
        [
            Self::EntityResource(entity.clone(), resource.clone()),
            Self::Entity(entity.clone()),
            Self::Resource(resource.clone()),
            Self::System,
        ]
    }

    /// Returns the levels of one (entity, resource), the winning one first.
    #[must_use]
    pub fn of_entity(entity: &EntityId, plan: Option<&PlanName>, resource: &Resource) -> Vec<Self> {
        let [own, default, of_resource, system] = Self::of(entity, resource);
        let of_plan = plan.map(|plan| Self::of_plan(plan, resource));
        let (own, wider) = ([own, default], [of_resource, system]);
        own.into_iter().chain(of_plan.into_iter().flatten()).chain(wider).collect()
    }

    /// Returns the levels of a plan on a resource, the winning one first.
    #[must_use]
    pub fn of_plan(plan: &PlanName, resource: &Resource) -> [Self; 2] {
        [Self::PlanResource(plan.clone(), resource.clone()), Self::Plan(plan.clone())]
    }

    /// Returns the level of these names: of an entity or else of a plan, on a resource or on all; the system's
    /// without any.
    #[must_use]
    pub fn of_names(
        entity: Option<EntityId>,
        plan: Option<PlanName>,
        resource: Option<Resource>,
    ) -> Self {
        match (entity, plan, resource) {
            (Some(entity), _, Some(resource)) => Self::EntityResource(entity, resource),
            (Some(entity), _, None) => Self::Entity(entity),
            (None, Some(plan), Some(resource)) => Self::PlanResource(plan, resource),
            (None, Some(plan), None) => Self::Plan(plan),
            (None, None, Some(resource)) => Self::Resource(resource),
            (None, None, None) => Self::System,
        }
    }

    /// Returns the entity of the level, if it is the level of one.
    #[must_use]
    pub const fn entity(&self) -> Option<&EntityId> {
        match self {
            Self::EntityResource(entity, _) | Self::Entity(entity) => Some(entity),
            _ => None,
        }
    }

    /// Returns the plan of the level, if it is the level of one.
    #[must_use]
    pub const fn plan(&self) -> Option<&PlanName> {
        match self {
            Self::PlanResource(plan, _) | Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }

    /// Returns whether it is the level of an entity or of a plan, and not of every entity.
    #[must_use]
    pub const fn has_members(&self) -> bool {
        self.entity().is_some() || self.plan().is_some()
    }

    /// Returns the resource of the level, if it is the level of one.
    #[must_use]
    pub const fn resource(&self) -> Option<&Resource> {
        match self {
            Self::EntityResource(_, resource)
            | Self::PlanResource(_, resource)
            | Self::Resource(resource) => Some(resource),
            Self::Entity(_) | Self::Plan(_) | Self::System => None,
        }
    }
}

impl fmt::Display for ConfigLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntityResource(entity, resource) => {
                write!(f, "entity {entity} on resource {resource}")
            }
            Self::Entity(entity) => write!(f, "entity {entity}"),
            Self::PlanResource(plan, resource) => write!(f, "plan {plan} on resource {resource}"),
            Self::Plan(plan) => write!(f, "plan {plan}"),
            Self::Resource(resource) => write!(f, "resource {resource}"),
            Self::System => f.write_str("system"),
        }
    }
}

/// An entity and, optionally, its plan and the parent whose limits apply as well.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct Entity {
    /// Id of the entity.
    pub id: EntityId,
    /// Parent.
    pub parent: Option<EntityId>,
    /// Whether its takes also take from its parent.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cascades: bool,
    /// Plan, whose limits hold where the entity has none of its own.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub plan: Option<PlanName>,
}

impl Entity {
    /// Returns an entity without a parent and a plan.
    #[must_use]
    pub const fn new(id: EntityId) -> Self {
        Self { id, parent: None, cascades: false, plan: None }
    }

    /// Gives it a parent, and says whether its takes also take from it.
    #[must_use]
    pub fn child_of(self, parent: EntityId, cascades: bool) -> Self {
        Self { parent: Some(parent), cascades, ..self }
    }

    /// Gives it a plan.
    #[must_use]
    pub fn on_plan(self, plan: PlanName) -> Self {
        Self { plan: Some(plan), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(count: usize) -> Vec<Limit> {
        (0..count).map(|at| Limit::custom(&format!("l{at}"), 1, 1, 1000).unwrap()).collect()
    }

    #[test]
    fn a_level_is_named_in_full() {
        let (entity, resource) = (EntityId::new("e-1").unwrap(), Resource::new("gpt-4").unwrap());
        let plan = PlanName::new("pro").unwrap();
        let levels = ConfigLevel::of_entity(&entity, Some(&plan), &resource);
        let levels: Vec<_> = levels.iter().map(ConfigLevel::to_string).collect();
        assert_eq!(
            levels,
            [
                "entity e-1 on resource gpt-4",
                "entity e-1",
                "plan pro on resource gpt-4",
                "plan pro",
                "resource gpt-4",
                "system"
            ]
        );
    }

    #[test]
    fn a_patch_sets_what_it_names_and_keeps_the_rest() {
        let rpm = |tokens| Limit::per_minute("rpm", tokens).unwrap();
        let tpm = Limit::per_minute("tpm", 1).unwrap();
        let before = Config {
            status: ConfigStatus::Disabled,
            is_shadow: true,
            ..Config::of([rpm(5), tpm.clone()])
        };
        let patch = ConfigPatch { limits: vec![rpm(6)], ..ConfigPatch::default() };
        let expected = Config { limits: vec![rpm(6), tpm], ..before.clone() };
        assert_eq!(patch.onto(Some(&before)), expected);
        assert_eq!(patch.onto(None), Config::of([rpm(6)]));
        let enforced = ConfigPatch {
            status: Some(ConfigStatus::Enforced),
            is_shadow: Some(false),
            ..ConfigPatch::default()
        };
        let expected = Config::of(before.limits.clone());
        assert_eq!(enforced.onto(Some(&before)), expected);
        assert!(ConfigPatch::default().is_empty() && !patch.is_empty() && !enforced.is_empty());
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
        let disabled = Config { status: ConfigStatus::Disabled, ..Config::default() };
        assert_eq!(disabled.check(), Ok(()));
        assert_eq!(Config { limits: limits(1), ..disabled }.check(), Ok(()));
    }
}
