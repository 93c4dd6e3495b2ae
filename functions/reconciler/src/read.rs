//! What is due, and the buckets as they are.

use std::collections::HashSet;

use weirgate_shared::{Bucket, EpochMillis, ItemError, ItemKey, attr, read_key};
use weirgate_store::{Item, StoreError, Table};

/// The most keys that one batch read takes.
pub const BATCH: usize = 100;

/// One page of an index partition.
#[derive(Debug)]
pub struct Page {
    /// The due buckets that this run has not met before, oldest first.
    pub keys: Vec<ItemKey>,
    /// The oldest `due` among them.
    pub oldest: Option<EpochMillis>,
    /// Where the next page begins, if there is one.
    pub next: Option<Item>,
}

/// Reads the page after `after`, leaving out what is in `met`. The index is eventually consistent: a bucket can be in
/// it at two places, and a batch read takes no key twice.
///
/// # Errors
/// [`StoreError`] if the index cannot be read.
pub async fn page(
    table: &Table,
    due_shard: &str,
    now: EpochMillis,
    limit: i32,
    after: Option<&Item>,
    met: &mut HashSet<ItemKey>,
) -> Result<Page, StoreError> {
    let found = table.due(due_shard, now, limit, after).await?;
    let fresh: Vec<_> = found.due.into_iter().filter(|due| met.insert(due.key.clone())).collect();
    let oldest = fresh.iter().map(|due| due.due).min();
    Ok(Page { keys: fresh.into_iter().map(|due| due.key).collect(), oldest, next: found.next })
}

/// An item as a bucket; `None`, and said at ERROR with the whole item, if it cannot be read.
pub fn bucket(item: &Item) -> Option<Bucket> {
    let read = item.bucket().and_then(|bucket| {
        let here = bucket.key.item_key();
        match read_key(item.attributes()) {
            Some(key) if key == here => Ok(bucket),
            key => Err(ItemError {
                attribute: attr::SK.to_owned(),
                value: format!("{:?}", key.map(|key| key.sk)),
                takes: "the sort key of a bucket",
            }),
        }
    });
    // No retry mends it; it stays due, so every run says so again until somebody does.
    read.inspect_err(|error| tracing::error!(%error, ?item, "undecodable bucket")).ok()
}
