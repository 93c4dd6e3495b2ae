//! The limiter that an application uses.

use std::sync::Arc;

use crate::inner::Inner;
use crate::prefetch;
use crate::{Acquire, AcquireAll, Builder, Error, Peek, Stats};

/// Limits rates and concurrency through one DynamoDB table. Clones are cheap and share everything.
///
/// ```no_run
/// # async fn example() -> Result<(), weirgate::Error> {
/// let limiter = weirgate::RateLimiter::builder("weirgate").namespace("default").build().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimiter {
    pub(crate) inner: Arc<Inner>,
}

impl RateLimiter {
    /// Builds a limiter on the table `table`, whose name is among the deployed stack's outputs.
    #[must_use]
    pub fn builder(table: impl Into<String>) -> Builder {
        Builder::new(table.into())
    }

    /// Requests tokens of `entity` on `resource`.
    pub fn acquire(&self, entity: &str, resource: &str) -> Acquire<'_> {
        Acquire::new(self, entity, resource)
    }

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

    /// Returns all prefetched tokens, and writes the count of every granted acquire. Later requests
    /// go to the table. Without [prefetch](Builder::prefetch), or the second time, it does nothing.
    /// A limiter that is dropped without this call forfeits its prefetched tokens.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Timeout`] if some tokens could not be returned: they count as
    /// consumed. The others were returned.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let pools = self.inner.shut_down();
        // Tasks of their own, so they finish even if this future is dropped.
        let tasks: Vec<_> = pools
            .into_iter()
            .map(|bucket| tokio::spawn(prefetch::drain(Arc::clone(&self.inner), bucket)))
            .collect();
        let mut done = Ok(());
        for task in tasks {
            // Only a runtime that shuts down drops a task.
            done = done.and(task.await.unwrap_or(Ok(())));
        }
        done
    }

    /// Returns the counters of this limiter since it was built.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    /// Returns whether the limiter never denies: see [`Builder::shadow`].
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.inner.settings.is_shadow
    }
}
