//! Denials that need no request.

use std::time::Duration;

use super::evaluate::{Allocation, evaluate};
use super::state::BucketState;
use crate::queue::denial_ttl;
use crate::session::Session;
use crate::values::{BucketRequest, Denied};

/// Returns the denial that the views or the stamp imply. Sends nothing.
pub(crate) fn cached_denial(
    session: &Session,
    bucket: &BucketState,
    request: &BucketRequest,
) -> Option<Denied> {
    if bucket
        .pool
        .as_ref()
        .is_some_and(|pool| pool.covers(request))
    {
        return None;
    }
    let denied = denial_by_views(session, bucket, request)
        .or_else(|| bucket.denied_by_stamp(session, request))?;
    bucket
        .summary()
        .record_retry_time(session.now(), denied.retry_after);
    Some(denied)
}

/// Returns the denial that the views of all shards imply.
fn denial_by_views(
    session: &Session,
    bucket: &BucketState,
    request: &BucketRequest,
) -> Option<Denied> {
    let most = session.settings.denial_cache_ttl;
    // In a split bucket, one short shard proves nothing: only a denial by all shards is cached.
    let moment = session.env.ages.now();
    let denied = bucket.denied().map(|at| moment.since(at));
    if bucket.summary().max_shards_seen() > 1 && denied.is_none_or(|age| age >= most) {
        return None;
    }
    let now = session.now();
    let mut age = denied
        .filter(|_| bucket.summary().max_shards_seen() > 1)
        .unwrap_or_default();
    let known = bucket.seen_bucket(&request.limits, now, |view| {
        let seen = moment.since(view.sent_at);
        let is_known = seen < most;
        age = age.max(if is_known { seen } else { Duration::ZERO });
        is_known
    });
    let Allocation::Denied(denied) = evaluate(&known, request, now) else {
        return None;
    };
    let is_fresh = denied
        .short()
        .all(|status| age < denial_ttl(status, age, most));
    (known.is_complete() && is_fresh && !bucket.summary().retry_time_passed(now, age))
        .then_some(denied)
}
