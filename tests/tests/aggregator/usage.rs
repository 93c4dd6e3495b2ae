//! What was used, by the table and by its stream.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weirgate_shared::{
    BUCKET_SK, BucketKey, EpochMillis, Hour, ItemKey, LiveShard, MilliTokens, Snapshot,
    SnapshotKey, Usage, Window, usage,
};
use weirgate_tests::{Dynamo, live, snapshot};

/// What was used of each bucket in each window of one kind; windows without usage are left out.
pub type Used = BTreeMap<(BucketKey, EpochMillis), Usage>;

/// What readers see: snapshots and items together.
pub fn read(dynamo: &Dynamo, window: Window) -> Used {
    let (items, snapshots) = (items(dynamo), snapshots(dynamo));
    let starts = items
        .values()
        .flatten()
        .map(|live| (live.meter.key.with_shard(0), live.meter.start(window)));
    let copied = snapshots
        .keys()
        .filter(|key| key.window == window)
        .map(|key| (bucket(key), key.start));
    let all: BTreeSet<_> = starts.chain(copied).collect();
    let none = vec![];
    let read = |(key, start): (BucketKey, EpochMillis)| {
        let live = items.get(&key).unwrap_or(&none);
        let snapshot = snapshots
            .get(&of(&key, window, start))
            .cloned()
            .unwrap_or_default();
        let read = usage(window, start, &snapshot, live, EpochMillis(i64::MAX / 2));
        ((key, start), read.usage)
    };
    without_nothing(all.into_iter().map(read).collect())
}

/// What snapshots alone say, for windows that are over.
pub fn copied(dynamo: &Dynamo, window: Window) -> Used {
    let snapshots = snapshots(dynamo)
        .into_iter()
        .filter(|(key, _)| key.window == window);
    let sum = |(key, snapshot): (SnapshotKey, Snapshot)| {
        (
            (bucket(&key), key.start),
            usage(window, key.start, &snapshot, &[], EpochMillis(i64::MAX / 2)).usage,
        )
    };
    without_nothing(snapshots.map(sum).collect())
}

/// What the stream's records say: each write counts for the hour that its item has after it.
pub fn streamed(records: &[Value], window: Window) -> Used {
    let mut used = Used::new();
    let is_written = |record: &&Value| {
        record["eventName"] != "REMOVE" && record["dynamodb"]["Keys"]["SK"]["S"] == BUCKET_SK
    };
    for record in records.iter().filter(is_written) {
        let image = |name: &str| {
            let image = &record["dynamodb"][name];
            image.is_object().then(|| live(image).meter)
        };
        let (after, before) = (image("NewImage").unwrap(), image("OldImage"));
        let of = used
            .entry((after.key.with_shard(0), after.start(window)))
            .or_default();
        of.acquires +=
            after.acquires.total - before.as_ref().map_or(0, |before| before.acquires.total);
        for (name, counter) in &after.limits {
            let had = before
                .as_ref()
                .and_then(|before| before.limits.get(name))
                .map_or(0, |counter| counter.total);
            *of.tokens.entry(name.clone()).or_default() += MilliTokens(counter.total - had);
        }
    }
    without_nothing(used)
}

/// I3: what readers see is what the stream says, in every hour and day.
pub fn assert_exact(dynamo: &Dynamo, records: &[Value]) {
    for window in Window::ALL {
        assert_eq!(read(dynamo, window), streamed(records, window), "{window}");
    }
}

/// The snapshots of a bucket's windows.
pub fn snapshots(dynamo: &Dynamo) -> BTreeMap<SnapshotKey, Snapshot> {
    let items = dynamo.items();
    let read = |item: &Value| {
        let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
        let key = SnapshotKey::parse(&ItemKey {
            pk: text("PK"),
            sk: text("SK"),
        })?;
        Some((key, snapshot(item)))
    };
    items.iter().filter_map(read).collect()
}

/// The snapshot of one window of a bucket.
pub fn of(key: &BucketKey, window: Window, start: EpochMillis) -> SnapshotKey {
    let BucketKey {
        namespace,
        entity,
        resource,
        ..
    } = key.clone();
    SnapshotKey {
        namespace,
        entity,
        resource,
        window,
        start,
    }
}

/// That of the hour.
pub fn hourly(key: &BucketKey, at: EpochMillis) -> SnapshotKey {
    of(key, Window::Hourly, Hour::of(at).start())
}

fn bucket(key: &SnapshotKey) -> BucketKey {
    let SnapshotKey {
        namespace,
        entity,
        resource,
        ..
    } = key.clone();
    BucketKey {
        namespace,
        entity,
        resource,
        shard: 0,
    }
}

fn items(dynamo: &Dynamo) -> BTreeMap<BucketKey, Vec<LiveShard>> {
    let mut buckets: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for item in dynamo
        .items()
        .iter()
        .filter(|item| item["SK"]["S"] == BUCKET_SK)
    {
        let live = live(item);
        buckets
            .entry(live.meter.key.with_shard(0))
            .or_default()
            .push(live);
    }
    buckets
}

fn without_nothing(mut used: Used) -> Used {
    for usage in used.values_mut() {
        usage
            .tokens
            .retain(|_, amount| *amount != MilliTokens::ZERO);
    }
    used.retain(|_, usage| *usage != Usage::default());
    used
}
