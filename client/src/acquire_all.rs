//! Several requests, all or nothing.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};

use crate::away;
use crate::config::Age;
use crate::decide::{Asked, Given, How, Manner, Target, decide, tell};
use crate::telemetry::watched;
use crate::{Acquire, Decision, Error, Grant, RateLimiter, Settlement, WhenAway};

/// The most requests that are decided together.
const MAX_REQUESTS: usize = 100;

/// Requests for tokens of several buckets, all of which are granted, or none. Nothing happens until
/// [`send`](Self::send).
///
/// The buckets are asked at the same time; if one denies, what the others gave goes back, a write
/// each. Meanwhile it is missing there, so others may be denied who would not have been.
/// [`in_one_transaction`](Self::in_one_transaction) keeps that from happening, at twice the write
/// units.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct AcquireAll<'a> {
    limiter: &'a RateLimiter,
    requests: Vec<Acquire<'a>>,
    manner: Manner,
}

impl<'a> AcquireAll<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, requests: Vec<Acquire<'a>>) -> Self {
        let when_away = limiter.inner.settings.when_away;
        Self {
            limiter,
            requests,
            manner: Manner {
                wait: Duration::ZERO,
                how: How::SideBySide,
                when_away,
            },
        }
    }

    /// Waits up to this long for all the tokens instead of being denied at once. A wait that cannot
    /// succeed is not begun.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.manner.wait = wait;
        self
    }

    /// Takes all in one transaction of DynamoDB: two write units for each bucket, and nothing is
    /// ever taken and given back. It holds 100 items, of buckets and their shards, each bucket
    /// once.
    pub const fn in_one_transaction(mut self) -> Self {
        self.manner.how = How::Together;
        self
    }

    /// What is answered if DynamoDB is away, whatever the [limiter](crate::Builder::when_away) and
    /// the requests say.
    pub const fn when_away(mut self, when_away: WhenAway) -> Self {
        self.manner.when_away = when_away;
        self
    }

    /// Sends the requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent: no request or more than 100, one that breaks its
    /// own rules, waits by itself or is another limiter's, or a bucket that a transaction would
    /// have twice. The others if no decision could be made.
    pub async fn send(self) -> Result<Decision<Grants>, Error> {
        let invalid = |message: String| Err(Error::Invalid(message));
        let count = self.requests.len();
        if count == 0 || count > MAX_REQUESTS {
            return invalid(format!(
                "{count} requests are to be granted together, it takes 1 to {MAX_REQUESTS}"
            ));
        }
        for request in &self.requests {
            if !Arc::ptr_eq(&request.limiter().inner, &self.limiter.inner) {
                return invalid(
                    "a request is of another limiter: make all with the one that sends them"
                        .to_owned(),
                );
            }
            if request.waits() {
                return invalid(
                    "a request waits by itself: all wait together, say it after acquire_all()"
                        .to_owned(),
                );
            }
            request.check()?;
        }
        away::check(self.manner.when_away)?;
        let (inner, mut counts) = (&self.limiter.inner, vec![]);
        let decision = watched(inner, "several", "several", self.decision(&mut counts)).await?;
        tell(inner, &decision);
        Ok(decision.map(|given| {
            let mut all = given.all.into_iter();
            let grant = |count| {
                Grant::of(
                    all.by_ref().take(count),
                    given.degraded.clone(),
                    given.is_free,
                )
            };
            Grants(counts.into_iter().map(grant).collect())
        }))
    }

    /// The decision, and how many buckets each request asks.
    async fn decision(&self, counts: &mut Vec<usize>) -> Result<Decision<Given>, Error> {
        let inner = &self.limiter.inner;
        let asked = self.targets(Age::Cached, counts).await;
        let is_old = asked.as_ref().is_ok_and(|asked| asked.is_old);
        let decision = decide(inner, asked, self.manner).await?;
        if is_old && matches!(decision, Decision::NeverFits(_)) {
            // That is told for good, so not by limits that may have been raised since.
            return decide(inner, self.targets(Age::Recent, counts).await, self.manner).await;
        }
        Ok(decision)
    }

    /// The buckets that all ask, and how many each does.
    async fn targets(&self, age: Age, counts: &mut Vec<usize>) -> Result<Asked, Error> {
        *counts = vec![0; self.requests.len()];
        let mut requests = vec![];
        for request in &self.requests {
            requests.push(request.targets(age));
        }
        let all = try_join_all(requests).await?;
        *counts = all.iter().map(|asked| asked.targets.len()).collect();
        let all = all.into_iter().fold(Asked::default(), Asked::and);
        if self.manner.how == How::Together {
            check_different(&all.targets)?;
        }
        Ok(all)
    }
}

/// A transaction can change an item once.
fn check_different(targets: &[Target]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let twice = targets
        .iter()
        .map(|target| &target.shards.key)
        .find(|key| !seen.insert(*key));
    twice.map_or(Ok(()), |key| {
        let (entity, resource) = (&key.entity, &key.resource);
        Err(Error::Invalid(format!(
            "{entity} on {resource} is asked twice in one transaction: ask for the sum, or without a transaction"
        )))
    })
}

/// The grants of several requests, in their order. Each can be adjusted, and all be released or
/// rolled back.
#[derive(Debug)]
#[must_use = "dropping a grant releases its slots"]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// [Releases](Grant::release) all.
    ///
    /// # Errors
    /// The first one's that failed; the others are released all the same.
    pub async fn release(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::release)).await)
    }

    /// [Rolls back](Grant::rollback) all.
    ///
    /// # Errors
    /// The first one's that failed; the others are rolled back all the same.
    pub async fn rollback(self) -> Result<Settlement, Error> {
        Settlement::all(join_all(self.0.into_iter().map(Grant::rollback)).await)
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
