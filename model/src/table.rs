//! The items of one bucket of up to two shards, written to as DynamoDB does, and what its stream says of them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use weirgate_shared::write::{Action, Update};
use weirgate_shared::{Bucket, BucketKey, ItemKey, LimitState, MilliTokens};

use crate::guard::conditions;
use crate::item::Item;

/// One item, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    item: Item,
    /// What it says.
    pub bucket: Bucket,
}

impl Row {
    /// The one limit of the model.
    #[must_use]
    pub fn limit(&self) -> &LimitState {
        self.bucket.limits.values().next().expect("the bucket has its limit")
    }

    /// What its leases hold, together.
    pub fn held(&self) -> MilliTokens {
        self.bucket.leases.iter().flatten().flat_map(|(_, lease)| lease.tokens.values()).copied().sum()
    }
}

/// By what a later step can depend on. The hidden limit `wcu` and the sizes only decide whether a shard is hot, and in
/// the model any shard may be split; the rule and the key are the same in all states.
impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Bucket { key, shard_count, rf, v, takes, limits, version, wcu: _, leases, due, op, scaling, .. } =
            &self.bucket;
        (key.shard, shard_count, rf.0, v, takes, version, due.map(|due| due.0), op).hash(state);
        (scaling.is_hot, scaling.min_shards, scaling.look.map(|look| (look.at.0, look.v))).hash(state);
        for limit in limits.values() {
            (limit.tk.0, limit.tc.0).hash(state);
        }
        for (id, lease) in leases.iter().flatten() {
            (id, lease.expires.0).hash(state);
            lease.tokens.values().for_each(|held| held.0.hash(state));
        }
    }
}

/// What one record of the stream says was used, by the writes it covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// `v` before and after.
    pub span: (i64, i64),
    /// Net consumed.
    pub used: i64,
    /// Granted acquires.
    pub takes: i64,
}

/// The shards there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Table {
    /// By number.
    pub rows: [Option<Arc<Row>>; 2],
    /// The highest `v` that a shard of this number ever had.
    highest: [i64; 2],
    /// Some write left a `v` that was not above all before it.
    pub has_reused_v: bool,
}

impl Table {
    /// Runs all parts if the conditions of all hold; the records they make, or nothing if they did not.
    pub fn transact(&mut self, actions: &[Action]) -> Option<Vec<(usize, Record)>> {
        let none = Item::default();
        let holds = |action: &Action| {
            let item = self.rows[number(action)].as_ref().map_or(&none, |row| &row.item);
            conditions(action).iter().all(|condition| item.holds(condition))
        };
        if !actions.iter().all(holds) {
            return None;
        }
        let mut records = vec![];
        for action in actions {
            let number = number(action);
            match action {
                Action::Update(update) => records.push((number, self.update(number, update))),
                Action::Delete(..) => self.rows[number] = None,
                Action::Check(..) => {}
            }
        }
        Some(records)
    }

    fn update(&mut self, number: usize, update: &Update) -> Record {
        let before = self.rows[number].take();
        let mut item = before.as_ref().map_or_else(Item::default, |row| row.item.clone());
        assert!(item.apply(update), "its conditions held a moment ago");
        let row = Row { bucket: item.bucket(), item };
        let v = row.bucket.v.expect("our items count their writes");
        let was = before.as_ref().map(|row| &row.bucket);
        // An INSERT counts from 0.
        let (old_v, old_takes) = was.map_or((Some(v - 1), None), |was| (was.v, was.takes));
        let old_tc = before.as_ref().map_or(MilliTokens::ZERO, |before| before.limit().tc);
        let used = row.limit().tc - old_tc;
        let takes = row.bucket.takes.unwrap_or_default() - old_takes.unwrap_or_default();
        let record = Record { span: (old_v.unwrap_or_default(), v), used: used.0, takes };
        self.has_reused_v |= v <= self.highest[number];
        self.highest[number] = self.highest[number].max(v);
        self.rows[number] = Some(Arc::new(row));
        record
    }

    /// The shards there are, lowest first.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Row>> {
        self.rows.iter().flatten()
    }
}

fn number(action: &Action) -> usize {
    let (Action::Update(Update { key, .. }) | Action::Delete(key, _) | Action::Check(key, _)) = action;
    let ItemKey { pk, .. } = key;
    let shard = BucketKey::parse(pk).expect("only buckets are written to").shard;
    usize::try_from(shard).expect("one of two")
}
