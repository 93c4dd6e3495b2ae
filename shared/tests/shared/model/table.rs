//! A table of the shards of one bucket: planned writes and transactions as DynamoDB does them, and
//! what was used, by the definition of usage.

use std::collections::BTreeMap;
use std::rc::Rc;

use weirgate_shared::write::{Action, Update, finish_writes, split};
use weirgate_shared::{
    Bucket, BucketKey, EpochMillis, Hour, ItemKey, LimitName, Meter, MilliTotal, Shard, Usage,
    Window, WriteId, write_shard,
};

use super::Item;

/// The shards at an instant, by index, without merged ones.
pub type Shards = BTreeMap<u32, Rc<Shard>>;

/// All items of one bucket.
#[derive(Debug, Clone, Default)]
pub struct Table {
    items: BTreeMap<u32, Item>,
    shards: Shards,
    /// Everything a shard of this number ever was, oldest first, through all its lives.
    images: BTreeMap<u32, Vec<Rc<Shard>>>,
    /// The usage counters of each item, and the highest write sequence that any item of its number
    /// had.
    meters: BTreeMap<u32, Meter>,
    highest: BTreeMap<u32, i64>,
    /// Usage of each life of each shard in each hour: a counter's change belongs to the hour of the
    /// item after it.
    used: BTreeMap<((u32, i64), Hour), Usage>,
}

impl Table {
    /// Runs all actions if all their conditions hold. Returns whether they did.
    pub fn transact(&mut self, actions: &[Action]) -> bool {
        let (none, keys) = (
            Item::default(),
            actions.iter().map(|action| number(key(action))),
        );
        let keys: Vec<_> = keys.collect();
        let is_twice = |(at, key): (usize, &u32)| keys[..at].contains(key);
        assert!(
            !keys.iter().enumerate().any(is_twice),
            "ValidationException: two operations on one item"
        );
        let holds = |(action, key): (&Action, &u32)| {
            let item = self.items.get(key).unwrap_or(&none);
            let (Action::Update(Update { conditions, .. })
            | Action::Delete(_, conditions)
            | Action::Check(_, conditions)) = action;
            conditions.iter().all(|condition| item.holds(condition))
        };
        if !actions.iter().zip(&keys).all(holds) {
            return false;
        }
        for (action, key) in actions.iter().zip(keys) {
            match action {
                Action::Update(update) => {
                    assert!(self.items.entry(key).or_default().apply(update));
                    self.record(key);
                }
                Action::Delete(..) => self.delete(key),
                Action::Check(..) => {}
            }
        }
        true
    }

    pub fn update(&mut self, update: Update) -> bool {
        self.transact(&[Action::Update(update)])
    }

    /// Splits a shard as it was seen, all three writes; returns whether the first of them happened.
    pub fn split(&mut self, image: &Shard, op: WriteId, now: EpochMillis) -> bool {
        if !self.update(split(image, 0, op, now)) {
            return false;
        }
        self.finish(image.key.shard);
        true
    }

    /// Finishes the split of a shard.
    pub fn finish(&mut self, shard: u32) {
        let parent = self.shards[&shard].clone();
        assert!(
            finish_writes(&parent)
                .into_iter()
                .flatten()
                .all(|update| self.update(update)),
            "{parent:?}"
        );
    }

    /// A table with one item.
    pub fn of(bucket: &Shard) -> Self {
        let mut table = Self::default();
        table.put(bucket);
        table
    }

    /// Writes an item as other software would, whatever there is.
    pub fn put(&mut self, bucket: &Shard) {
        let update = Update {
            key: bucket.key.item_key(),
            conditions: vec![],
            changes: write_shard(bucket),
        };
        assert!(self.update(update));
    }

    /// Deletes an item, as a write or an operator does.
    pub fn delete(&mut self, shard: u32) {
        if self.items.remove(&shard).is_some() {
            self.record(shard);
        }
    }

    /// Enters what a write used, and checks what it left.
    fn record(&mut self, shard: u32) {
        let before = self.meters.remove(&shard);
        self.shards.remove(&shard);
        let Some(item) = self.items.get(&shard) else {
            return;
        };
        let after = item.live();
        // A copy of an image replaces those of a lower `v`, and no other.
        let highest = self.highest.insert(shard, after.write_seq);
        assert!(
            Some(after.write_seq) > highest,
            "I3: {after:?}, {highest:?}"
        );
        let life = (shard, after.birth_seq);
        let used = self.used.entry((life, after.hour)).or_default();
        used.add(&difference(before.as_ref(), &after));
        for window in Window::ALL {
            let used = self.used_by(window, after.start(window), |of| of == life);
            let counted = plain(after.usage(window));
            assert_eq!(counted, used, "I3: {window} of {after:?}");
        }
        if !item.is_merged() {
            let image = Rc::new(item.bucket());
            self.shards.insert(shard, Rc::clone(&image));
            self.images.entry(shard).or_default().push(image);
        }
        self.meters.insert(shard, after);
    }

    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The items of all shards that there are.
    pub fn items(&self) -> impl Iterator<Item = (&Item, &Rc<Shard>)> {
        self.items
            .iter()
            .filter_map(|(number, item)| Some((item, self.shards.get(number)?)))
    }

    /// Returns the items of merged shards, by index.
    pub fn merged(&self) -> impl Iterator<Item = (u32, &Item)> {
        let is_merged = |(number, _): &(&u32, &Item)| !self.shards.contains_key(number);
        self.items
            .iter()
            .filter(is_merged)
            .map(|(number, item)| (*number, item))
    }

    /// The shards, and halves that are yet to be made.
    pub fn all(&self) -> Shards {
        let mut all = self.shards.clone();
        for half in self
            .shards
            .values()
            .filter_map(|shard| shard.escrow.as_deref())
        {
            all.entry(half.key.shard)
                .or_insert_with(|| Rc::new(half.clone()));
        }
        all
    }

    pub fn whole(&self) -> Bucket {
        whole(&self.all())
    }

    /// Returns the image of this shard `back` writes ago, or its first one.
    pub fn image(&self, shard: u32, back: usize) -> Option<Rc<Shard>> {
        let images = self.images.get(&shard)?;
        images
            .get(images.len().saturating_sub(back.saturating_add(1)))
            .cloned()
    }

    /// Returns the usage of all shards in a window.
    pub fn used(&self, window: Window, start: EpochMillis) -> Usage {
        self.used_by(window, start, |_| true)
    }

    fn used_by(
        &self,
        window: Window,
        start: EpochMillis,
        is_asked: impl Fn((u32, i64)) -> bool,
    ) -> Usage {
        let mut sum = Usage::default();
        for ((life, hour), used) in &self.used {
            if window.start(hour.start()) == start && is_asked(*life) {
                sum.add(used);
            }
        }
        plain(sum)
    }

    /// Returns the consumption of `limit` in all hours.
    pub fn consumed(&self, limit: &LimitName) -> MilliTotal {
        self.used
            .values()
            .filter_map(|used| used.tokens.get(limit))
            .copied()
            .sum()
    }
}

/// Without the limits of which nothing was used.
pub fn plain(mut usage: Usage) -> Usage {
    usage.tokens.retain(|_, amount| *amount != MilliTotal::ZERO);
    usage
}

/// By how much a write changed what is counted; a new item counts from 0.
fn difference(before: Option<&Meter>, after: &Meter) -> Usage {
    let before_of = |name| {
        before
            .and_then(|before| before.limits.get(name))
            .map_or(0, |counter| counter.total)
    };
    let tokens = after
        .limits
        .iter()
        .map(|(name, after)| (name.clone(), MilliTotal(after.total - before_of(name))));
    let acquires = after.acquires.total - before.map_or(0, |before| before.acquires.total);
    Usage {
        tokens: tokens.collect(),
        acquires,
    }
}

pub fn whole(shards: &Shards) -> Bucket {
    Bucket::new(shards.values().map(|shard| Shard::clone(shard)).collect())
}

fn key(action: &Action) -> &ItemKey {
    match action {
        Action::Update(Update { key, .. }) | Action::Delete(key, _) | Action::Check(key, _) => key,
    }
}

fn number(key: &ItemKey) -> u32 {
    BucketKey::parse(&key.pk)
        .expect("only buckets are written to")
        .shard
}
