//! Returns the usage of a window: the copied usage, plus what the items have counted since.

mod pages;
mod query;
mod read;
mod report;

pub use query::{UsageRow, UsageScope};
pub use report::{TopUser, UsageReport, UsageTotal};

use weirgate_shared::{
    BucketKey, EntityId, EpochMillis, Resource, UsageState, Window, WindowUsage, is_kept, usage,
};
use weirgate_store::Consistency;

use self::read::{horizon, read_live, read_others, read_snapshots};
use super::limiter::RateLimiter;
use crate::session::deadline;
use crate::values::Error;

impl RateLimiter {
    /// Returns the usage of `entity` on `resource` in the hour or day (UTC) that contains `at`.
    ///
    /// The current window is exact as of the read, without waiting for the stream. A past window is
    /// exact once it is [final](weirgate_shared::UsageState::Final), 25 hours after the end of its
    /// day; of a table in Redis an hour after it, once the functions have copied all writes until then. An amount may be negative, because tokens taken in one window may return in the next.
    /// Prefetched tokens count as consumed until they return. A window is unknown from an
    /// hour before it ended [`usage_retention`](crate::Builder::usage_retention) ago.
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
                let bucket = BucketKey { namespace, entity, resource, shard: 0 };
                let (session, timeout) = (&*self.session, self.session.settings.timeout);
                let read = async {
                    let (strong, horizon) = (Consistency::Strong, horizon(session).await?);
                    // The items before the snapshot: one that rolls in between has its final copy in the
                    // snapshot, or in flight.
                    let live = read_live(session, std::slice::from_ref(&bucket), strong).await?;
                    let mut live = live.into_iter().next().unwrap_or_default();
                    let snapshots =
                        read_snapshots(session, &bucket, window, (start, start), strong, &horizon);
                    let snapshots = snapshots.await?.complete()?;
                    read_others(session, &bucket, &mut live, &snapshots, strong).await?;
                    let live = live.complete()?;
                    Ok::<_, Error>(usage(window, start, &snapshots, &live, &horizon))
                };
                let retention = session.settings.usage_retention.into();
                if !is_kept(window.end(start).plus(retention), session.now()) {
                    return Ok(WindowUsage {
                        state: UsageState::Unknown,
                        ..WindowUsage::default()
                    });
                }
                let read = tokio::time::timeout_at(deadline(timeout), read).await;
                read.unwrap_or_else(|_| {
                    Err(session.env.no_answer("Query of usage", timeout).into())
                })
            })
            .await
    }
}
