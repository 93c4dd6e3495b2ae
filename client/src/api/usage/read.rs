//! Reads what usage is computed from: live items, and snapshots.

use std::collections::BTreeMap;

use weirgate_shared::{
    BucketKey, EpochMillis, ItemKey, LiveShard, MAX_SHARDS, Snapshot, SnapshotKey, Window,
};
use weirgate_store::{Consistency, Item, Query, SortKeys};

use crate::session::Session;
use crate::values::Error;

/// What was read of something, and an error for each item that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Found<T> {
    pub(super) read: T,
    pub(super) damaged: Vec<Error>,
}

impl<T> Found<T> {
    /// Returns what was read.
    ///
    /// # Errors
    /// The first one, if an item cannot be read.
    pub(super) fn complete(self) -> Result<T, Error> {
        self.damaged.into_iter().next().map_or(Ok(self.read), Err)
    }
}

impl<T> Found<Vec<T>> {
    fn push(&mut self, read: Result<T, Error>) {
        match read {
            Ok(item) => self.read.push(item),
            Err(error) => self.damaged.push(error),
        }
    }
}

/// Reads the shards of buckets, live or merged away. `buckets` are at most 100, each by its first
/// shard. Returns them in the same order.
pub(super) async fn read_live(
    session: &Session,
    buckets: &[BucketKey],
    consistency: Consistency,
) -> Result<Vec<Found<Vec<LiveShard>>>, Error> {
    let keys: Vec<_> = buckets.iter().map(BucketKey::item_key).collect();
    let found = session.read_with_merged(&keys, consistency).await?;
    let mut firsts: BTreeMap<_, _> = found.iter().map(|item| (item.pk(), item)).collect();
    let mut all = Vec::with_capacity(buckets.len());
    for (bucket, key) in buckets.iter().zip(&keys) {
        let first = firsts.remove(&key.pk);
        let mut shards = Found::<Vec<_>>::default();
        if let Some(first) = first {
            shards.push(live(first));
        }
        if first.is_none_or(was_split) {
            let others: Vec<_> = (1..MAX_SHARDS)
                .map(|shard| bucket.with_shard(shard).item_key())
                .collect();
            for item in session.read_with_merged(&others, consistency).await? {
                shards.push(live(&item));
            }
        }
        all.push(shards);
    }
    Ok(all)
}

/// Returns whether the bucket with this first shard was ever split. One that cannot be read may
/// have been.
fn was_split(first: &Item) -> bool {
    first.bucket().map_or(true, |shard| {
        shard.scaling.sample.is_some() || shard.shard().count > 1
    })
}

fn live(item: &Item) -> Result<LiveShard, Error> {
    item.live().map_err(|error| Error::Unreadable {
        bucket: item.pk(),
        error,
    })
}

/// Number of windows after the last one whose snapshots are read too: they tell whether a shard
/// without a copy was idle in it, or its copy is on its way. A day and an hour, or most of a month.
const LATER: i64 = 25;

/// Reads the snapshots of the windows that start from `first` to `last`, and of some later ones, by
/// their start.
pub(super) async fn read_snapshots(
    session: &Session,
    bucket: &BucketKey,
    window: Window,
    (first, last): (EpochMillis, EpochMillis),
    consistency: Consistency,
) -> Result<Found<BTreeMap<EpochMillis, Snapshot>>, Error> {
    let key = |start| {
        SnapshotKey {
            namespace: bucket.namespace.clone(),
            entity: bucket.entity.clone(),
            resource: bucket.resource.clone(),
            window,
            start,
        }
        .item_key()
    };
    let length = window.end(last).0 - last.0;
    let later = EpochMillis(last.0.saturating_add(LATER * length));
    let (first, last) = (key(first), key(later));
    let listing = Query {
        consistency,
        ..Query::new(&first.pk, SortKeys::Between(&first.sk, &last.sk))
    };
    let (mut snapshots, mut after) = (Found::<BTreeMap<_, _>>::default(), None);
    loop {
        let page = session.query(listing, after.as_ref()).await?;
        for item in &page.items {
            let Some(start) = item.key().as_ref().and_then(SnapshotKey::parse) else {
                continue;
            };
            match snapshot(item) {
                Ok(snapshot) => drop(snapshots.read.insert(start.start, snapshot)),
                Err(error) => snapshots.damaged.push(error),
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(snapshots);
        }
    }
}

fn snapshot(item: &Item) -> Result<Snapshot, Error> {
    item.snapshot().map_err(|error| {
        let ItemKey { pk, sk } = item.key().unwrap_or_else(|| ItemKey {
            pk: item.pk(),
            sk: String::new(),
        });
        Error::UnreadableItem { pk, sk, error }
    })
}
