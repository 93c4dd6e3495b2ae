//! Reads balances without taking.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;
use weirgate_shared::{Bucket, ConfigStatus, Limit, LimitMode, LimitName, Shard};

use super::acquire::Acquire;
use super::limiter::RateLimiter;
use crate::bucket::{BucketTarget, above_floors, refresh_all};
use crate::config::Freshness;
use crate::decide::{ResolvedRequest, stopped};
use crate::session::{Session, deadline, quarter_left};
use crate::values::{
    BucketRequest, Error, LimitStatus, bucket_status, longest_wait, most_restrictive, whole,
    with_floors,
};

impl RateLimiter {
    /// Reads the balances of `entity` on `resource`, without taking.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), weirgate::Error> {
    /// let balances = limiter.peek("openai", "gpt-4").limits(&limits).need("tpm", 1_500).send().await?;
    /// println!("enough in {:?}", balances.retry_after);
    /// # Ok(())
    /// # }
    /// ```
    pub fn peek(&self, entity: &str, resource: &str) -> Peek<'_> {
        Peek::new(self.acquire(entity, resource))
    }
}

/// A request for balances. Nothing happens until [`send`](Self::send), and no token is taken.
#[derive(Debug, Clone)]
#[must_use = "a peek does nothing until it is sent"]
pub struct Peek<'a> {
    request: Acquire<'a>,
    max_age: Duration,
}

/// The balance of every limit, and the time until there is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Balances {
    /// Time until all needed tokens are available, if no request takes them: zero if they are now;
    /// `None` if time alone does not help. Limits in shadow mode have no part in it, because they
    /// deny nothing.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "retry_after_ms", with = "crate::values::json::optional_ms")
    )]
    pub retry_after: Option<Duration>,
    /// Status of the configuration: whether the limits are enforced.
    pub status: ConfigStatus,
    /// Every limit.
    pub limits: Vec<LimitStatus>,
}

impl Balances {
    /// Returns the limit `name` of the requested bucket.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitStatus> {
        self.limits.iter().find(|status| status.limit == name)
    }

    /// Returns the limit with the smallest part of its capacity left.
    #[must_use]
    pub fn most_restrictive(&self) -> Option<&LimitStatus> {
        most_restrictive(&self.limits)
    }
}

impl<'a> Peek<'a> {
    pub(crate) const fn new(request: Acquire<'a>) -> Self {
        Self { request, max_age: Duration::ZERO }
    }

    /// Sets the limits of the bucket, as for an [acquire](Acquire::limits).
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.request = self.request.limits(limits);
        self
    }

    /// Sets how much of a limit is needed, 0 to 10^12 tokens. The result has the time until it is
    /// available.
    pub fn need(mut self, limit: &str, tokens: i64) -> Self {
        self.request = self.request.take(limit, tokens);
        self
    }

    /// Sets the class of the caller, as for an [acquire](Acquire::class).
    pub fn class(mut self, class: &str) -> Self {
        self.request = self.request.class(class);
        self
    }

    /// Accepts views of this limiter up to `max_age`, from a peek or an acquire, and then reads
    /// nothing: 50 ms suits pages that show balances. By default it always reads.
    pub const fn cached(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Reads all shards with one read.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent; the other errors if the table could not be read.
    pub async fn send(self) -> Result<Balances, Error> {
        self.request
            .limiter()
            .session
            .at_home(async {
                let session = &self.request.limiter().session;
                let timeout = session.settings.timeout;
                let answer_by = deadline(timeout);
                let ResolvedRequest { targets, buckets, disabled, has_unlimited: is_free, .. } =
                    self.request
                        .request()
                        .resolve(&self.request.limiter().buckets, Freshness::AnyAge, answer_by)
                        .await?;
                let is_stopped = stopped(session, &buckets, quarter_left(answer_by));
                if disabled.is_some() || is_stopped.await.is_some() {
                    return Ok(Balances {
                        retry_after: None,
                        status: ConfigStatus::Disabled,
                        limits: vec![],
                    });
                }
                let since = session.env.ages.now().before(self.max_age);
                let unknown = targets
                    .iter()
                    .filter(|target| !self.is_known(session, target))
                    .map(|target| &target.bucket);
                let unknown: Vec<_> = unknown.collect();
                let refreshed = timeout_at(answer_by, refresh_all(session, &unknown, since)).await;
                refreshed.unwrap_or_else(|_| {
                    Err(session.env.no_answer("BatchGetItem of buckets", timeout).into())
                })?;
                let limits: Vec<_> =
                    targets.iter().flat_map(|target| status(session, target)).collect();
                let is_enforced = |status: &&LimitStatus| status.mode == LimitMode::Enforced;
                let short = limits.iter().filter(|status| status.is_short());
                let status = if is_free { ConfigStatus::Unlimited } else { ConfigStatus::Enforced };
                Ok(Balances {
                    retry_after: longest_wait(short.filter(is_enforced)),
                    status,
                    limits,
                })
            })
            .await
    }

    fn is_known(&self, session: &Arc<Session>, target: &BucketTarget) -> bool {
        let is_fresh = |at| !self.max_age.is_zero() && session.env.ages.age(at) <= self.max_age;
        target
            .bucket
            .seen_bucket(&target.request.limits, session.now(), |view| is_fresh(view.sent_at))
            .is_complete()
    }
}

/// Returns the status of a bucket by its views; a bucket without an item is full.
fn status(session: &Session, target: &BucketTarget) -> Vec<LimitStatus> {
    let (request, now) = (&target.request, session.now());
    let mut bucket = target.bucket.cached_bucket(&request.limits, now);
    if bucket.shards().is_empty() {
        // The clock jumped since they were read: they show what there was a moment ago.
        let views = target.bucket.views();
        let shards: Vec<_> = views
            .map(|view| view.shard.projected(&request.limits, view.shard.refilled_at))
            .collect();
        bucket = match shards.is_empty() {
            true => Bucket::new(vec![Shard::full(target.bucket.key.clone(), &request.limits, now)]),
            false => Bucket::new(shards),
        };
    }
    let of_choice = |choice: BucketRequest| {
        let need = |name: &LimitName| Some(choice.asks.debit(name.as_str())?.amount);
        let above = above_floors(&bucket, &choice);
        whole(with_floors(&choice, bucket_status(&above, &choice.limits, need, now)))
    };
    // The one that an acquire would take from: the first that has enough, or has it first.
    let wait = |limits: &Vec<LimitStatus>| {
        let short = limits.iter().filter(|status| status.is_short());
        let waits = short.map(|status| status.retry_after.unwrap_or(Duration::MAX));
        waits.max()
    };
    let limits = request.choices().map(of_choice).min_by_key(wait);
    let limits = limits.unwrap_or_default();
    match target.is_shadow {
        true => limits.into_iter().map(LimitStatus::report_only).collect(),
        false => limits,
    }
}
