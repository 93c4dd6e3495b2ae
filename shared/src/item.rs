//! Item codec: attributes in, [`Bucket`] or [`Counted`] out, and back. Never guesses: a wrong attribute is named.

use std::collections::BTreeMap;

use crate::attr::{self, Field};
use crate::limit::Rule;
use crate::write::{Change, Path, Value};
use crate::{Bucket, BucketKey, EpochMillis, ItemKey, Lease, LimitName, LimitState, MilliTokens, Ranges, WriteId};

/// An attribute as DynamoDB holds it, borrowed from wherever it came.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr<'a> {
    /// A number, in its decimal text.
    N(&'a str),
    /// A string.
    S(&'a str),
    /// A boolean.
    Bool(bool),
    /// A map.
    M(Vec<(&'a str, Attr<'a>)>),
    /// Anything this crate never writes.
    Other,
}

/// An item that cannot be read: which attribute is wrong, what it holds, what it takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("attribute {attribute} is {value}, it takes {takes}")]
pub struct ItemError {
    /// The attribute's name.
    pub attribute: String,
    /// What it holds.
    pub value: String,
    /// What it takes.
    pub takes: &'static str,
}

impl ItemError {
    fn new(attribute: &str, value: &Attr<'_>, takes: &'static str) -> Self {
        let value = match value {
            Attr::N(text) | Attr::S(text) => format!("{text:?}"),
            other => format!("{other:?}"),
        };
        Self { attribute: attribute.to_owned(), value, takes }
    }

    fn missing(attribute: &str, takes: &'static str) -> Self {
        Self { attribute: attribute.to_owned(), value: "missing".to_owned(), takes }
    }
}

/// The numbers of one limit, as far as they were seen.
#[derive(Debug, Default)]
struct PartialLimit {
    fields: [Option<i64>; 5],
}

impl PartialLimit {
    fn finish(&self, name: &str) -> Result<LimitState, ItemError> {
        let number = |field: Field| {
            self.fields[position(field)]
                .ok_or_else(|| ItemError::missing(&format!("b_{name}_{}", field.suffix()), "a whole number"))
        };
        let rule = Rule {
            capacity: MilliTokens(number(Field::Capacity)?),
            refill_amount: MilliTokens(number(Field::RefillAmount)?),
            refill_period_ms: number(Field::RefillPeriod)?,
        };
        if rule.refill_period_ms < 1 || rule.refill_amount.0 < 0 || rule.capacity.0 < 0 {
            let value = format!("{rule:?}");
            return Err(ItemError {
                attribute: format!("b_{name}_rp"),
                value,
                takes: "a period of at least 1 ms and no negative amounts",
            });
        }
        let (tk, tc) = (MilliTokens(number(Field::Tokens)?), MilliTokens(number(Field::Consumed)?));
        Ok(LimitState { tk, tc, rule })
    }
}

const fn position(field: Field) -> usize {
    match field {
        Field::Tokens => 0,
        Field::Consumed => 1,
        Field::Capacity => 2,
        Field::RefillAmount => 3,
        Field::RefillPeriod => 4,
    }
}

/// Collects the attributes of a bucket item in any order.
#[derive(Debug, Default)]
pub struct BucketReader {
    limits: Vec<(Box<str>, PartialLimit)>,
    rf: Option<i64>,
    v: Option<i64>,
    takes: Option<i64>,
    shard_count: Option<u32>,
    due: Option<i64>,
    op: Option<WriteId>,
    leases: Option<BTreeMap<WriteId, Lease>>,
    size_bytes: usize,
}

impl BucketReader {
    /// Takes one attribute; those that are none of a bucket's are counted in its size and left.
    ///
    /// # Errors
    /// [`ItemError`] if the attribute is a bucket's and is not what it takes.
    pub fn attribute(&mut self, name: &str, value: &Attr<'_>) -> Result<(), ItemError> {
        self.size_bytes += name.len() + size_bytes(value);
        match name {
            attr::RF => self.rf = Some(integer(name, value)?),
            attr::V => self.v = Some(integer(name, value)?),
            attr::TAKES => self.takes = Some(integer(name, value)?),
            attr::DUE => self.due = Some(integer(name, value)?),
            attr::SHARD_COUNT => {
                let count = u32::try_from(integer(name, value)?).ok().filter(|count| *count > 0);
                self.shard_count = Some(count.ok_or_else(|| ItemError::new(name, value, "a whole number from 1"))?);
            }
            attr::OP => self.op = Some(write_id(name, value)?),
            attr::LEASES => self.leases = Some(leases(value)?),
            _ => {
                if let Some((limit, field)) = Field::parse(name) {
                    self.limit(limit).fields[position(field)] = Some(integer(name, value)?);
                }
            }
        }
        Ok(())
    }

    fn limit(&mut self, name: &str) -> &mut PartialLimit {
        let at = self.limits.iter().position(|(limit, _)| **limit == *name).unwrap_or_else(|| {
            self.limits.push((name.into(), PartialLimit::default()));
            self.limits.len() - 1
        });
        &mut self.limits[at].1
    }

    /// The bucket shard `key`, once all attributes were taken.
    ///
    /// # Errors
    /// [`ItemError`] if an attribute that every bucket has was missing.
    pub fn finish(self, key: BucketKey) -> Result<Bucket, ItemError> {
        let (mut limits, mut wcu) = (BTreeMap::new(), None);
        for (name, partial) in &self.limits {
            let state = partial.finish(name)?;
            if **name == *"wcu" {
                wcu = Some(state);
            } else {
                let limit = LimitName::new(&**name).map_err(|error| ItemError {
                    attribute: format!("b_{name}_tk"),
                    value: error.value,
                    takes: error.rule,
                })?;
                limits.insert(limit, state);
            }
        }
        Ok(Bucket {
            key,
            shard_count: self.shard_count.unwrap_or(1),
            rf: EpochMillis(self.rf.ok_or_else(|| ItemError::missing(attr::RF, "epoch milliseconds"))?),
            v: self.v,
            takes: self.takes,
            limits,
            wcu,
            leases: self.leases,
            due: self.due.map(EpochMillis),
            op: self.op,
            size_bytes: self.size_bytes,
        })
    }
}

/// Reads a bucket from all attributes of its item, keys included.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_bucket<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Result<Bucket, ItemError> {
    let (mut reader, mut key) = (BucketReader::default(), None);
    for (name, value) in item {
        if let (attr::PK, Attr::S(pk)) = (name, &value) {
            key = BucketKey::parse(pk);
        }
        reader.attribute(name, &value)?;
    }
    reader.finish(key.ok_or_else(|| ItemError::missing(attr::PK, "the key of a bucket"))?)
}

/// All attributes of a bucket's item but its keys, as changes that write them.
#[must_use]
pub fn write_bucket(bucket: &Bucket) -> Vec<Change> {
    let set = |name: &'static str, value: Value| Change::Set(Path::of(name), value);
    let ((gsi2pk, gsi2sk), (gsi3pk, gsi3sk)) = (bucket.key.by_resource(), bucket.key.by_entity());
    let mut changes = vec![
        set(attr::ENTITY_ID, Value::text(bucket.key.entity.as_str())),
        set(attr::RESOURCE, Value::text(bucket.key.resource.as_str())),
        set("GSI2PK", Value::Text(gsi2pk)),
        set("GSI2SK", Value::Text(gsi2sk)),
        set("GSI3PK", Value::Text(gsi3pk)),
        set("GSI3SK", Value::Text(gsi3sk)),
        set(attr::SHARD_COUNT, Value::Int(i64::from(bucket.shard_count))),
        set(attr::RF, Value::Int(bucket.rf.0)),
    ];
    changes.extend(bucket.v.map(|v| set(attr::V, Value::Int(v))));
    changes.extend(bucket.takes.map(|takes| set(attr::TAKES, Value::Int(takes))));
    changes.extend(bucket.op.as_ref().map(|op| set(attr::OP, Value::text(op.as_str()))));
    changes.extend(bucket.leases.as_ref().map(|leases| set(attr::LEASES, write_leases(leases))));
    if let Some(due) = bucket.due {
        changes.push(set(attr::DUE, Value::Int(due.0)));
        changes.push(set(attr::DUE_SHARD, Value::Text(bucket.key.due_shard())));
    }
    let wcu = LimitName::wcu();
    let limits = bucket.limits.iter().chain(bucket.wcu.iter().map(|state| (&wcu, state)));
    changes.extend(limits.flat_map(|(name, state)| write_limit(name, state)));
    changes
}

/// The five numbers of one limit, as changes that write them.
pub(crate) fn write_limit(name: &LimitName, state: &LimitState) -> [Change; 5] {
    [
        (Field::Tokens, state.tk.0),
        (Field::Consumed, state.tc.0),
        (Field::Capacity, state.rule.capacity.0),
        (Field::RefillAmount, state.rule.refill_amount.0),
        (Field::RefillPeriod, state.rule.refill_period_ms),
    ]
    .map(|(field, number)| Change::Set(Path::limit(name, field), Value::Int(number)))
}

/// A lease as the value of `h.{id}`.
#[must_use]
pub fn write_lease(lease: &Lease) -> Value {
    Value::Map(BTreeMap::from([
        (attr::LEASE_EXPIRY.to_owned(), Value::Int(lease.expires.0)),
        (attr::LEASE_TOKENS.to_owned(), write_held(lease)),
        (attr::LEASE_OWNER.to_owned(), Value::text(&lease.owner)),
    ]))
}

/// What a lease holds, as the value of `h.{id}.t`.
pub(crate) fn write_held(lease: &Lease) -> Value {
    Value::Map(lease.tokens.iter().map(|(limit, tokens)| (limit.to_string(), Value::Int(tokens.0))).collect())
}

/// All leases as the value of `h`.
#[must_use]
pub fn write_leases(leases: &BTreeMap<WriteId, Lease>) -> Value {
    Value::Map(leases.iter().map(|(id, lease)| (id.to_string(), write_lease(lease))).collect())
}

fn leases(value: &Attr<'_>) -> Result<BTreeMap<WriteId, Lease>, ItemError> {
    entries(attr::LEASES, value)?
        .iter()
        .map(|(id, held)| Ok((write_id(attr::LEASES, &Attr::S(id))?, lease(held)?)))
        .collect()
}

fn lease(value: &Attr<'_>) -> Result<Lease, ItemError> {
    let (mut expires, mut tokens, mut owner) = (None, BTreeMap::new(), String::new());
    for (name, value) in entries(attr::LEASES, value)? {
        match (*name, value) {
            (attr::LEASE_EXPIRY, at) => expires = Some(EpochMillis(integer("h.e", at)?)),
            (attr::LEASE_OWNER, Attr::S(who)) => owner = (*who).to_owned(),
            (attr::LEASE_TOKENS, held) => {
                for (limit, amount) in entries("h.t", held)? {
                    let limit =
                        LimitName::new(*limit).map_err(|error| ItemError::new("h.t", &Attr::S(limit), error.rule))?;
                    tokens.insert(limit, MilliTokens(integer("h.t", amount)?));
                }
            }
            _ => {}
        }
    }
    let expires = expires.ok_or_else(|| ItemError::missing("h.e", "epoch milliseconds"))?;
    Ok(Lease { expires, tokens, owner })
}

fn entries<'v, 'a>(name: &str, value: &'v Attr<'a>) -> Result<&'v [(&'a str, Attr<'a>)], ItemError> {
    match value {
        Attr::M(entries) => Ok(entries),
        other => Err(ItemError::new(name, other, "a map")),
    }
}

fn write_id(name: &str, value: &Attr<'_>) -> Result<WriteId, ItemError> {
    match value {
        Attr::S(text) => WriteId::new(*text).map_err(|error| ItemError::new(name, value, error.rule)),
        other => Err(ItemError::new(name, other, "a string of a-z 0-9")),
    }
}

fn integer(name: &str, value: &Attr<'_>) -> Result<i64, ItemError> {
    match value {
        Attr::N(text) => text.parse().ok(),
        _ => None,
    }
    .ok_or_else(|| ItemError::new(name, value, "a whole number within 64 bits"))
}

/// Size of a value as DynamoDB bills it: text by its bytes, a number by about two digits a byte.
fn size_bytes(value: &Attr<'_>) -> usize {
    match value {
        Attr::N(text) => text.len().div_ceil(2) + 1,
        Attr::S(text) => text.len(),
        Attr::Bool(_) | Attr::Other => 1,
        Attr::M(entries) => 3 + entries.iter().map(|(name, value)| 1 + name.len() + size_bytes(value)).sum::<usize>(),
    }
}

/// Write units that one write of this item costs the table: 1 for each KB begun, also when its condition fails.
#[must_use]
pub fn write_units<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> u32 {
    let bytes: usize = item.map(|(name, value)| name.len() + size_bytes(&value)).sum();
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).max(1)
}

/// How far a snapshot has counted one bucket shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// The last `v` counted, `q{shard}`; `None` if the shard was never counted.
    pub through: Option<i64>,
    /// What was not counted below it, `g{shard}`.
    pub gaps: Ranges,
}

/// Reads how far a snapshot has counted `shard`.
///
/// # Errors
/// [`ItemError`] if `q{shard}` or `g{shard}` is not what it takes.
pub fn read_counted<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>, shard: u32) -> Result<Counted, ItemError> {
    let (through, gaps) = (attr::counted_through(shard), attr::not_counted(shard));
    let mut counted = Counted::default();
    for (name, value) in item {
        if name == through {
            counted.through = Some(integer(name, &value)?);
        } else if name == gaps {
            let parsed = if let Attr::S(text) = value { text.parse().ok() } else { None };
            counted.gaps = parsed.ok_or_else(|| ItemError::new(name, &value, "ranges like 4-7 9-12, or nothing"))?;
        }
    }
    Ok(counted)
}

/// The key attributes of an item; `None` if one is missing or no string.
#[must_use]
pub fn read_key<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Option<ItemKey> {
    let (mut pk, mut sk) = (None, None);
    for (name, value) in item {
        match (name, value) {
            (attr::PK, Attr::S(text)) => pk = Some(text.to_owned()),
            (attr::SK, Attr::S(text)) => sk = Some(text.to_owned()),
            _ => {}
        }
    }
    Some(ItemKey { pk: pk?, sk: sk? })
}
