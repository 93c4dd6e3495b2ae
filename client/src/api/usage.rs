//! Returns the usage of a window: the copied usage, plus what the items have counted since.

use weirgate_shared::{
    BucketKey, EntityId, EpochMillis, ItemKey, LiveShard, MAX_SHARDS, Resource, Snapshot,
    SnapshotKey, Window, WindowUsage, usage,
};
use weirgate_store::Item;

use super::limiter::RateLimiter;
use crate::session::{Session, deadline};
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
        let timeout = self.session.settings.timeout;
        let read = tokio::time::timeout_at(
            deadline(timeout),
            read(&self.session, &bucket, window, start),
        )
        .await;
        let (live, snapshot) = read.unwrap_or_else(|_| {
            Err(self
                .session
                .timeout_error("BatchGetItem of usage", timeout)
                .into())
        })?;
        Ok(usage(window, start, &snapshot, &live, self.session.now()))
    }
}

/// Reads the items before the snapshot: an item that rolls in between has its final copy in the
/// snapshot, or in flight.
async fn read(
    session: &Session,
    bucket: &BucketKey,
    window: Window,
    start: EpochMillis,
) -> Result<(Vec<LiveShard>, Snapshot), Error> {
    let key = |shard| bucket.with_shard(shard).item_key();
    let mut items = session.read_with_merged(&[key(0)]).await?;
    if items.first().is_none_or(was_split) {
        items.extend(
            session
                .read_with_merged(&(1..MAX_SHARDS).map(key).collect::<Vec<_>>())
                .await?,
        );
    }
    let live = |item: &Item| {
        item.live().map_err(|error| Error::Unreadable {
            bucket: item.pk(),
            error,
        })
    };
    let live = items.iter().map(live).collect::<Result<_, Error>>()?;
    let BucketKey {
        namespace,
        entity,
        resource,
        ..
    } = bucket.clone();
    let key = SnapshotKey {
        namespace,
        entity,
        resource,
        window,
        start,
    }
    .item_key();
    let found = session.read_with_merged(std::slice::from_ref(&key)).await?;
    let snapshot = found
        .first()
        .map_or_else(|| Ok(Snapshot::default()), Item::snapshot)
        .map_err(|error| {
            let ItemKey { pk, sk } = key;
            Error::UnreadableItem { pk, sk, error }
        })?;
    Ok((live, snapshot))
}

/// Returns whether the bucket with this first shard was ever split.
fn was_split(first: &Item) -> bool {
    first
        .bucket()
        .is_ok_and(|shard| shard.scaling.sample.is_some() || shard.shard().count > 1)
}
