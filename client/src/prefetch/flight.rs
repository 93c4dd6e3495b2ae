//! Serving acquires from a pool, fetching its blocks, and giving back what is left of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::MilliTokens;

use super::pool::{Block, Due, Found, Pool};
use super::state::Return;
use crate::Error;
use crate::Settlement;
use crate::held::Held;
use crate::inner::Inner;
use crate::line::{Needs, Verdict};
use crate::settling::{Answered, Settling};
use crate::shards::{Request, Shards, ask_table};
use crate::stats::count;

/// How many blocks a request waits for before it goes the ordinary way.
const ROUNDS: u32 = 3;
/// For how long no block is fetched after one failed.
const TROUBLE: Duration = Duration::from_secs(1);

/// Decides about a request on a bucket with a pool, from the pool if it can.
pub(crate) async fn ask(
    inner: &Arc<Inner>,
    shards: &Arc<Shards>,
    pool: &Pool,
    request: &Request,
) -> Result<Verdict, Error> {
    let joined = Instant::now();
    for round in 0..ROUNDS {
        let now = inner.now();
        let (found, block) = pool.serve(shards, request, now, round == 0);
        if let Some(block) = block {
            tokio::spawn(fetch(
                Arc::clone(inner),
                UnderWay::block(shards, &block),
                block,
            ));
        }
        match found {
            Found::Parts(parts) => {
                count(&inner.counters.prefetch_hits, 1);
                let owner = (Arc::clone(inner), Arc::clone(shards));
                return Ok(Verdict::Granted(
                    Held::new(owner, parts, request.limits.clone(), now).into(),
                ));
            }
            Found::Later(landed) => {
                shed(inner, shards, pool, request);
                landed.await;
            }
            Found::Nothing => break,
        }
    }
    shed(inner, shards, pool, request);
    match ask_table(inner, shards, request, joined)
        .await
        .map_err(|error| pool.explain(error))?
    {
        Verdict::Denied(denied) => {
            let parts = pool.complete(&denied, request);
            if parts.is_empty() {
                return Ok(Verdict::Denied(denied));
            }
            let owner = (Arc::clone(inner), Arc::clone(shards));
            let ours = Held::new(owner, parts, request.limits.clone(), inner.now());
            let completed = complete(inner, shards, pool, request, ours, joined).await?;
            Ok(completed.unwrap_or(Verdict::Denied(denied)))
        }
        granted => Ok(granted),
    }
}

/// Gives back in the background what cannot be spent by a request that was not served at once.
fn shed(inner: &Arc<Inner>, shards: &Arc<Shards>, pool: &Pool, request: &Request) {
    let outdated = pool.outdated(&request.limits);
    if !outdated.is_empty() {
        tokio::spawn(give_back(Arc::clone(inner), on_their_way(shards, outdated)));
    }
}

/// Asks the table for what `ours` lacks of a request; `None` if that is denied.
async fn complete(
    inner: &Arc<Inner>,
    shards: &Arc<Shards>,
    pool: &Pool,
    request: &Request,
    ours: Held,
    joined: Instant,
) -> Result<Option<Verdict>, Error> {
    let mut rest = request.clone();
    for (limit, need) in &mut rest.needs {
        *need -= ours.amount(limit.as_str());
    }
    rest.needs.retain(|_, need| *need > MilliTokens::ZERO);
    // If the caller goes away meanwhile, both parts go back.
    let ours = crate::line::Delivery::from(ours);
    if !rest.asks() {
        pool.owe(1);
        return Ok(Some(Verdict::Granted(ours)));
    }
    Ok(match ask_table(inner, shards, &rest, joined).await? {
        Verdict::Granted(theirs) => {
            Some(Verdict::Granted(ours.accept().and(theirs.accept()).into()))
        }
        Verdict::Denied(_) => None,
    })
}

/// Fetches a block.
async fn fetch(inner: Arc<Inner>, under_way: UnderWay, block: Block) {
    let (shards, pool) = (&under_way.shards, under_way.pool());
    let Block {
        limits,
        amounts,
        takes,
        asked,
    } = block;
    let timeout = inner.settings.timeout;
    let request = Request {
        needs: amounts,
        soft: Needs::new(),
        limits,
        lease: None,
        timeout,
        takes,
    };
    match ask_table(&inner, shards, &request, Instant::now()).await {
        Ok(Verdict::Granted(delivery)) => {
            pool.fails_by(None);
            count(&inner.counters.prefetch_blocks, 1);
            pool.land(delivery.accept().taken_ahead(asked));
        }
        Ok(Verdict::Denied(_)) => {
            pool.owe(takes);
            pool.pause(pool.lead());
        }
        Err(error) => {
            tracing::debug!(%error, "tokens could not be taken ahead");
            pool.fails_by(Some(&error));
            // What may have been counted is not counted again.
            if !error.is_unknown() {
                pool.owe(takes);
            }
            pool.pause(TROUBLE);
        }
    }
    pool.watch(|| tokio::spawn(keep(Arc::downgrade(&inner), Arc::clone(shards))).abort_handle());
}

/// Gives back what has become too old, until there is nothing. The limiter may go away meanwhile:
/// what is left then is forfeited.
async fn keep(inner: Weak<Inner>, shards: Arc<Shards>) {
    let Some(pool) = &shards.pool else { return };
    loop {
        match pool.due() {
            Due::Never => return,
            Due::In(left) => tokio::time::sleep(left).await,
            Due::Now(returns) => {
                let returns = on_their_way(&shards, returns);
                let Some(inner) = inner.upgrade() else { return };
                // Told by the counters and the log.
                give_back(inner, returns).await.ok();
            }
        }
    }
}

/// Gives back everything, and counts all acquires; nothing is taken ahead any more.
pub(crate) async fn close(inner: Arc<Inner>, shards: Arc<Shards>) -> Result<(), Error> {
    let Some(pool) = &shards.pool else {
        return Ok(());
    };
    let mut closed = Ok(());
    let mut returns = pool.close();
    loop {
        closed = closed.and(give_back(Arc::clone(&inner), on_their_way(&shards, returns)).await);
        // A block that was on its way arrives in the pool.
        pool.quiet().await;
        returns = pool.close();
        if returns.is_empty() {
            return closed;
        }
    }
}

/// A write of a pool, until it has arrived. A runtime that shuts down drops it half way.
struct UnderWay {
    shards: Arc<Shards>,
    amounts: Needs,
    is_block: bool,
}

impl UnderWay {
    fn block(shards: &Arc<Shards>, block: &Block) -> Self {
        Self {
            shards: Arc::clone(shards),
            amounts: block.amounts.clone(),
            is_block: true,
        }
    }

    fn pool(&self) -> &Pool {
        self.shards
            .pool
            .as_ref()
            .expect("only a bucket with a pool has something under way")
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.pool().arrive(&self.amounts, self.is_block);
    }
}

fn on_their_way(shards: &Arc<Shards>, returns: Vec<Return>) -> Vec<(UnderWay, Return)> {
    let under_way = |back: Return| {
        let amounts = back.part.amounts.clone();
        (
            UnderWay {
                shards: Arc::clone(shards),
                amounts,
                is_block: false,
            },
            back,
        )
    };
    returns.into_iter().map(under_way).collect()
}

/// Gives back what was not spent, one write for each shard, like a rollback. One of unknown outcome
/// is not repeated, as nothing in the item would tell: its tokens count as used.
async fn give_back(inner: Arc<Inner>, returns: Vec<(UnderWay, Return)>) -> Result<(), Error> {
    let mut done = Ok(());
    for (under_way, Return { part, takes }) in returns {
        let milli: MilliTokens = part.amounts.values().copied().sum();
        let milli = u64::try_from(milli.0).unwrap_or_default();
        let back = part
            .amounts
            .iter()
            .map(|(limit, amount)| (limit.clone(), part.rate_back(limit, *amount)));
        let settling = Settling {
            inner: &inner,
            shards: &under_way.shards,
            line: Arc::clone(&part.line),
            op: weirgate_store::random_id(),
            lease: None,
            amounts: back.collect::<BTreeMap<_, _>>(),
            takes,
            holds: &Needs::new(),
        };
        match settling.run().await {
            Ok(Answered::Settled(Settlement::Done)) => {
                count(&inner.counters.prefetch_returned_milli, milli)
            }
            // The bucket was deleted, and its tokens with it.
            Ok(_) => count(&inner.counters.prefetch_forfeited_milli, milli),
            Err(error) => {
                // What may have been counted is not counted again.
                if let Some(pool) = under_way
                    .shards
                    .pool
                    .as_ref()
                    .filter(|_| !error.is_unknown())
                {
                    pool.owe(takes);
                }
                count(&inner.counters.prefetch_forfeited_milli, milli);
                tracing::warn!(%error, milli, "tokens taken ahead could not be given back: they count as used");
                done = done.and(Err(error));
            }
        }
    }
    done
}
