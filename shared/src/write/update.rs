//! One planned write as data: the changes of an item, and the conditions that they require.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::attr::{self, Field};
use crate::{ItemKey, LimitName, MilliTotal, WriteId};

/// One conditional `UpdateItem`: all of it is applied, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The item.
    pub key: ItemKey,
    /// Conditions that must all hold.
    pub conditions: Vec<Condition>,
    /// Changes, all applied together.
    pub changes: Vec<AttributeUpdate>,
}

/// One item's part of a transaction: all parts are applied, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Changes an item, or creates it.
    Update(Update),
    /// Deletes an item if all conditions hold.
    Delete(ItemKey, Vec<Condition>),
    /// Only requires that all conditions hold.
    Check(ItemKey, Vec<Condition>),
}

/// An attribute, or a place inside a map attribute. Any name is allowed, because expressions use
/// placeholders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Path(pub Vec<Cow<'static, str>>);

impl Path {
    /// Returns the path of a top-level attribute.
    #[must_use]
    pub fn of(attribute: impl Into<Cow<'static, str>>) -> Self {
        Self(vec![attribute.into()])
    }

    /// Returns the path of one limit's number.
    #[must_use]
    pub fn limit(limit: &LimitName, field: Field) -> Self {
        Self::of(field.of(limit))
    }

    /// Returns the path of a lease: `h.{id}`.
    #[must_use]
    pub fn lease(id: &WriteId) -> Self {
        Self(vec![attr::LEASES.into(), id.to_string().into()])
    }

    /// Returns the path of `name` inside this one.
    #[must_use]
    pub fn then(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.0.push(name.into());
        self
    }
}

/// A value to write or compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// A counter.
    Count(i128),
    /// A count written in tokens, exact to the millitoken.
    Tokens(MilliTotal),
    /// A string.
    Text(String),
    /// A boolean.
    Bool(bool),
    /// A map.
    Map(BTreeMap<String, Value>),
    /// A set of whole numbers, not empty.
    Numbers(BTreeSet<i64>),
}

impl Value {
    /// A string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A condition of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Condition {
    /// The attribute does not exist.
    Absent(Path),
    /// The attribute exists.
    Present(Path),
    /// It equals this value.
    Equals(Path, Value),
    /// It differs from this value.
    Differs(Path, Value),
    /// It is at least this value.
    AtLeast(Path, Value),
    /// It is at most this value.
    AtMost(Path, Value),
    /// It is a set without this number.
    Lacks(Path, i64),
    /// It does not exist, or the condition holds for it.
    AbsentOr(Path, Box<Condition>),
}

/// A change of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum AttributeUpdate {
    /// Sets it.
    Set(Path, Value),
    /// Sets it if it does not exist.
    SetIfAbsent(Path, Value),
    /// Sets it to the value of the second attribute before the update, which must exist.
    Copy(Path, Path),
    /// Sets it to one above the number of the second attribute before the update, or to this number
    /// if that one does not exist.
    Next(Path, Path, i64),
    /// Adds to a number or a set; a missing one counts as 0 or as empty.
    Add(Path, Value),
    /// Removes from a set, if it exists.
    DeleteFrom(Path, Value),
    /// Removes it.
    Remove(Path),
}

impl AttributeUpdate {
    /// Returns the path that it changes.
    #[must_use]
    pub const fn path(&self) -> &Path {
        match self {
            Self::Set(path, _)
            | Self::SetIfAbsent(path, _)
            | Self::Copy(path, _)
            | Self::Next(path, ..)
            | Self::Add(path, _)
            | Self::DeleteFrom(path, _)
            | Self::Remove(path) => path,
        }
    }
}

/// Returns the path of a limit's available tokens.
pub(super) fn tokens(limit: &LimitName) -> Path {
    Path::limit(limit, Field::Tokens)
}

/// Returns the path of the end of a quota's window.
pub(super) fn window_end(limit: &LimitName) -> Path {
    Path::limit(limit, Field::WindowEnd)
}
