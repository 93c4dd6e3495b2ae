//! A table in memory, for tests of applications: it evaluates planned writes as DynamoDB does.
//!
//! - `listing`: the items of one partition of the table or of an index
//! - `scan`: all items

mod listing;
mod scan;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::evaluator::{Held, Item as Evaluated};
use weirgate_shared::write::{Action, Condition, Update, mark_functions};
use weirgate_shared::{ItemKey, read_key};

use crate::{ErrorKind, Item, StoreError};

pub(crate) use listing::{Listing, Range};

/// A table in memory. Clones share it. A request is applied at once and never lost, items never
/// expire, and any number of writes fits.
#[derive(Debug, Clone)]
pub struct MemoryTable(Arc<State>);

impl Default for MemoryTable {
    /// Returns a table that has nothing but the mark of functions of this release.
    fn default() -> Self {
        let table = Self(Arc::default());
        let marked = table.update(&mark_functions());
        assert!(marked.is_ok(), "an empty table has no mark");
        table
    }
}

#[derive(Debug, Default)]
struct State {
    items: Mutex<BTreeMap<ItemKey, Evaluated>>,
    is_unavailable: AtomicBool,
}

type Items = BTreeMap<ItemKey, Evaluated>;

/// A failed condition of an action; the item as it was, if there is one.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) Option<Item>);

impl MemoryTable {
    /// Sets whether every request fails as if no connection could be made.
    pub fn set_unavailable(&self, is_unavailable: bool) {
        self.0
            .is_unavailable
            .store(is_unavailable, Ordering::Relaxed);
    }

    /// Returns all items, in the order of their keys.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        self.locked().values().map(item).collect()
    }

    /// Fails if the table is unavailable.
    pub(crate) fn reach(&self, request: &str) -> Result<(), StoreError> {
        if !self.0.is_unavailable.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(StoreError {
            kind: ErrorKind::Unreachable,
            request: request.to_owned(),
            table: "in-memory".to_owned(),
            reason: "the test made the table unavailable".to_owned(),
            source: None,
        })
    }

    /// Runs a write. Returns the new item, or the old one if a condition failed.
    pub(crate) fn update(&self, update: &Update) -> Result<Item, Option<Item>> {
        let mut items = self.locked();
        let mut changed = items.get(&update.key).cloned().unwrap_or_default();
        if !changed.apply(update) {
            return Err(items.get(&update.key).map(item));
        }
        let new = item(&changed);
        items.insert(update.key.clone(), changed);
        Ok(new)
    }

    /// Runs all actions, or none. Returns the failed conditions, by action.
    pub(crate) fn transact(&self, actions: &[Action]) -> Result<(), Vec<Option<Failed>>> {
        let mut items = self.locked();
        let failed: Vec<_> = actions.iter().map(|action| check(&items, action)).collect();
        if failed.iter().any(Option::is_some) {
            return Err(failed);
        }
        for action in actions {
            match action {
                Action::Update(update) => {
                    let item = items.entry(update.key.clone()).or_default();
                    assert!(item.apply(update), "no other action is on this item");
                }
                Action::Delete(key, _) => drop(items.remove(key)),
                Action::Check(..) => {}
            }
        }
        Ok(())
    }

    /// Returns the items with these keys, without those that do not exist.
    pub(crate) fn read(&self, keys: &[HashMap<String, AttributeValue>]) -> Vec<Item> {
        let items = self.locked();
        let key = |key: &HashMap<_, _>| read_key(Item(key.clone()).attributes());
        let found = keys.iter().filter_map(|keys| items.get(&key(keys)?));
        found.map(item).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Items> {
        self.0.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a condition of one action of a transaction fails, and for which item.
fn check(items: &Items, action: &Action) -> Option<Failed> {
    let (key, conditions): (&ItemKey, &[Condition]) = match action {
        Action::Update(update) => (&update.key, &update.conditions),
        Action::Delete(key, conditions) | Action::Check(key, conditions) => (key, conditions),
    };
    let (found, none) = (items.get(key), Evaluated::default());
    let holds = |condition| found.unwrap_or(&none).holds(condition);
    (!conditions.iter().all(holds)).then(|| Failed(found.map(item)))
}

fn item(item: &Evaluated) -> Item {
    let attributes = item.0.iter();
    Item(
        attributes
            .map(|(name, held)| (name.clone(), value(held)))
            .collect(),
    )
}

fn value(held: &Held) -> AttributeValue {
    match held {
        Held::Number(_, text) => AttributeValue::N(text.clone()),
        Held::Text(text) => AttributeValue::S(text.clone()),
        Held::Bool(is) => AttributeValue::Bool(*is),
        Held::Map(map) => {
            let entries = map.iter();
            AttributeValue::M(
                entries
                    .map(|(name, held)| (name.clone(), value(held)))
                    .collect(),
            )
        }
        Held::Numbers(numbers) => AttributeValue::Ns(numbers.iter().cloned().collect()),
    }
}
