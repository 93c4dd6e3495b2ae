//! What a limits file says, by level.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weirgate_shared::{ConfigLevel, EntityId, PlanName};

use super::EffectiveConfig;

/// Configurations of a file, by level, and parents.
#[derive(Debug, Default)]
#[cfg_attr(
    not(feature = "yaml"),
    allow(dead_code, reason = "there is no file without the feature")
)]
pub(crate) struct FileLevels {
    pub(crate) configs: HashMap<ConfigLevel, Arc<EffectiveConfig>>,
    pub(crate) parents: HashMap<EntityId, EntityId>,
    /// Entities with a parent to which they do not cascade.
    pub(crate) apart: HashSet<EntityId>,
    pub(crate) plans: HashMap<EntityId, PlanName>,
}

impl FileLevels {
    /// Returns the configuration of a level.
    pub(crate) fn config(&self, level: &ConfigLevel) -> Option<&Arc<EffectiveConfig>> {
        self.configs.get(level)
    }

    /// Returns the parent of an entity that has one: `Some(None)` if it does not cascade to it.
    pub(crate) fn cascades_to(&self, entity: &EntityId) -> Option<Option<&EntityId>> {
        let parent = self.parents.get(entity)?;
        Some(Some(parent).filter(|_| !self.apart.contains(entity)))
    }

    /// Returns the parent of an entity.
    pub(crate) fn parent(&self, entity: &EntityId) -> Option<&EntityId> {
        self.parents.get(entity)
    }

    /// Returns the plan of an entity.
    pub(crate) fn plan(&self, entity: &EntityId) -> Option<&PlanName> {
        self.plans.get(entity)
    }

    /// Returns whether a level of a plan has a configuration.
    pub(crate) fn has_plan(&self, plan: &PlanName) -> bool {
        self.configs.keys().any(|level| level.plan() == Some(plan))
    }
}
