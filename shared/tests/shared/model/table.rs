//! A table of the shards of one bucket: planned writes and transactions as DynamoDB does them.

use std::collections::BTreeMap;
use std::rc::Rc;

use weirgate_shared::write::{Action, Update, finish_writes, split};
use weirgate_shared::{BucketKey, EpochMillis, ItemKey, Shard, WriteId, write_shard};

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
}

impl Table {
    /// Runs all actions if all their conditions hold. Returns whether they did.
    pub fn transact(&mut self, actions: &[Action]) -> bool {
        let (none, keys) = (Item::default(), actions.iter().map(|action| number(key(action))));
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
            finish_writes(&parent).into_iter().flatten().all(|update| self.update(update)),
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
        let update =
            Update { key: bucket.key.item_key(), conditions: vec![], changes: write_shard(bucket) };
        assert!(self.update(update));
    }

    /// Deletes an item, as a write or an operator does.
    pub fn delete(&mut self, shard: u32) {
        if self.items.remove(&shard).is_some() {
            self.record(shard);
        }
    }

    /// Reads what a write left.
    fn record(&mut self, shard: u32) {
        self.shards.remove(&shard);
        match self.items.get(&shard) {
            Some(item) if item.is_merged() => drop(item.live()),
            Some(item) => {
                let image = Rc::new(item.bucket());
                self.shards.insert(shard, Rc::clone(&image));
                self.images.entry(shard).or_default().push(image);
            }
            None => {}
        }
    }

    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Returns the items of merged shards, by index.
    pub fn merged(&self) -> impl Iterator<Item = (u32, &Item)> {
        let is_merged = |(number, _): &(&u32, &Item)| !self.shards.contains_key(number);
        self.items.iter().filter(is_merged).map(|(number, item)| (*number, item))
    }

    /// Returns the image of this shard `back` writes ago, or its first one.
    pub fn image(&self, shard: u32, back: usize) -> Option<Rc<Shard>> {
        let images = self.images.get(&shard)?;
        images.get(images.len().saturating_sub(back.saturating_add(1))).cloned()
    }
}

fn key(action: &Action) -> &ItemKey {
    match action {
        Action::Update(Update { key, .. }) | Action::Delete(key, _) | Action::Check(key, _) => key,
    }
}

fn number(key: &ItemKey) -> u32 {
    BucketKey::parse(&key.pk).expect("only buckets are written to").shard
}
