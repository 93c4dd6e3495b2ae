//! Switches by which an operator stops levels of the configuration, or exempts them.

use std::collections::BTreeMap;
use std::fmt;

use crate::{ConfigLevel, EntityId, ItemError, OnUnavailable, PlanName, Resource, attr};

/// Maximum number of switches of a namespace, 200, besides the system's, which always has room.
/// Every process reads all of them, in one item.
pub const MAX_SWITCHES: usize = 200;

/// What an operator has set for a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Switch {
    /// Every acquire of the level is disabled, except where a narrower level is exempt.
    Stopped,
    /// The level is not disabled by a wider level that is stopped.
    Exempt,
}

impl Switch {
    pub(crate) const WORDS: &str = "stopped or exempt";

    /// The word for it in items.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Exempt => "exempt",
        }
    }

    /// What the word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Stopped, Self::Exempt].into_iter().find(|switch| switch.as_str() == word)
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The switches of a namespace: one item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switches {
    /// Number of changes of the item; 0 if there was none.
    pub version: i64,
    /// Switches by level. A level without one is as the next wider level.
    pub levels: BTreeMap<ConfigLevel, Switch>,
    /// Decision while DynamoDB is unavailable, in place of each limiter's own.
    pub on_unavailable: Option<OnUnavailable>,
    /// Parts of the item that cannot be read, with the level of a switch that names one. Such a
    /// level counts as stopped, because a stop must not end by a mistake.
    pub unreadable: Vec<(Option<ConfigLevel>, ItemError)>,
}

impl Switches {
    /// Returns whether the switch of a level cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, level: &ConfigLevel) -> bool {
        let mut levels = self.unreadable.iter().map(|(of, _)| of);
        levels.any(|of| of.as_ref() == Some(level))
    }

    /// Returns what is wrong with the decision while DynamoDB is unavailable, if it cannot be read.
    #[must_use]
    pub fn unreadable_policy(&self) -> Option<&ItemError> {
        let mut errors = self.unreadable.iter().map(|(_, error)| error);
        errors.find(|error| error.attribute == attr::ON_UNAVAILABLE)
    }

    /// Sets the switch of a level, or removes it. One that cannot be read is replaced.
    pub fn set(&mut self, level: &ConfigLevel, next: Option<Switch>) {
        self.unreadable.retain(|(of, _)| of.as_ref() != Some(level));
        match next {
            Some(next) => drop(self.levels.insert(level.clone(), next)),
            None => drop(self.levels.remove(level)),
        }
    }

    /// Sets the decision while DynamoDB is unavailable. One that cannot be read is replaced.
    pub fn set_policy(&mut self, next: Option<OnUnavailable>) {
        let is_policy = |error: &ItemError| error.attribute == attr::ON_UNAVAILABLE;
        self.unreadable.retain(|(_, error)| !is_policy(error));
        self.on_unavailable = next;
    }

    /// Returns the level by which an entity is stopped on a resource: the narrowest that has a
    /// switch decides.
    #[must_use]
    pub fn stopping(
        &self,
        entity: &EntityId,
        plan: Option<&PlanName>,
        resource: &Resource,
    ) -> Option<ConfigLevel> {
        if self.levels.is_empty() {
            return None;
        }
        let mut levels = ConfigLevel::of_entity(entity, plan, resource).into_iter();
        let deciding = levels.find(|level| self.levels.contains_key(level));
        deciding.filter(|level| self.levels[level] == Switch::Stopped)
    }

    /// Returns whether everything is stopped: the system is, and no level is exempt.
    #[must_use]
    pub fn stop_all(&self) -> bool {
        self.levels.get(&ConfigLevel::System) == Some(&Switch::Stopped)
            && !self.levels.values().any(|switch| *switch == Switch::Exempt)
    }

    /// Returns whether an entity or a plan is stopped, on all resources or on one.
    #[must_use]
    pub fn stop_entities(&self) -> bool {
        let mut levels = self.levels.iter();
        levels.any(|(level, switch)| level.has_members() && *switch == Switch::Stopped)
    }

    /// Returns whether a plan is exempt.
    #[must_use]
    pub fn exempt_plans(&self) -> bool {
        let mut levels = self.levels.iter();
        levels.any(|(level, switch)| level.plan().is_some() && *switch == Switch::Exempt)
    }
}

/// Returns the name of a level in the item: `system`, `resource#{resource}`, `entity#{entity}`,
/// `entity#{entity}#{resource}`, `plan#{plan}` or `plan#{plan}#{resource}`.
#[must_use]
pub fn level_name(level: &ConfigLevel) -> String {
    match level {
        ConfigLevel::System => "system".to_owned(),
        ConfigLevel::Resource(resource) => format!("resource#{resource}"),
        ConfigLevel::Plan(plan) => format!("plan#{plan}"),
        ConfigLevel::PlanResource(plan, resource) => format!("plan#{plan}#{resource}"),
        ConfigLevel::Entity(entity) => format!("entity#{entity}"),
        ConfigLevel::EntityResource(entity, resource) => format!("entity#{entity}#{resource}"),
    }
}

/// Returns the level with this [name](level_name).
#[must_use]
pub fn parse_level(name: &str) -> Option<ConfigLevel> {
    let mut parts = name.split('#');
    let level = match (parts.next()?, parts.next(), parts.next()) {
        ("system", None, None) => ConfigLevel::System,
        ("resource", Some(resource), None) => ConfigLevel::Resource(Resource::new(resource).ok()?),
        ("plan", Some(plan), None) => ConfigLevel::Plan(PlanName::new(plan).ok()?),
        ("plan", Some(plan), Some(resource)) => {
            ConfigLevel::PlanResource(PlanName::new(plan).ok()?, Resource::new(resource).ok()?)
        }
        ("entity", Some(entity), None) => ConfigLevel::Entity(EntityId::new(entity).ok()?),
        ("entity", Some(entity), Some(resource)) => {
            ConfigLevel::EntityResource(EntityId::new(entity).ok()?, Resource::new(resource).ok()?)
        }
        _ => return None,
    };
    parts.next().is_none().then_some(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> [ConfigLevel; 6] {
        let entity = EntityId::new("system:1@x").unwrap();
        let plan = PlanName::new("pro").unwrap();
        let resource = Resource::new("api/search").unwrap();
        let levels = ConfigLevel::of_entity(&entity, Some(&plan), &resource);
        levels.try_into().unwrap()
    }

    #[test]
    fn a_level_has_one_name() {
        for level in levels() {
            assert_eq!(parse_level(&level_name(&level)), Some(level));
        }
        for other in [
            "",
            "entity",
            "entity#",
            "entity#e#r#x",
            "plan#a:b",
            "plan#p#r#x",
            "resource#1",
            "system#",
        ] {
            assert_eq!(parse_level(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_narrowest_switch_decides() {
        let [own, entity, of_plan, plan, resource, system] = levels();
        let (ConfigLevel::EntityResource(id, of), Some(name)) = (&own, plan.plan()) else {
            unreachable!("the narrowest level");
        };
        let (stopped, exempt) = (Switch::Stopped, Switch::Exempt);
        type Set<'a> = &'a [(&'a ConfigLevel, Switch)];
        let cases: [(Set<'_>, Option<&ConfigLevel>); 9] = [
            (&[], None),
            (&[(&system, stopped)], Some(&system)),
            (&[(&system, stopped), (&resource, exempt)], None),
            (&[(&resource, stopped), (&entity, exempt)], None),
            (&[(&entity, exempt), (&own, stopped)], Some(&own)),
            (&[(&resource, exempt), (&entity, stopped)], Some(&entity)),
            (&[(&resource, exempt), (&plan, stopped)], Some(&plan)),
            (&[(&plan, stopped), (&of_plan, exempt)], None),
            (&[(&of_plan, stopped), (&entity, exempt)], None),
        ];
        for (set, expected) in cases {
            let levels = set.iter().map(|(level, switch)| ((*level).clone(), *switch));
            let switches = Switches { version: 1, levels: levels.collect(), ..Switches::default() };
            let stopping = switches.stopping(id, Some(name), of);
            assert_eq!(stopping.as_ref(), expected, "{set:?}");
            assert_eq!(switches.stop_all(), expected == Some(&system), "{set:?}");
            let other = EntityId::new("other").unwrap();
            let others = switches.stopping(&other, None, of);
            assert!(others.is_none_or(|level| level == system || level == resource));
        }
    }
}
