//! Ending expired leases along with a take.

use crate::attr;
use crate::write::{AttributeUpdate, Condition, Path, Update, Value};
use crate::{EpochMillis, Shard, item};

/// Removes the expired leases, if they were neither renewed nor adjusted since the view.
pub(super) fn reclaim(update: &mut Update, shard: &Shard, now: EpochMillis) {
    for (id, lease) in shard.reclaimable(now) {
        let expiry = Path::lease(id).then(attr::LEASE_EXPIRY);
        update.conditions.push(Condition::Equals(expiry, Value::Int(lease.expires_at.0)));
        // An adjustment changes neither `rf` nor the expiry.
        if !lease.tokens.is_empty() {
            let held = Path::lease(id).then(attr::LEASE_TOKENS);
            update.conditions.push(Condition::Equals(held, item::write_held(lease)));
        }
        update.changes.push(AttributeUpdate::Remove(Path::lease(id)));
    }
}
