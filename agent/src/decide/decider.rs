//! The limiter, with what all protocols share of it.

use std::future::Future;

use weirgate::{Decision, Error, RateLimiter};

use super::gate::{Gate, Permit};
use super::granted::Granted;
use super::measures::Measures;
use super::request::Request;
use super::settle::{Settle, SettleError, Settled, TakeMore, settle};
use super::take_more::take_more;

/// Decides requests of all protocols.
#[derive(Debug)]
pub struct Decider {
    /// The limiter.
    pub limiter: RateLimiter,
    /// The requests in flight that take or read.
    pub gate: Gate,
    /// The requests in flight that settle. They have room of their own, because they end the waits of
    /// the others.
    pub settling: Gate,
    /// Outcomes and durations.
    pub measures: Measures,
}

impl Decider {
    /// Creates a decider for at most `max_in_flight` requests at once, and as many settlements.
    #[must_use]
    pub fn new(limiter: RateLimiter, max_in_flight: u32) -> Self {
        Self::with(limiter, max_in_flight, max_in_flight)
    }

    /// Creates a decider for at most so many requests and settlements at once.
    #[must_use]
    pub fn with(limiter: RateLimiter, max_in_flight: u32, max_settling: u32) -> Self {
        Self {
            limiter,
            gate: Gate::new(max_in_flight),
            settling: Gate::new(max_settling),
            measures: Measures::default(),
        }
    }

    /// Decides a request. If the future is dropped, what it took returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent; the others if no decision could be made.
    pub fn acquire<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Future<Output = Result<Decision<Granted>, Error>> + Send + 'a {
        self.decide(request)
    }

    async fn decide(&self, request: &Request) -> Result<Decision<Granted>, Error> {
        if let [bucket] = request.buckets.as_slice() {
            let acquire = request.acquire(&self.limiter, bucket);
            let decision = acquire.wait_up_to(request.wait).send().await?;
            return Ok(granted(decision, |grant| vec![grant]));
        }
        let mut requests = vec![];
        for bucket in &request.buckets {
            requests.push(request.acquire(&self.limiter, bucket));
        }
        let mut all = self.limiter.acquire_all(requests).wait_up_to(request.wait);
        if let Some(on_unavailable) = request.on_unavailable {
            all = all.on_unavailable(on_unavailable);
        }
        let decision = all.send().await?;
        Ok(granted(decision, |grants| grants.into_iter().collect()))
    }

    /// Settles a grant. It runs to its end even if the future is dropped, and holds `permit`
    /// until then.
    ///
    /// # Errors
    /// [`SettleError`], which says whether something may have been applied.
    pub async fn settle(&self, request: Settle, permit: Permit) -> Result<Settled, SettleError> {
        let limiter = self.limiter.clone();
        to_the_end(permit, async move { settle(&limiter, request).await }).await
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
                "the agent is shutting down: settle again".to_owned(),
            )),
            may_be_applied: true,
            grant: None,
        })
    })
}

fn granted<G>(
    decision: Decision<G>,
    grants: impl FnOnce(G) -> Vec<weirgate::Grant>,
) -> Decision<Granted> {
    match decision {
        Decision::Granted(given) => Decision::Granted(Granted(grants(given))),
        Decision::Denied(denied) => Decision::Denied(denied),
        Decision::NeverFits(never) => Decision::NeverFits(never),
        Decision::Disabled(disabled) => Decision::Disabled(disabled),
    }
}
