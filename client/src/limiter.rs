//! The limiter, as callers hold it.

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
    /// A limiter on the table `table`, whose name is among the deployed stack's outputs.
    #[must_use]
    pub fn builder(table: impl Into<String>) -> Builder {
        Builder::new(table.into())
    }

    /// Asks for tokens of `entity` on `resource`.
    pub fn acquire(&self, entity: &str, resource: &str) -> Acquire<'_> {
        Acquire::new(self, entity, resource)
    }

    /// Looks at the balances of `entity` on `resource`, without taking.
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

    /// Asks for tokens of several buckets, all or nothing.
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

    /// Gives back what was taken ahead, and has the table count every acquire granted until now.
    /// Whatever is asked afterwards goes to the table. Without [prefetch](Builder::prefetch) there
    /// is nothing to do, and nothing the second time. A limiter that is dropped without it forfeits
    /// what it had taken ahead.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Timeout`] if something could not be given back: it counts as
    /// used. The rest was.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let pools = self.inner.shut_down();
        // Tasks of their own: they come to an end also if the caller goes away.
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

    /// What this limiter has done since it was built.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    /// Whether it denies nobody: see [`Builder::shadow`].
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.inner.settings.is_shadow
    }
}
