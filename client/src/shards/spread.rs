//! A request that no shard alone has enough for takes a part from each of several, in one transaction.

use std::sync::Arc;

use tokio::time::Instant;
use weirgate_shared::write::{Action, Company, Take, expire};
use weirgate_shared::{Bucket, EpochMillis, Lease, WriteId};
use weirgate_store::{Answer, ErrorKind, Outcome, Part as Unheld, StoreError, Transacted};

use super::{Request, Shards};
use crate::Error;
use crate::held::{Held, Part};
use crate::limiter::Inner;
use crate::line::{Delivery, Line, Needs, backoff};
use crate::stats::count;

/// One shard's part of the request.
struct Share {
    line: Arc<Line>,
    bucket: Arc<Bucket>,
    needs: Needs,
    /// What is taken whether it is there or not, which the first gives.
    soft: Needs,
}

impl Share {
    fn all(&self) -> Needs {
        self.needs.iter().chain(&self.soft).map(|(limit, need)| (limit.clone(), *need)).collect()
    }
}

/// Takes the `parts`; `None` if one of the shards is not what it seemed any more.
///
/// A transaction of unknown outcome is sent again under the same token, which DynamoDB remembers for ten minutes: it
/// happens once, and the answer tells.
pub(super) async fn take(
    inner: &Arc<Inner>,
    shards: &Arc<Shards>,
    request: &Request,
    parts: &[(u32, Needs)],
    deadline: Instant,
) -> Result<Option<Delivery>, Error> {
    let now = inner.clock.now();
    let Some(shares) = shares(inner, shards, request, parts, now).await? else { return Ok(None) };
    let op = WriteId::from_bits(fastrand::u64(..));
    let lease = request.lease.as_ref().map(|(lasts, owner)| {
        let expires = now.after((*lasts).into());
        (WriteId::from_bits(fastrand::u64(..)), expires, owner)
    });
    let actions: Vec<_> = shares
        .iter()
        .enumerate()
        .map(|(at, share)| {
            let lease = lease.as_ref().map(|(id, expires, owner)| {
                (id.clone(), Lease { expires: *expires, tokens: share.all(), owner: owner.to_string() })
            });
            let take = Take {
                key: &share.line.key,
                terms: (&request.limits).into(),
                needs: share.needs.clone(),
                soft: share.soft.clone(),
                // The acquire counts once.
                takes: if at == 0 { request.takes } else { 0 },
                leases: lease.into_iter().collect(),
                op: op.clone(),
                hot: false,
                company: Company::None,
                // The token tells what became of the transaction.
                unknown: &[],
            };
            Action::Update(take.on(Some(&share.bucket), now))
        })
        .collect();
    if !send(inner, request, &shares, &actions, &op, deadline).await? {
        return Ok(None);
    }
    let part = |share: Share| {
        let (needs, Share { line, bucket, .. }) = (share.all(), share);
        // A transaction does not answer with the items.
        line.outdate();
        let mut bucket: Bucket = Bucket::advanced(&bucket, &request.limits, now);
        for (limit, need) in &needs {
            if let Some(state) = bucket.limits.get_mut(limit) {
                state.tk -= *need;
            }
        }
        Part { line, amounts: needs, bucket: Arc::new(bucket), ahead: None }
    };
    let parts = shares.into_iter().map(part).collect();
    let lease = lease.map(|(id, expires, _)| (id, expires));
    Ok(Some(Held::new((Arc::clone(inner), Arc::clone(shards)), parts, request.limits.clone(), lease, now).into()))
}

/// What is known of the shards, each with its part; `None` if one is gone, or holds more expired leases than its part of
/// the transaction could give back: those are given back first.
async fn shares(
    inner: &Inner,
    shards: &Shards,
    request: &Request,
    parts: &[(u32, Needs)],
    now: EpochMillis,
) -> Result<Option<Vec<Share>>, Error> {
    let mut shares = vec![];
    for (shard, needs) in parts {
        let line = shards.line(*shard);
        let Some(bucket) = line.view().map(|view| view.bucket) else { return Ok(None) };
        if bucket.expired(now).count() > bucket.reclaimable(now).count() {
            give_back(inner, &line, &bucket, now).await?;
            return Ok(None);
        }
        let soft = if shares.is_empty() { request.soft.clone() } else { Needs::new() };
        shares.push(Share { line, bucket, needs: needs.clone(), soft });
    }
    Ok(Some(shares))
}

async fn give_back(inner: &Inner, line: &Line, bucket: &Bucket, now: EpochMillis) -> Result<(), Error> {
    let Some((update, _)) = expire(bucket, now) else { return Ok(()) };
    count(&inner.counters.writes, 1);
    match inner.table.update(&update, Answer::Item).await {
        Ok(Outcome::Applied(Some(item)) | Outcome::LostRace(Some(item))) => drop(see(line, &item)?),
        Ok(_) => line.gone(),
        // Restoring is conditional on what was seen, so another try does no harm.
        Err(error) if error.kind.is_transient() => tracing::debug!(%error, "could not give back yet"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Sends the transaction until it is known what became of it: whether it happened.
async fn send(
    inner: &Inner,
    request: &Request,
    shares: &[Share],
    actions: &[Action],
    op: &WriteId,
    deadline: Instant,
) -> Result<bool, Error> {
    let mut doubt: Option<Arc<StoreError>> = None;
    let mut failures = 0;
    loop {
        count(&inner.counters.writes, 1);
        match inner.table.transact(actions, op).await {
            Ok(Transacted::Applied) => return Ok(true),
            Ok(Transacted::LostRace(unheld)) => {
                count(&inner.counters.lost_races, 1);
                if doubt.is_some() {
                    // The first request may still be on its way.
                    count_doubt(inner, request);
                }
                for (share, part) in shares.iter().zip(unheld) {
                    match part {
                        Unheld::Lost(Some(item)) => drop(see(&share.line, &item)?),
                        Unheld::Lost(None) => share.line.gone(),
                        Unheld::Held => {}
                    }
                }
                return Ok(false);
            }
            Err(error) if error.kind.is_transient() => {
                let is_unknown = error.kind == ErrorKind::Unknown;
                count(if is_unknown { &inner.counters.unknown } else { &inner.counters.refused }, 1);
                if !is_unknown && doubt.is_none() {
                    tracing::debug!(%error, "a transaction was refused for now");
                    return Ok(false);
                }
                let error = Arc::new(error);
                if is_unknown {
                    doubt = Some(Arc::clone(&error));
                }
                if Instant::now() >= deadline {
                    count_doubt(inner, request);
                    return Err(Error::Store(doubt.unwrap_or(error)));
                }
                failures += 1;
                tokio::time::sleep(backoff(failures)).await;
            }
            Err(error) => {
                if doubt.is_some() {
                    count_doubt(inner, request);
                }
                return Err(doubt.map_or_else(|| error.into(), Error::Store));
            }
        }
    }
}

fn see(line: &Line, item: &weirgate_store::Item) -> Result<Arc<Bucket>, Error> {
    let unreadable = |error| Error::Unreadable { bucket: line.key.item_key().pk, error };
    Ok(line.saw(item.bucket().map_err(unreadable)?))
}

/// The tokens count as taken.
fn count_doubt(inner: &Inner, request: &Request) {
    let needs: weirgate_shared::MilliTokens = request.needs.values().copied().sum();
    count(&inner.counters.unknown_milli, u64::try_from(needs.0).unwrap_or_default());
}
