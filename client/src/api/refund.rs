//! Returns tokens without a grant.

use std::time::Duration;

use futures_util::future::join_all;
use weirgate_shared::Limit;

use super::acquire::Acquire;
use super::limiter::RateLimiter;
use crate::bucket::refund;
use crate::config::Freshness;
use crate::session::deadline;
use crate::values::{Error, Settlement};

impl RateLimiter {
    /// Returns tokens of `entity` on `resource` that turned out to be unused, if there is no grant
    /// to adjust: the process that took them is another one, and passed no
    /// [token](crate::Grant::into_token) on.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// limiter.refund("customer-1", "gpt-4").give_back("tpm", 287).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund(&self, entity: &str, resource: &str) -> Refund<'_> {
        Refund {
            request: self.acquire(entity, resource),
        }
    }
}

/// Tokens to return without a grant. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a refund does nothing until it is sent"]
pub struct Refund<'a> {
    request: Acquire<'a>,
}

impl Refund<'_> {
    /// Sets the limits of the bucket, as for an [acquire](Acquire::limits). Then nothing returns to
    /// the entity's parents.
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.request = self.request.limits(limits);
        self
    }

    /// Returns `tokens` of a rate, 0 to 10^12: to the bucket, and to the parents that an acquire
    /// takes from. A balance rises to its capacity at most. Usage falls by the whole amount.
    pub fn give_back(mut self, limit: &str, tokens: i64) -> Self {
        self.request = self.request.take(limit, tokens);
        self
    }

    /// Sets the time allowed for reading the limits. Default: the
    /// [limiter's](crate::Builder::timeout), which the writes have anyway.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request = self.request.timeout(timeout);
        self
    }

    /// Returns the tokens: one write per bucket, and a read before it if the bucket was not seen.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is written to a bucket, also for a limit with slots, or for
    /// more than the bucket has consumed since it was created. [`Error::Store`] if the outcome is not known: the write is not repeated, because it could return the tokens
    /// twice, so they count as consumed.
    pub async fn send(self) -> Result<(), Error> {
        self.request
            .limiter()
            .session
            .at_home(async {
                let (limiter, request) = (self.request.limiter(), self.request.request());
                let answer_by = deadline(request.timeout);
                let resolved = request
                    .targets(&limiter.buckets, Freshness::AnyAge, answer_by)
                    .await?;
                let requested = resolved
                    .targets
                    .iter()
                    .filter(|target| !target.request.asks.is_empty());
                let refunds = requested
                    .map(|target| refund(&limiter.session, &target.bucket, &target.request));
                // A failed one does not stop the others.
                Settlement::all(join_all(refunds).await).map(drop)
            })
            .await
    }
}
