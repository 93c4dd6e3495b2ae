//! Keys of the configuration: limits, entities, the schema version.

use super::{ItemKey, PARTITIONS, spread};
use crate::{ConfigLevel, EntityId, IdempotencyKey, Namespace, Resource};

/// Stands for every resource in a key. No resource's name begins like this.
const DEFAULT: &str = "_default_";
const CONFIG: &str = "#CONFIG";
/// Prefix of the sort keys of configurations in indexes.
pub const LISTED_CONFIG: &str = "CONFIG#";
const META: &str = "#META";

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
    /// All of the namespace: the system's, those of resources, and those of entities.
    All,
    /// All of one entity: for each resource, and its default.
    Entity(EntityId),
    /// Those on one resource: its own, and those of all entities for it.
    Resource(Resource),
    /// The defaults of all entities.
    Entities,
    /// Those of all resources.
    Resources,
}

impl ConfigKey {
    /// Returns `{ns}/ENTITY#{entity}`, `#CONFIG#{resource}` or `#CONFIG#_default_`;
    /// `{ns}/RESOURCE#{resource}`, `#CONFIG`; `{ns}/SYSTEM#`, `#CONFIG`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        let ns = &self.namespace;
        let (pk, sk) = match &self.level {
            ConfigLevel::EntityResource(entity, resource) => (
                format!("{ns}/ENTITY#{entity}"),
                format!("{CONFIG}#{resource}"),
            ),
            ConfigLevel::Entity(entity) => (
                format!("{ns}/ENTITY#{entity}"),
                format!("{CONFIG}#{DEFAULT}"),
            ),
            ConfigLevel::Resource(resource) => {
                (format!("{ns}/RESOURCE#{resource}"), CONFIG.to_owned())
            }
            ConfigLevel::System => (format!("{ns}/SYSTEM#"), CONFIG.to_owned()),
        };
        ItemKey { pk, sk }
    }

    /// Returns the configuration that an item is; `None` if the keys are not a configuration's.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, rest) = key.pk.split_once('/')?;
        let of = key.sk.strip_prefix(CONFIG)?;
        let level = match (
            rest.strip_prefix("ENTITY#"),
            rest.strip_prefix("RESOURCE#"),
            of.strip_prefix('#'),
        ) {
            (Some(entity), _, Some(DEFAULT)) => ConfigLevel::Entity(EntityId::new(entity).ok()?),
            (Some(entity), _, Some(resource)) => ConfigLevel::EntityResource(
                EntityId::new(entity).ok()?,
                Resource::new(resource).ok()?,
            ),
            (_, Some(resource), None) if of.is_empty() => {
                ConfigLevel::Resource(Resource::new(resource).ok()?)
            }
            _ if rest == "SYSTEM#" && of.is_empty() => ConfigLevel::System,
            _ => return None,
        };
        Some(Self {
            namespace: Namespace::new(namespace).ok()?,
            level,
        })
    }

    /// Returns `GSI2PK` and `GSI2SK`: the configurations of the same kind. The system's has none.
    #[must_use]
    pub fn by_kind(&self) -> Option<(String, String)> {
        let ns = &self.namespace;
        match &self.level {
            ConfigLevel::EntityResource(entity, resource) => Some((
                format!("{ns}/RESOURCE#{resource}"),
                format!("{LISTED_CONFIG}{entity}"),
            )),
            ConfigLevel::Entity(entity) => Some((
                format!("{ns}/RESOURCE#{DEFAULT}"),
                format!("{LISTED_CONFIG}{entity}"),
            )),
            ConfigLevel::Resource(resource) => Some((
                format!("{ns}/SYSTEM#"),
                format!("{LISTED_CONFIG}{resource}"),
            )),
            ConfigLevel::System => None,
        }
    }

    /// Returns `GSI3PK` and `GSI3SK` of an entity's configuration for one resource: those of the
    /// namespace, in one of [`entity_partitions`]. The other levels are listed by their kind.
    #[must_use]
    pub fn by_namespace(&self) -> Option<(String, String)> {
        let ConfigLevel::EntityResource(entity, resource) = &self.level else {
            return None;
        };
        Some((
            entity_partition(&self.namespace, spread(entity.as_str())),
            format!("{LISTED_CONFIG}{entity}#{resource}"),
        ))
    }
}

impl ConfigFilter {
    /// Returns their partition and the prefix of their sort keys; in `GSI2`, except for those of
    /// one entity. All together are in no one partition.
    #[must_use]
    pub fn partition(&self, namespace: &Namespace) -> Option<(String, &'static str)> {
        match self {
            Self::All => None,
            Self::Entity(entity) => Some((format!("{namespace}/ENTITY#{entity}"), "#CONFIG#")),
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
        ItemKey {
            pk: format!("{}/ENTITY#{}", self.namespace, self.entity),
            sk: META.to_owned(),
        }
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

fn entity_partition(namespace: &Namespace, partition: u32) -> String {
    format!("{namespace}/ENTITIES#{partition:02}")
}

/// Returns the partitions of `GSI3` with the entities of a namespace: `{ns}/ENTITIES#00` to `#15`.
pub fn entity_partitions(namespace: &Namespace) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |partition| entity_partition(namespace, partition))
}

/// Prefix of the sort keys of a namespace's entities in `GSI3`.
pub const LISTED_ENTITY: &str = "ENTITY#";
/// Partition of `GSI3` with all namespaces.
pub const NAMESPACES: &str = "NAMESPACES";
/// Prefix of the sort keys of all namespaces in `GSI3`.
pub const LISTED_NAMESPACE: &str = "NAMESPACE#";

/// Returns `{ns}/SYSTEM#`, `#VERSION`: the item with the schema version of a namespace.
#[must_use]
pub fn schema_key(namespace: &Namespace) -> ItemKey {
    ItemKey {
        pk: format!("{namespace}/SYSTEM#"),
        sk: "#VERSION".to_owned(),
    }
}

/// Returns `{ns}/SYSTEM#`, `#SWITCHES`: the item with the switches of a namespace.
#[must_use]
pub fn switches_key(namespace: &Namespace) -> ItemKey {
    ItemKey {
        pk: format!("{namespace}/SYSTEM#"),
        sk: "#SWITCHES".to_owned(),
    }
}

/// Returns `{ns}/SYSTEM#`, `#KEY#{key}`: the item that remembers a change made under an idempotency
/// key.
#[must_use]
pub fn operation_key(namespace: &Namespace, key: &IdempotencyKey) -> ItemKey {
    ItemKey {
        pk: format!("{namespace}/SYSTEM#"),
        sk: format!("#KEY#{key}"),
    }
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
