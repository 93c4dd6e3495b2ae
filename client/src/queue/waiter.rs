//! Requests in a queue, and the replies to them.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weirgate_shared::{Asks, EpochMillis, Lease, WriteId};
use weirgate_store::StoreError;

use super::taken::Taken;
use crate::values::{Amounts, BucketRequest, Denied, Error};

/// Decision of one shard on a request.
#[derive(Debug)]
pub(crate) enum ShardDecision {
    Granted(Taken),
    Denied(Denied),
}

/// Reply to a waiter.
#[derive(Debug)]
pub(crate) enum QueueReply {
    Decided(ShardDecision),
    /// This shard cannot decide: the router must try other shards of the bucket.
    Reroute(RerouteReason),
}

/// Reason to try other shards.
#[derive(Debug, Clone)]
pub(crate) enum RerouteReason {
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

/// A request in a queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) request: BucketRequest,
    /// The amounts with what the batch has room for, if it is more than the least of any.
    pub(crate) raised: Option<Asks>,
    pub(crate) enqueued_at: Instant,
    pub(crate) deadline: Instant,
    pub(crate) reply: oneshot::Sender<Result<QueueReply, Error>>,
}

impl Waiter {
    /// Returns a new lease for the request, if it wants one.
    pub(super) fn new_lease(&self, now: EpochMillis) -> Option<(WriteId, Lease)> {
        let (lasts, owner) = self.request.lease.as_ref()?;
        let expires = now.plus((*lasts).into());
        let lease = Lease {
            expires_at: expires,
            tokens: self.amounts(),
            owner: owner.to_string(),
        };
        Some((weirgate_store::random_id(), lease))
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

    /// Returns whether the request still waits, and has time left.
    pub(super) fn has_time(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed()
    }

    /// Sends the decision. If the request was dropped, the dropped take is rolled back.
    pub(super) fn reply(self, decision: Result<ShardDecision, Error>) {
        let _ = self.reply.send(decision.map(QueueReply::Decided));
    }

    /// Sends the waiter to other shards.
    pub(super) fn reroute(self, reason: RerouteReason) {
        let _ = self.reply.send(Ok(QueueReply::Reroute(reason)));
    }
}
