//! Requests in line at a shard, the replies to them, and tokens on their way to the caller.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::{Asks, EpochMillis, Lease, WriteId};
use weirgate_store::StoreError;

use super::part::{Ending, HoldPart};
use crate::session::Session;
use crate::values::{Amounts, BucketRequest, Error, Limits, Outcome, Settlement};

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

/// What one write took for one waiter.
#[derive(Debug)]
pub(crate) struct Portion {
    pub(crate) part: HoldPart,
    pub(crate) limits: Limits,
    /// Time of the take's plan.
    pub(crate) taken_at: EpochMillis,
    /// Acquires that the take counted: a rollback subtracts them.
    pub(crate) acquires: i64,
}

impl Portion {
    async fn roll_back(mut self, session: &Session) -> Result<Settlement, Error> {
        let (part, acquires) = (&mut self.part, -self.acquires);
        part.end(session, &self.limits, Ending::RollBack, acquires)
            .await
    }
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
    portion: Option<Portion>,
}

impl Taken {
    pub(super) const fn new(session: Arc<Session>, portion: Portion) -> Self {
        Self {
            session,
            portion: Some(portion),
        }
    }

    /// Returns the portion for a hold, which is then responsible for it.
    pub(crate) fn claim(mut self) -> Portion {
        self.portion.take().expect("a portion is claimed once")
    }

    /// Returns the expiry of the part's lease.
    pub(crate) fn expires_at(&self) -> Option<EpochMillis> {
        let lease = self.portion.as_ref()?.part.lease.as_ref();
        lease.map(|(_, expires)| *expires)
    }

    /// Returns all that was taken.
    pub(crate) async fn roll_back(mut self) -> Result<Settlement, Error> {
        let portion = self.portion.take().expect("a portion is claimed once");
        portion.roll_back(&self.session).await
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(portion) = self.portion.take() else {
            return;
        };
        let session = Arc::clone(&self.session);
        self.session.spawn(async move {
            if let Err(error) = portion.roll_back(&session).await {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        });
    }
}
