//! Reads a shard, with its escrow, from the attributes of its item.

use std::collections::BTreeMap;

use super::attribute::size_bytes;
use super::escrow::is_implied;
use super::lease::leases;
use super::limit_fields::LimitFields;
use super::parse::{self, entries, integer, write_id};
use super::{Attr, ItemError};
use crate::attr::{self, Field};
use crate::{
    ActivitySample, Bases, BucketKey, Counter, EditId, EpochMillis, EpochSeconds, Hour, Lease,
    LimitName, LimitsVersion, MAX_BUCKET_LIMITS, Meter, Millis, Pause, Scaling, Shard, ShardIndex,
    WriteId,
};

/// Collects the attributes of a bucket item in any order.
#[derive(Debug, Default)]
pub struct ShardReader {
    /// Limits by name: a malicious item can have as many as fit in 400 KB.
    limits: BTreeMap<Box<str>, LimitFields>,
    rf: Option<i64>,
    v: Option<i64>,
    birth: Option<i64>,
    hour: Option<i64>,
    takes: [Option<i128>; 3],
    shard_count: Option<u32>,
    due: Option<i64>,
    version: Option<i64>,
    boundary: i64,
    rule_at: Option<i64>,
    ttl: Option<i64>,
    op: Option<WriteId>,
    edit: Option<i64>,
    pause: (Option<i64>, i64),
    leases: Option<BTreeMap<WriteId, Lease>>,
    scaling: Scaling,
    look: (Option<i64>, Option<i64>),
    escrow: Option<Box<ShardReader>>,
    size_bytes: usize,
    lease_bytes: usize,
}

impl ShardReader {
    /// Reads one attribute. Other attributes than a shard's count in its size and are ignored.
    ///
    /// # Errors
    /// [`ItemError`] if the attribute is a bucket's and is not what it takes.
    pub fn attribute(&mut self, name: &str, value: &Attr<'_>) -> Result<(), ItemError> {
        self.size_bytes += name.len() + size_bytes(value);
        match name {
            attr::REFILLED_AT => self.rf = Some(integer(name, value)?),
            attr::WRITE_SEQ => self.v = Some(integer(name, value)?),
            attr::BIRTH => self.birth = Some(integer(name, value)?),
            attr::HOUR => self.hour = Some(integer(name, value)?),
            attr::TAKES => self.takes[0] = Some(parse::count(name, value)?),
            attr::TAKES_HOUR_BASE => self.takes[1] = Some(parse::count(name, value)?),
            attr::TAKES_DAY_BASE => self.takes[2] = Some(parse::count(name, value)?),
            attr::VERSION => self.version = Some(integer(name, value)?),
            attr::BOUNDARY => self.boundary = integer(name, value)?,
            attr::RULE_AT => self.rule_at = Some(integer(name, value)?),
            attr::TTL => self.ttl = Some(integer(name, value)?),
            attr::DUE => self.due = Some(integer(name, value)?),
            attr::SHARD_COUNT => self.shard_count = Some(count(name, value)?),
            attr::MIN_SHARDS => self.scaling.min_shards = count(name, value)?,
            attr::SPLIT_BYTES => self.scaling.lease_bytes_at_split = integer(name, value)?,
            attr::SAMPLE_AT => self.look.0 = Some(integer(name, value)?),
            attr::SAMPLE_WRITE_SEQ => self.look.1 = Some(integer(name, value)?),
            attr::ESCROW => self.escrow = Some(Box::new(read_escrow(value)?)),
            attr::HOT => {
                self.scaling.hot_at = match value {
                    // It has no time, so it counts until the split, as for its writer.
                    Attr::Bool(true) => Some(EpochMillis(i64::MAX)),
                    value => integer(name, value).map(EpochMillis).ok(),
                };
            }
            attr::LAST_WRITE_ID => self.op = Some(write_id(name, value)?),
            attr::EDIT => self.edit = Some(integer(name, value)?),
            attr::PAUSED_UNTIL => self.pause.0 = Some(integer(name, value)?),
            attr::PAUSE_LENGTH => self.pause.1 = integer(name, value)?,
            attr::LEASES => {
                self.lease_bytes = size_bytes(value);
                self.leases = Some(leases(value)?);
            }
            _ => {
                if let Some((limit, field)) = Field::parse(name) {
                    match self.limits.get_mut(limit) {
                        Some(known) => known.read(field, name, value)?,
                        None => {
                            let mut first = LimitFields::default();
                            first.read(field, name, value)?;
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
        let rf =
            self.rf.ok_or_else(|| ItemError::missing(attr::REFILLED_AT, "epoch milliseconds"))?;
        let (hour, takes) = (self.hour()?, self.takes()?);
        let limits = self.limits(LimitFields::is_held, LimitFields::state)?;
        let unheld = self.limits(|partial| !partial.is_held(), LimitFields::counter)?;
        let look = self
            .look
            .0
            .zip(self.look.1)
            .map(|(at, v)| ActivitySample { at: EpochMillis(at), write_seq: v });
        let shard_count = self
            .shard_count
            .ok_or_else(|| ItemError::missing(attr::SHARD_COUNT, "a whole number from 1"))?;
        let shard = ShardIndex { index: key.shard, count: shard_count };
        let escrow =
            self.escrow.map(|escrow| child(*escrow, &key, shard).map(Box::new)).transpose()?;
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
            config_version: self
                .version
                .map(|number| LimitsVersion { number, boundary: EpochMillis(self.boundary) }),
            limits_changed_at: self.rule_at.map(EpochMillis),
            ttl: self.ttl.map(EpochSeconds),
            leases: self.leases,
            due_at: self.due.map(EpochMillis),
            last_write_id: self.op,
            edit: self.edit.map(EditId),
            pause: self.pause.0.map(|until| Pause {
                until: EpochMillis(until),
                lasts: Millis(self.pause.1.max(0)),
            }),
            scaling: Scaling { sample: look, ..self.scaling },
            escrow,
            size_bytes: self.size_bytes,
            lease_bytes: self.lease_bytes,
        })
    }

    /// Starts the counters of a new half, one of `count` shards.
    fn begin(&mut self, count: u32) {
        (self.shard_count, self.birth, self.takes) = (Some(count), self.v, [Some(0); 3]);
        self.limits.values_mut().for_each(LimitFields::begin);
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
        let mut limits = self.limits(LimitFields::is_held, LimitFields::counter)?;
        limits.extend(self.limits(|partial| !partial.is_held(), LimitFields::counter)?);
        Ok(Meter { key, write_seq: v, birth_seq: birth, hour, acquires: takes, limits })
    }

    fn life(&self) -> Result<(i64, i64), ItemError> {
        let v = self.v.ok_or_else(|| ItemError::missing(attr::WRITE_SEQ, WHOLE))?;
        let birth = self.birth.ok_or_else(|| ItemError::missing(attr::BIRTH, WHOLE))?;
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
        let hour = self.hour.ok_or_else(|| ItemError::missing(attr::HOUR, takes))?;
        if (0..END_HOUR).contains(&hour) {
            return Ok(Hour(hour));
        }
        Err(ItemError::new(attr::HOUR, &Attr::N(&hour.to_string()), takes))
    }

    fn takes(&self) -> Result<Counter, ItemError> {
        let names = [attr::TAKES, attr::TAKES_HOUR_BASE, attr::TAKES_DAY_BASE];
        let number = |at: usize| self.takes[at].ok_or_else(|| ItemError::missing(names[at], WHOLE));
        Ok(Counter { total: number(0)?, bases: Bases { hour: number(1)?, day: number(2)? } })
    }

    fn limits<T>(
        &self,
        is_there: impl Fn(&LimitFields) -> bool,
        read: impl Fn(&LimitFields, &str) -> Result<T, ItemError>,
    ) -> Result<BTreeMap<LimitName, T>, ItemError> {
        let there = || self.limits.iter().filter(|(_, partial)| is_there(partial));
        let found = there().count();
        if found > MAX_BUCKET_LIMITS {
            let (attribute, value) =
                ("b_{limit}_tk".to_owned(), format!("there for {found} limits"));
            return Err(ItemError { attribute, value, takes: "40 limits at most" });
        }
        let limit = |name: &str, partial: &LimitFields| {
            let limit = LimitName::new(name).map_err(|error| ItemError {
                attribute: format!("b_{name}_tk"),
                value: error.value,
                takes: error.rule,
            })?;
            Ok((limit, read(partial, name)?))
        };
        there().map(|(name, partial)| limit(name, partial)).collect()
    }
}

const WHOLE: &str = "a whole number";
/// The first hour of the year 9999, where dates end.
const END_HOUR: i64 = 253_370_764_800 / 3600;

fn count(name: &str, value: &Attr<'_>) -> Result<u32, ItemError> {
    let count = u32::try_from(integer(name, value)?).ok().filter(|count| *count > 0);
    count.ok_or_else(|| ItemError::new(name, value, "a whole number from 1"))
}

/// Reads an escrow's attributes.
fn read_escrow(value: &Attr<'_>) -> Result<ShardReader, ItemError> {
    let mut reader = ShardReader::default();
    for (name, value) in entries(attr::ESCROW, value)? {
        if *name == attr::ESCROW {
            return Err(ItemError::new(
                &inside(name),
                value,
                "nothing: a new half has not been split",
            ));
        }
        if !is_implied(name) {
            reader.attribute(name, value).map_err(within)?;
        }
    }
    Ok(reader)
}

/// Returns the new half of the shard `key`, which is `shard` by now, from its escrow.
fn child(mut reader: ShardReader, key: &BucketKey, shard: ShardIndex) -> Result<Shard, ItemError> {
    let Some(whole) = shard.parent().filter(|whole| whole.index == shard.index) else {
        let count = shard.count.to_string();
        return Err(ItemError::new(
            attr::SHARD_COUNT,
            &Attr::N(&count),
            "2 or more of a shard that holds an escrow",
        ));
    };
    let new = whole.halves().1;
    reader.begin(new.count);
    let child = reader.finish(key.with_shard(new.index)).map_err(within)?;
    Ok(Shard { leases: Some(BTreeMap::new()), size_bytes: 0, lease_bytes: 0, ..child })
}

fn within(error: ItemError) -> ItemError {
    ItemError { attribute: inside(&error.attribute), ..error }
}

fn inside(attribute: &str) -> String {
    format!("{}.{attribute}", attr::ESCROW)
}

#[cfg(test)]
mod tests;
