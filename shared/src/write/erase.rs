//! Erasing an entity: the deletion of its buckets' shards.

use super::{Action, Condition, Path, require_same_leases};
use crate::{BucketKey, Shard, attr};

/// Deletes a shard with exactly the leases of the view. Without a view it was merged away, or could
/// not be read as a shard; then it must hold no leases.
#[must_use]
pub fn erase_shard(key: &BucketKey, seen: Option<&Shard>) -> Action {
    let condition = seen.map_or_else(
        || Condition::Absent(Path::of(attr::LEASES)),
        require_same_leases,
    );
    Action::Delete(key.item_key(), vec![condition])
}
