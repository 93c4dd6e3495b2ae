//! The limiter that an application uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Resource};

use super::admin::Admin;
use crate::bucket::{BucketRegistry, drain};
use crate::decide::LocalBuckets;
use crate::session::{CacheStats, Session};
use crate::values::{Amounts, Error, OnUnavailable, Stats, VendorAdvice, VendorReport};

/// Limits rates and concurrency through one DynamoDB table. Clones are cheap and share everything.
/// [`Builder::build`](crate::Builder::build) says from which threads it can be used.
///
/// ```no_run
/// # async fn example() -> Result<(), weirgate::Error> {
/// let limiter = weirgate::RateLimiter::builder("weirgate").namespace("default").build().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    pub(crate) session: Arc<Session>,
    pub(crate) buckets: Arc<BucketRegistry>,
    pub(crate) local_buckets: LocalBuckets,
    pub(super) admin: Admin,
}

impl RateLimiter {
    pub(crate) fn new(session: Session) -> Self {
        let session = Arc::new(session);
        let buckets = Arc::new(BucketRegistry::new(Arc::clone(&session)));
        Self {
            admin: Admin::new(Arc::clone(&session), Arc::clone(&buckets)),
            session,
            buckets,
            local_buckets: LocalBuckets::default(),
        }
    }

    /// Returns what operators call.
    #[must_use]
    pub const fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns the counters of the configuration cache since the limiter was built.
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.session.config_cache.stats()
    }

    /// Returns all prefetched tokens, and writes the count of every granted acquire. Later requests
    /// go to the table. Waits up to the [timeout](crate::Builder::timeout) until dropped requests
    /// and dropped grants have returned what they took.
    /// A limiter that is dropped without this call forfeits its prefetched tokens.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Timeout`] if some tokens could not be returned: they count as
    /// consumed. The others were returned.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.session
            .at_home(async {
                let pools = self.buckets.shut_down();
                // Tasks of their own, so they finish even if this future is dropped.
                let tasks: Vec<_> = pools
                    .into_iter()
                    .map(|bucket| tokio::spawn(drain(Arc::clone(&self.session), bucket)))
                    .collect();
                let mut done = Ok(());
                for task in tasks {
                    // Only a runtime that shuts down drops a task.
                    done = done.and(task.await.unwrap_or(Ok(())));
                }
                let finished = self.session.background.finished();
                if tokio::time::timeout(self.session.settings.timeout, finished).await.is_err() {
                    tracing::warn!("requests were still in flight at the end of the limiter");
                }
                done
            })
            .await
    }

    /// Tells all callers of a bucket what its vendor said, as
    /// [`Grant::vendor_said`](crate::Grant::vendor_said) does, without a grant. A bucket that nothing was
    /// taken from yet is not paused.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// use std::time::Duration;
    /// use weirgate::VendorReport;
    ///
    /// let report = VendorReport::new(429).with_retry_after(Duration::from_secs(20));
    /// limiter.report_vendor("openai", "gpt-4", &report).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is none; [`Error::Store`] if a shard could not be paused:
    /// others may be.
    pub async fn report_vendor(
        &self,
        entity: &str,
        resource: &str,
        report: &VendorReport,
    ) -> Result<Option<EpochMillis>, Error> {
        let bucket = self.buckets.bucket(entity.try_into()?, resource.try_into()?);
        bucket.vendor_said(&self.session, report, None, &Amounts::new()).await
    }

    /// Returns the [time allowed for a decision](crate::Builder::timeout).
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.session.settings.timeout
    }

    /// Returns the decision while DynamoDB is unavailable: that [stored](crate::Admin::store_on_unavailable)
    /// for the namespace as far as this limiter knows it, or else
    /// [its own](crate::Builder::on_unavailable).
    #[must_use]
    pub fn on_unavailable(&self) -> OnUnavailable {
        self.session.on_unavailable(self.session.settings.on_unavailable)
    }

    /// Returns the counters of this limiter since it was built, and its gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let outstanding: MilliTokens = if self.session.settings.prefetch.is_empty() {
            MilliTokens::ZERO
        } else {
            self.prefetched().into_values().sum()
        };
        Stats {
            breaker: self.session.breaker.current(),
            prefetch_outstanding_millitokens: u64::try_from(outstanding.0).unwrap_or_default(),
            ..self.session.env.counters.read()
        }
    }

    /// Returns whether DynamoDB answers, as far as is known: whether the
    /// [circuit breaker](crate::CircuitBreakerConfig) is closed.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.session.breaker.is_closed()
    }

    /// Returns the prefetched tokens that are neither spent nor returned, by resource and limit. A
    /// block counts from its request on.
    #[must_use]
    pub fn prefetched(&self) -> BTreeMap<(Resource, LimitName), MilliTokens> {
        let mut all = BTreeMap::new();
        for bucket in self.buckets.with_pool() {
            let amounts = bucket.pool.as_ref().map(|pool| pool.outstanding());
            for (limit, amount) in amounts.into_iter().flatten() {
                let sum: &mut MilliTokens =
                    all.entry((bucket.key.resource.clone(), limit)).or_default();
                *sum += amount;
            }
        }
        all
    }

    /// Returns the limits that vendors reported to this limiter, at most 100, beside the configured ones, in
    /// the order of the resources. With [`metrics_by_resource`](crate::Builder::metrics_by_resource) they
    /// are the gauges `weirgate_vendor_limit` and `weirgate_vendor_limit_configured`.
    ///
    /// ```no_run
    /// # fn example(limiter: weirgate::RateLimiter) {
    /// for advice in limiter.vendor_advice() {
    ///     // the vendor's limit of gpt-4 is 2,000,000 tokens a minute, configured are 1,500,000 (tpm)
    ///     println!("{advice}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn vendor_advice(&self) -> Vec<VendorAdvice> {
        self.session.vendor_advices.all()
    }

    /// Returns whether the limiter never denies: see [`Builder::shadow`](crate::Builder::shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.session.settings.is_shadow
    }
}
