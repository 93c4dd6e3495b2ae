//! I3: usage is exact.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::{EpochMillis, Window, WindowUsage};
use weirgate_shared::{
    BUCKET_SK, DELIVERY, Iso8601, ItemKey, Meter, Millis, SnapshotKey, Snapshots, UsageHorizon,
};

use crate::fault::Kind;
use crate::stored_shard::is_hostile;
use crate::stream_check::ACQUIRES;
use crate::world::World;

/// Longer than a run takes.
const RETENTION: Millis = Millis(3_650 * 86_400_000);

/// I3: checks that usage is exact. In each window and for each limit, and for acquires, the usage
/// from snapshots and shards equals what the stream shows as consumed. Checks also that windows are
/// reported as final in time.
pub fn counted(world: &World) {
    counted_since(world, EpochMillis(0));
}

/// Does the same for windows that began at `since` or later; earlier snapshots are deleted.
pub fn counted_since(world: &World, since: EpochMillis) {
    let items = world.dynamo().items();
    let mut live = BTreeMap::<String, Vec<Meter>>::new();
    let mut snapshots = BTreeMap::<String, Snapshots>::new();
    for item in &items {
        let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
        let key = ItemKey { pk: text("PK"), sk: text("SK") };
        if is_hostile(&key.pk) {
            continue;
        }
        if key.sk == BUCKET_SK {
            let shard = weirgate_testkit::live(item);
            live.entry(shard.key.entity.to_string()).or_default().push(shard);
        } else if let Some(key) = SnapshotKey::parse(&key) {
            snapshots
                .entry(key.entity.to_string())
                .or_default()
                .insert((key.window, key.start), weirgate_testkit::snapshot(item));
        }
    }
    let mut consumed: BTreeMap<(String, Window, EpochMillis), BTreeMap<String, i128>> =
        BTreeMap::new();
    let by_hour = world.stream_check().consumed.clone();
    for ((entity, limit, at), amount) in by_hour {
        for window in Window::ALL {
            let start = window.start(EpochMillis(at));
            *consumed
                .entry((entity.clone(), window, start))
                .or_default()
                .entry(limit.clone())
                .or_default() += i128::from(amount);
        }
    }
    let is_purged = world.counts().of(Kind::NamespacePurged) > 0;
    let is_erased =
        |entity: &str| is_purged || world.erased().is_some_and(|plan| plan.entity == entity);
    let copied = snapshots.iter().flat_map(|(entity, windows)| {
        let of = |(window, start): &(Window, EpochMillis)| (entity.clone(), *window, *start);
        windows.keys().map(of)
    });
    let all: BTreeSet<_> = copied
        .chain(consumed.keys().cloned())
        .filter(|(entity, _, start)| *start >= since && !is_erased(entity))
        .collect();
    let (no_snapshots, no_items) = (BTreeMap::new(), vec![]);
    for of in &all {
        let (entity, window, start) = of;
        let snapshots = snapshots.get(entity).unwrap_or(&no_snapshots);
        let items = live.get(entity).unwrap_or(&no_items);
        let at = UsageHorizon::of_stream(world.now(), RETENTION);
        let read = weirgate_shared::usage(*window, *start, snapshots, items, &at);
        let (is_final, WindowUsage { usage, .. }) = (read.is_final(), read);
        let mut counted: BTreeMap<_, _> =
            usage.tokens.iter().map(|(name, amount)| (name.to_string(), amount.0)).collect();
        counted.insert(ACQUIRES.to_owned(), usage.acquires * 1000);
        let mut consumed = consumed.get(of).cloned().unwrap_or_default();
        [&mut counted, &mut consumed]
            .into_iter()
            .for_each(|usage| usage.retain(|_, amount| *amount != 0));
        let start = Iso8601(*start);
        if counted != consumed {
            world.violated(format!(
                "I3: the {window} of {start} says {counted:?} of {entity}, {consumed:?} consumed"
            ));
        }
        let day = Window::Daily.end(Window::Daily.start(of.2));
        if !is_final && world.now() >= day.plus(DELIVERY) {
            world.violated(format!(
                "I3: the {window} of {start} of {entity} is over, and is not final: {snapshots:?} {items:?}"
            ));
        }
    }
}
