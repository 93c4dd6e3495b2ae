//! Several requests, all or nothing.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::decide::{How, Target, decide};
use crate::{Acquire, Decision, Error, Grant, RateLimiter, Settlement};

/// The most requests that are decided together.
const MAX_REQUESTS: usize = 100;

/// Requests for tokens of several buckets, all of which are granted, or none. Nothing happens until
/// [`send`](Self::send).
///
/// The buckets are asked at the same time; if one denies, what the others gave goes back, a write each. Meanwhile it is
/// missing there, so others may be denied who would not have been. [`in_one_transaction`](Self::in_one_transaction) keeps
/// that from happening, at twice the write units.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct AcquireAll<'a> {
    limiter: &'a RateLimiter,
    requests: Vec<Acquire<'a>>,
    wait: Duration,
    how: How,
}

impl<'a> AcquireAll<'a> {
    pub(crate) const fn new(limiter: &'a RateLimiter, requests: Vec<Acquire<'a>>) -> Self {
        Self { limiter, requests, wait: Duration::ZERO, how: How::SideBySide }
    }

    /// Waits up to this long for all the tokens instead of being denied at once. A wait that cannot succeed is not begun.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Takes all in one transaction of DynamoDB: two write units for each bucket, and nothing is ever taken and given
    /// back. It holds 100 items, of buckets and their shards, each bucket once.
    pub const fn in_one_transaction(mut self) -> Self {
        self.how = How::Together;
        self
    }

    /// Sends the requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent: no request or more than 100, one that breaks its own rules, waits by
    /// itself or is another limiter's, or a bucket that a transaction would have twice. The others if no decision could be
    /// made.
    pub async fn send(self) -> Result<Decision<Grants>, Error> {
        let invalid = |message: String| Err(Error::Invalid(message));
        let count = self.requests.len();
        if count == 0 || count > MAX_REQUESTS {
            return invalid(format!("{count} requests are to be granted together, it takes 1 to {MAX_REQUESTS}"));
        }
        let (mut targets, mut counts) = (vec![], vec![]);
        for request in &self.requests {
            if !Arc::ptr_eq(&request.limiter().inner, &self.limiter.inner) {
                return invalid("a request is of another limiter: make all with the one that sends them".to_owned());
            }
            if request.waits() {
                return invalid("a request waits by itself: all wait together, say it after acquire_all()".to_owned());
            }
            let asked = request.targets()?;
            counts.push(asked.len());
            targets.extend(asked);
        }
        if self.how == How::Together {
            check_different(&targets)?;
        }
        let decision = decide(&self.limiter.inner, targets, self.wait, self.how).await?;
        Ok(decision.map(|given| {
            let (mut holds, mut would_deny) = (given.holds.into_iter(), given.would_deny.into_iter());
            let grant = |count| Grant::of(holds.by_ref().take(count), would_deny.by_ref().take(count));
            Grants(counts.into_iter().map(grant).collect())
        }))
    }
}

/// A transaction can change an item once.
fn check_different(targets: &[Target]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let twice = targets.iter().map(|target| &target.shards.key).find(|key| !seen.insert(*key));
    twice.map_or(Ok(()), |key| {
        let (entity, resource) = (&key.entity, &key.resource);
        Err(Error::Invalid(format!(
            "{entity} on {resource} is asked twice in one transaction: ask for the sum, or without a transaction"
        )))
    })
}

/// The grants of several requests, in their order. Each can be adjusted, and all be released or rolled back.
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
