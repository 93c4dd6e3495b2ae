//! The items of one bucket of up to three shards, written to as DynamoDB does, and what the writes
//! count.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use weirgate_shared::write::{Action, Update};
use weirgate_shared::{
    BucketKey, LimitState, Meter, MilliTokens, MilliTotal, Shard, Usage, Window, attr,
};

use crate::model::guard::conditions;
use weirgate_shared::evaluator::Item;

/// A shard's item, and its decoded values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    item: Item,
    /// Usage counters of the shard.
    pub meter: Meter,
    /// `None` if the shard was merged away.
    live: Option<Shard>,
    /// Hash of what a later step can depend on: states are hashed far more often than rows are
    /// written.
    digest: u64,
}

impl Row {
    fn of(item: Item) -> Self {
        let live = (!item.is_merged()).then(|| item.bucket());
        let meter = live.as_ref().map_or_else(|| item.live(), Shard::meter);
        let digest = digest(&item);
        Self { item, meter, live, digest }
    }

    /// Returns the shard, which must not be merged.
    pub fn bucket(&self) -> &Shard {
        self.live.as_ref().expect("it was not merged away")
    }

    /// Returns whether the shard was merged.
    pub const fn is_merged(&self) -> bool {
        self.live.is_none()
    }

    /// Returns the shard as a reader of usage finds it.
    pub fn read(&self) -> Meter {
        self.item.live()
    }

    /// Returns the names of the item's attributes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.item.0.keys().map(String::as_str)
    }

    /// Returns whether the item is the tombstone of an erasure, which has counted nothing.
    pub fn is_erased(&self) -> bool {
        self.is_merged() && self.meter.limits.is_empty()
    }

    /// The limit that clients compete for.
    pub fn limit(&self) -> &LimitState {
        self.bucket().limits.values().next().expect("the bucket has its limit")
    }

    /// Returns the sum of its leases.
    pub fn held(&self) -> MilliTokens {
        self.bucket()
            .leases
            .iter()
            .flatten()
            .flat_map(|(_, lease)| lease.tokens.values())
            .copied()
            .sum()
    }
}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// The bytes of a split's leases only decide whether a shard is hot, and in the model any shard may
/// be split.
fn digest(item: &Item) -> u64 {
    let mut hasher = DefaultHasher::new();
    let decides = |name: &str| name != attr::SPLIT_BYTES;
    let attributes = item.0.iter().filter(|(name, _)| decides(name));
    attributes.for_each(|attribute| attribute.hash(&mut hasher));
    hasher.finish()
}

/// The items of the shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// Items by shard index, including merged shards.
    pub items: [Option<Arc<Row>>; 3],
    /// Highest write sequence of each shard index.
    highest: [i64; 3],
    /// Some write left a `v` that was not above all before it.
    pub has_reused_v: bool,
    /// Some write made slots of a limit that was none, or another kind of slots.
    pub has_other_kind: bool,
    /// Some write left a shard that did not say what had been counted in its hour and day.
    pub is_miscounted: bool,
}

impl Table {
    /// Runs all parts if the conditions of all hold; returns whether they did.
    pub fn transact(&mut self, actions: &[Action]) -> bool {
        let none = Item::default();
        let holds = |action: &Action| {
            let item = self.items[number(action)].as_ref().map_or(&none, |row| &row.item);
            conditions(action).iter().all(|condition| item.holds(condition))
        };
        if !actions.iter().all(holds) {
            return false;
        }
        for action in actions {
            match action {
                Action::Update(update) => self.update(number(action), update),
                Action::Delete(..) => self.items[number(action)] = None,
                Action::Check(..) => {}
            }
        }
        true
    }

    fn update(&mut self, number: usize, update: &Update) {
        let before = self.items[number].take();
        let mut item = before.as_ref().map_or_else(Item::default, |row| row.item.clone());
        assert!(item.apply(update), "its conditions held a moment ago");
        let row = Row::of(item);
        self.is_miscounted |=
            !row.is_erased() && !is_counted(before.as_ref().map(|row| &row.meter), &row.meter);
        // The life of an item begins with its first write.
        let known = before.as_ref().filter(|known| {
            !known.is_merged()
                && !row.is_merged()
                && known.bucket().birth_seq == row.bucket().birth_seq
        });
        self.has_other_kind |= known.is_some_and(|known| {
            let kinds = [known, &row].map(|row| row.limit().rule.kind());
            kinds[0].is_held() != kinds[1].is_held()
        });
        self.has_reused_v |= row.meter.write_seq <= self.highest[number];
        self.highest[number] = self.highest[number].max(row.meter.write_seq);
        self.items[number] = Some(Arc::new(row));
    }

    /// Returns the shards by index, without merged ones.
    pub fn rows(&self) -> [Option<&Arc<Row>>; 3] {
        [0, 1, 2].map(|shard| self.items[shard].as_ref().filter(|row| !row.is_merged()))
    }

    /// The shards, and halves that are yet to be made of an escrow.
    pub fn buckets(&self) -> Vec<&Shard> {
        let is_made = |half: &&Shard| {
            let item =
                usize::try_from(half.key.shard).ok().and_then(|shard| self.items[shard].as_ref());
            item.is_some_and(|row| row.meter.write_seq >= half.write_seq)
        };
        let live: Vec<_> = self.shards().map(|row| row.bucket()).collect();
        let halves =
            live.iter().filter_map(|bucket| bucket.escrow.as_deref()).filter(|half| !is_made(half));
        live.iter().copied().chain(halves).collect()
    }

    /// The shards there are, lowest first.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.rows().into_iter().flatten()
    }
}

/// Returns what a write counted.
pub fn counted(before: Option<&Meter>, after: &Meter) -> Usage {
    let had =
        |name| before.and_then(|before| before.limits.get(name)).map_or(0, |counter| counter.total);
    let used = after
        .limits
        .iter()
        .map(|(name, counter)| (name.clone(), MilliTotal(counter.total - had(name))));
    Usage {
        tokens: used.collect(),
        acquires: after.acquires.total - before.map_or(0, |before| before.acquires.total),
    }
}

/// Returns whether the usage after a write equals the usage before it, if that was in the same
/// window, plus what the write counted.
fn is_counted(before: Option<&Meter>, after: &Meter) -> bool {
    Window::ALL.into_iter().all(|window| {
        let is_same = |before: &&Meter| before.start(window) == after.start(window);
        let mut usage = counted(before, after);
        before.filter(is_same).into_iter().for_each(|before| usage.add(&before.usage(window)));
        usage == after.usage(window)
    })
}

fn number(action: &Action) -> usize {
    let (Action::Update(Update { key, .. }) | Action::Delete(key, _) | Action::Check(key, _)) =
        action;
    let shard = BucketKey::parse(&key.pk).expect("only buckets are written to").shard;
    usize::try_from(shard).expect("one of three")
}
