//! Several requests, all granted or none.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};

use super::acquire::Acquire;
use super::limiter::RateLimiter;
use crate::bucket::BucketTarget;
use crate::config::Freshness;
use crate::decide::{
    AcquireOptions, Decision, Grant, Granted, ResolvedRequest, TakeMode, count_decision, decide,
    instrumented,
};
use crate::values::{Error, OnUnavailable, Settlement, check_on_unavailable};

/// Most requests in one decision, 100.
const MAX_REQUESTS: usize = 100;

impl RateLimiter {
    /// Requests tokens of several buckets, all or none.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), weirgate::Error> {
    /// let both = [
    ///     limiter.acquire("user-123", "gpt-4").limits(&limits).take("tpm", 1_500),
    ///     limiter.acquire("user-123", "search").limits(&limits).take("tpm", 10),
    /// ];
    /// if let weirgate::Decision::Granted(mut grants) = limiter.acquire_all(both).send().await? {
    ///     let _ = grants[0].adjust("tpm", 1_213).await?;
    ///     let _ = grants.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<'a>(
        &'a self,
        requests: impl IntoIterator<Item = Acquire<'a>>,
    ) -> AcquireAll<'a> {
        AcquireAll::new(self, requests.into_iter().collect())
    }
}

/// Requests on several buckets, all granted or none. Nothing happens until [`send`](Self::send).
///
/// Tokens are taken from all buckets at the same time. If one denies, the tokens of the others return, with one
/// write each; until then other requests may be denied those tokens.
/// [`in_one_transaction`](Self::in_one_transaction) prevents that, at twice the write units.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct AcquireAll<'a> {
    limiter: &'a RateLimiter,
    requests: Vec<Acquire<'a>>,
    options: AcquireOptions,
}

impl<'a> AcquireAll<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, requests: Vec<Acquire<'a>>) -> Self {
        let on_unavailable = limiter.session.settings.on_unavailable;
        let is_bypass = requests
            .iter()
            .all(|request| request.request().options.is_bypass);
        Self {
            limiter,
            requests,
            options: AcquireOptions {
                wait: Duration::ZERO,
                take_mode: TakeMode::Concurrent,
                on_unavailable,
                is_bypass,
            },
        }
    }

    /// Waits up to this long for all the tokens before it denies. A wait that cannot succeed does
    /// not begin.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// Takes everything in one DynamoDB transaction: two write units per bucket, and no token is
    /// ever taken and returned. It has at most 100 items (shards of buckets), and each bucket once.
    pub const fn in_one_transaction(mut self) -> Self {
        self.options.take_mode = TakeMode::Transaction;
        self
    }

    /// Sets the decision if DynamoDB is unavailable, instead of the
    /// [limiter's](crate::Builder::on_unavailable) and the requests' settings.
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.options.on_unavailable = on_unavailable;
        self
    }

    /// Sends the requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent: no request or more than 100, a request that is
    /// invalid, has its own `wait_up_to`, or belongs to another limiter, or a bucket twice in a transaction.
    /// The other errors if no decision could be made.
    pub async fn send(self) -> Result<Decision<Grants>, Error> {
        let invalid = |message: String| Err(Error::Invalid(message));
        let count = self.requests.len();
        if count == 0 || count > MAX_REQUESTS {
            return invalid(format!(
                "acquire_all needs 1 to {MAX_REQUESTS} requests, got {count}"
            ));
        }
        for request in &self.requests {
            if !Arc::ptr_eq(&request.limiter().session, &self.limiter.session) {
                return invalid(
                    "a request belongs to another limiter: create all requests with the limiter that sends them"
                        .to_owned(),
                );
            }
            if !request.request().options.wait.is_zero() {
                return invalid(
                    "a request has its own wait_up_to(): set it once, after acquire_all()"
                        .to_owned(),
                );
            }
            request.request().validate()?;
        }
        check_on_unavailable(self.options.on_unavailable)?;
        let (session, mut counts) = (&self.limiter.session, vec![]);
        let decision = {
            let decision = pin!(self.decision(&mut counts));
            instrumented(session, "several", "several", decision).await?
        };
        count_decision(session, &decision);
        Ok(decision.map(|given| {
            let mut all = given.by_bucket.into_iter();
            let grant = |count| {
                Grant::of(
                    all.by_ref().take(count),
                    given.degraded.clone(),
                    given.has_unlimited,
                )
            };
            Grants(counts.into_iter().map(grant).collect())
        }))
    }

    /// Returns the decision, and the number of buckets per request.
    async fn decision(&self, counts: &mut Vec<usize>) -> Result<Decision<Granted>, Error> {
        let decide = async |targets| {
            let (session, local_buckets) = (&self.limiter.session, &self.limiter.local_buckets);
            decide(session, local_buckets, targets, self.options).await
        };
        let targets = self.targets(Freshness::AnyAge, counts).await;
        let is_old = targets.as_ref().is_ok_and(|all| all.limits_may_be_stale);
        let decision = decide(targets).await?;
        if is_old && matches!(decision, Decision::NeverFits(_)) {
            // A permanent denial must not rest on limits that may have been raised since.
            return decide(self.targets(Freshness::Recent, counts).await).await;
        }
        Ok(decision)
    }

    /// Returns the buckets of all requests, and their number per request.
    async fn targets(
        &self,
        age: Freshness,
        counts: &mut Vec<usize>,
    ) -> Result<ResolvedRequest, Error> {
        *counts = vec![0; self.requests.len()];
        let mut requests = vec![];
        for request in &self.requests {
            requests.push(request.request().targets(&self.limiter.buckets, age));
        }
        let all = try_join_all(requests).await?;
        *counts = all.iter().map(|asked| asked.targets.len()).collect();
        let all = all
            .into_iter()
            .fold(ResolvedRequest::default(), ResolvedRequest::merge);
        if self.options.take_mode == TakeMode::Transaction {
            check_different(&all.targets)?;
        }
        Ok(all)
    }
}

/// Requires different buckets, because a transaction can change an item only once.
fn check_different(targets: &[BucketTarget]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let twice = targets
        .iter()
        .map(|target| &target.bucket.key)
        .find(|key| !seen.insert(*key));
    twice.map_or(Ok(()), |key| {
        let (entity, resource) = (&key.entity, &key.resource);
        Err(Error::Invalid(format!(
            "{entity} on {resource} is requested twice in one transaction: request the sum once, or leave out in_one_transaction()"
        )))
    })
}

/// The grants of several requests, in their order. Each can be adjusted; all can be released or
/// rolled back together.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// [Releases](Grant::release) all.
    ///
    /// # Errors
    /// The first error; the other grants are released anyway.
    pub async fn release(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::release)).await)
    }

    /// [Rolls back](Grant::roll_back) all.
    ///
    /// # Errors
    /// The first error; the other grants are rolled back anyway.
    pub async fn roll_back(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::roll_back)).await)
    }
}

impl Deref for Grants {
    type Target = [Grant];
    fn deref(&self) -> &[Grant] {
        &self.0
    }
}

impl DerefMut for Grants {
    fn deref_mut(&mut self) -> &mut [Grant] {
        &mut self.0
    }
}

impl IntoIterator for Grants {
    type Item = Grant;
    type IntoIter = std::vec::IntoIter<Grant>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
