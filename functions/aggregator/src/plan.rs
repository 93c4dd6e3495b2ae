//! Records to planned writes: copies of usage, refills and splits. Pure.

use std::collections::{BTreeMap, HashSet};

use weirgate_shared::write::{Update, UsageCopy, refill};
use weirgate_shared::{
    BucketKey, EpochMillis, LimitName, Meter, MilliTokens, MilliTotal, Millis, Shard, Window,
};

use crate::config::Config;
use crate::parse::{After, Record};
use crate::split::{Heat, Split};

pub use weirgate_shared::write::INTERIM;

/// The records of one shard in a batch.
#[derive(Debug)]
pub struct ShardFold {
    key: BucketKey,
    /// Images that are copied, in the order of the records.
    copies: Vec<(Meter, Reason, usize)>,
    writes: usize,
    /// `v` before the first record, and the time of that record.
    first: Option<(i64, EpochMillis)>,
    /// Acquires granted by the writes.
    acquires: u64,
    /// Net consumption of each limit.
    consumed: BTreeMap<LimitName, MilliTokens>,
    /// Largest request of each limit: for a write of several acquires, their mean.
    largest: BTreeMap<LimitName, MilliTokens>,
    /// Newest image, the time of its write, and its record.
    last: Option<(Box<Shard>, EpochMillis, usize)>,
}

/// Why an image is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It is the first one of a life or of a day: the snapshot of the day then shows that the shard
    /// was used.
    Begins,
    /// Many writes were counted since the last copy, or the shard was merged away.
    Interim,
    /// It is the last one of its hour.
    HourEnds,
    /// It is the last one of its hour and of its day.
    DayEnds,
}

/// A planned write, and its record.
#[derive(Debug)]
pub struct Write<'a> {
    /// What it writes.
    pub kind: WriteKind<'a>,
    /// Index of its record in the event.
    pub record: usize,
}

/// The kind of a planned write.
#[derive(Debug)]
pub enum WriteKind<'a> {
    /// Copies usage to a snapshot.
    Copy(Box<UsageCopy>),
    /// Credits refill to a shard.
    Refill(Box<Update>),
    /// Splits a hot shard.
    Split(Box<Split<'a>>),
}

/// Age from which on a record is not redelivered for an item that stays throttled.
pub const OLD: Millis = Millis(30_000);

/// Returns the indices of the records that are older than [`OLD`] at `now`.
#[must_use]
pub fn old_records(records: &[Record], now: EpochMillis) -> HashSet<usize> {
    let old = records.iter().filter(|record| now.since(record.at) >= OLD);
    old.map(|record| record.index).collect()
}

/// Groups the records of a batch by shard, in the order of their keys.
#[must_use]
pub fn shards(records: Vec<Record>) -> Vec<ShardFold> {
    let mut shards: BTreeMap<BucketKey, ShardFold> = BTreeMap::new();
    for record in records {
        let key = record.key().clone();
        shards.entry(key).or_insert_with_key(ShardFold::new).add(record);
    }
    shards.into_values().collect()
}

/// Returns the number of acquires that the writes of all shards granted.
#[must_use]
pub fn acquires(shards: &[ShardFold]) -> u64 {
    shards.iter().fold(0, |sum: u64, shard| sum.saturating_add(shard.acquires))
}

/// Returns the copies of all shards, each with its record. Those of a shard are in the order of its
/// lives, and hours come before days: an hour is final with its day.
pub fn copies(shards: &[ShardFold], ttl_days: i64) -> impl Iterator<Item = (UsageCopy, usize)> {
    shards.iter().flat_map(move |shard| {
        Window::ALL.into_iter().flat_map(move |window| shard.copies(window, ttl_days))
    })
}

/// Returns the writes of all shards, which are independent of each other. A hot shard is split,
/// which also credits it, or refilled.
#[must_use]
pub fn writes<'a>(shards: &'a [ShardFold], config: &Config, now: EpochMillis) -> Vec<Write<'a>> {
    let copy = |(copy, record)| Write { kind: WriteKind::Copy(Box::new(copy)), record };
    let copies = copies(shards, config.snapshot_ttl_days);
    let copies = copies.filter(|(copy, _)| !copy.is_expired(now));
    let mut writes: Vec<_> = copies.map(copy).collect();
    for shard in shards {
        match shard.split(shards, config) {
            Some(split) => writes.push(split),
            None => writes.extend(shard.refill(config.refill_writes, now)),
        }
    }
    writes
}

impl Record {
    fn key(&self) -> &BucketKey {
        match (&self.after, &self.before) {
            (After::Live(shard), _) => &shard.key,
            (After::Merged(meter), _) => &meter.key,
            (After::Gone, Some(before)) => &before.key,
            (After::Gone, None) => unreachable!("a removal has an old image, or it was not read"),
        }
    }
}

impl ShardFold {
    fn new(key: &BucketKey) -> Self {
        let (consumed, largest) = (BTreeMap::new(), BTreeMap::new());
        Self {
            key: key.clone(),
            copies: vec![],
            writes: 0,
            first: None,
            acquires: 0,
            consumed,
            largest,
            last: None,
        }
    }

    fn add(&mut self, record: Record) {
        let Record { index, at, before, after } = record;
        self.writes += 1;
        // An erased shard used nothing.
        let before = before.filter(|before| !before.is_erased());
        if let After::Live(shard) = &after {
            self.consume(before.as_ref(), shard);
            let v = before.as_ref().map_or(shard.birth_seq, |before| before.write_seq);
            self.first.get_or_insert((v, at));
        }
        if matches!(&after, After::Merged(meter) if meter.is_erased()) {
            return self.copies.clear();
        }
        let hour = after.hour();
        let is_same_day = match (&before, hour) {
            (Some(before), Some(hour)) => before.hour.is_same_day(hour),
            _ => false,
        };
        if let Some(before) = before.filter(|before| hour.is_none_or(|hour| before.hour < hour)) {
            let reason = match is_same_day {
                true => Reason::HourEnds,
                false => Reason::DayEnds,
            };
            self.copies.push((before, reason, index));
        }
        let reason = match &after {
            _ if !is_same_day => Some(Reason::Begins),
            // Not final, because a split may create the shard again within the window. Until then,
            // readers find the item.
            After::Merged(_) => Some(Reason::Interim),
            After::Live(shard) => (shard.write_seq % INTERIM == 0).then_some(Reason::Interim),
            After::Gone => None,
        };
        match after {
            After::Gone => {}
            After::Merged(meter) => {
                let reason = reason.map(|reason| (meter, reason, index));
                self.copies.extend(reason);
            }
            After::Live(shard) => {
                let reason = reason.map(|reason| (shard.meter(), reason, index));
                self.copies.extend(reason);
                if self.last.as_ref().is_none_or(|(last, ..)| shard.write_seq >= last.write_seq) {
                    self.last = Some((shard, at, index));
                }
            }
        }
    }

    fn consume(&mut self, before: Option<&Meter>, after: &Shard) {
        let acquires =
            after.acquires.total.saturating_sub(before.map_or(0, |before| before.acquires.total));
        // A counter that an operator has set back granted nothing.
        let granted = u64::try_from(acquires).unwrap_or_default();
        self.acquires = self.acquires.saturating_add(granted);
        for (name, state) in &after.limits {
            let had = before
                .and_then(|before| before.limits.get(name))
                .map_or(0, |counter| counter.total);
            let used = state.consumed - MilliTotal(had);
            *self.consumed.entry(name.clone()).or_default() += used.bounded();
            // A write that grants no acquire is no request.
            if acquires > 0 {
                let mean = MilliTotal(used.0.saturating_add(acquires - 1).div_euclid(acquires));
                let largest = self.largest.entry(name.clone()).or_default();
                *largest = mean.bounded().max(*largest);
            }
        }
    }

    /// Returns the newest image of each window of this kind, once for each life of the shard.
    fn copies(&self, window: Window, ttl_days: i64) -> Vec<(UsageCopy, usize)> {
        let mut copies: Vec<(UsageCopy, usize)> = vec![];
        for (meter, reason, record) in &self.copies {
            let (is_final, is_required) = match (reason, window) {
                (Reason::DayEnds, _) | (Reason::HourEnds, Window::Hourly) => (true, true),
                (Reason::Begins, Window::Daily) => (false, true),
                (Reason::Interim, _) => (false, false),
                // Readers find the day in the item.
                (Reason::HourEnds, Window::Daily) | (Reason::Begins, Window::Hourly) => continue,
            };
            let mut copy =
                UsageCopy { is_required, ..UsageCopy::of(meter, window, is_final, ttl_days) };
            if copies.iter().any(|(known, _)| known.supersedes(&copy)) {
                continue;
            }
            let mut record = *record;
            copies.retain(|(known, first)| {
                let is_older = copy.supersedes(known);
                // A copy that is required by itself has its own record.
                if is_older && known.is_required && !copy.is_required {
                    copy.is_required = true;
                    record = record.min(*first);
                }
                !is_older
            });
            copies.push((copy, record));
        }
        copies.sort_by_key(|(copy, _)| copy.birth);
        copies
    }

    fn refill(&self, from_writes: usize, now: EpochMillis) -> Option<Write<'_>> {
        let (image, _, record) = self.last.as_ref().filter(|_| self.writes >= from_writes)?;
        let update = refill(image, &self.consumed, now)?;
        Some(Write { kind: WriteKind::Refill(Box::new(update)), record: *record })
    }

    fn split<'a>(&'a self, shards: &'a [Self], config: &Config) -> Option<Write<'a>> {
        let (image, to, record) = self.last.as_ref()?;
        let (v, from) = self.first?;
        // A split, or the creation of the shard, raises `v` to the time.
        let sampled = image.scaling.sample.map_or(v, |sample| sample.write_seq);
        let v = v.max(sampled).max(image.birth_seq);
        let heat = Heat { writes: image.write_seq.saturating_sub(v), from, to: *to };
        let largest = || {
            let bucket = |shard: &Self| shard.key.with_shard(0);
            let own = bucket(self);
            // Sorted by key, so the shards of one bucket are together. All shards of a batch may be
            // hot.
            let first = shards.partition_point(|other| bucket(other) < own);
            let mut largest: BTreeMap<LimitName, MilliTokens> = BTreeMap::new();
            for shard in shards[first..].iter().take_while(|other| bucket(other) == own) {
                for (name, amount) in &shard.largest {
                    let known = largest.entry(name.clone()).or_default();
                    *known = (*known).max(*amount);
                }
            }
            largest
        };
        let split = Split::of(image, heat, largest, config)?;
        Some(Write { kind: WriteKind::Split(Box::new(split)), record: *record })
    }
}
