//! Requests in line at a shard, the replies to them, and tokens on their way to the caller.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{Asks, EpochMillis, Lease, WriteId};
use weirgate_store::StoreError;

use super::part::{Ending, HoldPart};
use crate::session::Session;
use crate::values::{Amounts, BucketRequest, Denied, Error, Limits, Settlement};

/// What was decided on a request.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    Granted(T),
    Denied(Denied),
    /// This shard cannot decide: others of the bucket must be tried.
    Elsewhere(Reason),
}

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
pub(crate) type Reply = Result<Outcome<Granted>, Error>;

/// What one write took for one waiter.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) part: HoldPart,
    pub(crate) limits: Limits,
    /// Time of the take's plan.
    pub(crate) taken_at: EpochMillis,
    /// Acquires that the take counted: a rollback subtracts them.
    pub(crate) acquires: i64,
}

/// A request in line.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    /// Its number in the order of arrival, which the machine gives.
    pub(super) id: u64,
    pub(super) request: BucketRequest,
    /// The amounts with what the batch has room for, if it is more than the least of any.
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
}

/// What one write took for one waiter. Dropping it rolls the take back, so the tokens of a dropped
/// request return.
#[derive(Debug)]
pub(crate) struct Taken {
    session: Arc<Session>,
    /// `None` once it was claimed or rolled back.
    part: Option<HoldPart>,
    limits: Limits,
    /// Time of the take's plan.
    pub(crate) taken_at: EpochMillis,
    /// Acquires that the take counted: a rollback subtracts them.
    pub(crate) acquires: i64,
}

impl Taken {
    pub(super) fn new(session: Arc<Session>, granted: Granted) -> Self {
        let Granted {
            part,
            limits,
            taken_at,
            acquires,
        } = granted;
        Self {
            session,
            part: Some(part),
            limits,
            taken_at,
            acquires,
        }
    }

    /// Returns the part for a hold, which is then responsible for it.
    pub(crate) fn claim(mut self) -> HoldPart {
        self.part.take().expect("the part is taken once")
    }

    /// Returns the expiry of the part's lease.
    pub(crate) fn expires_at(&self) -> Option<EpochMillis> {
        self.part
            .as_ref()
            .and_then(|part| part.lease.as_ref().map(|(_, expires)| *expires))
    }

    /// Ends the part.
    pub(crate) async fn end(mut self, ending: Ending) -> Result<Settlement, Error> {
        let Some(mut part) = self.part.take() else {
            return Ok(Settlement::Applied);
        };
        if ending == Ending::Release && part.lease.is_none() {
            return Ok(Settlement::Applied);
        }
        part.end(&self.session, &self.limits, ending, -self.acquires)
            .await
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(mut part) = self.part.take() else {
            return;
        };
        let (session, limits) = (Arc::clone(&self.session), self.limits.clone());
        let acquires = -self.acquires;
        self.session.spawn(async move {
            let ended = part
                .end(&session, &limits, Ending::RollBack, acquires)
                .await;
            if let Err(error) = ended {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        });
    }
}
