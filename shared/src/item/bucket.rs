//! A bucket shard's item.

use super::lease::{leases, write_id, write_leases};
use super::{Attr, ItemError, escrow, integer, size_bytes};
use std::collections::BTreeMap;

use crate::attr::{self, Field};
use crate::limit::RefillRule;
use crate::write::{AttributeUpdate, Path, Value};
use crate::{
    ActivitySample, Bases, BucketKey, Counter, EpochMillis, EpochSeconds, Hour, Lease, LimitName,
    LimitState, LiveShard, MAX_BUCKET_LIMITS, Meter, MilliTokens, Scaling, Shard, ShardIndex,
    WriteId,
};

/// The attributes of one limit, as far as they were read.
#[derive(Debug, Default)]
struct PartialLimit {
    fields: [Option<i64>; Field::ALL.len()],
}

impl PartialLimit {
    fn number(&self, name: &str, field: Field) -> Result<i64, ItemError> {
        self.fields[field.index()].ok_or_else(|| {
            ItemError::missing(&format!("b_{name}_{}", field.suffix()), "a whole number")
        })
    }

    fn state(&self, name: &str) -> Result<LimitState, ItemError> {
        let number = |field| self.number(name, field);
        let rule = RefillRule {
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
        let Counter { total, bases } = self.counter(name)?;
        Ok(LimitState {
            available: MilliTokens(number(Field::Tokens)?),
            consumed: MilliTokens(total),
            bases,
            rule,
        })
    }

    /// Returns whether this is a current limit of the shard. A shard that was merged away and
    /// created again may have usage counters of others.
    fn is_held(&self) -> bool {
        [Field::Tokens, Field::Capacity]
            .iter()
            .any(|field| self.fields[field.index()].is_some())
    }

    fn counter(&self, name: &str) -> Result<Counter, ItemError> {
        let number = |field| self.number(name, field);
        let bases = Bases {
            hour: number(Field::HourBase)?,
            day: number(Field::DayBase)?,
        };
        Ok(Counter {
            total: number(Field::Consumed)?,
            bases,
        })
    }
}

/// Collects the attributes of a bucket item in any order.
#[derive(Debug, Default)]
pub struct BucketReader {
    /// Limits by name: a malicious item can have as many as fit in 400 KB.
    limits: BTreeMap<Box<str>, PartialLimit>,
    rf: Option<i64>,
    v: Option<i64>,
    birth: Option<i64>,
    hour: Option<i64>,
    takes: [Option<i64>; 3],
    write_units_left: Option<i64>,
    shard_count: Option<u32>,
    due: Option<i64>,
    version: Option<i64>,
    rule_at: Option<i64>,
    ttl: Option<i64>,
    op: Option<WriteId>,
    leases: Option<BTreeMap<WriteId, Lease>>,
    scaling: Scaling,
    look: (Option<i64>, Option<i64>),
    escrow: Option<Box<BucketReader>>,
    size_bytes: usize,
    lease_bytes: usize,
}

impl BucketReader {
    /// Reads one attribute. Other attributes than a shard's count in its size and are ignored.
    ///
    /// # Errors
    /// [`ItemError`] if the attribute is a bucket's and is not what it takes.
    pub fn attribute(&mut self, name: &str, value: &Attr<'_>) -> Result<(), ItemError> {
        self.size_bytes += name.len() + size_bytes(value);
        match name {
            attr::RF => self.rf = Some(integer(name, value)?),
            attr::V => self.v = Some(integer(name, value)?),
            attr::BIRTH => self.birth = Some(integer(name, value)?),
            attr::HOUR => self.hour = Some(integer(name, value)?),
            attr::TAKES => self.takes[0] = Some(integer(name, value)?),
            attr::TAKES_HOUR_BASE => self.takes[1] = Some(integer(name, value)?),
            attr::TAKES_DAY_BASE => self.takes[2] = Some(integer(name, value)?),
            attr::WRITE_UNITS => self.write_units_left = Some(integer(name, value)?),
            attr::VERSION => self.version = Some(integer(name, value)?),
            attr::RULE_AT => self.rule_at = Some(integer(name, value)?),
            attr::TTL => self.ttl = Some(integer(name, value)?),
            attr::DUE => self.due = Some(integer(name, value)?),
            attr::SHARD_COUNT => self.shard_count = Some(count(name, value)?),
            attr::MIN_SHARDS => self.scaling.min_shards = count(name, value)?,
            attr::SPLIT_BYTES => self.scaling.lease_bytes_at_split = integer(name, value)?,
            attr::LOOK_AT => self.look.0 = Some(integer(name, value)?),
            attr::LOOK_V => self.look.1 = Some(integer(name, value)?),
            attr::ESCROW => self.escrow = Some(Box::new(escrow::escrow(value)?)),
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
                        Some(known) => known.fields[field.index()] = number,
                        None => {
                            let mut first = PartialLimit::default();
                            first.fields[field.index()] = number;
                            self.limits.insert(limit.into(), first);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether this software wrote the item: all its shards have a write sequence.
    #[must_use]
    pub const fn counts_writes(&self) -> bool {
        self.v.is_some()
    }

    /// Returns whether the shard was merged away: its item keeps usage counters, and no tokens.
    #[must_use]
    pub const fn is_merged(&self) -> bool {
        self.rf.is_none() && self.shard_count.is_none() && self.birth.is_some()
    }

    /// Returns the shard `key` after all attributes were read.
    ///
    /// # Errors
    /// [`ItemError`] if an attribute that every bucket has was missing, its usage makes no sense,
    /// or the limits are more than writes can bear.
    pub fn finish(self, key: BucketKey) -> Result<Shard, ItemError> {
        // Checked first: an item of other software is recognized by its lack of `v`.
        let (v, birth) = self.life()?;
        let rf = self
            .rf
            .ok_or_else(|| ItemError::missing(attr::RF, "epoch milliseconds"))?;
        let write_units_left = self
            .write_units_left
            .ok_or_else(|| ItemError::missing(attr::WRITE_UNITS, WHOLE))?;
        let (hour, takes) = (self.hour()?, self.takes()?);
        let limits = self.limits(PartialLimit::is_held, PartialLimit::state)?;
        let unheld = self.limits(|partial| !partial.is_held(), PartialLimit::counter)?;
        let look = self.look.0.zip(self.look.1).map(|(at, v)| ActivitySample {
            at: EpochMillis(at),
            write_seq: v,
        });
        let shard_count = self
            .shard_count
            .ok_or_else(|| ItemError::missing(attr::SHARD_COUNT, "a whole number from 1"))?;
        let shard = ShardIndex {
            index: key.shard,
            count: shard_count,
        };
        let escrow = self
            .escrow
            .map(|escrow| escrow::child(*escrow, &key, shard).map(Box::new))
            .transpose()?;
        Ok(Shard {
            key,
            shard_count,
            refilled_at: EpochMillis(rf),
            write_seq: v,
            birth_seq: birth,
            hour,
            acquires: takes,
            limits,
            departed: unheld,
            config_version: self.version,
            limits_changed_at: self.rule_at.map(EpochMillis),
            ttl: self.ttl.map(EpochSeconds),
            write_units_left: MilliTokens(write_units_left),
            leases: self.leases,
            due_at: self.due.map(EpochMillis),
            last_write_id: self.op,
            scaling: Scaling {
                sample: look,
                ..self.scaling
            },
            escrow,
            size_bytes: self.size_bytes,
            lease_bytes: self.lease_bytes,
        })
    }

    /// Starts the counters of a new half, one of `count` shards.
    pub(super) fn begin(&mut self, count: u32) {
        (self.shard_count, self.birth, self.takes) = (Some(count), self.v, [Some(0); 3]);
        for limit in self.limits.values_mut() {
            for field in [Field::Consumed, Field::HourBase, Field::DayBase] {
                limit.fields[field.index()] = Some(0);
            }
        }
    }

    /// Returns the usage counters of the shard `key`, live or merged away, after all attributes
    /// were read.
    ///
    /// # Errors
    /// [`ItemError`] if one of them was missing or makes no sense, or the limits are more than
    /// writes can bear.
    pub fn meter(&self, key: BucketKey) -> Result<Meter, ItemError> {
        let (v, birth) = self.life()?;
        let (hour, takes) = (self.hour()?, self.takes()?);
        Ok(Meter {
            key,
            write_seq: v,
            birth_seq: birth,
            hour,
            acquires: takes,
            limits: self.limits(|_| true, PartialLimit::counter)?,
        })
    }

    fn life(&self) -> Result<(i64, i64), ItemError> {
        let v = self.v.ok_or_else(|| ItemError::missing(attr::V, WHOLE))?;
        let birth = self
            .birth
            .ok_or_else(|| ItemError::missing(attr::BIRTH, WHOLE))?;
        if (0..=v).contains(&birth) {
            return Ok((v, birth));
        }
        let birth = birth.to_string();
        Err(ItemError::new(
            attr::BIRTH,
            &Attr::N(&birth),
            "a whole number from 0 to the `v` of the item",
        ))
    }

    fn hour(&self) -> Result<Hour, ItemError> {
        let takes = "hours since 1970, of the years 1970 to 9998";
        let hour = self
            .hour
            .ok_or_else(|| ItemError::missing(attr::HOUR, takes))?;
        if (0..END_HOUR).contains(&hour) {
            return Ok(Hour(hour));
        }
        Err(ItemError::new(
            attr::HOUR,
            &Attr::N(&hour.to_string()),
            takes,
        ))
    }

    fn takes(&self) -> Result<Counter, ItemError> {
        let names = [attr::TAKES, attr::TAKES_HOUR_BASE, attr::TAKES_DAY_BASE];
        let number = |at: usize| self.takes[at].ok_or_else(|| ItemError::missing(names[at], WHOLE));
        Ok(Counter {
            total: number(0)?,
            bases: Bases {
                hour: number(1)?,
                day: number(2)?,
            },
        })
    }

    fn limits<T>(
        &self,
        is_there: impl Fn(&PartialLimit) -> bool,
        read: impl Fn(&PartialLimit, &str) -> Result<T, ItemError>,
    ) -> Result<BTreeMap<LimitName, T>, ItemError> {
        let found = self.limits.len();
        if found > MAX_BUCKET_LIMITS {
            let (attribute, value) = (
                "b_{limit}_tk".to_owned(),
                format!("there for {found} limits"),
            );
            return Err(ItemError {
                attribute,
                value,
                takes: "40 limits at most",
            });
        }
        let limit = |name: &str, partial: &PartialLimit| {
            let limit = LimitName::new(name).map_err(|error| ItemError {
                attribute: format!("b_{name}_tk"),
                value: error.value,
                takes: error.rule,
            })?;
            Ok((limit, read(partial, name)?))
        };
        let there = self.limits.iter().filter(|(_, partial)| is_there(partial));
        there.map(|(name, partial)| limit(name, partial)).collect()
    }
}

const WHOLE: &str = "a whole number";
/// The first hour of the year 9999, where dates end.
const END_HOUR: i64 = 253_370_764_800 / 3600;

fn count(name: &str, value: &Attr<'_>) -> Result<u32, ItemError> {
    let count = u32::try_from(integer(name, value)?)
        .ok()
        .filter(|count| *count > 0);
    count.ok_or_else(|| ItemError::new(name, value, "a whole number from 1"))
}

/// Reads a shard from all attributes of its item, keys included.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_bucket<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Shard, ItemError> {
    let (reader, key) = read(item)?;
    reader.finish(key)
}

/// Reads the usage counters of a shard's item, live or merged away.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_live<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<LiveShard, ItemError> {
    let (reader, key) = read(item)?;
    let holds_leases = reader
        .leases
        .as_ref()
        .is_some_and(|leases| !leases.is_empty());
    Ok(LiveShard {
        meter: reader.meter(key)?,
        holds_leases,
    })
}

fn read<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<(BucketReader, BucketKey), ItemError> {
    let (mut reader, mut key) = (BucketReader::default(), None);
    for (name, value) in item {
        if let (attr::PK, Attr::S(pk)) = (name, &value) {
            key = BucketKey::parse(pk);
        }
        reader.attribute(name, &value)?;
    }
    Ok((
        reader,
        key.ok_or_else(|| ItemError::missing(attr::PK, "the key of a bucket"))?,
    ))
}

/// Returns whether the item with these attributes is a shard that was merged away.
#[must_use]
pub fn is_merged<'a>(attributes: impl Iterator<Item = &'a str>) -> bool {
    let (mut is_live, mut has_birth) = (false, false);
    for name in attributes {
        is_live |= matches!(name, attr::RF | attr::SHARD_COUNT);
        has_birth |= name == attr::BIRTH;
    }
    has_birth && !is_live
}

/// Returns all attributes of a shard's item except its keys, as changes that write them.
#[must_use]
pub fn write_bucket(shard: &Shard) -> Vec<AttributeUpdate> {
    let set = |name: &'static str, value: Value| AttributeUpdate::Set(Path::of(name), value);
    let ((gsi2pk, gsi2sk), (gsi3pk, gsi3sk)) = (shard.key.by_resource(), shard.key.by_entity());
    let mut changes = vec![
        set(attr::GSI2PK, Value::Text(gsi2pk)),
        set(attr::GSI2SK, Value::Text(gsi2sk)),
        set(attr::GSI3PK, Value::Text(gsi3pk)),
        set(attr::GSI3SK, Value::Text(gsi3sk)),
        set(attr::SHARD_COUNT, Value::Int(i64::from(shard.shard_count))),
        set(attr::RF, Value::Int(shard.refilled_at.0)),
        set(attr::V, Value::Int(shard.write_seq)),
        set(attr::BIRTH, Value::Int(shard.birth_seq)),
        set(attr::HOUR, Value::Int(shard.hour.0)),
        set(attr::TAKES, Value::Int(shard.acquires.total)),
        set(attr::TAKES_HOUR_BASE, Value::Int(shard.acquires.bases.hour)),
        set(attr::TAKES_DAY_BASE, Value::Int(shard.acquires.bases.day)),
        set(attr::WRITE_UNITS, Value::Int(shard.write_units_left.0)),
    ];
    changes.extend(
        shard
            .config_version
            .map(|version| set(attr::VERSION, Value::Int(version))),
    );
    changes.extend(
        shard
            .limits_changed_at
            .map(|at| set(attr::RULE_AT, Value::Int(at.0))),
    );
    changes.extend(shard.ttl.map(|ttl| set(attr::TTL, Value::Int(ttl.0))));
    changes.extend(
        shard
            .last_write_id
            .as_ref()
            .map(|op| set(attr::OP, Value::text(op.as_str()))),
    );
    changes.extend(
        shard
            .leases
            .as_ref()
            .map(|leases| set(attr::LEASES, write_leases(leases))),
    );
    let Scaling {
        is_hot,
        sample: look,
        min_shards,
        lease_bytes_at_split: split_bytes,
    } = shard.scaling;
    changes.extend(is_hot.then(|| set(attr::HOT, Value::Bool(true))));
    changes
        .extend((min_shards > 0).then(|| set(attr::MIN_SHARDS, Value::Int(i64::from(min_shards)))));
    changes.extend((split_bytes > 0).then(|| set(attr::SPLIT_BYTES, Value::Int(split_bytes))));
    if let Some(ActivitySample { at, write_seq: v }) = look {
        changes.extend([
            set(attr::LOOK_AT, Value::Int(at.0)),
            set(attr::LOOK_V, Value::Int(v)),
        ]);
    }
    if let Some(due) = shard.due_at {
        changes.push(set(attr::DUE, Value::Int(due.0)));
        changes.push(set(attr::DUE_SHARD, Value::Text(shard.key.due_shard())));
    }
    changes.extend(
        shard
            .limits
            .iter()
            .flat_map(|(name, state)| write_limit(name, state)),
    );
    changes.extend(
        shard
            .escrow
            .as_deref()
            .map(|child| set(attr::ESCROW, escrow::write_escrow(child))),
    );
    changes
}

/// Returns the attributes of one limit, as changes that write them.
pub(crate) fn write_limit(
    name: &LimitName,
    state: &LimitState,
) -> [AttributeUpdate; Field::ALL.len()] {
    let LimitState {
        available: tk,
        consumed: tc,
        bases,
        rule,
    } = state;
    Field::ALL.map(|field| {
        let number = match field {
            Field::Tokens => tk.0,
            Field::Consumed => tc.0,
            Field::Capacity => rule.capacity.0,
            Field::RefillAmount => rule.refill_amount.0,
            Field::RefillPeriod => rule.refill_period_ms,
            Field::HourBase => bases.hour,
            Field::DayBase => bases.day,
        };
        AttributeUpdate::Set(Path::limit(name, field), Value::Int(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: [(&str, &str); 16] = [
        (attr::SHARD_COUNT, "1"),
        (attr::RF, "0"),
        (attr::V, "0"),
        (attr::BIRTH, "0"),
        (attr::HOUR, "0"),
        (attr::TAKES, "0"),
        (attr::TAKES_HOUR_BASE, "0"),
        (attr::TAKES_DAY_BASE, "0"),
        (attr::WRITE_UNITS, "0"),
        ("b_a_tk", "0"),
        ("b_a_tc", "0"),
        ("b_a_cp", "0"),
        ("b_a_ra", "0"),
        ("b_a_rp", "1"),
        ("b_a_bh", "0"),
        ("b_a_bd", "0"),
    ];

    fn read(attributes: &[(&str, &str)]) -> Result<Shard, ItemError> {
        let mut reader = BucketReader::default();
        for (name, number) in SOUND.iter().chain(attributes) {
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
        assert_eq!(
            read(&[(attr::SHARD_COUNT, "1")]).map(|shard| shard.shard_count),
            Ok(1)
        );
        assert_eq!(
            read(&[(attr::SHARD_COUNT, "0")]).unwrap_err().attribute,
            attr::SHARD_COUNT
        );
    }

    /// An item with more limits must not cause splits, refills and copies that DynamoDB refuses.
    #[test]
    fn a_bucket_of_more_limits_than_a_write_can_bear_is_refused() {
        let with = |limits: usize| {
            let names = (1..limits).map(|at| format!("l{at}"));
            let field =
                |name: String| Field::ALL.map(|field| format!("b_{name}_{}", field.suffix()));
            let names: Vec<_> = names.flat_map(field).collect();
            read(
                &names
                    .iter()
                    .map(|name| (name.as_str(), "1"))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            with(MAX_BUCKET_LIMITS).map(|shard| shard.limits.len()),
            Ok(MAX_BUCKET_LIMITS)
        );
        let error = with(MAX_BUCKET_LIMITS + 1).unwrap_err().to_string();
        assert!(
            error.contains("41 limits")
                && error.contains(&format!("{MAX_BUCKET_LIMITS} limits at most")),
            "{error}"
        );
    }

    #[test]
    fn usage_that_makes_no_sense_is_named() {
        for (attribute, number, takes) in [
            (attr::BIRTH, "1", "from 0 to the `v`"),
            (attr::BIRTH, "-1", "from 0 to the `v`"),
            (attr::HOUR, "-1", "hours since 1970"),
            (attr::HOUR, "70380768", "hours since 1970"),
            (attr::HOUR, "9223372036854775807", "hours since 1970"),
            ("b_a_bh", "far", "a whole number"),
        ] {
            let error = read(&[(attribute, number)]).unwrap_err();
            assert_eq!(error.attribute, attribute);
            assert!(error.to_string().contains(takes), "{error}");
        }
        assert!(
            read(&[("b_a_bh", "5"), (attr::HOUR, "70380767")]).is_ok(),
            "usage may be negative"
        );
    }

    #[test]
    fn an_item_is_as_large_as_its_names_and_values() {
        // Each number is of one digit, in two bytes.
        let names: usize = SOUND.iter().map(|(name, _)| name.len()).sum();
        assert_eq!(
            read(&[]).map(|shard| shard.size_bytes),
            Ok(SOUND.len() * 2 + names)
        );
    }
}
