//! I3: usage is exact.

use std::collections::{BTreeMap, BTreeSet};

use weirgate::{EpochMillis, Window, WindowUsage};
use weirgate_shared::{BUCKET_SK, Iso8601, ItemKey, LiveShard, Millis, Snapshot, SnapshotKey};

use crate::fault::Kind;
use crate::stored_shard::is_hostile;
use crate::stream_check::ACQUIRES;
use crate::world::World;

/// I3: checks that usage is exact. In each window and for each limit, and for acquires, the usage
/// from snapshots and shards equals what the stream shows as consumed. Checks also that rested
/// windows are reported as final.
pub fn counted(world: &World) {
    counted_since(world, EpochMillis(0));
}

/// Does the same for windows that began at `since` or later; earlier snapshots are deleted.
pub fn counted_since(world: &World, since: EpochMillis) {
    let items = world.dynamo().items();
    let mut live = BTreeMap::<String, Vec<LiveShard>>::new();
    let mut snapshots = BTreeMap::<_, BTreeMap<EpochMillis, Snapshot>>::new();
    for item in &items {
        let text = |name: &str| item[name]["S"].as_str().unwrap_or_default().to_owned();
        let key = ItemKey {
            pk: text("PK"),
            sk: text("SK"),
        };
        if is_hostile(&key.pk) {
            continue;
        }
        if key.sk == BUCKET_SK {
            let shard = weirgate_testkit::live(item);
            live.entry(shard.meter.key.entity.to_string())
                .or_default()
                .push(shard);
        } else if let Some(key) = SnapshotKey::parse(&key) {
            snapshots
                .entry((key.entity.to_string(), key.window))
                .or_default()
                .insert(key.start, weirgate_testkit::snapshot(item));
        }
    }
    let mut consumed: BTreeMap<(String, Window, EpochMillis), BTreeMap<String, i128>> =
        BTreeMap::new();
    let by_hour = world.stream_check().consumed().clone();
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
    let copied = snapshots.iter().flat_map(|((entity, window), starts)| {
        let of = |start: &EpochMillis| (entity.clone(), *window, *start);
        starts.keys().map(of)
    });
    let all: BTreeSet<_> = copied
        .chain(consumed.keys().cloned())
        .filter(|(entity, _, start)| *start >= since && !is_erased(entity))
        .collect();
    let (no_snapshots, no_items) = (BTreeMap::new(), vec![]);
    for of in &all {
        let (entity, window, start) = of;
        let snapshots = snapshots
            .get(&(entity.clone(), *window))
            .unwrap_or(&no_snapshots);
        let items = live.get(entity).unwrap_or(&no_items);
        let WindowUsage { usage, is_final } =
            weirgate_shared::usage(*window, *start, snapshots, items, world.now());
        let mut counted: BTreeMap<_, _> = usage
            .tokens
            .iter()
            .map(|(name, amount)| (name.to_string(), amount.0))
            .collect();
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
        let rests_since = rests_since(*window, of.2, snapshots, items);
        if !is_final && world.now() > rests_since.plus(RESTED) {
            world.violated(format!(
                "I3: the {window} of {start} of {entity} rests, and is not final: {snapshots:?} {items:?}"
            ));
        }
    }
}

/// Time after [`rests_since`] when a window is final, if all records are delivered and no lease is
/// held.
const RESTED: Millis = Millis(25 * 3_600_000);

/// Returns the instant since which nothing can be added to a window: its end, or the end of the
/// next window in which each shard without a copy was used again.
fn rests_since(
    window: Window,
    start: EpochMillis,
    snapshots: &BTreeMap<EpochMillis, Snapshot>,
    items: &[LiveShard],
) -> EpochMillis {
    let end = window.end(start);
    let has_copy = |snapshot: &Snapshot, shard: u32| snapshot.shards.contains_key(&shard);
    let used_again = |item: &LiveShard| {
        let shard = item.meter.key.shard;
        let is_copied = snapshots
            .get(&start)
            .is_some_and(|own| has_copy(own, shard));
        let mut later = snapshots.range(end..);
        let next = later.find(|(_, snapshot)| has_copy(snapshot, shard));
        let next = next.map(|(start, _)| window.end(*start));
        let hour = Window::Hourly.end(item.meter.hour.start());
        (!is_copied).then(|| next.unwrap_or(hour).min(hour))
    };
    items
        .iter()
        .filter_map(used_again)
        .fold(end, EpochMillis::max)
}
