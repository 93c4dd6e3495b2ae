//! One item: evaluates planned writes as DynamoDB does, in memory and without I/O. The property
//! tests of `shared`, the model, and the table in memory of `store` run on it.
//!
//! Stricter than DynamoDB nowhere, more forgiving nowhere: what it answers with a
//! `ValidationException` panics here, since no planned write may ever be invalid.

use std::collections::{BTreeMap, BTreeSet};

use crate::write::{AttributeUpdate, Condition, Path, Update, Value};
use crate::{Attr, Meter, Shard, Snapshot, is_merged, read_live, read_shard, read_snapshot};

/// An attribute's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Held {
    /// A number: thousandths, for sums without rounding, and the text DynamoDB answers with.
    Number(i128, String),
    /// A text.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// A map.
    Map(BTreeMap<String, Held>),
    /// A set of numbers, each in the text DynamoDB answers with.
    Numbers(BTreeSet<String>),
}

impl Held {
    fn number(thousandths: i128) -> Self {
        let (sign, size) = (if thousandths < 0 { "-" } else { "" }, thousandths.unsigned_abs());
        let text = match size % 1000 {
            0 => format!("{sign}{}", size / 1000),
            part => format!("{sign}{}.{part:03}", size / 1000).trim_end_matches('0').to_owned(),
        };
        Self::Number(thousandths, text)
    }

    fn thousandths(&self) -> i128 {
        match self {
            Self::Number(thousandths, _) => *thousandths,
            other => panic!("ValidationException: {other:?} is no number"),
        }
    }

    /// Returns the value as the item readers take it.
    #[must_use]
    pub fn attr(&self) -> Attr<'_> {
        match self {
            Self::Number(_, text) => Attr::N(text),
            Self::Text(text) => Attr::S(text),
            Self::Bool(is) => Attr::Bool(*is),
            Self::Map(map) => {
                Attr::M(map.iter().map(|(name, held)| (name.as_str(), held.attr())).collect())
            }
            Self::Numbers(numbers) => Attr::Numbers(numbers.iter().map(String::as_str).collect()),
        }
    }

    fn numbers(&self) -> &BTreeSet<String> {
        match self {
            Self::Numbers(numbers) => numbers,
            other => panic!("ValidationException: {other:?} is no set of numbers"),
        }
    }
}

impl From<&Value> for Held {
    fn from(value: &Value) -> Self {
        match value {
            Value::Int(number) => Self::number(i128::from(*number) * 1000),
            Value::Count(count) => Self::number(*count * 1000),
            Value::Tokens(amount) => Self::number(amount.0),
            Value::Text(text) => Self::Text(text.clone()),
            Value::Bool(is) => Self::Bool(*is),
            Value::Map(map) => {
                Self::Map(map.iter().map(|(name, value)| (name.clone(), value.into())).collect())
            }
            Value::Numbers(numbers) => {
                Self::Numbers(numbers.iter().map(ToString::to_string).collect())
            }
        }
    }
}

/// An item; one without attributes does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Item(pub BTreeMap<String, Held>);

impl Item {
    /// The item of a bucket that was there before the test began.
    pub fn of_bucket(bucket: &Shard) -> Self {
        let mut item = Self::default();
        let changes = crate::write_shard(bucket);
        assert!(item.apply(&Update { key: bucket.key.item_key(), conditions: vec![], changes }));
        item
    }

    /// Returns whether there is an item.
    #[must_use]
    pub fn exists(&self) -> bool {
        !self.0.is_empty()
    }

    /// Runs the update if its conditions hold. Returns whether they did.
    pub fn apply(&mut self, update: &Update) -> bool {
        assert_no_overlap(&update.changes);
        if !update.conditions.iter().all(|condition| self.holds(condition)) {
            return false;
        }
        // Every change sees the item as it was, as in DynamoDB; no two touch the same path, so
        // order does not matter but for what is copied.
        let before = self.clone();
        let (pk, sk) = (Held::Text(update.key.pk.clone()), Held::Text(update.key.sk.clone()));
        assert!(self.0.get("PK").is_none_or(|here| *here == pk), "an update of another item");
        self.0.extend([("PK".to_owned(), pk), ("SK".to_owned(), sk)]);
        for change in &update.changes {
            match change {
                AttributeUpdate::Set(path, value) => self.set(path, value.into()),
                AttributeUpdate::SetIfAbsent(path, value) => {
                    if self.get(path).is_none() {
                        self.set(path, value.into());
                    }
                }
                AttributeUpdate::Copy(to, from) => {
                    let held = before.get(from).cloned();
                    self.set(
                        to,
                        held.unwrap_or_else(|| {
                            panic!("ValidationException: {from:?} is not there to copy")
                        }),
                    );
                }
                AttributeUpdate::Next(to, from, first) => {
                    let first = Value::Int(first.saturating_sub(1));
                    let before = before
                        .get(from)
                        .map_or_else(|| Held::from(&first).thousandths(), Held::thousandths);
                    self.set(to, Held::number(before + Held::from(&Value::Int(1)).thousandths()));
                }
                AttributeUpdate::Add(path, Value::Numbers(more)) => {
                    let mut numbers =
                        self.get(path).map_or_else(BTreeSet::new, |held| held.numbers().clone());
                    numbers.extend(more.iter().map(ToString::to_string));
                    self.set(path, Held::Numbers(numbers));
                }
                AttributeUpdate::DeleteFrom(path, value) => {
                    let gone = Held::from(value);
                    let left = self.get(path).map(|held| held.numbers() - gone.numbers());
                    match left {
                        // A set is never empty.
                        Some(left) if left.is_empty() => drop(self.0.remove(path.0[0].as_ref())),
                        Some(left) => self.set(path, Held::Numbers(left)),
                        None => {}
                    }
                }
                AttributeUpdate::Add(path, value) => {
                    let sum = self.get(path).map_or(0, Held::thousandths)
                        + Held::from(value).thousandths();
                    self.set(path, Held::number(sum));
                }
                AttributeUpdate::Remove(path) => {
                    let (map, name) = self.place(path);
                    map.remove(name);
                }
            }
        }
        true
    }

    /// Returns whether the condition holds, as a transaction checks it before its writes.
    pub fn holds(&self, condition: &Condition) -> bool {
        let number = |path, value: &Value| match (self.get(path), Held::from(value)) {
            (Some(Held::Number(here, _)), Held::Number(there, _)) => Some((*here, there)),
            _ => None,
        };
        match condition {
            Condition::Absent(path) => self.get(path).is_none(),
            Condition::Present(path) => self.get(path).is_some(),
            Condition::Equals(path, value) => self.get(path) == Some(&value.into()),
            // `<>` holds for an attribute that is not there.
            Condition::Differs(path, value) => self.get(path) != Some(&value.into()),
            Condition::AtLeast(path, value) => {
                number(path, value).is_some_and(|(here, there)| here >= there)
            }
            Condition::AtMost(path, value) => {
                number(path, value).is_some_and(|(here, there)| here <= there)
            }
            Condition::Lacks(path, number) => {
                !self.get(path).is_some_and(|held| held.numbers().contains(&number.to_string()))
            }
            Condition::AbsentOr(path, condition) => {
                self.get(path).is_none() || self.holds(condition)
            }
        }
    }

    /// Returns the value at a path, if there is one.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<&Held> {
        let (first, rest) = path.0.split_first()?;
        rest.iter().try_fold(self.0.get(first.as_ref())?, |held, name| match held {
            Held::Map(map) => map.get(name.as_ref()),
            _ => None,
        })
    }

    fn set(&mut self, path: &Path, held: Held) {
        let (map, name) = self.place(path);
        map.insert(name.to_owned(), held);
    }

    fn place<'p>(&mut self, path: &'p Path) -> (&mut BTreeMap<String, Held>, &'p str) {
        let (last, parents) = path.0.split_last().expect("a path names something");
        let map = parents.iter().fold(&mut self.0, |map, name| match map.get_mut(name.as_ref()) {
            Some(Held::Map(inner)) => inner,
            other => {
                panic!("ValidationException: the document path {path:?} is invalid at {other:?}")
            }
        });
        (map, last.as_ref())
    }

    /// Returns all attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Attr<'_>)> {
        self.0.iter().map(|(name, held)| (name.as_str(), held.attr()))
    }

    /// The bucket this item is.
    pub fn bucket(&self) -> Shard {
        read_shard(self.attributes())
            .unwrap_or_else(|error| panic!("a write broke the bucket: {error}"))
    }

    /// Returns whether this item is a merged shard.
    pub fn is_merged(&self) -> bool {
        is_merged(self.0.keys().map(String::as_str))
    }

    /// Returns the usage counters of this shard, live or merged.
    pub fn live(&self) -> Meter {
        read_live(self.attributes())
            .unwrap_or_else(|error| panic!("a write broke the counters: {error}"))
    }

    /// The usage snapshot this item is.
    pub fn snapshot(&self) -> Snapshot {
        read_snapshot(self.attributes())
            .unwrap_or_else(|error| panic!("a write broke the snapshot: {error}"))
    }

    /// A number that is written in tokens.
    pub fn tokens(&self, attribute: &str) -> i128 {
        self.0.get(attribute).map_or(0, Held::thousandths)
    }
}

/// "Two document paths overlap": neither may be the other or lie inside it.
fn assert_no_overlap(changes: &[AttributeUpdate]) {
    let paths: Vec<_> = changes.iter().map(AttributeUpdate::path).collect();
    for (at, path) in paths.iter().enumerate() {
        for other in &paths[at + 1..] {
            let overlap = path.0.starts_with(&other.0) || other.0.starts_with(&path.0);
            assert!(
                !overlap,
                "ValidationException: two document paths overlap: {path:?} {other:?}"
            );
        }
    }
}
