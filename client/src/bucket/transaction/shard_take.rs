//! What a transaction takes from one shard: planned, and taken.

use std::sync::Arc;

use weirgate_shared::write::{Contention, Take, Update};
use weirgate_shared::{EpochMillis, Lease, Shard, WriteId};

use crate::queue::{HoldPart, ShardState};
use crate::session::Session;
use crate::values::{Amounts, BucketRequest, merge_amounts};

/// What a transaction takes from one shard.
pub(super) struct ShardTake<'a> {
    pub(super) request: &'a BucketRequest,
    pub(super) state: Arc<ShardState>,
    /// Shard as it was viewed; `None` if the transaction creates the bucket.
    pub(super) shard: Option<Arc<Shard>>,
    pub(super) needs: Amounts,
    /// Soft amounts, which the first shard of a bucket takes.
    pub(super) soft: Amounts,
    /// Amounts that bypass the limits, which the first shard counts.
    pub(super) counted: Amounts,
    pub(super) is_first: bool,
    /// Lease id and expiry, the same in all parts of a request.
    pub(super) lease: Option<(WriteId, EpochMillis)>,
}

impl ShardTake<'_> {
    /// Returns the amounts that are taken.
    pub(super) fn all(&self) -> Amounts {
        merge_amounts(&self.needs, &self.soft)
    }

    /// Returns this shard's write in the transaction `op`.
    pub(super) fn update(&self, session: &Session, op: &WriteId, now: EpochMillis) -> Update {
        let owner = self
            .request
            .lease
            .as_ref()
            .map(|(_, owner)| owner.to_string())
            .unwrap_or_default();
        let lease = |(id, expires): &(WriteId, EpochMillis)| {
            (
                id.clone(),
                Lease {
                    expires_at: *expires,
                    tokens: self.all(),
                    owner: owner.clone(),
                },
            )
        };
        let take = Take {
            key: &self.state.key,
            limits: (&self.request.limits).into(),
            amounts: self.needs.clone(),
            soft_amounts: self.soft.clone(),
            counted_amounts: self.counted.clone(),
            // Only the first part counts the acquire.
            acquires: if self.is_first {
                self.request.acquires
            } else {
                0
            },
            leases: self.lease.iter().map(lease).collect(),
            roll: self.state.roll(session, now),
            write_id: op.clone(),
            request_split: false,
            contention: Contention::Alone,
            // The token identifies the transaction, so no unconfirmed ids are needed.
            unconfirmed: &[],
        };
        match self.shard.as_deref() {
            Some(shard) => take.plan(shard, now),
            None => take.create(now),
        }
    }

    /// Returns the part that was taken, and updates the view.
    pub(super) fn taken(self, now: EpochMillis) -> HoldPart {
        let (
            amounts,
            ShardTake {
                state,
                shard,
                request,
                counted,
                lease,
                ..
            },
        ) = (self.all(), self);
        // A transaction does not return the items.
        let mut shard = match shard {
            Some(shard) => {
                state.mark_plan_only();
                shard.projected(&request.limits, now)
            }
            None => {
                let made = Shard::full(state.key.clone(), &request.limits, now);
                state.record_created(&made);
                made
            }
        };
        for (limit, need) in &amounts {
            if let Some(state) = shard.limits.get_mut(limit) {
                state.available -= *need;
            }
        }
        let is_bypass = request.is_bypass();
        HoldPart {
            state,
            amounts: if is_bypass { counted } else { amounts },
            is_bypass,
            shard: Arc::new(shard),
            prefetched_at: None,
            lease,
        }
    }
}
