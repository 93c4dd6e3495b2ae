//! A bucket shard's item.

use super::lease::{leases, write_id, write_leases};
use super::{Attr, ItemError, integer, size_bytes};
use std::collections::BTreeMap;

use crate::attr::{self, Field};
use crate::limit::Rule;
use crate::write::{Change, Path, Value};
use crate::{
    Bucket, BucketKey, EpochMillis, Lease, LimitName, LimitState, Look, MAX_BUCKET_LIMITS, MilliTokens, Scaling,
    WriteId,
};

/// The name of the hidden limit.
const WCU: &str = "wcu";

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
    /// By name: an item holds as many as fit into 400 KB, if somebody means ill.
    limits: BTreeMap<Box<str>, PartialLimit>,
    rf: Option<i64>,
    v: Option<i64>,
    takes: Option<i64>,
    shard_count: Option<u32>,
    due: Option<i64>,
    version: Option<i64>,
    op: Option<WriteId>,
    leases: Option<BTreeMap<WriteId, Lease>>,
    scaling: Scaling,
    look: (Option<i64>, Option<i64>),
    size_bytes: usize,
    lease_bytes: usize,
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
            attr::VERSION => self.version = Some(integer(name, value)?),
            attr::DUE => self.due = Some(integer(name, value)?),
            attr::SHARD_COUNT => self.shard_count = Some(count(name, value)?),
            attr::MIN_SHARDS => self.scaling.min_shards = count(name, value)?,
            attr::SPLIT_BYTES => self.scaling.split_bytes = integer(name, value)?,
            attr::LOOK_AT => self.look.0 = Some(integer(name, value)?),
            attr::LOOK_V => self.look.1 = Some(integer(name, value)?),
            attr::HOT => self.scaling.is_hot = *value == Attr::Bool(true),
            attr::OP => self.op = Some(write_id(name, value)?),
            attr::LEASES => {
                self.lease_bytes = size_bytes(value);
                self.leases = Some(leases(value)?);
            }
            _ => {
                if let Some((limit, field)) = Field::parse(name) {
                    let number = Some(integer(name, value)?);
                    match self.limits.get_mut(limit) {
                        Some(known) => known.fields[position(field)] = number,
                        None => {
                            let mut first = PartialLimit::default();
                            first.fields[position(field)] = number;
                            self.limits.insert(limit.into(), first);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The bucket shard `key`, once all attributes were taken.
    ///
    /// # Errors
    /// [`ItemError`] if an attribute that every bucket has was missing, or the limits are more than writes can bear.
    pub fn finish(self, key: BucketKey) -> Result<Bucket, ItemError> {
        let (mut limits, mut wcu) = (BTreeMap::new(), None);
        let found = self.limits.len() - usize::from(self.limits.contains_key(WCU));
        if found > MAX_BUCKET_LIMITS {
            let (attribute, value) = ("b_{limit}_tk".to_owned(), format!("there for {found} limits"));
            return Err(ItemError { attribute, value, takes: "40 limits at most" });
        }
        for (name, partial) in &self.limits {
            let state = partial.finish(name)?;
            if **name == *WCU {
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
        let look = self.look.0.zip(self.look.1).map(|(at, v)| Look { at: EpochMillis(at), v });
        Ok(Bucket {
            key,
            shard_count: self.shard_count.unwrap_or(1),
            rf: EpochMillis(self.rf.ok_or_else(|| ItemError::missing(attr::RF, "epoch milliseconds"))?),
            v: self.v,
            takes: self.takes,
            limits,
            version: self.version,
            wcu,
            leases: self.leases,
            due: self.due.map(EpochMillis),
            op: self.op,
            scaling: Scaling { look, ..self.scaling },
            size_bytes: self.size_bytes,
            lease_bytes: self.lease_bytes,
        })
    }
}

fn count(name: &str, value: &Attr<'_>) -> Result<u32, ItemError> {
    let count = u32::try_from(integer(name, value)?).ok().filter(|count| *count > 0);
    count.ok_or_else(|| ItemError::new(name, value, "a whole number from 1"))
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
        set(attr::GSI2PK, Value::Text(gsi2pk)),
        set(attr::GSI2SK, Value::Text(gsi2sk)),
        set(attr::GSI3PK, Value::Text(gsi3pk)),
        set(attr::GSI3SK, Value::Text(gsi3sk)),
        set(attr::SHARD_COUNT, Value::Int(i64::from(bucket.shard_count))),
        set(attr::RF, Value::Int(bucket.rf.0)),
    ];
    changes.extend(bucket.v.map(|v| set(attr::V, Value::Int(v))));
    changes.extend(bucket.takes.map(|takes| set(attr::TAKES, Value::Int(takes))));
    changes.extend(bucket.version.map(|version| set(attr::VERSION, Value::Int(version))));
    changes.extend(bucket.op.as_ref().map(|op| set(attr::OP, Value::text(op.as_str()))));
    changes.extend(bucket.leases.as_ref().map(|leases| set(attr::LEASES, write_leases(leases))));
    let Scaling { is_hot, look, min_shards, split_bytes } = bucket.scaling;
    changes.extend(is_hot.then(|| set(attr::HOT, Value::Bool(true))));
    changes.extend((min_shards > 0).then(|| set(attr::MIN_SHARDS, Value::Int(i64::from(min_shards)))));
    changes.extend((split_bytes > 0).then(|| set(attr::SPLIT_BYTES, Value::Int(split_bytes))));
    if let Some(Look { at, v }) = look {
        changes.extend([set(attr::LOOK_AT, Value::Int(at.0)), set(attr::LOOK_V, Value::Int(v))]);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(attributes: &[(&str, &str)]) -> Result<Bucket, ItemError> {
        let sound =
            [(attr::RF, "0"), ("b_a_tk", "0"), ("b_a_tc", "0"), ("b_a_cp", "0"), ("b_a_ra", "0"), ("b_a_rp", "1")];
        let mut reader = BucketReader::default();
        for (name, number) in sound.iter().chain(attributes) {
            reader.attribute(name, &Attr::N(number))?;
        }
        reader.finish(BucketKey::parse("default/BUCKET#e-1#gpt-4#0").expect("a key"))
    }

    #[test]
    fn a_rule_has_a_period_and_nothing_negative() {
        assert!(read(&[]).is_ok());
        for wrong in [("b_a_rp", "0"), ("b_a_ra", "-1"), ("b_a_cp", "-1")] {
            assert_eq!(read(&[wrong]).unwrap_err().attribute, "b_a_rp", "{wrong:?}");
        }
    }

    #[test]
    fn there_is_one_shard_or_more() {
        assert_eq!(read(&[(attr::SHARD_COUNT, "1")]).map(|bucket| bucket.shard_count), Ok(1));
        assert_eq!(read(&[(attr::SHARD_COUNT, "0")]).unwrap_err().attribute, attr::SHARD_COUNT);
    }

    /// Whoever writes an item of more must not have it split, credited and counted by writes that DynamoDB refuses.
    #[test]
    fn a_bucket_of_more_limits_than_a_write_can_bear_is_refused() {
        let with = |limits: usize| {
            let fields = ["tk", "tc", "cp", "ra", "rp"];
            let names = (1..limits).map(|at| format!("l{at}")).chain(["wcu".to_owned()]);
            let names: Vec<_> = names.flat_map(|name| fields.map(|field| format!("b_{name}_{field}"))).collect();
            read(&names.iter().map(|name| (name.as_str(), "1")).collect::<Vec<_>>())
        };
        assert_eq!(with(MAX_BUCKET_LIMITS).map(|bucket| bucket.limits.len()), Ok(MAX_BUCKET_LIMITS));
        let error = with(MAX_BUCKET_LIMITS + 1).unwrap_err().to_string();
        assert!(
            error.contains("41 limits") && error.contains(&format!("{MAX_BUCKET_LIMITS} limits at most")),
            "{error}"
        );
    }

    #[test]
    fn an_item_is_as_large_as_its_names_and_values() {
        // Each number is of one digit, in two bytes; the names are of 2 and 5 times 6.
        assert_eq!(read(&[]).map(|bucket| bucket.size_bytes), Ok(6 * 2 + 2 + 5 * 6));
    }
}
