//! A table in memory, for tests of applications: it evaluates planned writes as DynamoDB does.
//!
//! - `listing`: the items of one partition of the table or of an index
//! - `scan`: all items

mod listing;
mod scan;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::ItemKey;
use weirgate_shared::evaluator::{Held, Item as Evaluated};
use weirgate_shared::write::{Action, Condition, Update, mark_functions};

use crate::bound::Bound;
use crate::request::Batch;
use crate::{
    ActionOutcome, Consistency, ErrorKind, Item, ReturnValues, StoreError, TransactOutcome,
    WriteOutcome,
};

/// A table in memory. Clones share it. A request is applied at once and never lost, items never
/// expire, and any number of writes fits.
#[derive(Debug, Clone)]
pub struct MemoryTable(Arc<State>);

impl Default for MemoryTable {
    /// Returns a table that has nothing but the mark of functions of this release.
    fn default() -> Self {
        let table = Self(Arc::default());
        let marked = table.apply(&mark_functions());
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

impl MemoryTable {
    /// Sets whether every request fails as if no connection could be made.
    pub fn set_unavailable(&self, is_unavailable: bool) {
        self.0.is_unavailable.store(is_unavailable, Ordering::Relaxed);
    }

    /// Returns all items, in the order of their keys.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        self.locked().values().map(item).collect()
    }

    /// Fails if the table is unavailable.
    fn reach(&self, request: &str) -> Result<(), StoreError> {
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

    pub(crate) async fn warm(&self) -> Result<(), StoreError> {
        self.reach("GetItem")
    }

    pub(crate) async fn create(&self) -> Result<(), StoreError> {
        self.reach("CreateTable")
    }

    pub(crate) async fn update(
        &self,
        update: &Update,
        answer: ReturnValues,
    ) -> Result<WriteOutcome, StoreError> {
        self.reach("UpdateItem")?;
        Ok(match self.apply(update) {
            Ok(new) => WriteOutcome::Applied((answer == ReturnValues::AllNew).then_some(new)),
            Err(old) => WriteOutcome::ConditionFailed(
                old.filter(|item| answer != ReturnValues::Never && !item.is_merged()),
            ),
        })
    }

    /// Runs a write. Returns the new item, or the old one if a condition failed.
    fn apply(&self, update: &Update) -> Result<Item, Option<Item>> {
        let mut items = self.locked();
        let mut changed = items.get(&update.key).cloned().unwrap_or_default();
        if !changed.apply(update) {
            return Err(items.get(&update.key).map(item));
        }
        let new = item(&changed);
        items.insert(update.key.clone(), changed);
        Ok(new)
    }

    /// Runs all actions, or none.
    pub(crate) async fn transact(&self, actions: &[Action]) -> Result<TransactOutcome, StoreError> {
        self.reach("TransactWriteItems")?;
        let mut items = self.locked();
        let outcomes: Vec<_> = actions.iter().map(|action| check(&items, action)).collect();
        if outcomes.iter().any(|outcome| *outcome != ActionOutcome::NotReported) {
            return Ok(TransactOutcome::ConditionFailed(outcomes));
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
        Ok(TransactOutcome::Applied)
    }

    /// Returns the items with these keys, without those that do not exist.
    pub(crate) async fn read(
        &self,
        keys: &[ItemKey],
        _: Consistency,
        _: Option<&Bound>,
    ) -> Result<Batch, StoreError> {
        self.reach("BatchGetItem")?;
        let items = self.locked();
        let found = keys.iter().filter_map(|key| items.get(key)).map(item);
        Ok(Batch { items: found.collect(), kept_back: None })
    }

    fn locked(&self) -> MutexGuard<'_, Items> {
        self.0.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a condition of one action of a transaction fails, and for which item.
fn check(items: &Items, action: &Action) -> ActionOutcome {
    let (key, conditions): (&ItemKey, &[Condition]) = match action {
        Action::Update(update) => (&update.key, &update.conditions),
        Action::Delete(key, conditions) | Action::Check(key, conditions) => (key, conditions),
    };
    let (found, none) = (items.get(key), Evaluated::default());
    match conditions.iter().all(|condition| found.unwrap_or(&none).holds(condition)) {
        true => ActionOutcome::NotReported,
        false => ActionOutcome::ConditionFailed(found.map(item)).without_merged(),
    }
}

fn item(item: &Evaluated) -> Item {
    let attributes = item.0.iter();
    Item(attributes.map(|(name, held)| (name.clone(), value(held))).collect())
}

fn value(held: &Held) -> AttributeValue {
    match held {
        Held::Number(_, text) => AttributeValue::N(text.clone()),
        Held::Text(text) => AttributeValue::S(text.clone()),
        Held::Bool(is) => AttributeValue::Bool(*is),
        Held::Map(map) => {
            let entries = map.iter();
            AttributeValue::M(entries.map(|(name, held)| (name.clone(), value(held))).collect())
        }
        Held::Numbers(numbers) => AttributeValue::Ns(numbers.iter().cloned().collect()),
    }
}
