//! Writes what calls report. A caller may leave before a report is written: it is written anyway.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::Status;
use weirgate::{Error, RateLimiter};

use super::decide::acquire;
use super::plan::{Parcel, Step};
use super::service::status_of;

/// Most reports that are being written, 4,096.
const MAX_REPORTS: u32 = 4_096;

/// Reports that are being written.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    permits: Arc<Semaphore>,
}

impl Facts {
    pub(super) fn new() -> Self {
        let permits = usize::try_from(MAX_REPORTS).unwrap_or(usize::MAX);
        Self {
            permits: Arc::new(Semaphore::new(permits)),
        }
    }

    /// Writes what `steps` report, and returns when that is done, or at the `deadline`: what is
    /// still being written then counts as written, because repeating the call would count it twice.
    pub(super) async fn record(
        &self,
        limiter: &RateLimiter,
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
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                return Err(Status::unavailable(format!(
                    "{MAX_REPORTS} reports are being written, as many as may be: report later"
                )));
            };
            let limiter = limiter.clone();
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

    /// Waits until everything is written, at most this long.
    pub(super) async fn finish(&self, most: Duration) {
        let all = self.permits.acquire_many(MAX_REPORTS);
        if tokio::time::timeout(most, all).await.is_err() {
            tracing::warn!("reports were still being written at the end");
        }
    }
}

async fn settle(limiter: &RateLimiter, parcel: &Parcel) -> Result<(), Error> {
    // A level that is stopped counts nothing, as for every request.
    acquire(limiter, parcel).into_debt().send().await.map(drop)
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
