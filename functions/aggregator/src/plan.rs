//! Records to planned writes: one count per bucket shard, window and run of records, the refills and the splits. Pure.

use std::collections::BTreeMap;

use weirgate_shared::write::{Count, Piece, Update, cut_units, refill};
use weirgate_shared::{Bucket, BucketKey, EpochMillis, LimitName, MAX_BUCKET_LIMITS, MilliTokens, SnapshotKey, Window};

use crate::config::{Config, Snapshots};
use crate::parse::Record;
use crate::split::Split;

/// Writes to a shard in one batch from which on it is looked at whether they become too many.
const BUSY: usize = 200;

/// What a batch says was used of one bucket shard.
#[derive(Debug)]
pub struct Usage {
    key: BucketKey,
    limits: Vec<LimitName>,
    /// What no item counts comes first, by time; then by `v`, each span once.
    pieces: Vec<Piece>,
    /// Of each piece.
    origins: Vec<Origin>,
    /// The newest image, and where it came from.
    last: (Bucket, Origin),
}

/// Where a piece came from.
#[derive(Debug, Clone, Copy)]
struct Origin {
    at: EpochMillis,
    record: usize,
}

/// A planned write, and the first record behind it.
#[derive(Debug)]
pub struct Write<'a> {
    /// What it does.
    pub kind: Kind<'a>,
    /// Index in the event of the first record it stands for.
    pub record: usize,
}

/// What a planned write does.
#[derive(Debug)]
pub enum Kind<'a> {
    /// Adds usage to a snapshot.
    Count(Count<'a>),
    /// Credits a bucket.
    Refill(Box<Update>),
    /// Makes two of a hot shard.
    Split(Box<Split<'a>>),
}

/// Folds the records of a batch per bucket shard, in the order of their keys. The pieces live here; the writes borrow them.
///
/// A shard is there more than once if its records speak of more limits than one count can name: somebody has deleted
/// and made it again with others, or writes whatever he likes.
#[must_use]
pub fn usage(records: Vec<Record>) -> Vec<Usage> {
    let mut shards: BTreeMap<BucketKey, Vec<Folding>> = BTreeMap::new();
    for record in records {
        let shard = shards.entry(record.bucket.key.clone()).or_default();
        match shard.last_mut().filter(|folding| folding.has_room(&record)) {
            Some(folding) => folding.add(record),
            None => shard.push(Folding::first(record)),
        }
    }
    let finish = |(key, shard): (BucketKey, Vec<Folding>)| {
        shard.into_iter().map(move |folding| folding.finish(key.clone())).collect::<Vec<_>>()
    };
    shards.into_iter().flat_map(finish).collect()
}

/// The counts of all `usage`, each with the first record behind it, and nothing that goes by what the images say of the
/// present: for records that come late. Counts of the same snapshot and shard come in the order of the writes.
#[must_use]
pub fn counts<'a>(usage: &'a [Usage], snapshots: &Snapshots) -> Vec<(Count<'a>, usize)> {
    let mut counts = Vec::with_capacity(usage.len() * snapshots.windows.len());
    for shard in usage {
        shard.counts(snapshots, &mut counts);
    }
    counts
}

/// The writes of all `usage`, none of which waits for another. A hot shard is split, which credits it too, or refilled.
/// Splits come last: whatever holds them up, usage is counted.
#[must_use]
pub fn writes<'a>(usage: &'a [Usage], config: &Config, now: EpochMillis) -> Vec<Write<'a>> {
    let mut writes = Vec::with_capacity(usage.len() * (config.snapshots.windows.len() + 1));
    let mut splits = vec![];
    for (at, shard) in usage.iter().enumerate() {
        let mut counts = vec![];
        shard.counts(&config.snapshots, &mut counts);
        writes.extend(counts.into_iter().map(|(count, record)| Write { kind: Kind::Count(count), record }));
        // What is there now, only the last part of a shard's records knows.
        if usage.get(at + 1).is_some_and(|next| next.key == shard.key) {
            continue;
        }
        match shard.split(usage, config.max_shards, now) {
            Some(split) => splits.push(split),
            None => writes.extend(shard.refill(now)),
        }
    }
    writes.append(&mut splits);
    writes
}

/// A bucket shard's records, as they come.
struct Folding {
    limits: Vec<LimitName>,
    pieces: Vec<(Piece, Origin)>,
    last: (Bucket, Origin),
}

impl Folding {
    fn first(record: Record) -> Self {
        let origin = Origin { at: record.at, record: record.index };
        let limits = record.bucket.limits.keys().cloned().collect();
        let piece = Piece { span: record.span, tokens: record.used, events: record.events };
        let mut folding = Self { limits, pieces: vec![], last: (record.bucket, origin) };
        folding.push(piece, origin);
        folding
    }

    fn add(&mut self, record: Record) {
        let origin = Origin { at: record.at, record: record.index };
        let tokens = self.in_order(&record);
        self.push(Piece { span: record.span, tokens, events: record.events }, origin);
        if record.bucket.v >= self.last.0.v {
            self.last = (record.bucket, origin);
        }
    }

    /// Whether one count can name the limits of the record too.
    fn has_room(&self, record: &Record) -> bool {
        let names = record.bucket.limits.keys();
        names.clone().eq(&self.limits)
            || self.limits.len() + names.filter(|name| !self.limits.contains(name)).count() <= MAX_BUCKET_LIMITS
    }

    fn push(&mut self, piece: Piece, origin: Origin) {
        let nothing = piece.events == 0 && piece.tokens.iter().all(|tokens| *tokens == MilliTokens::ZERO);
        // With a span, also nothing must be counted, or the next batch would find a gap.
        if piece.span.is_some() || !nothing {
            self.pieces.push((piece, origin));
        }
    }

    /// What the record used of each of the shard's limits, which may have become more.
    fn in_order(&mut self, record: &Record) -> Vec<MilliTokens> {
        let names = record.bucket.limits.keys();
        if names.clone().eq(&self.limits) {
            return record.used.clone();
        }
        let mut used: BTreeMap<&LimitName, MilliTokens> = names.zip(record.used.iter().copied()).collect();
        let known = self.limits.iter().map(|name| used.remove(name).unwrap_or_default());
        let mut tokens: Vec<_> = known.collect();
        for (name, used) in used {
            self.limits.push(name.clone());
            tokens.push(used);
        }
        tokens
    }

    fn finish(mut self, key: BucketKey) -> Usage {
        // Records of one item come in order unless a batch was put together by hand. Of a span that came twice, the
        // first is kept.
        self.pieces.sort_by_key(|(piece, origin)| match piece.span {
            None => (None, origin.at.0, origin.record),
            span => (span, 0, origin.record),
        });
        self.pieces.dedup_by(|(next, _), (piece, _)| piece.span.is_some() && next.span == piece.span);
        let (pieces, origins) = self.pieces.into_iter().unzip();
        Usage { key, limits: self.limits, pieces, origins, last: self.last }
    }
}

impl Usage {
    /// One count for each window, and for each run of pieces that lie in it and follow each other without a gap.
    fn counts<'a>(&'a self, snapshots: &Snapshots, counts: &mut Vec<(Count<'a>, usize)>) {
        for window in &snapshots.windows {
            self.counts_in(*window, snapshots.ttl_days, counts);
        }
    }

    fn counts_in<'a>(&'a self, window: Window, ttl_days: i64, counts: &mut Vec<(Count<'a>, usize)>) {
        let mut from = 0;
        while from < self.pieces.len() {
            let start = window.start(self.origins[from].at);
            let end = window.end(start);
            let is_here = |at: EpochMillis| start <= at && at < end;
            let follows = |to: usize| match (self.pieces[to - 1].span, self.pieces[to].span) {
                (None, None) => true,
                (Some((_, through)), Some((after, _))) => through == after,
                _ => false,
            };
            let mut to = from + 1;
            while to < self.pieces.len() && is_here(self.origins[to].at) && follows(to) {
                to += 1;
            }
            let BucketKey { namespace, entity, resource, shard } = self.key.clone();
            let count = Count {
                key: SnapshotKey { namespace, entity, resource, window, start },
                shard,
                limits: &self.limits,
                pieces: &self.pieces[from..to],
                ttl_seconds: end.0.div_euclid(1000).saturating_add(ttl_days.saturating_mul(86_400)),
            };
            let record = self.origins[from..to].iter().map(|origin| origin.record).min().unwrap_or_default();
            counts.push((count, record));
            from = to;
        }
    }

    fn refill(&self, now: EpochMillis) -> Option<Write<'_>> {
        let mut consumed: BTreeMap<LimitName, MilliTokens> = BTreeMap::new();
        for (at, name) in self.limits.iter().enumerate() {
            let used = self.pieces.iter().filter_map(|piece| piece.tokens.get(at)).copied().sum();
            consumed.insert(name.clone(), used);
        }
        let (image, Origin { record, .. }) = &self.last;
        let is_busy = self.pieces.len() >= BUSY;
        let update = refill(image, &consumed, now).or_else(|| cut_units(image, now).filter(|_| is_busy))?;
        Some(Write { kind: Kind::Refill(Box::new(update)), record: *record })
    }

    fn split<'a>(&'a self, usage: &'a [Usage], max_shards: u32, now: EpochMillis) -> Option<Write<'a>> {
        let (image, Origin { at, record }) = &self.last;
        let largest = || {
            let bucket = |usage: &Usage| usage.key.with_shard(0);
            let own = bucket(self);
            // They come by key, so the shards of one bucket are together. All of a batch may be hot.
            let first = usage.partition_point(|other| bucket(other) < own);
            largest(usage[first..].iter().take_while(|other| bucket(other) == own))
        };
        let split = Split::of(image, *at, largest, max_shards, now)?;
        Some(Write { kind: Kind::Split(Box::new(split)), record: *record })
    }
}

/// The largest request of each limit: of a write that several callers share, their mean. A write that grants none is no
/// request.
fn largest<'a>(shards: impl Iterator<Item = &'a Usage>) -> BTreeMap<LimitName, MilliTokens> {
    let mut largest = BTreeMap::new();
    for shard in shards {
        for piece in shard.pieces.iter().filter(|piece| piece.events > 0) {
            for (name, used) in shard.limits.iter().zip(&piece.tokens) {
                let mean = MilliTokens(used.0.saturating_add(piece.events - 1).div_euclid(piece.events));
                let known: &mut MilliTokens = largest.entry(name.clone()).or_default();
                *known = mean.max(*known);
            }
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use proptest::array::uniform3;
    use proptest::collection::vec;
    use proptest::option::of;
    use proptest::prelude::*;
    use weirgate_shared::Limit;

    use super::*;

    const NAMES: [&str; 3] = ["rpd", "rpm", "tpm"];

    /// The record `index` of a bucket that had just these limits then, and what was used of each.
    fn record(index: usize, used: &[Option<i64>; 3]) -> Record {
        let there = NAMES.iter().zip(used).filter_map(|(name, used)| Some((*name, (*used)?)));
        let limits: Vec<_> = there.clone().map(|(name, _)| Limit::per_minute(name, 100).unwrap()).collect();
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap();
        let at = EpochMillis(0);
        let bucket = Bucket::full(key, limits.as_slice(), at);
        let v = i64::try_from(index).unwrap();
        let used = there.map(|(_, used)| MilliTokens(used)).collect();
        Record { index, at, bucket, span: Some((v, v + 1)), used, events: 1 }
    }

    proptest! {
        /// I3 where limits come and go within a batch: what a record says of a limit is counted for that limit.
        #[test]
        fn i3_each_limit_is_counted_by_its_name_whatever_limits_the_records_before_had(
            records in vec(uniform3(of(-9..9_i64)), 1..9),
        ) {
            let usage = usage(records.iter().enumerate().map(|(index, used)| record(index, used)).collect());
            prop_assert_eq!(usage.len(), 1);
            let Usage { limits, pieces, .. } = &usage[0];
            prop_assert_eq!(pieces.len(), records.len());
            for (piece, used) in pieces.iter().zip(&records) {
                let counted = NAMES.map(|name| {
                    let at = limits.iter().position(|limit| limit.as_str() == name);
                    at.and_then(|at| piece.tokens.get(at)).map_or(0, |tokens| tokens.0)
                });
                prop_assert_eq!(counted, used.map(Option::unwrap_or_default));
            }
        }
    }
}
