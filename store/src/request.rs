//! What every backend is asked, and what it answers.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::Action;
use weirgate_shared::{ItemKey, attr};

use crate::{Index, Item, StoreError};

/// The outcome of a planned write, with the item or what was read from it.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteOutcome<T = Item> {
    /// The write was applied; the item as it is now, if it was requested.
    Applied(Option<T>),
    /// A condition did not hold; the item as it was, if there is one. A shard that was merged away
    /// counts as missing.
    ConditionFailed(Option<T>),
}

impl<T> WriteOutcome<T> {
    /// Returns the outcome with what is read from the item.
    ///
    /// # Errors
    /// The one of `read`.
    pub fn read<U, E>(self, read: impl FnOnce(&T) -> Result<U, E>) -> Result<WriteOutcome<U>, E> {
        Ok(match self {
            Self::Applied(item) => WriteOutcome::Applied(item.as_ref().map(read).transpose()?),
            Self::ConditionFailed(item) => {
                WriteOutcome::ConditionFailed(item.as_ref().map(read).transpose()?)
            }
        })
    }
}

/// Whether a write returns the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnValues {
    /// Returns the new item.
    AllNew,
    /// Returns no new item.
    None,
    /// Returns no item, even if a condition failed: for items of any size.
    Never,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum TransactOutcome {
    /// All actions were applied.
    Applied,
    /// A condition of at least one action did not hold, so nothing was applied: the outcome of
    /// every action, in their order.
    ConditionFailed(Vec<ActionOutcome>),
}

/// The outcome of one action in a transaction whose condition failed.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionOutcome {
    /// A condition of this action did not hold; the item as it was, if there is one.
    ConditionFailed(Option<Item>),
    /// DynamoDB reports no failed condition of this action: all held, or something else prevented
    /// the check.
    NotReported,
}

impl ActionOutcome {
    /// Treats a shard that was merged away as missing.
    pub(crate) fn without_merged(self) -> Self {
        match self {
            Self::ConditionFailed(old) => {
                Self::ConditionFailed(old.filter(|item| !item.is_merged()))
            }
            Self::NotReported => Self::NotReported,
        }
    }
}

/// Consistency of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Current items: one read unit for each 4 KB.
    Strong,
    /// Items as of a short time ago, usually within a second: half a unit for each 4 KB. Enough to
    /// plan a write, whose condition detects a changed item.
    Eventual,
}

/// The response to a request for items.
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    /// Items that were not read, and why.
    pub(crate) kept_back: Option<(Vec<ItemKey>, StoreError)>,
}

/// Position of a page in a listing: the key attributes of the last item before it.
pub type Position = BTreeMap<String, String>;

/// One page of a partition, as every backend lists it.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    /// Index; `None` for the table itself.
    pub(crate) index: Option<Index>,
    pub(crate) partition: &'a str,
    pub(crate) keys: Range<'a>,
    pub(crate) is_descending: bool,
    pub(crate) limit: Option<i32>,
    pub(crate) consistency: Consistency,
    /// Key attributes of the last item of the page before.
    pub(crate) after: Option<Item>,
}

/// Range of sort keys of a [`Listing`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Range<'a> {
    StartingWith(&'a str),
    Between(&'a str, &'a str),
    UpTo(i64),
}

/// The page.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) items: Vec<Item>,
    /// Key attributes of the last item, unless this is the last page.
    pub(crate) last: Option<Item>,
}

impl Listing<'_> {
    /// Returns the names of the key attributes.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        self.index.map_or((attr::PK, attr::SK), |index| (index.hash, index.range.0))
    }
}

/// Returns the key attributes at a position.
pub(crate) fn item(position: &Position) -> Item {
    let text = |(name, key): (&String, &String)| (name.clone(), AttributeValue::S(key.clone()));
    Item(position.iter().map(text).collect())
}

/// Returns the position of a last key. All keys of the listed indexes are strings.
pub(crate) fn position(key: HashMap<String, AttributeValue>) -> Position {
    let text = |value: AttributeValue| match value {
        AttributeValue::S(text) => Some(text),
        _ => None,
    };
    key.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// One page of a scan.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPage {
    /// Items whose partition key has the prefix.
    pub items: Vec<Item>,
    /// Number of items read, with any key.
    pub scanned: usize,
    /// Position of the next page; `None` after the last one.
    pub next: Option<Position>,
}

pub(crate) const fn key(action: &Action) -> &ItemKey {
    match action {
        Action::Update(update) => &update.key,
        Action::Delete(key, _) | Action::Check(key, _) => key,
    }
}
