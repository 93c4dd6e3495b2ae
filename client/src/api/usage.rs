//! Returns the usage of a window: the copied usage, plus what the items have counted since.

mod pages;
mod query;
mod read;
mod report;

pub use query::{UsageRow, UsageScope};
pub use report::{TopUser, UsageReport, UsageTotal};

use weirgate_shared::{BucketKey, EntityId, EpochMillis, Resource, Window, WindowUsage, usage};
use weirgate_store::Consistency;

use self::read::{Found, read_live, read_snapshots};
use super::limiter::RateLimiter;
use crate::session::deadline;
use crate::values::Error;

impl RateLimiter {
    /// Returns the usage of `entity` on `resource` in the hour or day (UTC) that contains `at`.
    ///
    /// The current window is exact as of the read, without waiting for the stream. A past window is
    /// exact once it is [final](WindowUsage::is_final). An amount may be negative, because tokens
    /// taken in one window may return in the next. Prefetched tokens count as consumed until they
    /// return.
    ///
    /// Costs two consistent reads. If the bucket was ever split, all its possible shards are read.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, now: weirgate::EpochMillis) -> Result<(), weirgate::Error> {
    /// let today = limiter.usage("openai", "gpt-4", weirgate::Window::Daily, now).await?;
    /// println!("{} acquires, {:?}", today.usage.acquires, today.usage.tokens.get("tpm"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name; [`Error::Unreadable`] or [`Error::UnreadableItem`]
    /// for an item that cannot be read; the other errors if the table could not be read.
    pub async fn usage(
        &self,
        entity: &str,
        resource: &str,
        window: Window,
        at: EpochMillis,
    ) -> Result<WindowUsage, Error> {
        let (namespace, start) = (self.session.namespace.clone(), window.start(at));
        let (entity, resource) = (EntityId::new(entity)?, Resource::new(resource)?);
        let bucket = BucketKey {
            namespace,
            entity,
            resource,
            shard: 0,
        };
        let (session, timeout) = (&*self.session, self.session.settings.timeout);
        let read = async {
            let strong = Consistency::Strong;
            // The items before the snapshot: one that rolls in between has its final copy in the
            // snapshot, or in flight.
            let live = read_live(session, std::slice::from_ref(&bucket), strong).await?;
            let live = live.into_iter().map(Found::complete);
            let live: Vec<_> = live.collect::<Result<_, _>>()?;
            let snapshots = read_snapshots(session, &bucket, window, (start, start), strong);
            Ok::<_, Error>((live.concat(), snapshots.await?.complete()?))
        };
        let read = tokio::time::timeout_at(deadline(timeout), read).await;
        let (live, snapshots) =
            read.unwrap_or_else(|_| Err(session.timeout_error("Query of usage", timeout).into()))?;
        Ok(usage(window, start, &snapshots, &live, session.now()))
    }
}
