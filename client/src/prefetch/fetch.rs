//! Serves acquires from a pool, fetches its blocks, and returns unspent tokens.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::MilliTokens;

use super::pool::{Block, NextReturn, Pool, PoolResult};
use super::state::TokenReturn;
use crate::Error;
use crate::Settlement;
use crate::bucket::{BucketRequest, BucketState, acquire_from_table};
use crate::hold::Hold;
use crate::inner::Inner;
use crate::queue::{Amounts, ShardDecision};
use crate::settle::{SettleAttempt, SettleOutcome};
use crate::stats::count;

/// Blocks that a request waits for before it goes to the table, 3.
const MAX_BLOCKS_AWAITED: u32 = 3;
/// Time without a fetch after a failed one, 1 s.
const FAILURE_COOLDOWN: Duration = Duration::from_secs(1);

/// Decides a request on a bucket with a pool, from the pool if possible.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    bucket: &Arc<BucketState>,
    pool: &Pool,
    request: &BucketRequest,
) -> Result<ShardDecision, Error> {
    let joined = Instant::now();
    for round in 0..MAX_BLOCKS_AWAITED {
        let now = inner.now();
        let (found, block) = pool.serve(bucket, request, now, round == 0);
        if let Some(block) = block {
            tokio::spawn(fetch(
                Arc::clone(inner),
                InFlight::block(bucket, &block),
                block,
            ));
        }
        match found {
            PoolResult::Served(parts) => {
                count(&inner.counters.prefetch_hits, 1);
                let owner = (Arc::clone(inner), Arc::clone(bucket));
                return Ok(ShardDecision::Granted(
                    Hold::new(owner, parts, request.limits.clone(), now).into(),
                ));
            }
            PoolResult::Wait(landed) => {
                shed(inner, bucket, pool, request);
                landed.await;
            }
            PoolResult::Miss => break,
        }
    }
    shed(inner, bucket, pool, request);
    match acquire_from_table(inner, bucket, request, joined)
        .await
        .map_err(|error| pool.attach_last_error(error))?
    {
        ShardDecision::Denied(denied) => {
            let parts = pool.cover_shortfall(&denied, request);
            if parts.is_empty() {
                return Ok(ShardDecision::Denied(denied));
            }
            let owner = (Arc::clone(inner), Arc::clone(bucket));
            let ours = Hold::new(owner, parts, request.limits.clone(), inner.now());
            let completed = complete(inner, bucket, pool, request, ours, joined).await?;
            Ok(completed.unwrap_or(ShardDecision::Denied(denied)))
        }
        granted => Ok(granted),
    }
}

/// Returns tokens that can no longer be spent, in the background.
fn shed(inner: &Arc<Inner>, bucket: &Arc<BucketState>, pool: &Pool, request: &BucketRequest) {
    let outdated = pool.outdated(&request.limits);
    if !outdated.is_empty() {
        tokio::spawn(give_back(
            Arc::clone(inner),
            into_in_flight(bucket, outdated),
        ));
    }
}

/// Takes from the table what `ours` lacks for the request. Returns `None` if that is denied.
async fn complete(
    inner: &Arc<Inner>,
    bucket: &Arc<BucketState>,
    pool: &Pool,
    request: &BucketRequest,
    ours: Hold,
    joined: Instant,
) -> Result<Option<ShardDecision>, Error> {
    let mut rest = request.clone();
    for (limit, need) in &mut rest.amounts {
        *need -= ours.amount(limit.as_str());
    }
    rest.amounts.retain(|_, need| *need > MilliTokens::ZERO);
    // If the request is dropped meanwhile, both holds return.
    let ours = crate::queue::Unclaimed::from(ours);
    if !rest.has_amounts() {
        pool.add_unreported(1);
        return Ok(Some(ShardDecision::Granted(ours)));
    }
    Ok(
        match acquire_from_table(inner, bucket, &rest, joined).await? {
            ShardDecision::Granted(theirs) => Some(ShardDecision::Granted(
                ours.claim().merge(theirs.claim()).into(),
            )),
            ShardDecision::Denied(_) => None,
        },
    )
}

/// Fetches a block.
async fn fetch(inner: Arc<Inner>, under_way: InFlight, block: Block) {
    let (bucket, pool) = (&under_way.bucket, under_way.pool());
    let Block {
        limits,
        amounts,
        takes,
        asked,
    } = block;
    let timeout = inner.settings.timeout;
    let request = BucketRequest {
        amounts,
        soft_amounts: Amounts::new(),
        limits,
        lease: None,
        timeout,
        acquires: takes,
    };
    match acquire_from_table(&inner, bucket, &request, Instant::now()).await {
        Ok(ShardDecision::Granted(delivery)) => {
            pool.set_last_error(None);
            count(&inner.counters.prefetch_blocks, 1);
            pool.add_block(delivery.claim().into_prefetched_parts(asked));
        }
        Ok(ShardDecision::Denied(_)) => {
            pool.add_unreported(takes);
            pool.pause(pool.refetch_lead());
        }
        Err(error) => {
            tracing::debug!(%error, "tokens could not be taken ahead");
            pool.set_last_error(Some(&error));
            // Acquires that may have been counted are not counted again.
            if !error.is_unknown() {
                pool.add_unreported(takes);
            }
            pool.pause(FAILURE_COOLDOWN);
        }
    }
    pool.ensure_expiry_task(|| {
        tokio::spawn(return_expired(Arc::downgrade(&inner), Arc::clone(bucket))).abort_handle()
    });
}

/// Returns expired tokens until the pool is empty. If the limiter is dropped meanwhile, the rest is
/// forfeited.
async fn return_expired(inner: Weak<Inner>, bucket: Arc<BucketState>) {
    let Some(pool) = &bucket.pool else { return };
    loop {
        match pool.due() {
            NextReturn::Never => return,
            NextReturn::In(left) => tokio::time::sleep(left).await,
            NextReturn::Now(returns) => {
                let returns = into_in_flight(&bucket, returns);
                let Some(inner) = inner.upgrade() else { return };
                // The counters and the log report errors.
                give_back(inner, returns).await.ok();
            }
        }
    }
}

/// Ends the pool: returns all tokens, and counts all acquires.
pub(crate) async fn drain(inner: Arc<Inner>, bucket: Arc<BucketState>) -> Result<(), Error> {
    let Some(pool) = &bucket.pool else {
        return Ok(());
    };
    let mut closed = Ok(());
    let mut returns = pool.close();
    loop {
        closed = closed.and(give_back(Arc::clone(&inner), into_in_flight(&bucket, returns)).await);
        // A block in flight may still arrive in the pool.
        pool.wait_idle().await;
        returns = pool.close();
        if returns.is_empty() {
            return closed;
        }
    }
}

/// A write of a pool in flight. A runtime that shuts down drops it early.
struct InFlight {
    bucket: Arc<BucketState>,
    amounts: Amounts,
    is_block: bool,
}

impl InFlight {
    fn block(bucket: &Arc<BucketState>, block: &Block) -> Self {
        Self {
            bucket: Arc::clone(bucket),
            amounts: block.amounts.clone(),
            is_block: true,
        }
    }

    fn pool(&self) -> &Pool {
        self.bucket
            .pool
            .as_ref()
            .expect("only a bucket with a pool has something under way")
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.pool().end_in_flight(&self.amounts, self.is_block);
    }
}

fn into_in_flight(
    bucket: &Arc<BucketState>,
    returns: Vec<TokenReturn>,
) -> Vec<(InFlight, TokenReturn)> {
    let under_way = |back: TokenReturn| {
        let amounts = back.part.amounts.clone();
        (
            InFlight {
                bucket: Arc::clone(bucket),
                amounts,
                is_block: false,
            },
            back,
        )
    };
    returns.into_iter().map(under_way).collect()
}

/// Returns unspent tokens with one write per shard, like a rollback. An unconfirmed write is not
/// repeated, because nothing in the item would show it: its tokens count as consumed.
async fn give_back(inner: Arc<Inner>, returns: Vec<(InFlight, TokenReturn)>) -> Result<(), Error> {
    let mut done = Ok(());
    for (under_way, TokenReturn { part, takes }) in returns {
        let milli: MilliTokens = part.amounts.values().copied().sum();
        let milli = u64::try_from(milli.0).unwrap_or_default();
        let back = part
            .amounts
            .iter()
            .map(|(limit, amount)| (limit.clone(), part.rate_return(limit, *amount)));
        let settling = SettleAttempt {
            inner: &inner,
            bucket: &under_way.bucket,
            queue: Arc::clone(&part.queue),
            write_id: weirgate_store::random_id(),
            lease: None,
            amounts: back.collect::<BTreeMap<_, _>>(),
            acquires: takes,
            held_amounts: &Amounts::new(),
        };
        match settling.run().await {
            Ok(SettleOutcome::Done(Settlement::Applied)) => {
                count(&inner.counters.prefetch_returned_millitokens, milli)
            }
            // The bucket was deleted, with its tokens.
            Ok(_) => count(&inner.counters.prefetch_forfeited_millitokens, milli),
            Err(error) => {
                // Acquires that may have been counted are not counted again.
                if let Some(pool) = under_way
                    .bucket
                    .pool
                    .as_ref()
                    .filter(|_| !error.is_unknown())
                {
                    pool.add_unreported(takes);
                }
                count(&inner.counters.prefetch_forfeited_millitokens, milli);
                tracing::warn!(%error, milli, "tokens taken ahead could not be given back: they count as used");
                done = done.and(Err(error));
            }
        }
    }
    done
}
