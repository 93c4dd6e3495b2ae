//! Serves acquires from a pool, fetches its blocks, and returns unspent tokens.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use weirgate_shared::write::LeaseChange;
use weirgate_shared::{Asks, Effect, Limit, MilliTokens};

use super::super::hold::Hold;
use super::super::route::acquire_from_table;
use super::super::state::BucketState;
use super::pool::{Block, NextReturn, Pool, PoolResult};
use super::state::TokenReturn;
use crate::queue::{HoldPart, SettleOutcome};
use crate::session::{Session, after};
use crate::values::{Amounts, BucketRequest, Error, Outcome, Settlement, count};

/// Blocks that a request waits for before it goes to the table, 3.
const MAX_BLOCKS_AWAITED: u32 = 3;
/// Time without a fetch after a failed one, 1 s.
const FAILURE_COOLDOWN: Duration = Duration::from_secs(1);

/// Decides a request on a bucket with a pool until the deadline, from the pool if possible.
pub(crate) async fn acquire(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    pool: &Pool,
    request: &BucketRequest,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    let enqueued_at = Instant::now();
    for round in 0..MAX_BLOCKS_AWAITED {
        let now = session.now();
        let max_balance = |limit: &Limit| bucket.max_balance(limit, now);
        let (found, block) = pool.serve(max_balance, request, round == 0);
        if let Some(block) = block {
            tokio::spawn(fetch(
                Arc::clone(session),
                InFlight::new(bucket, block.amounts.clone(), true),
                block,
            ));
        }
        match found {
            PoolResult::Served(parts) => {
                count(&session.env.counters.prefetch_hits, 1);
                let hold = Hold::of_pool(session, bucket, parts, request, now);
                return Ok(Outcome::Granted(hold.pooled(request.acquires)));
            }
            PoolResult::Wait(arrival) => {
                return_outdated(session, bucket, pool, request);
                // The table then tells a write that hangs from contention.
                let left = deadline.saturating_duration_since(Instant::now());
                if timeout(left / 2, arrival).await.is_err() {
                    break;
                }
            }
            PoolResult::Miss => break,
        }
    }
    return_outdated(session, bucket, pool, request);
    let decision = acquire_from_table(session, bucket, request, enqueued_at, deadline);
    match Box::pin(decision).await? {
        Outcome::Denied(denied) if denied.is_paused() => Ok(Outcome::Denied(denied)),
        Outcome::Denied(denied) => {
            let parts = pool.cover_shortfall(&denied, request);
            if parts.is_empty() {
                return Ok(Outcome::Denied(denied));
            }
            let pooled = Hold::of_pool(session, bucket, parts, request, session.now());
            let completed = complete(session, bucket, pool, request, pooled, deadline);
            let completed = Box::pin(completed).await?;
            Ok(completed.unwrap_or(Outcome::Denied(denied)))
        }
        granted => Ok(granted),
    }
}

/// Returns tokens that can no longer be spent, in the background.
fn return_outdated(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    pool: &Pool,
    request: &BucketRequest,
) {
    let outdated = pool.outdated(&request.limits);
    if !outdated.is_empty() {
        tokio::spawn(return_tokens(Arc::clone(session), into_in_flight(bucket, outdated)));
    }
}

/// Takes from the table what `pooled` lacks for the request. Returns `None` if that is denied.
async fn complete(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    pool: &Pool,
    request: &BucketRequest,
    pooled: Hold,
    deadline: Instant,
) -> Result<Option<Outcome<Hold>>, Error> {
    let mut rest = request.clone();
    rest.asks.retain(|ask| {
        ask.amount -= pooled.amount(ask.limit.as_str());
        ask.most = ask.amount;
        ask.amount > MilliTokens::ZERO
    });
    if rest.asks.is_empty() {
        pool.add_unreported(request.acquires);
        let hold = pooled.pooled(request.acquires);
        return Ok(Some(Outcome::Granted(hold)));
    }
    Ok(match acquire_from_table(session, bucket, &rest, Instant::now(), deadline).await? {
        Outcome::Granted(taken) => {
            // The table has counted the acquire.
            Some(Outcome::Granted(taken.merge(pooled)))
        }
        Outcome::Denied(_) => None,
    })
}

/// Fetches a block.
async fn fetch(session: Arc<Session>, mut in_flight: InFlight, block: Block) {
    let bucket = &Arc::clone(&in_flight.bucket);
    let Some(pool) = &bucket.pool else { return };
    let Block { limits, amounts, acquires, requested_at } = block;
    let timeout = session.settings.timeout;
    let request = BucketRequest {
        asks: Asks::of(Effect::Enforce, amounts),
        timeout,
        acquires,
        ..BucketRequest::of(limits)
    };
    let now = Instant::now();
    match acquire_from_table(&session, bucket, &request, now, after(now, timeout)).await {
        Ok(Outcome::Granted(hold)) => {
            count(&session.env.counters.prefetch_blocks, 1);
            in_flight.arrive(hold.claim().into_prefetched_parts(requested_at));
        }
        Ok(Outcome::Denied(_)) => {
            pool.add_unreported(acquires);
            pool.pause(pool.refetch_lead());
        }
        Err(error) => {
            tracing::debug!(%error, "prefetch failed");
            // Acquires that may have been counted are not counted again.
            if !error.is_unknown() {
                pool.add_unreported(acquires);
            }
            pool.pause(FAILURE_COOLDOWN);
        }
    }
    return_in_time(&session, bucket);
}

/// Starts the task that returns the pool's tokens when they expire, if it has some.
pub(crate) fn return_in_time(session: &Arc<Session>, bucket: &Arc<BucketState>) {
    let Some(pool) = &bucket.pool else { return };
    pool.ensure_expiry_task(|| {
        let alive = session.alive.subscribe();
        let task = return_expired(Arc::downgrade(session), alive, Arc::clone(bucket));
        tokio::spawn(task).abort_handle()
    });
}

/// Returns expired tokens until the pool is empty. If the limiter is dropped meanwhile, the rest is
/// forfeited at once.
async fn return_expired(
    session: Weak<Session>,
    mut alive: watch::Receiver<()>,
    bucket: Arc<BucketState>,
) {
    let Some(pool) = &bucket.pool else { return };
    loop {
        match pool.due() {
            NextReturn::Never => return,
            NextReturn::In(left) => {
                // Nothing is ever sent, so a change is the end of the session.
                if timeout(left, alive.changed()).await.is_ok() {
                    return;
                }
            }
            NextReturn::Now(returns) => {
                let returns = into_in_flight(&bucket, returns);
                let Some(session) = session.upgrade() else {
                    return;
                };
                // The counters and the log report errors.
                return_tokens(session, returns).await.ok();
            }
        }
    }
}

/// Ends the pool: returns all tokens, and counts all acquires.
pub(crate) async fn drain(session: Arc<Session>, bucket: Arc<BucketState>) -> Result<(), Error> {
    let Some(pool) = &bucket.pool else {
        return Ok(());
    };
    let mut closed = Ok(());
    let mut returns = pool.close();
    loop {
        closed =
            closed.and(return_tokens(Arc::clone(&session), into_in_flight(&bucket, returns)).await);
        // A block in flight may still arrive in the pool.
        pool.wait_idle().await;
        returns = pool.close();
        // Acquires that could not be counted come back; after a failure they are lost.
        let has_tokens = returns.iter().any(|back| !back.part.amounts.is_empty());
        if returns.is_empty() || closed.is_err() && !has_tokens {
            drop(into_in_flight(&bucket, returns));
            return closed;
        }
    }
}

/// A write of a pool in flight. A runtime that shuts down drops it early: a block has not arrived
/// then, and returned tokens are forfeited.
struct InFlight {
    bucket: Arc<BucketState>,
    amounts: Amounts,
    is_block: bool,
    has_ended: bool,
}

impl InFlight {
    fn new(bucket: &Arc<BucketState>, amounts: Amounts, is_block: bool) -> Self {
        Self { bucket: Arc::clone(bucket), amounts, is_block, has_ended: false }
    }

    /// Ends the fetch of a block that has arrived.
    fn arrive(&mut self, parts: Vec<HoldPart>) {
        self.has_ended = true;
        self.pool().end_block(&self.amounts, parts);
    }

    /// Ends a return.
    fn end_return(&mut self, is_back: bool) {
        self.has_ended = true;
        self.pool().end_return(&self.amounts, is_back);
    }

    fn pool(&self) -> &Pool {
        self.bucket.pool.as_ref().expect("only a bucket with a pool has a write in flight")
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        match (self.has_ended, self.is_block) {
            (true, _) => {}
            (false, true) => self.pool().end_block(&self.amounts, vec![]),
            (false, false) => self.pool().end_return(&self.amounts, false),
        }
    }
}

fn into_in_flight(
    bucket: &Arc<BucketState>,
    returns: Vec<TokenReturn>,
) -> Vec<(InFlight, TokenReturn)> {
    let in_flight = |returned: TokenReturn| {
        let amounts = returned.part.amounts.clone();
        (InFlight::new(bucket, amounts, false), returned)
    };
    returns.into_iter().map(in_flight).collect()
}

/// Returns unspent tokens with one write per shard, like a rollback. An unconfirmed write is not
/// repeated, because nothing in the item would show it: its tokens count as consumed.
async fn return_tokens(
    session: Arc<Session>,
    returns: Vec<(InFlight, TokenReturn)>,
) -> Result<(), Error> {
    let returned = returns.into_iter().map(|back| return_part(&session, back));
    let mut returned = join_all(returned).await.into_iter();
    returned.find(Result::is_err).unwrap_or(Ok(()))
}

async fn return_part(
    session: &Arc<Session>,
    (mut in_flight, TokenReturn { part, acquires }): (InFlight, TokenReturn),
) -> Result<(), Error> {
    let back = part
        .amounts
        .iter()
        .map(|(limit, amount)| (limit.clone(), part.rate_return(limit, *amount)));
    let (end, back) = (LeaseChange::End, back.collect());
    match part.settle(session, end, back, acquires).await {
        Ok(settled) => {
            // A bucket that was deleted has none of its tokens.
            let is_back = matches!(settled, SettleOutcome::Done(Settlement::Applied));
            in_flight.end_return(is_back);
            Ok(())
        }
        Err(error) => {
            // Acquires that may have been counted are not counted again.
            if !error.is_unknown() {
                in_flight.pool().add_unreported(acquires);
            }
            in_flight.end_return(false);
            let milli = part.amounts.values().copied().sum::<MilliTokens>().0;
            tracing::warn!(%error, milli, "prefetched tokens could not be returned; they count as consumed");
            Err(error)
        }
    }
}
