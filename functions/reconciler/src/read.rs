//! Reads due entries, and their shards.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use weirgate_runtime::{LogBudget, SHOWN, beginning, shorten};
use weirgate_shared::{
    BUCKET_SK, BucketKey, EpochMillis, ItemError, ItemKey, MAX_SHARDS, Namespace, Shard, attr,
    read_key, read_switches, switches_key,
};
use weirgate_store::{Due, Item, Order, StoreError, Table};

use crate::merge_plan::Review;

/// Number of keys in one read.
pub const BATCH: usize = 32;
/// Maximum bytes of the response for a batch. Decoded, it takes up to twelve times as much memory,
/// for each partition of the index.
pub const SMALL: u64 = 256 * 1024;
/// Maximum bytes of the response for one item. A shard of the maximum item size has less, because
/// its leases are mostly names. One such item is read at a time.
pub const LARGE: u64 = 1_536 * 1024;

/// One page of an index partition.
#[derive(Debug)]
pub struct Page {
    /// The entries.
    pub due: Vec<Due>,
    /// Start of the next page, if there is one.
    pub next: Option<Item>,
}

/// The keys that a run has processed in one partition. The index is eventually consistent: it can
/// have a shard at two places.
#[derive(Debug, Default)]
pub struct ProcessedKeys {
    hashes: HashSet<u64>,
    by: RandomState,
}

impl ProcessedKeys {
    /// Returns whether the key was inserted.
    pub fn contains(&self, key: &ItemKey) -> bool {
        self.hashes.contains(&self.by.hash_one(key))
    }

    /// Inserts the key.
    pub fn insert(&mut self, key: &ItemKey) {
        self.hashes.insert(self.by.hash_one(key));
    }

    /// Removes the key, which has not had its turn.
    pub fn remove(&mut self, key: &ItemKey) {
        self.hashes.remove(&self.by.hash_one(key));
    }
}

/// Reads the page after `after`.
///
/// # Errors
/// [`StoreError`] if the index cannot be read.
pub async fn page(
    table: &Table,
    due_shard: &str,
    now: EpochMillis,
    order: Order,
    limit: i32,
    after: Option<&Item>,
) -> Result<Page, StoreError> {
    let found = table.query_due(due_shard, now, order, limit, after).await?;
    Ok(Page { due: found.due, next: found.next })
}

/// Returns whether the key is a bucket shard's.
pub fn is_ours(key: &ItemKey) -> bool {
    key.sk == BUCKET_SK && BucketKey::parse(&key.pk).is_some_and(|key| key.shard < MAX_SHARDS)
}

/// Returns an item as a shard.
///
/// # Errors
/// [`ItemError`] if it cannot be read, or has the key of another one.
pub fn decode(item: &Item) -> Result<Shard, ItemError> {
    let shard = item.bucket()?;
    match read_key(item.attributes()) {
        Some(key) if key == shard.key.item_key() => Ok(shard),
        key => Err(ItemError {
            attribute: attr::SK.to_owned(),
            value: format!("{:?}", key.map(|key| key.sk)),
            takes: "the sort key of a bucket",
        }),
    }
}

/// Adds the fill of holes to the repairs, unless everything in the namespace is stopped, as it is while it
/// is purged. Switches that cannot be read stop nothing here.
///
/// # Errors
/// [`StoreError`] if the switches cannot be read.
pub async fn decide_fill(
    table: &Table,
    namespace: &Namespace,
    review: &mut Review<'_>,
) -> Result<(), StoreError> {
    let Some(fill) = review.fill.take() else {
        return Ok(());
    };
    let items = table.read(&[switches_key(namespace)]).await?;
    let switches = items.first().map(|item| read_switches(item.attributes()));
    if !matches!(switches, Some(Ok(switches)) if switches.stop_all()) {
        review.repairs.push(fill);
    }
    Ok(())
}

/// Returns an item as a shard. If it cannot be read, returns `None`, and logs an ERROR line with
/// the beginning of the item.
pub fn bucket(item: &Item, budget: &LogBudget) -> Option<Shard> {
    let log = |error: &ItemError| {
        let key = item.key().unwrap_or_else(|| ItemKey { pk: item.pk(), sk: String::new() });
        unreadable(&key, &error.to_string(), &beginning(&item.shown(), SHOWN), budget);
    };
    // A retry would not help.
    decode(item).inspect_err(log).ok()
}

/// Logs at ERROR that an item in the index cannot be read, if the budget allows it, in the text
/// that an alarm looks for.
pub fn unreadable(key: &ItemKey, error: &str, item: &str, budget: &LogBudget) {
    let [pk, sk, error] = [&key.pk, &key.sk, error].map(|text| shorten(text, SHOWN));
    if budget.allows(&pk, &[&pk, &sk, &error, item]) {
        tracing::error!(%pk, %sk, %error, item, "undecodable bucket");
    }
}
