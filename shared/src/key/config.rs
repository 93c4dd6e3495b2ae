//! Keys of the configuration: limits, entities, the schema version.

use super::{ItemKey, PARTITIONS, spread};
use crate::{ConfigLevel, EntityId, IdempotencyKey, Namespace, PlanName, Resource};

/// Stands for every resource in a key. No resource's name begins like this.
const DEFAULT: &str = "_default_";
const CONFIG: &str = "#CONFIG";
/// Prefix of the sort keys of configurations in indexes.
pub const LISTED_CONFIG: &str = "CONFIG#";
const META: &str = "#META";
/// Sort key of the item that counts for a plan.
const PLAN_COUNT: &str = "#ENTITIES";

/// The configuration of one level.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// Level of the configuration.
    pub level: ConfigLevel,
}

/// Configurations to list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigFilter {
    /// All of the namespace: the system's, those of resources, of entities, and of plans.
    All,
    /// All of one entity: for each resource, and its default.
    Entity(EntityId),
    /// All of one plan: for each resource, and its default.
    Plan(PlanName),
    /// Those on one resource: its own, and those of all entities and plans for it.
    Resource(Resource),
    /// The defaults of all entities.
    Entities,
    /// All of all plans.
    Plans,
    /// Those of all resources.
    Resources,
}

impl ConfigKey {
    /// Returns `{ns}/ENTITY#{entity}` or `{ns}/PLAN#{plan}`, `#CONFIG#{resource}` or
    /// `#CONFIG#_default_`; `{ns}/RESOURCE#{resource}`, `#CONFIG`; `{ns}/SYSTEM#`, `#CONFIG`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        let ns = &self.namespace;
        let of = match &self.level {
            ConfigLevel::EntityResource(entity, _) | ConfigLevel::Entity(entity) => {
                format!("ENTITY#{entity}")
            }
            ConfigLevel::PlanResource(plan, _) | ConfigLevel::Plan(plan) => format!("PLAN#{plan}"),
            ConfigLevel::Resource(resource) => format!("RESOURCE#{resource}"),
            ConfigLevel::System => "SYSTEM#".to_owned(),
        };
        let sk = match &self.level {
            ConfigLevel::EntityResource(_, resource) | ConfigLevel::PlanResource(_, resource) => {
                format!("{CONFIG}#{resource}")
            }
            ConfigLevel::Entity(_) | ConfigLevel::Plan(_) => format!("{CONFIG}#{DEFAULT}"),
            ConfigLevel::Resource(_) | ConfigLevel::System => CONFIG.to_owned(),
        };
        ItemKey { pk: format!("{ns}/{of}"), sk }
    }

    /// Returns the configuration that an item is; `None` if the keys are not a configuration's.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, rest) = key.pk.split_once('/')?;
        let of = key.sk.strip_prefix(CONFIG)?;
        let of = match of.strip_prefix('#') {
            None if !of.is_empty() => return None,
            of => of,
        };
        let level = match (rest.split_once('#')?, of) {
            (("ENTITY", entity), Some(of)) => {
                let entity = EntityId::new(entity).ok()?;
                match of {
                    DEFAULT => ConfigLevel::Entity(entity),
                    of => ConfigLevel::EntityResource(entity, Resource::new(of).ok()?),
                }
            }
            (("PLAN", plan), Some(of)) => {
                let plan = PlanName::new(plan).ok()?;
                match of {
                    DEFAULT => ConfigLevel::Plan(plan),
                    of => ConfigLevel::PlanResource(plan, Resource::new(of).ok()?),
                }
            }
            (("RESOURCE", resource), None) => ConfigLevel::Resource(Resource::new(resource).ok()?),
            (("SYSTEM", ""), None) => ConfigLevel::System,
            _ => return None,
        };
        Some(Self { namespace: Namespace::new(namespace).ok()?, level })
    }

    /// Returns `GSI2PK` and `GSI2SK`: the configurations of the same kind. The system's has none, nor
    /// has the default of a plan.
    #[must_use]
    pub fn by_kind(&self) -> Option<(String, String)> {
        let ns = &self.namespace;
        match &self.level {
            ConfigLevel::EntityResource(entity, resource) => {
                Some((format!("{ns}/RESOURCE#{resource}"), format!("{LISTED_CONFIG}{entity}")))
            }
            ConfigLevel::PlanResource(plan, resource) => {
                Some((format!("{ns}/RESOURCE#{resource}"), format!("{LISTED_CONFIG}{plan}")))
            }
            ConfigLevel::Entity(entity) => {
                Some((format!("{ns}/RESOURCE#{DEFAULT}"), format!("{LISTED_CONFIG}{entity}")))
            }
            ConfigLevel::Resource(resource) => {
                Some((format!("{ns}/SYSTEM#"), format!("{LISTED_CONFIG}{resource}")))
            }
            ConfigLevel::Plan(_) | ConfigLevel::System => None,
        }
    }

    /// Returns `GSI3PK` and `GSI3SK` of an entity's configuration for one resource, and of a plan's
    /// configurations: those of the namespace, in one of [`config_partitions`]. The other levels are
    /// listed by their kind.
    #[must_use]
    pub fn by_namespace(&self) -> Option<(String, String)> {
        let ns = &self.namespace;
        match &self.level {
            ConfigLevel::EntityResource(entity, resource) => Some((
                entity_partition(ns, spread(entity.as_str())),
                format!("{LISTED_CONFIG}{entity}#{resource}"),
            )),
            ConfigLevel::PlanResource(plan, resource) => {
                Some((plans_partition(ns), format!("{LISTED_CONFIG}{plan}#{resource}")))
            }
            ConfigLevel::Plan(plan) => {
                Some((plans_partition(ns), format!("{LISTED_CONFIG}{plan}#{DEFAULT}")))
            }
            ConfigLevel::Entity(_) | ConfigLevel::Resource(_) | ConfigLevel::System => None,
        }
    }
}

fn plans_partition(namespace: &Namespace) -> String {
    format!("{namespace}/PLANS#")
}

/// Returns the partitions of `GSI3` with the configurations of a namespace that are in no list of their
/// kind: `{ns}/PLANS#`, and [`entity_partitions`].
pub fn config_partitions(namespace: &Namespace) -> impl Iterator<Item = String> {
    std::iter::once(plans_partition(namespace)).chain(entity_partitions(namespace))
}

impl ConfigFilter {
    /// Returns their partition and the prefix of their sort keys: of the table for those of one entity
    /// or plan, of `GSI3` for those of all plans, or else of `GSI2`. All together are in no one
    /// partition.
    #[must_use]
    pub fn partition(&self, namespace: &Namespace) -> Option<(String, &'static str)> {
        match self {
            Self::All => None,
            Self::Entity(entity) => Some((format!("{namespace}/ENTITY#{entity}"), "#CONFIG#")),
            Self::Plan(plan) => Some((format!("{namespace}/PLAN#{plan}"), "#CONFIG#")),
            Self::Plans => Some((plans_partition(namespace), LISTED_CONFIG)),
            Self::Resource(resource) => {
                Some((format!("{namespace}/RESOURCE#{resource}"), LISTED_CONFIG))
            }
            Self::Entities => Some((format!("{namespace}/RESOURCE#{DEFAULT}"), LISTED_CONFIG)),
            Self::Resources => Some((format!("{namespace}/SYSTEM#"), LISTED_CONFIG)),
        }
    }
}

/// The key of an entity's item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// The entity.
    pub entity: EntityId,
}

impl EntityKey {
    /// Returns `{ns}/ENTITY#{entity}`, `#META`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        ItemKey { pk: format!("{}/ENTITY#{}", self.namespace, self.entity), sk: META.to_owned() }
    }

    /// Returns the entity that an item is; `None` if the keys are not an entity's.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, entity) = key.pk.split_once("/ENTITY#").filter(|_| key.sk == META)?;
        Some(Self {
            namespace: Namespace::new(namespace).ok()?,
            entity: EntityId::new(entity).ok()?,
        })
    }

    /// Returns `GSI3PK` and `GSI3SK`: the entities of the namespace, in one of
    /// [`entity_partitions`].
    #[must_use]
    pub fn by_namespace(&self) -> (String, String) {
        let Self { namespace, entity } = self;
        let partition = entity_partition(namespace, spread(entity.as_str()));
        (partition, format!("{LISTED_ENTITY}{entity}"))
    }

    /// Returns `GSI2PK` and `GSI2SK`: the entities of the plan that it has, in one of
    /// [`plan_partitions`].
    #[must_use]
    pub fn by_plan(&self, plan: &PlanName) -> (String, String) {
        let Self { namespace, entity } = self;
        let partition = plan_partition(namespace, plan, spread(entity.as_str()));
        (partition, format!("{LISTED_ENTITY}{entity}"))
    }

    /// Returns `GSI1PK`: the children of the entity.
    #[must_use]
    pub fn children(&self) -> String {
        format!("{}/PARENT#{}", self.namespace, self.entity)
    }

    /// Returns `GSI1SK`: the entity among its parent's children.
    #[must_use]
    pub fn child(&self) -> String {
        format!("CHILD#{}", self.entity)
    }
}

fn plan_partition(namespace: &Namespace, plan: &PlanName, partition: u32) -> String {
    format!("{namespace}/PLAN#{plan}#{partition:02}")
}

/// Returns the partitions of `GSI2` with the entities of a plan: `{ns}/PLAN#{plan}#00` to `#15`.
pub fn plan_partitions(namespace: &Namespace, plan: &PlanName) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |partition| plan_partition(namespace, plan, partition))
}

/// The key of the item that counts the entities and the levels of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// The plan.
    pub plan: PlanName,
}

impl PlanKey {
    /// Returns `{ns}/PLAN#{plan}`, `#ENTITIES`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        ItemKey { pk: format!("{}/PLAN#{}", self.namespace, self.plan), sk: PLAN_COUNT.to_owned() }
    }

    /// Returns the plan that an item counts for; `None` if the keys are not those of such an item.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, plan) = key.pk.split_once("/PLAN#")?;
        (key.sk == PLAN_COUNT).then_some(())?;
        Some(Self { namespace: Namespace::new(namespace).ok()?, plan: PlanName::new(plan).ok()? })
    }

    /// Returns `GSI3PK` and `GSI3SK`: the plans of the namespace.
    #[must_use]
    pub fn by_namespace(&self) -> (String, String) {
        let (partition, prefix) = Self::list(&self.namespace);
        (partition, format!("{prefix}{}", self.plan))
    }

    /// Returns the partition of `GSI3` with the plans of a namespace, and the prefix of their sort keys.
    #[must_use]
    pub fn list(namespace: &Namespace) -> (String, &'static str) {
        (plans_partition(namespace), LISTED_PLAN)
    }
}

fn entity_partition(namespace: &Namespace, partition: u32) -> String {
    format!("{namespace}/ENTITIES#{partition:02}")
}

/// Returns the partitions of `GSI3` with the entities of a namespace: `{ns}/ENTITIES#00` to `#15`.
pub fn entity_partitions(namespace: &Namespace) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |partition| entity_partition(namespace, partition))
}

/// Prefix of the sort keys of a namespace's plans in `GSI3`.
const LISTED_PLAN: &str = "PLAN#";
/// Prefix of the sort keys of a namespace's entities in `GSI3`, and of a plan's in `GSI2`.
pub const LISTED_ENTITY: &str = "ENTITY#";
/// Partition of `GSI3` with all namespaces.
pub const NAMESPACES: &str = "NAMESPACES";
/// Prefix of the sort keys of all namespaces in `GSI3`.
pub const LISTED_NAMESPACE: &str = "NAMESPACE#";

/// Returns `{ns}/SYSTEM#`, `#VERSION`: the item with the schema version of a namespace.
#[must_use]
pub fn schema_key(namespace: &Namespace) -> ItemKey {
    ItemKey { pk: format!("{namespace}/SYSTEM#"), sk: "#VERSION".to_owned() }
}

/// Returns `FUNCTIONS`, `#VERSION`: the item of the table that says what the deployed functions know.
#[must_use]
pub fn functions_key() -> ItemKey {
    ItemKey { pk: "FUNCTIONS".to_owned(), sk: "#VERSION".to_owned() }
}

/// Returns `{ns}/SYSTEM#`, `#SWITCHES`: the item with the switches of a namespace.
#[must_use]
pub fn switches_key(namespace: &Namespace) -> ItemKey {
    ItemKey { pk: format!("{namespace}/SYSTEM#"), sk: "#SWITCHES".to_owned() }
}

/// Returns `{ns}/SYSTEM#`, `#KEY#{key}`: the item that remembers a change made under an idempotency
/// key.
#[must_use]
pub fn operation_key(namespace: &Namespace, key: &IdempotencyKey) -> ItemKey {
    ItemKey { pk: format!("{namespace}/SYSTEM#"), sk: format!("#KEY#{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_finds_its_children_in_its_own_namespace() {
        let key = EntityKey {
            namespace: Namespace::new("ns").unwrap(),
            entity: EntityId::new("e-1").unwrap(),
        };
        assert_eq!(
            (key.children(), key.child()),
            ("ns/PARENT#e-1".to_owned(), "CHILD#e-1".to_owned())
        );
    }
}
