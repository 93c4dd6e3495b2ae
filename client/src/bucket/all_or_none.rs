//! Takes from several buckets: from all, or from none.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use weirgate_shared::{Asks, Bucket, Effect, EpochMillis, LimitName, MilliTokens, Shard};
use weirgate_store::Consistency;

use super::acquire::acquire;
use super::evaluate::{Allocation, evaluate};
use super::hold::Hold;
use super::state::BucketState;
use crate::session::Session;
use crate::values::{BucketRequest, Denials, Error, Outcome};

/// Decision over several buckets: holds in the order of the buckets, or denials, and nothing was taken.
pub(crate) type AllOrNone = Outcome<Vec<Hold>, Infallible, Denials>;

/// Takes from all buckets concurrently. If one denies or fails, the tokens of the others return.
///
/// A bucket that must be read first is read together with all others, before any is written to. So
/// a denial that the read shows costs the other buckets no write.
pub(crate) async fn take_all(
    session: &Arc<Session>,
    requests: &[(&Arc<BucketState>, &BucketRequest)],
    deadline: Instant,
) -> Result<AllOrNone, Error> {
    let now = session.now();
    let must_read = |(at, (bucket, request)): (usize, &(&Arc<BucketState>, &BucketRequest))| {
        !is_in_pool(bucket, request)
            && (bucket.queues.first().shard.is_unknown()
                || may_be_short(bucket, request, &taken_before(requests, at), now))
    };
    if requests.iter().enumerate().any(must_read) {
        let denials = read_together(session, requests, deadline).await?;
        if !denials.is_empty() {
            return Ok(Outcome::Denied(denials));
        }
    }
    let all = requests.iter();
    let decisions =
        join_all(all.map(|(bucket, request)| acquire(session, bucket, request, deadline))).await;
    let mut holds = vec![];
    let mut denials = vec![];
    let mut failed = None;
    for (at, decision) in decisions.into_iter().enumerate() {
        match decision {
            Ok(Outcome::Granted(hold)) => holds.push(hold),
            Ok(Outcome::Denied(denied)) => denials.push((at, denied)),
            Err(error) => failed = Some(error),
        }
    }
    if denials.is_empty() && failed.is_none() {
        return Ok(Outcome::Granted(holds));
    }
    // Tasks of their own, so they finish even if the request is dropped, or has no time left.
    let tasks: Vec<_> = holds
        .into_iter()
        .map(|hold| session.spawn(return_others(hold)))
        .collect();
    timeout_at(deadline, join_all(tasks)).await.ok();
    failed.map_or(Ok(Outcome::Denied(denials)), Err)
}

fn is_in_pool(bucket: &BucketState, request: &BucketRequest) -> bool {
    let pool = bucket.pool.as_ref();
    pool.is_some_and(|pool| pool.covers(request))
}

/// Returns what the requests before this one take from the same bucket.
fn taken_before(requests: &[(&Arc<BucketState>, &BucketRequest)], at: usize) -> Asks {
    let mut taken = Asks::default();
    let same = |(bucket, _): &&(&Arc<BucketState>, _)| Arc::ptr_eq(bucket, requests[at].0);
    for (_, request) in requests[..at].iter().filter(same) {
        request.asks.iter().for_each(|ask| taken.add(ask.clone()));
    }
    taken
}

/// Returns the shard after these were taken from it.
fn less(mut shard: Shard, taken: &Asks) -> Shard {
    for ask in taken.debits() {
        if let Some(state) = shard.limits.get_mut(&ask.limit) {
            state.available -= ask.amount;
        }
    }
    shard
}

/// Returns whether the view of an unsplit bucket is short of the request, or is older than the retry
/// time of a denial: by then others may have taken what has come in. Of a split one the read shows the
/// first shard alone, which denies nothing.
fn may_be_short(
    bucket: &BucketState,
    request: &BucketRequest,
    before: &Asks,
    now: EpochMillis,
) -> bool {
    if bucket.summary().max_shards_seen() > 1 {
        return false;
    }
    let shard = &bucket.queues.first().shard;
    let Some(view) = shard.view_since_clock_jump() else {
        return false;
    };
    if bucket.summary().retry_time_passed(now, shard.age(&view)) {
        return true;
    }
    let may_lack = |(name, need): (&LimitName, MilliTokens)| {
        let (state, before) = (view.shard.limits.get(name), before.enforced(name.as_str()));
        let need = need + before.unwrap_or_default();
        state.is_none_or(|state| view.shard.balance(state, now) < need)
    };
    // Each acquire passes here, and almost none is short: balances alone cost no copy of the shard.
    if !request.asks.with(Effect::Enforce).any(may_lack) {
        return false;
    }
    let shard = view.shard.projected(&request.limits, now);
    let known = Bucket::new(vec![less(shard, before)]);
    matches!(evaluate(&known, request, now), Allocation::Denied(_))
}

/// Reads the first shards of all buckets in one request. Returns the denials that they show, with
/// the places of their buckets. A shard that cannot be read denies nothing.
async fn read_together(
    session: &Session,
    requests: &[(&Arc<BucketState>, &BucketRequest)],
    deadline: Instant,
) -> Result<Denials, Error> {
    let timeouts = requests.iter().map(|(_, request)| request.timeout);
    let timeout = timeouts.min().unwrap_or_default();
    let consistency = match requests.iter().any(|(_, request)| request.takes_slots()) {
        true => Consistency::Strong,
        false => Consistency::Eventual,
    };
    let keys: BTreeSet<_> = requests
        .iter()
        .map(|(bucket, _)| bucket.key.item_key())
        .collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let sent = session.env.ages.sent();
    let read = session.read_with(&keys, consistency, None);
    let Ok(read) = timeout_at(deadline, read).await else {
        return Err(session
            .timeout_error("BatchGetItem of buckets", timeout)
            .into());
    };
    let items = match read {
        Ok(items) => items,
        // Each bucket's own request finds out what it can do without.
        Err(error) => {
            tracing::debug!(%error, "buckets not read together");
            return Ok(vec![]);
        }
    };
    for (bucket, _) in requests {
        let key = bucket.key.item_key();
        let item = items.iter().find(|item| item.key().as_ref() == Some(&key));
        bucket.shard(0).record_item(item, sent, session);
    }
    let now = session.now();
    let mut denials = vec![];
    for (at, (bucket, request)) in requests.iter().enumerate() {
        let seen = bucket.seen_bucket(&request.limits, now, |view| view.sent_at >= sent.at);
        if is_in_pool(bucket, request) || !seen.is_complete() {
            continue;
        }
        let before = taken_before(requests, at);
        let left = seen
            .shards()
            .iter()
            .map(|shard| less(shard.clone(), &before));
        if let Allocation::Denied(denied) = evaluate(&Bucket::new(left.collect()), request, now) {
            bucket.summary().record_retry_time(now, denied.retry_after);
            denials.push((at, denied));
        }
    }
    Ok(denials)
}

/// Returns the tokens of a hold whose request another bucket denied.
async fn return_others(hold: Hold) {
    if let Err(error) = hold.roll_back().await {
        tracing::warn!(%error, "tokens of a request that another bucket denied could not be returned");
    }
}
