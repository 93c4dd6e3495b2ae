//! What an erasure may delete, and what it has deleted.

use weirgate_shared::Resource;

/// What an erasure does with leases that have not expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveLeases {
    /// Refuses the erasure, with an error that names the buckets.
    Refuse,
    /// Deletes them. Their holders find them gone; until they stop, more slots can be in use than
    /// the limit allows.
    Discard,
}

/// What one call of [`crate::Admin::erase_entity`] deleted, and what it left. A call that continues
/// an interrupted one counts only what it deleted itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EraseReport {
    /// Number of configurations deleted.
    pub configs: usize,
    /// Whether the entity's own item was deleted.
    pub entity: bool,
    /// Number of children that lost their link to the entity.
    pub children: usize,
    /// Number of shards deleted, including those that were merged away.
    pub shards: usize,
    /// Number of usage snapshots deleted.
    pub snapshots: usize,
    /// Number of audit events deleted.
    pub audit_events: usize,
    /// Number of configurations of which the version remains: an item without limits, because
    /// versions must never fall.
    pub versions_left: usize,
    /// Resources whose buckets callers created again during the erasure. Stop the callers, and call
    /// again.
    pub in_use: Vec<Resource>,
}
