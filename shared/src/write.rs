//! Planned writes as data: changes and their conditions. The store renders and runs them.

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

/// A condition of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
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
pub enum AttributeUpdate {
    /// Sets it.
    Set(Path, Value),
    /// Sets it if it does not exist.
    SetIfAbsent(Path, Value),
    /// Sets it to the value of the second attribute before the update, which must exist.
    Copy(Path, Path),
    /// Adds to a number or a set; a missing one counts as 0 or as empty.
    Add(Path, Value),
    /// Removes from a set, if it exists.
    DeleteFrom(Path, Value),
    /// Removes it.
    Remove(Path),
}

/// Returns the changes of every write to a shard: `v` rises by one, and its write units are
/// subtracted.
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

/// Sets the write id, by which a writer finds out whether an unconfirmed write was applied. Writes
/// that can be repeated safely leave the last id in place.
fn set_write_id(op: &WriteId) -> AttributeUpdate {
    AttributeUpdate::Set(Path::of(attr::OP), Value::text(op.as_str()))
}

/// Returns the write units that the partition has gained since `rf`, for a write that moves `rf`.
fn units_credit(shard: &Shard, now: EpochMillis) -> MilliTokens {
    shard.write_units_at(now) - shard.write_units_left
}

/// Requires the shard count of the view, because the shares depend on it.
fn require_shard_count(shard: ShardIndex) -> Condition {
    let count = Path::of(attr::SHARD_COUNT);
    Condition::Equals(count, Value::Int(i64::from(shard.count)))
}

/// Requires that the shard was not credited, split or merged since the view.
fn require_refilled_at(shard: &Shard) -> [Condition; 2] {
    [
        Condition::Equals(Path::of(attr::RF), Value::Int(shard.refilled_at.0)),
        require_shard_count(shard.shard()),
    ]
}

/// Requires exactly the leases of the view.
fn require_same_leases(shard: &Shard) -> Condition {
    let leases = Path::of(attr::LEASES);
    match &shard.leases {
        Some(seen) => Condition::Equals(leases, item::write_leases(seen)),
        None => Condition::Absent(leases),
    }
}

/// Requires that a limit of the shard has this rule.
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

/// Adds a condition unless the update has it already.
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
