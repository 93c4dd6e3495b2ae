//! Writes what calls report. A caller may leave before a report is written: it is written anyway.

use tokio::time::Instant;
use tonic::Status;
use weirgate::{Error, OnUnavailable, RateLimiter};

use super::decide::acquire;
use super::failure::{overloaded, status_of};
use super::plan::{Parcel, Step};

use crate::decide::Decider;

/// Writes what `steps` report, and returns when that is done, or at the `deadline`: what is still
/// being written then counts as written, because repeating the call would count it twice.
pub(super) async fn record(
    decider: &Decider,
    steps: &[Step],
    deadline: Instant,
) -> Result<(), Status> {
    let mut writes = vec![];
    for step in steps {
        let (parcel, is_refund) = match step {
            Step::Settle(parcel) => (parcel.clone(), false),
            Step::Refund(parcel) => (parcel.clone(), true),
            _ => continue,
        };
        // The write counts as a request in flight until its end.
        let permit = decider.gate.enter().ok_or_else(|| overloaded(decider))?;
        let limiter = decider.limiter.clone();
        writes.push(tokio::spawn(async move {
            let written = match is_refund {
                true => refund(&limiter, &parcel).await,
                false => settle(&limiter, &parcel).await,
            };
            drop(permit);
            written.inspect_err(|error| {
                let (entity, resource) = (&parcel.bucket.entity, &parcel.bucket.resource);
                tracing::warn!(%error, entity, resource, "a report was not written");
            })
        }));
    }
    for write in writes {
        match tokio::time::timeout_at(deadline, write).await {
            Err(_) => break,
            Ok(Ok(written)) => written.map_err(|error| status_of(&error))?,
            Ok(Err(_)) => return Err(Status::internal("the task of a report failed")),
        }
    }
    Ok(())
}

async fn settle(limiter: &RateLimiter, parcel: &Parcel) -> Result<(), Error> {
    // A level that is stopped counts nothing, as for every request.
    let request = acquire(limiter, parcel).into_debt();
    let request = request.on_unavailable(OnUnavailable::Error);
    request.send().await.map(drop)
}

async fn refund(limiter: &RateLimiter, parcel: &Parcel) -> Result<(), Error> {
    let mut refund = limiter.refund(&parcel.bucket.entity, &parcel.bucket.resource);
    if let Some(limits) = &parcel.bucket.terms.limits {
        refund = refund.limits(limits);
    }
    for (limit, tokens) in parcel.amounts() {
        refund = refund.give_back(limit, tokens);
    }
    refund.send().await
}
