//! The indexes of the table.

use weirgate_shared::attr;

/// A global secondary index: its keys, with their types (`S` or `N`). All project keys only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// Name.
    pub name: &'static str,
    /// Partition key, a string.
    pub hash: &'static str,
    /// Sort key and its type.
    pub range: (&'static str, &'static str),
}

/// Index of the children of a parent.
pub const CHILDREN: Index = Index { name: "GSI1", hash: attr::GSI1PK, range: (attr::GSI1SK, "S") };
/// Index of the buckets of a resource, and of its configurations.
pub const BY_RESOURCE: Index =
    Index { name: "GSI2", hash: attr::GSI2PK, range: (attr::GSI2SK, "S") };

/// Index of the buckets of an entity; and of the entities of a namespace, and their configurations for
/// a resource.
pub const BY_ENTITY: Index = Index { name: "GSI3", hash: attr::GSI3PK, range: (attr::GSI3SK, "S") };

/// Index of the items that the reconciler must process.
pub(crate) const DUE: Index =
    Index { name: attr::DUE_INDEX, hash: attr::DUE_SHARD, range: (attr::DUE, "N") };

/// Returns the table's indexes.
#[must_use]
pub const fn indexes() -> [Index; 4] {
    [CHILDREN, BY_RESOURCE, BY_ENTITY, DUE]
}
