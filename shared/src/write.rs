//! Planned writes as data: what to change, and under which condition. The store renders and runs them.

mod configure;
mod credit;
mod due;
mod expire;
mod merge;
mod refill;
mod replace;
mod settle;
mod snapshot;
mod split;
mod take;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::attr::{self, Field};
use crate::math::refilled;
use crate::{Bucket, EpochMillis, ItemKey, LimitName, MilliTokens, Rule, Shard, WriteId, item};

pub use configure::{MAX_ANCESTORS, configure, mark_schema, record, same_parent, set_entity};
pub use expire::{Restored, expire, look};
pub use merge::{fill, joined, merge, remove, still};
pub use refill::{cut_units, refill};
pub use replace::REVIEW;
pub use settle::{LeaseChange, Settle, Settled};
pub use snapshot::{Count, Piece};
pub use split::{keep, may_split, split};
pub use take::{Company, Take};

/// One conditional `UpdateItem`: all of it happens, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The item.
    pub key: ItemKey,
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All are made.
    pub changes: Vec<Change>,
}

/// One item's part of a transaction: all parts happen, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Changes an item, or makes one.
    Update(Update),
    /// Deletes an item if all conditions hold.
    Delete(ItemKey, Vec<Condition>),
    /// Only asks that all conditions hold.
    Check(ItemKey, Vec<Condition>),
}

/// An attribute, or a place inside a map attribute. Any name can stand in it: expressions use placeholders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<Cow<'static, str>>);

impl Path {
    /// A top-level attribute.
    #[must_use]
    pub fn of(attribute: impl Into<Cow<'static, str>>) -> Self {
        Self(vec![attribute.into()])
    }

    /// A number of one limit.
    #[must_use]
    pub fn limit(limit: &LimitName, field: Field) -> Self {
        Self::of(field.of(limit))
    }

    /// `h.{id}`.
    #[must_use]
    pub fn lease(id: &WriteId) -> Self {
        Self(vec![attr::LEASES.into(), id.to_string().into()])
    }

    /// A place inside this one.
    #[must_use]
    pub fn then(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.0.push(name.into());
        self
    }
}

/// A value to write or compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// An amount written in tokens, exact to the millitoken.
    Tokens(MilliTokens),
    /// A string.
    Text(String),
    /// A boolean.
    Bool(bool),
    /// A map.
    Map(BTreeMap<String, Value>),
}

impl Value {
    /// A string.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// What must hold for an update to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The attribute is not there.
    Absent(Path),
    /// The attribute is there.
    Present(Path),
    /// It holds this.
    Equals(Path, Value),
    /// It does not hold this.
    Differs(Path, Value),
    /// It is at least this.
    AtLeast(Path, Value),
    /// It is at most this.
    AtMost(Path, Value),
    /// It is not there, or the condition holds for it.
    AbsentOr(Path, Box<Condition>),
}

/// What an update does to one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes it.
    Set(Path, Value),
    /// Writes it if it is not there.
    SetIfAbsent(Path, Value),
    /// Adds to a number; one that is not there counts as 0.
    Add(Path, Value),
    /// Removes it.
    Remove(Path),
}

/// What every write to a bucket carries: one more `v`, and its write units in `wcu`.
///
/// Items of other software have no `v`; it is not given to them, since their own writes would not raise it.
fn every_write(view: Option<&Bucket>, wcu_credit: MilliTokens) -> Vec<Change> {
    let units = MilliTokens::from_tokens(view.map_or(1, Bucket::write_units));
    let wcu = LimitName::wcu();
    let mut changes = vec![];
    if view.is_none_or(|bucket| bucket.v.is_some()) {
        changes.push(Change::Add(Path::of(attr::V), Value::Int(1)));
    }
    if view.is_none_or(|bucket| bucket.wcu.is_some()) {
        changes.push(add_tokens(&wcu, Field::Tokens, wcu_credit - units));
        changes.push(add_tokens(&wcu, Field::Consumed, units));
    }
    changes
}

/// What a write without a view must ask for: an item that counts its writes, as [`every_write`] takes for granted.
/// One of other software, or none, then answers with what it is.
fn counts_writes(view: Option<&Bucket>) -> Option<Condition> {
    view.is_none().then(|| Condition::Present(Path::of(attr::V)))
}

/// The id by which a writer finds out what became of a write whose answer was lost. Writes that can be repeated
/// safely leave the last one's in place.
fn sign(op: &WriteId) -> Change {
    Change::Set(Path::of(attr::OP), Value::text(op.as_str()))
}

/// What `wcu` has gained since `rf`.
fn wcu_credit(bucket: &Bucket, now: EpochMillis) -> MilliTokens {
    bucket.wcu.map_or(MilliTokens::ZERO, |wcu| refilled(wcu.tk, &wcu.rule, Shard::WHOLE, bucket.rf, now) - wcu.tk)
}

/// That the bucket has as many shards as it was seen with: its shares depend on it.
fn same_count(shard: Shard) -> Condition {
    let count = Path::of(attr::SHARD_COUNT);
    let same = Condition::Equals(count.clone(), Value::Int(i64::from(shard.count)));
    // Items of other software need not say that they are whole.
    if shard.count == 1 { Condition::AbsentOr(count, Box::new(same)) } else { same }
}

/// That nobody has credited, split or merged the bucket since it was seen.
fn same_rf(bucket: &Bucket) -> [Condition; 2] {
    [Condition::Equals(Path::of(attr::RF), Value::Int(bucket.rf.0)), same_count(bucket.shard())]
}

/// That the bucket holds the leases it was seen with, none more and none less.
fn same_leases(bucket: &Bucket) -> Condition {
    let leases = Path::of(attr::LEASES);
    match &bucket.leases {
        Some(seen) => Condition::Equals(leases, item::write_leases(seen)),
        None => Condition::Absent(leases),
    }
}

/// That a limit of the bucket has this rule.
fn has_rule(limit: &LimitName, rule: &Rule) -> [Condition; 3] {
    rule_numbers(rule).map(|(field, number)| Condition::Equals(Path::limit(limit, field), Value::Int(number)))
}

fn set_rule(limit: &LimitName, rule: &Rule) -> [Change; 3] {
    rule_numbers(rule).map(|(field, number)| Change::Set(Path::limit(limit, field), Value::Int(number)))
}

const fn rule_numbers(rule: &Rule) -> [(Field, i64); 3] {
    [
        (Field::Capacity, rule.capacity.0),
        (Field::RefillAmount, rule.refill_amount.0),
        (Field::RefillPeriod, rule.refill_period_ms),
    ]
}

fn add_tokens(limit: &LimitName, field: Field, amount: MilliTokens) -> Change {
    Change::Add(Path::limit(limit, field), Value::Int(amount.0))
}

fn tokens(limit: &LimitName) -> Path {
    Path::limit(limit, Field::Tokens)
}
