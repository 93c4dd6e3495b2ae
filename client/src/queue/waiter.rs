//! Requests in line at a shard, and the replies to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{Asks, EpochMillis, Lease, Shard, WriteId};
use weirgate_store::StoreError;

use super::part::Portion;
use crate::values::{Amounts, BucketRequest, Denied, Error, Outcome, shortage};

/// Reason to try other shards, which is no denial.
#[derive(Debug, Clone)]
pub(crate) enum Reason {
    /// The shard has no item.
    ShardMissing,
    /// This shard has too few tokens; others may have enough.
    Insufficient,
    /// DynamoDB throttles the shard's partition.
    Throttled(Arc<StoreError>),
    /// The bucket has several shards, which the router did not expect: waiters spread over all of
    /// them.
    BucketWasSplit,
}

/// Reply of a machine to one waiter.
pub(crate) type Reply = Result<Outcome<Portion, Reason>, Error>;

/// A request in line.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    /// Its number in the order of arrival, which the machine gives.
    pub(super) id: u64,
    pub(super) request: BucketRequest,
    /// The amounts with what the batch has room for, if any asks for more than its least.
    pub(super) raised: Option<Asks>,
    pub(super) enqueued_at: Instant,
    pub(super) deadline: Instant,
    /// Whether no caller waits for the reply any more.
    pub(super) is_gone: bool,
}

impl Waiter {
    pub(crate) const fn new(
        request: BucketRequest,
        enqueued_at: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            id: 0,
            request,
            raised: None,
            enqueued_at,
            deadline,
            is_gone: false,
        }
    }

    /// Returns whether a caller waits for the reply, and has time left.
    pub(super) fn has_time(&self, now: Instant) -> bool {
        now < self.deadline && !self.is_gone
    }

    /// Returns a new lease for the request, if it wants one.
    pub(super) fn new_lease(&self, now: EpochMillis) -> Option<(WriteId, Lease)> {
        let (lasts, owner) = self.request.lease.as_ref()?;
        // A request that queues holds the lease from its start on.
        let start = self.request.start_by(now).unwrap_or(now);
        let expires = start.plus((*lasts).into());
        let lease = Lease {
            expires_at: expires,
            tokens: self.amounts(),
            windows: BTreeMap::new(),
            owner: owner.to_string(),
        };
        Some((weirgate_store::random_id(), lease))
    }

    /// Returns the denial by a shard that is short at `now`; `None` if it is not.
    pub(super) fn shortage(&self, shard: &Shard, now: EpochMillis) -> Option<Denied> {
        shortage(shard, &self.request, self.request.start_by(now), now)
    }

    /// Returns whether the request queues.
    pub(super) const fn queues(&self) -> bool {
        self.request.start_by.is_some()
    }

    /// Returns what the batch's write takes or counts for this waiter.
    pub(super) fn asks(&self) -> &Asks {
        self.raised.as_ref().unwrap_or(&self.request.asks)
    }

    /// Returns these amounts.
    pub(super) fn amounts(&self) -> Amounts {
        let asks = self.asks().iter();
        asks.map(|ask| (ask.limit.clone(), ask.amount)).collect()
    }
}
