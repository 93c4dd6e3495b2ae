//! Requests of the limiter for the parcels of a call.

use std::time::Duration;

use weirgate::{Acquire, Decision, Error, Grant, LimitStatus, Peek, RateLimiter};

use super::plan::Parcel;

/// Returns the request for a parcel.
fn acquire<'l>(limiter: &'l RateLimiter, parcel: &Parcel) -> Acquire<'l> {
    let bucket = &parcel.bucket;
    let mut request = limiter.acquire(&bucket.entity, &bucket.resource);
    if let Some(limits) = &bucket.terms.limits {
        request = request.shared_limits(limits);
    }
    for (limit, tokens) in parcel.amounts() {
        request = request.take(limit, tokens);
    }
    if bucket.terms.is_shadow {
        request = request.shadow();
    }
    request
}

/// Returns the peek for a parcel.
pub(super) fn peek<'l>(limiter: &'l RateLimiter, parcel: &Parcel) -> Peek<'l> {
    let mut peek = limiter.peek(&parcel.bucket.entity, &parcel.bucket.resource);
    if let Some(limits) = &parcel.bucket.terms.limits {
        peek = peek.limits(limits);
    }
    for (limit, tokens) in parcel.amounts() {
        peek = peek.need(limit, tokens);
    }
    peek
}

/// Asks for these parcels together.
pub(super) async fn ask(
    limiter: &RateLimiter,
    asked: &[(usize, &Parcel)],
    timeout: Duration,
    lease: Option<Duration>,
) -> Result<Decision<Vec<Grant>>, Error> {
    let request = |(_, parcel): &(usize, &Parcel)| {
        let request = acquire(limiter, parcel).timeout(timeout);
        match lease {
            Some(lasts) => request.lease(lasts),
            None => request,
        }
    };
    if let [only] = asked {
        return Ok(request(only).send().await?.map(|grant| vec![grant]));
    }
    let decision = limiter
        .acquire_all(asked.iter().map(request))
        .send()
        .await?;
    Ok(decision.map(|grants| grants.into_iter().collect()))
}

/// Returns a limit with slots of which a parcel takes some.
pub(super) fn slots(
    asked: &[(usize, &Parcel)],
    decision: &Decision<Vec<Grant>>,
) -> Option<LimitStatus> {
    let limits: Vec<_> = match decision {
        Decision::Granted(grants) => grants.iter().flat_map(Grant::limits).collect(),
        Decision::Denied(denied) => denied.limits.clone(),
        Decision::NeverFits(_) | Decision::Disabled(_) => vec![],
    };
    let is_taken = |status: &LimitStatus| {
        let takes = |(_, parcel): &(usize, &Parcel)| {
            let mut takes = parcel.bucket.terms.takes.iter();
            !parcel.bucket.terms.is_shadow
                && *parcel.bucket.resource == *status.resource.as_str()
                && takes.any(|take| *take.limit == *status.limit)
        };
        status.is_concurrent() && asked.iter().any(takes)
    };
    limits.into_iter().find(is_taken)
}
