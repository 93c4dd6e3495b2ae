//! A table of the shards of one bucket: planned writes and transactions as DynamoDB does them, and what its stream says
//! of them to those who count usage.

use std::collections::BTreeMap;
use std::rc::Rc;

use weirgate_shared::write::{Action, Update};
use weirgate_shared::{Bucket, BucketKey, ItemKey, LimitName, MilliTokens, Whole};

use super::Item;

/// The shards there are at a moment, by number.
pub type Shards = BTreeMap<u32, Rc<Bucket>>;

/// All items of one bucket.
#[derive(Debug, Clone, Default)]
pub struct Table {
    items: BTreeMap<u32, Item>,
    shards: Shards,
    /// Everything a shard of this number ever was, oldest first, through all its lives.
    images: BTreeMap<u32, Vec<Rc<Bucket>>>,
    /// Of each limit, what the stream's records add up to: an INSERT counts from 0, a MODIFY by difference, a REMOVE not.
    consumed: BTreeMap<LimitName, MilliTokens>,
    takes: i64,
}

impl Table {
    /// Runs all parts if the conditions of all hold; says whether they did.
    pub fn transact(&mut self, actions: &[Action]) -> bool {
        let (none, keys) = (Item::default(), actions.iter().map(|action| number(key(action))));
        let keys: Vec<_> = keys.collect();
        let is_twice = |(at, key): (usize, &u32)| keys[..at].contains(key);
        assert!(!keys.iter().enumerate().any(is_twice), "ValidationException: two operations on one item");
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
                    let item = self.items.entry(key).or_default();
                    assert!(item.apply(update));
                    let image = Rc::new(item.bucket());
                    self.record(key, image);
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

    /// Deletes an item, as a write does, or somebody by hand.
    pub fn delete(&mut self, shard: u32) {
        self.items.remove(&shard);
        self.shards.remove(&shard);
    }

    /// A record of the stream: an INSERT or a MODIFY.
    fn record(&mut self, shard: u32, image: Rc<Bucket>) {
        // A snapshot remembers the last `v` it counted of a shard's number, and takes what is not above it for a replay.
        let highest = self.images.get(&shard).and_then(|images| images.last()).and_then(|image| image.v);
        assert!(image.v > highest, "I3: shard {shard} is at {:?}, its number was at {highest:?} before", image.v);
        let before = self.shards.insert(shard, Rc::clone(&image));
        for (name, state) in &image.limits {
            let from = before.as_ref().and_then(|before| before.limits.get(name)).map(|state| state.tc);
            *self.consumed.entry(name.clone()).or_default() += state.tc - from.unwrap_or_default();
        }
        self.takes += image.takes.unwrap() - before.and_then(|before| before.takes).unwrap_or_default();
        self.images.entry(shard).or_default().push(image);
    }

    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    pub fn items(&self) -> impl Iterator<Item = (&Item, &Rc<Bucket>)> {
        self.items.values().zip(self.shards.values())
    }

    pub fn whole(&self) -> Whole {
        whole(&self.shards)
    }

    /// Every number a shard ever had.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.images.keys().copied()
    }

    /// What the shard of this number was so many writes ago, or at first.
    pub fn image(&self, shard: u32, back: usize) -> Option<Rc<Bucket>> {
        let images = self.images.get(&shard)?;
        images.get(images.len().saturating_sub(back.saturating_add(1))).cloned()
    }

    /// What the records say was consumed of `limit`.
    pub fn consumed(&self, limit: &LimitName) -> MilliTokens {
        self.consumed.get(limit).copied().unwrap_or_default()
    }

    /// How many acquires the records say were granted.
    pub fn takes(&self) -> i64 {
        self.takes
    }
}

pub fn whole(shards: &Shards) -> Whole {
    Whole::new(shards.values().map(|shard| Bucket::clone(shard)).collect())
}

fn key(action: &Action) -> &ItemKey {
    match action {
        Action::Update(Update { key, .. }) | Action::Delete(key, _) | Action::Check(key, _) => key,
    }
}

fn number(key: &ItemKey) -> u32 {
    BucketKey::parse(&key.pk).expect("only buckets are written to").shard
}
