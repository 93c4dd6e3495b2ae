//! What every protocol shares: a request becomes a call of the limiter, and its answer a value.
//!
//! # Layout
//!
//! - [`GatedLimiter`]: the limiter with its gates and its measures; [`Request`]: what a caller asks
//!   of one or several buckets, all or nothing
//! - `settlement`: [`Granted`]: what it was given; [`Settle`]: what it does with that
//! - `take_more`: [`TakeMore`]: more of it
//! - `grants`: the text from which any agent restores it
//! - `gate`: [`Gate`]: how many requests are in flight, and their memory
//! - `measures`: [`Measures`]: outcomes and durations

mod gate;
mod grants;
mod measures;
mod settlement;
mod take_more;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use weirgate::{
    Acquire, ClassName, Decision, EpochMillis, Error, Limit, MilliTokens, OnUnavailable,
    RateLimiter, VendorReport,
};

use settlement::settle;
use take_more::take_more;

pub use gate::{Full, Gate, Permit};
pub(crate) use grants::{join as join_grants, restore as restore_grants};
pub use measures::{Call, HISTOGRAM_BOUNDS, Measured, Measures, Measuring, Outcome};
pub use settlement::{End, Granted, Settle, SettleError, Settled};
pub use take_more::TakeMore;

/// Decides requests of all protocols.
#[derive(Debug)]
pub struct GatedLimiter {
    /// The limiter.
    pub limiter: RateLimiter,
    /// The requests in flight that take or read.
    pub gate: Gate,
    /// The requests in flight that settle. They have room of their own, because they end the waits of
    /// the others.
    pub settling: Gate,
    /// Outcomes and durations.
    pub measures: Arc<Measures>,
}

impl GatedLimiter {
    /// Creates a limiter for at most `max_in_flight` requests at once, and as many settlements.
    #[must_use]
    pub fn new(limiter: RateLimiter, max_in_flight: u32) -> Self {
        Self::with(limiter, max_in_flight, max_in_flight)
    }

    /// Creates a limiter for at most so many requests and settlements at once.
    #[must_use]
    pub fn with(limiter: RateLimiter, max_in_flight: u32, max_settling: u32) -> Self {
        Self {
            limiter,
            gate: Gate::new(max_in_flight),
            settling: Gate::new(max_settling),
            measures: Arc::default(),
        }
    }

    /// Decides a request. If the future is dropped, what it took returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent; the others if no decision could be made.
    pub async fn acquire(&self, request: &Request) -> Result<Decision<Granted>, Error> {
        if let [bucket] = request.buckets.as_slice() {
            let mut acquire = request.acquire(&self.limiter, bucket);
            acquire = match request.queue {
                Some(queue) => acquire.queue_up_to(queue),
                None => acquire.wait_up_to(request.wait),
            };
            let decision = match request.is_now {
                true => acquire.send_now().await?,
                false => acquire.send().await?,
            };
            return Ok(decision.map(|grant| Granted(vec![grant])));
        }
        let mut requests = vec![];
        for bucket in &request.buckets {
            requests.push(request.acquire(&self.limiter, bucket));
        }
        let mut all = self.limiter.acquire_all(requests);
        all = match request.queue {
            Some(queue) => all.queue_up_to(queue),
            None => all.wait_up_to(request.wait),
        };
        if let Some(on_unavailable) = request.on_unavailable {
            all = all.on_unavailable(on_unavailable);
        }
        let decision = match request.is_now {
            true => all.send_now().await?,
            false => all.send().await?,
        };
        Ok(decision.map(|grants| Granted(grants.into_iter().collect())))
    }

    /// Tells all callers of a bucket what its vendor said. Returns the end of its pause.
    ///
    /// # Errors
    /// As [`RateLimiter::report_vendor`].
    pub async fn report(&self, report: &Report) -> Result<Option<EpochMillis>, Error> {
        let Report { entity, resource, vendor } = report;
        self.limiter.report_vendor(entity, resource, vendor).await
    }

    /// Settles a grant. It runs to its end even if the future is dropped, and holds `permit`
    /// until then.
    ///
    /// # Errors
    /// [`SettleError`], which says whether something may have been applied.
    pub async fn settle(&self, request: Settle, permit: Permit) -> Result<Settled, SettleError> {
        let (limiter, measures) = (self.limiter.clone(), Arc::clone(&self.measures));
        to_the_end(permit, async move { settle(&limiter, &measures, request).await }).await
    }

    /// Takes more tokens within a grant, all or nothing, as [`settle`](Self::settle) does.
    ///
    /// # Errors
    /// [`SettleError`], which says whether something may have been applied.
    pub async fn take_more(
        &self,
        request: TakeMore,
        permit: Permit,
    ) -> Result<Decision<Settled>, SettleError> {
        let limiter = self.limiter.clone();
        to_the_end(permit, async move { take_more(&limiter, request).await }).await
    }
}

/// Runs a settlement as a task, because half of one would leave its outcome unknown.
async fn to_the_end<T: Send + 'static>(
    permit: Permit,
    settlement: impl Future<Output = Result<T, SettleError>> + Send + 'static,
) -> Result<T, SettleError> {
    let task = tokio::spawn(async move {
        let done = settlement.await;
        drop(permit);
        done
    });
    // Only a runtime that shuts down drops a task.
    task.await.unwrap_or_else(|_| {
        Err(SettleError {
            error: Box::new(Error::Invalid(
                "the agent ended before the settlement, so the outcome is unknown: do not repeat it"
                    .to_owned(),
            )),
            may_be_applied: true,
            grant: None,
        })
    })
}

/// What the vendor of a bucket said.
#[derive(Debug, Clone)]
pub struct Report {
    /// The entity.
    pub entity: String,
    /// The resource.
    pub resource: String,
    /// What its vendor said.
    pub vendor: VendorReport,
}

/// A request for tokens of one or several buckets, all or nothing.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Buckets, 1 to 100.
    pub buckets: Vec<BucketRequest>,
    /// Longest wait for the tokens. Default: none.
    pub wait: Duration,
    /// Longest wait until the request starts, if it queues; then it has no other wait.
    pub queue: Option<Duration>,
    /// Whether a grant that starts later is returned at once.
    pub is_now: bool,
    /// Duration of the lease. Default: none, or 60 s for slots.
    pub lease: Option<Duration>,
    /// Time allowed for the decision. Default: the limiter's.
    pub timeout: Option<Duration>,
    /// Decision while DynamoDB is unavailable. Default: the limiter's.
    pub on_unavailable: Option<OnUnavailable>,
    /// Whether it is granted whatever the balances are, and only counted.
    pub is_bypass: bool,
}

/// What a request takes from one bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketRequest {
    /// The entity.
    pub entity: String,
    /// The resource.
    pub resource: String,
    /// Amounts per limit.
    pub takes: Vec<(String, Take)>,
    /// Limits of the bucket. Default: those that are configured.
    pub limits: Option<Arc<[Limit]>>,
    /// Version of these limits.
    pub limits_version: Option<i64>,
    /// Whether the entity's parents are asked too, although the request brings limits.
    pub is_cascading: bool,
    /// Class of the caller, of limits with classes. Default: none.
    pub class: Option<ClassName>,
}

/// An amount of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Exactly so much.
    Exactly(MilliTokens),
    /// As much as there is, in whole tokens.
    UpTo {
        /// Fewest tokens.
        at_least: i64,
        /// Most tokens.
        at_most: i64,
    },
}

impl Request {
    /// Returns the request of one bucket.
    #[must_use]
    pub fn of(bucket: BucketRequest) -> Self {
        Self { buckets: vec![bucket], ..Self::default() }
    }

    /// Returns the limiter's request for one of the buckets.
    fn acquire<'a>(&self, limiter: &'a RateLimiter, bucket: &BucketRequest) -> Acquire<'a> {
        let mut acquire = limiter.acquire(&bucket.entity, &bucket.resource);
        for (limit, take) in &bucket.takes {
            acquire = match *take {
                Take::Exactly(amount) => acquire.take_milli(limit, amount),
                Take::UpTo { at_least, at_most } => acquire.take_up_to(limit, at_least, at_most),
            };
        }
        if let Some(limits) = &bucket.limits {
            acquire = acquire.shared_limits(limits);
        }
        if let Some(version) = bucket.limits_version {
            acquire = acquire.limits_version(version);
        }
        if bucket.is_cascading {
            acquire = acquire.cascading();
        }
        if let Some(class) = &bucket.class {
            acquire = acquire.class(class.as_str());
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        if let Some(timeout) = self.timeout {
            acquire = acquire.timeout(timeout);
        }
        if let Some(on_unavailable) = self.on_unavailable {
            acquire = acquire.on_unavailable(on_unavailable);
        }
        if self.is_bypass {
            acquire = acquire.bypass();
        }
        acquire
    }
}
