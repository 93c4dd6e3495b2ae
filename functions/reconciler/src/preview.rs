//! What a run would do, without a write.

use std::collections::{HashMap, HashSet};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate_shared::write::ExpiredLeases;
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, MAX_SHARDS, Shard, due_shards};
use weirgate_store::{Order, StoreError, Table};

use crate::leases::plan;
use crate::merge_plan::{Depth, is_reviewed, review};
use crate::{PARTITIONS, read};

/// What a run would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Due items, longest due first.
    pub due: Vec<DueItem>,
    /// Whether more items are due than were asked for.
    pub has_more: bool,
}

/// A due item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueItem {
    /// Its key.
    pub key: ItemKey,
    /// The shard that the key names; `None` if it names none.
    pub shard: Option<BucketKey>,
    /// Instant since which it is due.
    pub due_at: EpochMillis,
    /// The work on it, or why a run would postpone it by an hour.
    pub work: Result<Work, String>,
}

/// The work on a due shard. Without any, another process has done it, or a run would only sample
/// the shard's activity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Expired leases of the shard, and the tokens that they return.
    pub released: ExpiredLeases,
    /// Work on all shards of the bucket, with the one of them that is due longest.
    pub reshaped: Reshaped,
}

/// The work on all shards of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reshaped {
    /// Unfinished splits that would be finished. Only then would the run see what else there is.
    pub finished: usize,
    /// Shards that would be created or removed, to repair manual damage.
    pub repaired: usize,
    /// Shards that would be merged away.
    pub merged: usize,
}

/// Returns what a run would do at `now` with the `most` items that are due longest, 1 to 1000.
/// Writes nothing. Costs a read for each partition of the index, for each item, and 64 for each
/// bucket whose shards would be reviewed.
///
/// # Errors
/// [`StoreError`] of the first read that failed.
pub async fn preview(table: &Table, now: EpochMillis, most: i32) -> Result<Preview, StoreError> {
    let page = async |due_shard: String| {
        read::page(table, &due_shard, now, Order::OldestFirst, most, None).await
    };
    let pages: Vec<_> =
        stream::iter(due_shards()).map(page).buffer_unordered(PARTITIONS).try_collect().await?;
    let mut has_more = pages.iter().any(|page| page.next.is_some());
    let mut entries: Vec<_> = pages.into_iter().flat_map(|page| page.due).collect();
    entries.sort_by(|one, other| (one.due_at, &one.key).cmp(&(other.due_at, &other.key)));
    let shown = usize::try_from(most).unwrap_or_default();
    has_more |= entries.len() > shown;
    entries.truncate(shown);

    let keys: Vec<_> = entries.iter().map(|due| due.key.clone()).filter(read::is_ours).collect();
    let shards = read_shards(table, &keys).await?;
    let (mut due, mut reviewed) = (vec![], HashSet::new());
    for entry in entries {
        let work = match shards.get(&entry.key) {
            _ if !read::is_ours(&entry.key) => Err("the key is no bucket's".to_owned()),
            // Gone or merged away: the index is behind.
            None => continue,
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(shard)) => {
                let first = shard.key.with_shard(0);
                let reshaped = match is_reviewed(shard, now) && reviewed.insert(first.clone()) {
                    true => reshape(table, &first, now).await?,
                    false => Reshaped::default(),
                };
                Ok(Work {
                    released: plan(shard, now).map_or_else(Default::default, |(_, leases)| leases),
                    reshaped,
                })
            }
        };
        let shard = BucketKey::parse(&entry.key.pk);
        due.push(DueItem { key: entry.key, shard, due_at: entry.due_at, work });
    }
    Ok(Preview { due, has_more })
}

/// The readable shards by key; an error is that of an item that cannot be read.
type Shards = HashMap<ItemKey, Result<Shard, String>>;

async fn read_shards(table: &Table, keys: &[ItemKey]) -> Result<Shards, StoreError> {
    let mut shards = HashMap::new();
    for batch in keys.chunks(read::BATCH) {
        for item in table.read(batch).await? {
            if let Some(key) = item.key() {
                let shard = read::decode(&item).map_err(|error| error.to_string());
                shards.insert(key, shard);
            }
        }
    }
    Ok(shards)
}

async fn reshape(
    table: &Table,
    first: &BucketKey,
    now: EpochMillis,
) -> Result<Reshaped, StoreError> {
    let keys: Vec<_> = (0..MAX_SHARDS).map(|shard| first.with_shard(shard).item_key()).collect();
    let found = read_shards(table, &keys).await?;
    let is_all = found.values().all(Result::is_ok);
    let shards: Vec<_> = found.into_values().flatten().collect();
    let mut review = review(&shards, is_all, Depth::All, now, weirgate_store::random_id);
    read::decide_fill(table, &first.namespace, &mut review).await?;
    let count = |changes: &[crate::Change]| changes.iter().map(|change| change.shards).sum();
    Ok(Reshaped {
        finished: shards.iter().filter(|shard| shard.escrow.is_some()).count(),
        repaired: count(&review.repairs),
        merged: count(&review.merges),
    })
}
