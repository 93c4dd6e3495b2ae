//! Takes from several buckets in one transaction.

use std::sync::Arc;

use tokio::time::Instant;

use super::evaluate::{Allocation, evaluate};
use super::refresh_all;
use super::transaction::{self, BucketAllocation};
use super::{BucketRequest, BucketState};
use crate::clock::deadline;
use crate::inner::Inner;
use crate::queue::{Unclaimed, backoff};
use crate::{Denied, Error};

/// Most items of one transaction.
const MAX_ITEMS: usize = 100;

/// Holds of several buckets, in their order, or the denials with the places of their buckets.
pub(crate) type AllOrNone = Result<Vec<Unclaimed>, Vec<(usize, Denied)>>;

/// Takes from all buckets in one transaction: from all, or from none.
///
/// The transaction is planned on the views; if they have changed, it fails and shows the current
/// items. A denial rests only on views from after the request began. The buckets must differ.
pub(crate) async fn take_in_transaction(
    inner: &Arc<Inner>,
    asked: &[(&Arc<BucketState>, &BucketRequest)],
) -> Result<AllOrNone, Error> {
    let joined = Instant::now();
    let timeout = asked
        .iter()
        .map(|(_, request)| request.timeout)
        .min()
        .unwrap_or_default();
    let deadline = deadline(timeout);
    let mut failures = 0;
    loop {
        let Ok(planned) = tokio::time::timeout_at(deadline, plan(inner, asked, joined)).await
        else {
            return Err(inner
                .timeout_error("BatchGetItem of buckets", timeout)
                .into());
        };
        let (buckets, denials) = planned?;
        if !denials.is_empty() {
            return Ok(Err(denials));
        }
        let items: usize = buckets.iter().map(|bucket| bucket.parts.len()).sum();
        if items > MAX_ITEMS {
            return Err(Error::Invalid(format!(
                "{items} items are in one transaction, it takes {MAX_ITEMS}: ask for fewer, or without a transaction"
            )));
        }
        let last = match transaction::take(inner, &buckets, deadline).await? {
            Ok(deliveries) => return Ok(Ok(deliveries)),
            Err(last) => last,
        };
        if Instant::now() >= deadline {
            let bucket = asked
                .first()
                .map(|(bucket, _)| bucket.key.item_key().pk)
                .unwrap_or_default();
            return Err(Error::Timeout {
                bucket,
                after: timeout,
                last,
            });
        }
        failures += 1;
        // After the first failure, the response is enough to plan again without a wait.
        if failures > 1 {
            tokio::time::sleep(backoff(failures - 1)).await;
        }
    }
}

/// Returns the shards to take from with their amounts, and the denials of short buckets.
async fn plan<'a>(
    inner: &Inner,
    asked: &[(&'a Arc<BucketState>, &'a BucketRequest)],
    joined: Instant,
) -> Result<(Vec<BucketAllocation<'a>>, Vec<(usize, Denied)>), Error> {
    let mut now = inner.now();
    let is_enough = |(bucket, request): &(&Arc<BucketState>, &BucketRequest)| {
        let known = bucket.cached_bucket(&request.limits, now);
        known.is_complete() && !matches!(evaluate(&known, request, now), Allocation::Denied(_))
    };
    let unknown = asked
        .iter()
        .filter(|asked| !is_enough(asked))
        .map(|(bucket, _)| *bucket);
    refresh_all(inner, &unknown.collect::<Vec<_>>(), inner.ages.of(joined)).await?;
    now = inner.now();
    let (mut buckets, mut denials) = (vec![], vec![]);
    for (at, (bucket, request)) in asked.iter().enumerate() {
        let known = bucket.cached_bucket(&request.limits, now);
        let parts = match evaluate(&known, request, now) {
            // The bucket has no item: the transaction creates it.
            _ if known.shards().is_empty() => {
                bucket.reset();
                vec![(0, request.amounts.clone())]
            }
            Allocation::Denied(denied) => {
                bucket.record_denial();
                bucket.summary().record_retry_time(now, denied.retry_after);
                denials.push((at, denied));
                continue;
            }
            Allocation::Single(shard) => vec![(shard, request.amounts.clone())],
            Allocation::Spread(parts) => parts,
        };
        buckets.push(BucketAllocation {
            bucket,
            request,
            parts,
        });
    }
    Ok((buckets, denials))
}
