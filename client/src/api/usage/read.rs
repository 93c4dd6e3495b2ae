//! Reads what usage is computed from: live items, and snapshots.

use std::collections::{BTreeMap, BTreeSet};

use weirgate_shared::{
    BucketKey, EpochMillis, MAX_SHARDS, Meter, SnapshotKey, Snapshots, UsageHorizon, Window,
};
use weirgate_store::{Consistency, Item, Query, SortKeys};

use crate::config::unreadable;
use crate::session::{Session, decode_meter};
use crate::values::Error;

/// What was read of something, and an error for each item that cannot be read.
#[derive(Debug, Clone, Default)]
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

/// Returns what is known of usage now. Read before snapshots: they have all that was delivered by then.
pub(super) async fn horizon(session: &Session) -> Result<UsageHorizon, Error> {
    let (now, retention) = (session.now(), session.settings.usage_retention.into());
    let of_stream = UsageHorizon::of_stream(now, retention);
    Ok(match session.delivered(now).await? {
        Some(delivered) => UsageHorizon { delivered, ..of_stream },
        None => of_stream,
    })
}

/// Reads the shards of buckets, live or merged away. `buckets` are at most 100, each by its first
/// shard. Returns them in the same order.
pub(super) async fn read_live(
    session: &Session,
    buckets: &[BucketKey],
    consistency: Consistency,
) -> Result<Vec<Found<Vec<Meter>>>, Error> {
    let keys: Vec<_> = buckets.iter().map(BucketKey::item_key).collect();
    let found = session.read_with_merged(&keys, consistency).await?;
    let mut firsts: BTreeMap<_, _> = found.iter().map(|item| (item.pk(), item)).collect();
    let mut all = Vec::with_capacity(buckets.len());
    for (bucket, key) in buckets.iter().zip(&keys) {
        let first = firsts.remove(&key.pk);
        let mut shards = Found::<Vec<_>>::default();
        if let Some(first) = first {
            shards.push(decode_meter(first));
        }
        if first.is_none_or(was_split) {
            let others: Vec<_> =
                (1..MAX_SHARDS).map(|shard| bucket.with_shard(shard).item_key()).collect();
            for item in session.read_with_merged(&others, consistency).await? {
                shards.push(decode_meter(&item));
            }
        }
        all.push(shards);
    }
    Ok(all)
}

/// Returns whether the bucket with this first shard was ever split. One that cannot be read may
/// have been.
fn was_split(first: &Item) -> bool {
    first.bucket().map_or(true, |shard| shard.scaling.sample.is_some() || shard.shard().count > 1)
}

/// Reads the shards, live or merged away, that are not in `live`, and whose copies in `snapshots`
/// are not final: shard 0 was made again, and does not show that the bucket was split.
pub(super) async fn read_others(
    session: &Session,
    bucket: &BucketKey,
    live: &mut Found<Vec<Meter>>,
    snapshots: &Snapshots,
    consistency: Consistency,
) -> Result<(), Error> {
    let copies = snapshots.values().flat_map(|snapshot| &snapshot.shards);
    let interim = copies.filter(|(_, copied)| !copied.is_final);
    let mut others: BTreeSet<_> = interim.map(|(shard, _)| *shard).collect();
    for meter in &live.read {
        others.remove(&meter.key.shard);
    }
    if others.is_empty() || !live.damaged.is_empty() {
        return Ok(());
    }
    let keys: Vec<_> =
        others.into_iter().map(|shard| bucket.with_shard(shard).item_key()).collect();
    for item in session.read_with_merged(&keys, consistency).await? {
        live.push(decode_meter(&item));
    }
    Ok(())
}

/// Reads the snapshots of the windows that start from `first` to `last`, and those of their days. Hours are
/// final with their day, so they are read after it, and no older: its final copy is made after theirs.
pub(super) async fn read_snapshots(
    session: &Session,
    bucket: &BucketKey,
    window: Window,
    (first, last): (EpochMillis, EpochMillis),
    consistency: Consistency,
    horizon: &UsageHorizon,
) -> Result<Found<Snapshots>, Error> {
    let days = (Window::Daily.start(first), Window::Daily.start(last));
    // No hour is final before its day can be. A first day from before the stream says nothing of later ones.
    let are_needed = window == Window::Hourly && Window::Daily.end(days.0) <= horizon.delivered.end;
    let (days, consistency) = match are_needed {
        true => {
            let days = read_windows(session, bucket, Window::Daily, days, consistency);
            (days.await?, Consistency::Strong)
        }
        false => (Found::default(), consistency),
    };
    let mut own = read_windows(session, bucket, window, (first, last), consistency).await?;
    own.read.extend(days.read);
    own.damaged.extend(days.damaged);
    Ok(own)
}

async fn read_windows(
    session: &Session,
    bucket: &BucketKey,
    window: Window,
    (first, last): (EpochMillis, EpochMillis),
    consistency: Consistency,
) -> Result<Found<Snapshots>, Error> {
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
    let (first, last) = (key(first), key(last));
    let listing =
        Query { consistency, ..Query::new(&first.pk, SortKeys::Between(&first.sk, &last.sk)) };
    let mut snapshots = Found::<Snapshots>::default();
    for item in session.query_all(listing).await? {
        let Some(item_key) = item.key() else {
            continue;
        };
        let Some(SnapshotKey { start, .. }) = SnapshotKey::parse(&item_key) else {
            continue;
        };
        match item.snapshot() {
            Ok(snapshot) => drop(snapshots.read.insert((window, start), snapshot)),
            Err(error) => snapshots.damaged.push(unreadable(&item_key, error)),
        }
    }
    Ok(snapshots)
}
