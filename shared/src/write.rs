//! Planned writes as data: what to change, and under which condition. The store renders and runs
//! them.

mod configure;
mod copy;
mod credit;
mod due;
mod expire;
mod merge;
mod refill;
mod replace;
mod rewind;
mod roll;
mod settle;
mod split;
mod take;
mod ttl;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::attr::{self, Field};
use crate::{
    EpochMillis, ItemKey, LimitName, MilliTokens, RefillRule, Shard, ShardIndex, WriteId, item,
};

pub use configure::{
    MAX_ANCESTORS, same_parent, set_entity, write_audit_event, write_config, write_schema_version,
};
pub use copy::{MAX_CARRIED_LIMITS, MAX_LIVES, UsageCopy};
pub use due::{forget_due, postpone};
pub use expire::{ExpiredLeases, expire, sample};
pub use merge::{merge, merged, recreate, remove_covered, require_unchanged};
pub use refill::{cap_write_units, refill};
pub use replace::REVIEW_INTERVAL;
pub use rewind::rewind;
pub use roll::Roll;
pub use settle::{LeaseChange, LimitDelta, Settle, clear_due};
pub use split::{finish_writes, is_abandoned, may_split, split, update_min_shards};
pub use take::{Contention, Take};

/// One conditional `UpdateItem`: all of it happens, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The item.
    pub key: ItemKey,
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All are made.
    pub changes: Vec<AttributeUpdate>,
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

/// An attribute, or a place inside a map attribute. Any name can stand in it: expressions use
/// placeholders.
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
    /// It is a set, and this number is not in it.
    Lacks(Path, i64),
    /// It is not there, or the condition holds for it.
    AbsentOr(Path, Box<Condition>),
}

/// What an update does to one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeUpdate {
    /// Writes it.
    Set(Path, Value),
    /// Writes it if it is not there.
    SetIfAbsent(Path, Value),
    /// Writes what the second attribute, which must be there, held before the update.
    Copy(Path, Path),
    /// Adds to a number; one that is not there counts as 0. Adds to a set; one that is not there
    /// counts as empty.
    Add(Path, Value),
    /// Takes out of a set, if it is there.
    DeleteFrom(Path, Value),
    /// Removes it.
    Remove(Path),
}

/// What every write to a bucket carries: one more `v`, and the write units it costs.
fn count_write(view: Option<&Shard>, units_credit: MilliTokens) -> Vec<AttributeUpdate> {
    let units = MilliTokens::from_tokens(view.map_or(1, Shard::write_units));
    vec![
        AttributeUpdate::Add(Path::of(attr::V), Value::Int(1)),
        AttributeUpdate::Add(
            Path::of(attr::WRITE_UNITS),
            Value::Int((units_credit - units).0),
        ),
    ]
}

/// The id by which a writer finds out what became of a write whose answer was lost. Writes that can
/// be repeated safely leave the last one's in place.
fn set_write_id(op: &WriteId) -> AttributeUpdate {
    AttributeUpdate::Set(Path::of(attr::OP), Value::text(op.as_str()))
}

/// The write units that the partition has gained since `rf`, for a write that moves `rf`.
fn units_credit(shard: &Shard, now: EpochMillis) -> MilliTokens {
    shard.write_units_at(now) - shard.write_units_left
}

/// That the bucket has as many shards as it was seen with: its shares depend on it.
fn require_shard_count(shard: ShardIndex) -> Condition {
    let count = Path::of(attr::SHARD_COUNT);
    Condition::Equals(count, Value::Int(i64::from(shard.count)))
}

/// That nobody has credited, split or merged the bucket since it was seen.
fn require_refilled_at(shard: &Shard) -> [Condition; 2] {
    [
        Condition::Equals(Path::of(attr::RF), Value::Int(shard.refilled_at.0)),
        require_shard_count(shard.shard()),
    ]
}

/// That the bucket holds the leases it was seen with, none more and none less.
fn require_same_leases(shard: &Shard) -> Condition {
    let leases = Path::of(attr::LEASES);
    match &shard.leases {
        Some(seen) => Condition::Equals(leases, item::write_leases(seen)),
        None => Condition::Absent(leases),
    }
}

/// That a limit of the bucket has this rule.
fn has_rule(limit: &LimitName, rule: &RefillRule) -> [Condition; 3] {
    rule_numbers(rule)
        .map(|(field, number)| Condition::Equals(Path::limit(limit, field), Value::Int(number)))
}

fn set_rule(limit: &LimitName, rule: &RefillRule) -> [AttributeUpdate; 3] {
    rule_numbers(rule)
        .map(|(field, number)| AttributeUpdate::Set(Path::limit(limit, field), Value::Int(number)))
}

const fn rule_numbers(rule: &RefillRule) -> [(Field, i64); 3] {
    [
        (Field::Capacity, rule.capacity.0),
        (Field::RefillAmount, rule.refill_amount.0),
        (Field::RefillPeriod, rule.refill_period_ms),
    ]
}

/// Adds a condition that another part of the write may have brought already.
fn push_new(update: &mut Update, condition: Condition) {
    if !update.conditions.contains(&condition) {
        update.conditions.push(condition);
    }
}

fn add_tokens(limit: &LimitName, field: Field, amount: MilliTokens) -> AttributeUpdate {
    AttributeUpdate::Add(Path::limit(limit, field), Value::Int(amount.0))
}

fn tokens(limit: &LimitName) -> Path {
    Path::limit(limit, Field::Tokens)
}
