//! Returns the usage of a window: the copied usage, plus what the items have counted since.

mod pages;
mod query;
mod read;
mod report;

pub use query::{UsageRow, UsageScope};
pub use report::{TopUser, UsageReport, UsageTotal};

use weirgate_shared::{
    BucketKey, EntityId, EpochMillis, Resource, UsageState, Window, WindowUsage, usage,
};
use weirgate_store::Consistency;

use self::read::{read_live, read_others, read_snapshots};
use super::limiter::RateLimiter;
use crate::session::deadline;
use crate::values::Error;

impl RateLimiter {
    /// Returns the usage of `entity` on `resource` in the hour or day (UTC) that contains `at`.
    ///
    /// The current window is exact as of the read, without waiting for the stream. A past window is
    /// exact once it is [final](weirgate_shared::UsageState::Final), 25 hours after the end of its
    /// day. An amount may be negative, because tokens taken in one window may return in the next.
    /// Prefetched tokens count as consumed until they return. A window that ended longer ago than
    /// [`usage_retention`](crate::Builder::usage_retention) is unknown.
    ///
    /// Costs two consistent reads, or three for an hour of an earlier day. If the bucket was ever
    /// split, all its possible shards are read.
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
        self.session
            .at_home(async {
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
                    let mut live = live.into_iter().next().unwrap_or_default();
                    let snapshots =
                        read_snapshots(session, &bucket, window, (start, start), strong);
                    let snapshots = snapshots.await?.complete()?;
                    read_others(session, &bucket, &mut live, &snapshots, strong).await?;
                    Ok::<_, Error>((live.complete()?, snapshots))
                };
                let retention = session.settings.usage_retention.into();
                if session.now() >= window.end(start).plus(retention) {
                    return Ok(WindowUsage {
                        state: UsageState::Unknown,
                        ..WindowUsage::default()
                    });
                }
                let read = tokio::time::timeout_at(deadline(timeout), read).await;
                let (live, snapshots) = read.unwrap_or_else(|_| {
                    Err(session.env.no_answer("Query of usage", timeout).into())
                })?;
                Ok(usage(
                    window,
                    start,
                    &snapshots,
                    &live,
                    (session.now(), retention),
                ))
            })
            .await
    }
}
