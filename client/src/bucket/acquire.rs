//! Takes from one bucket, or from several: from all, or from none.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use weirgate_shared::{Asks, Bucket, EpochMillis, LimitName, MilliTokens};
use weirgate_store::Consistency;

use super::evaluate::{Allocation, evaluate};
use super::hold::Hold;
use super::prefetch::{self, Pool};
use super::route::acquire_from_table;
use super::state::BucketState;
use crate::session::{Env, Session};
use crate::values::{Amounts, BucketRequest, Denials, Denied, Error, Outcome, shortage, subtract};

/// Decision over several buckets: holds in their order, or denials, and nothing was taken.
pub(crate) type AllOrNone = Outcome<Vec<Hold>, Infallible, Denials>;

/// Decides a request until the deadline, from the pool of prefetched tokens or from the table.
pub(crate) async fn acquire(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    let queues_above_floor = request.start_by.is_some() && request.asks.has_floor();
    if !request.others.is_empty() || queues_above_floor {
        return Box::pin(acquire_by_choice(session, bucket, request, deadline)).await;
    }
    match bucket.serving_pool(&session.env) {
        Some(pool) if Pool::supports(request) => {
            prefetch::acquire(session, bucket, pool, request, deadline).await
        }
        pool => {
            if let Some(pool) = pool {
                pool.warn_of_quota(&bucket.key, request);
            }
            acquire_from_table(session, bucket, request, Instant::now(), deadline).await
        }
    }
}

/// Decides a request that can take from several pools of its limits: from the first one that has enough
/// by the views, then from the others that have. It is denied by all, until one has enough.
async fn acquire_by_choice(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    let enqueued_at = Instant::now();
    // What must stay of a pool is not behind a line, so a request that leaves something takes at once.
    let start_by = |asks: &Asks| request.start_by.filter(|_| !asks.has_floor());
    let choices = request
        .choices()
        .map(|choice| BucketRequest { start_by: start_by(&choice.asks), ..choice });
    let mut choices: Vec<_> = choices.collect();
    let serves = |is_at_once: bool| {
        choices.iter().enumerate().position(|(at, choice)| {
            let start_by = choice.start_by.filter(|_| !is_at_once);
            let choice = BucketRequest { start_by, ..choice.clone() };
            seen(session, bucket, &choice, at == 0).is_none()
        })
    };
    // What queues takes from the pool that has enough at once, if there is one.
    let first = serves(true).or_else(|| serves(false));
    choices[..=first.unwrap_or_default()].rotate_right(1);
    let take = |choice| acquire_from_table(session, bucket, choice, enqueued_at, deadline);
    let mut decided = take(&choices[0]).await?;
    for choice in &choices[1..] {
        let Outcome::Denied(denied) = decided else {
            break;
        };
        // What denied the first one has shown what the others have.
        let next = match seen(session, bucket, choice, false) {
            Some(next) => Outcome::Denied(next),
            None => take(choice).await?,
        };
        decided = match next {
            Outcome::Denied(next) => Outcome::Denied(denied.or_sooner(next)),
            granted => granted,
        };
    }
    Ok(match request.start_by {
        Some(_) => decided.map(Hold::in_line),
        None => decided,
    })
}

/// Returns the denial of a choice of pools that the views of all shards show; `None` if it may be served.
///
/// A part from each of several shards is taken only of the preferred pools, or if no shard could have
/// enough: many that do so at once make each other short. Otherwise it waits for one shard.
fn seen(
    session: &Session,
    bucket: &BucketState,
    choice: &BucketRequest,
    is_preferred: bool,
) -> Option<Denied> {
    let now = session.now();
    let known = bucket.cached_bucket(&choice.limits, now);
    match evaluate(&known, choice, now) {
        _ if !known.is_complete() => None,
        Err(denied) => Some(denied),
        Ok(Allocation::Single(_)) => None,
        Ok(Allocation::Spread(_)) => {
            let count = bucket.summary().max_shards_seen();
            let may_spread = is_preferred || choice.exceeds_one_shard(count);
            let shards = known.shards().iter().filter(|_| !may_spread);
            let denials = shards.filter_map(|shard| shortage(shard, choice, None, now));
            let wait = |denied: &Denied| denied.retry_after.unwrap_or(Duration::MAX);
            denials.min_by_key(wait)
        }
    }
}

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
    let (mut taken, mut is_due) = (EarlierTakes::default(), false);
    for (at, (bucket, request)) in requests.iter().enumerate() {
        if !is_due && !is_in_pool(&session.env, bucket, request) {
            is_due = bucket.first_queue().shard.is_unknown()
                || may_be_short(bucket, request, taken.of(bucket), now);
            taken.add(requests, at);
        }
    }
    if is_due {
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
    let mut failed: Option<Error> = None;
    let weight = |error: &Error| (!error.is_transient(), error.is_unknown());
    let mut is_unknown = false;
    for (at, decision) in decisions.into_iter().enumerate() {
        match decision {
            Ok(Outcome::Granted(hold)) => holds.push(hold),
            Ok(Outcome::Denied(denied)) => denials.push((at, denied)),
            Err(error) => {
                is_unknown |= error.is_unknown();
                let is_heavier = |known| weight(&error) > weight(known);
                if failed.as_ref().is_none_or(is_heavier) {
                    failed = Some(error);
                }
            }
        }
    }
    if denials.is_empty() && failed.is_none() {
        return Ok(Outcome::Granted(holds));
    }
    // Each goes on if the request is dropped, or has no time left.
    let back = join_all(holds.into_iter().map(Hold::roll_back));
    for returned in timeout_at(deadline, back).await.into_iter().flatten() {
        if let Err(error) = returned {
            tracing::warn!(%error, "tokens of a request that another bucket denied could not be returned");
        }
    }
    // What denies is a decision, whatever another bucket answers in a moment.
    match failed {
        Some(error) if denials.is_empty() || !error.is_transient() => {
            Err(error.halfway(is_unknown))
        }
        _ => Ok(Outcome::Denied(denials)),
    }
}

fn is_in_pool(env: &Env, bucket: &BucketState, request: &BucketRequest) -> bool {
    let pool = bucket.serving_pool(env);
    pool.is_some_and(|pool| pool.covers(request))
}

/// What requests take from buckets that others after them take from, too.
#[derive(Default)]
struct EarlierTakes<'a>(Vec<(&'a Arc<BucketState>, Amounts)>);

impl<'a> EarlierTakes<'a> {
    fn of(&self, bucket: &Arc<BucketState>) -> Option<&Amounts> {
        let mut all = self.0.iter();
        let same = all.find(|(other, _)| Arc::ptr_eq(bucket, other))?;
        Some(&same.1)
    }

    /// Adds one of the requests, if another one after it has the same bucket: almost none has.
    fn add(&mut self, requests: &[(&'a Arc<BucketState>, &BucketRequest)], at: usize) {
        let (bucket, request) = requests[at];
        let mut later = requests[at + 1..].iter();
        if later.any(|(other, _)| Arc::ptr_eq(bucket, other)) {
            let mut amounts = self.of(bucket).cloned().unwrap_or_default();
            for ask in request.asks.debits() {
                *amounts.entry(ask.limit.clone()).or_default() += ask.amount;
            }
            self.0.retain(|(other, _)| !Arc::ptr_eq(bucket, other));
            self.0.push((bucket, amounts));
        }
    }
}

/// Returns whether the view of an unsplit bucket is short of the request, or is older than the retry
/// time of a denial: by then others may have taken what has come in. Of a split one the read shows the
/// first shard alone, which denies nothing.
fn may_be_short(
    bucket: &BucketState,
    request: &BucketRequest,
    before: Option<&Amounts>,
    now: EpochMillis,
) -> bool {
    if bucket.summary().max_shards_seen() > 1 {
        return false;
    }
    let shard = &bucket.first_queue().shard;
    let Some(view) = shard.view_since_clock_jump() else {
        return false;
    };
    let is_paused = view.shard.paused_until(now).is_some();
    if is_paused || bucket.summary().retry_time_passed(now, shard.age(&view)) {
        return true;
    }
    let may_lack = |(name, need): (&LimitName, MilliTokens)| {
        let state = view.shard.limits.get(name);
        let before = before.and_then(|taken| taken.get(name)).copied();
        let need = need + before.unwrap_or_default();
        state.is_none_or(|state| view.shard.balance(state, now) < need)
    };
    // Each acquire passes here, and almost none is short: balances alone cost no copy of the shard.
    let index = view.shard.shard();
    if !request.asks.required(index).any(may_lack) {
        return false;
    }
    let mut shard = view.shard.projected(&request.limits, now);
    subtract(&mut shard, before.into_iter().flatten());
    let known = Bucket::new(vec![shard]);
    evaluate(&known, request, now).is_err()
}

/// Reads the first shards of all buckets in one request. Returns the denials that they show, with
/// the places of their buckets. A shard that cannot be read denies nothing.
async fn read_together(
    session: &Arc<Session>,
    requests: &[(&Arc<BucketState>, &BucketRequest)],
    deadline: Instant,
) -> Result<Denials, Error> {
    let timeouts = requests.iter().map(|(_, request)| request.timeout);
    let timeout = timeouts.min().unwrap_or_default();
    let consistency = match requests.iter().any(|(_, request)| request.takes_slots()) {
        true => Consistency::Strong,
        false => Consistency::Eventual,
    };
    let keys: BTreeSet<_> = requests.iter().map(|(bucket, _)| bucket.key.item_key()).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let sent = session.env.ages.sent();
    let read = session.read_with(&keys, consistency, None);
    let Ok(read) = timeout_at(deadline, read).await else {
        return Err(session.given_up("BatchGetItem of buckets", timeout, &keys[0]).into());
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
    let (mut taken, mut denials) = (EarlierTakes::default(), vec![]);
    for (at, (bucket, request)) in requests.iter().enumerate() {
        let seen = bucket.seen_bucket(&request.limits, now, |view| view.sent_at >= sent.at);
        if is_in_pool(&session.env, bucket, request) || !seen.is_complete() {
            continue;
        }
        let left = match (seen.shards(), taken.of(bucket)) {
            ([only], Some(before)) => {
                let mut left = only.clone();
                subtract(&mut left, before);
                Bucket::new(vec![left])
            }
            _ => seen,
        };
        if let Err(denied) = evaluate(&left, request, now) {
            bucket.summary().record_retry_time(now, denied.retry_after);
            denials.push((at, denied));
        } else {
            // What is denied makes no other short.
            taken.add(requests, at);
        }
    }
    Ok(denials)
}
