//! Copying a shard's usage into the snapshot of a window. Copies have absolute numbers, so they can
//! be repeated, delayed or skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{AttributeUpdate, Condition, Path, Update, Value};
use crate::{
    EpochMillis, ItemKey, LimitName, MAX_BUCKET_LIMITS, MAX_LIMITS, Meter, MilliTotal, Snapshot,
    SnapshotKey, Usage, Window, attr, is_kept,
};

/// Number of writes to a shard after which its usage is copied before the hour ends: at most every
/// five seconds, at the highest write rate of a shard. For less busy shards, readers use the live
/// item.
pub const INTERIM: i64 = 4096;
/// Maximum number of earlier lives, over all shards, in a snapshot.
pub const MAX_LIVES: usize = 1000;
/// Maximum number of earlier lives without a final copy.
pub const MAX_UNFINISHED: usize = 16;
/// Maximum number of limits of earlier lives.
pub const MAX_CARRIED_LIMITS: usize = 2 * MAX_BUCKET_LIMITS;

/// A shard's usage in one window, by one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageCopy {
    /// The snapshot.
    pub key: SnapshotKey,
    /// Shard index.
    pub shard: u32,
    /// `v` of the image.
    pub v: i64,
    /// `v` at the shard's creation.
    pub birth: i64,
    /// Usage up to the image.
    pub usage: Usage,
    /// Whether no later write of this life of the shard is counted in the window.
    pub is_final: bool,
    /// Whether the record must come again until the copy is made. Otherwise a later copy replaces
    /// it.
    pub is_required: bool,
    /// Epoch seconds after which the snapshot may be deleted, if this copy makes it.
    pub ttl_seconds: i64,
}

impl UsageCopy {
    /// Returns the copy of the current window of an image. The snapshot is kept for `ttl_days`
    /// after the window.
    #[must_use]
    pub fn of(meter: &Meter, window: Window, is_final: bool, ttl_days: i64) -> Self {
        let end_seconds = window.end(meter.start(window)).0.div_euclid(1000);
        Self {
            key: meter.snapshot(window),
            shard: meter.key.shard,
            v: meter.write_seq,
            birth: meter.birth_seq,
            usage: meter.usage(window),
            is_final,
            is_required: is_final,
            ttl_seconds: end_seconds.saturating_add(ttl_days.saturating_mul(86_400)),
        }
    }

    /// Returns whether this copy makes `other` redundant: it is of the same life, and not older.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        self.key == other.key
            && self.shard == other.shard
            && self.birth == other.birth
            && (self.v, self.is_final) >= (other.v, other.is_final)
    }

    /// Returns whether the snapshot may be deleted while the copy is made.
    #[must_use]
    pub fn is_expired(&self, now: EpochMillis) -> bool {
        !is_kept(EpochMillis(self.ttl_seconds.saturating_mul(1000)), now)
    }

    /// Returns the copy, on condition that the snapshot has none of the shard, or an older one of
    /// the same life and limits.
    #[must_use]
    pub fn first(&self) -> Update {
        let q = Path::of(attr::copied_at(self.shard));
        let older = Value::Int(self.v.saturating_sub(1));
        let bounds = [
            Condition::AtLeast(q.clone(), Value::Int(self.birth)),
            Condition::AtMost(q.clone(), older),
        ];
        // A new limit needs a copy that has read the old ones: otherwise a shard with other limits
        // in each image would fill the snapshot.
        let limits = self.usage.tokens.keys();
        if limits.len() > MAX_LIMITS {
            // One expression has no room for a condition on each limit.
            return self.update(vec![Condition::Absent(q)], vec![]);
        }
        let limits =
            limits.map(|limit| Condition::Present(Path::of(attr::copied(limit, self.shard))));
        let conditions = bounds.into_iter().chain(limits);
        let conditions =
            conditions.map(|condition| Condition::AbsentOr(q.clone(), Box::new(condition)));
        self.update(conditions.collect(), vec![])
    }

    /// Returns the copy for a snapshot that was read; `None` if the snapshot has it already. Moves
    /// usage of an earlier life once, on condition that its copy is still there: to the carry, or
    /// aside until its final copy comes.
    #[must_use]
    pub fn after(&self, seen: &Snapshot) -> Option<Update> {
        let Some(copied) = seen.shards.get(&self.shard) else {
            return Some(self.first());
        };
        let is_newest =
            Condition::Equals(Path::of(attr::copied_at(self.shard)), Value::Int(copied.write_seq));
        if copied.write_seq < self.birth {
            let mut conditions = vec![is_newest];
            let mut changes = if copied.is_final {
                self.carry(&copied.usage, copied.write_seq)
            } else {
                // A final copy of the same image has the same `v`.
                let finals = Path::of(attr::FINAL);
                let is_interim = Condition::Lacks(finals.clone(), i64::from(self.shard));
                conditions.push(Condition::AbsentOr(finals, Box::new(is_interim)));
                vec![self.set_aside(&copied.usage, copied.write_seq)]
            };
            changes.extend(self.others(&copied.usage));
            return Some(self.update(conditions, changes));
        }
        // A final copy replaces an interim one of the same image.
        if (copied.write_seq, copied.is_final) < (self.v, self.is_final) {
            // A shard keeps its limits for its life, so other limits in the copy are removed.
            return Some(self.update(vec![is_newest], self.others(&copied.usage).collect()));
        }
        self.late(seen, is_newest).filter(|_| copied.write_seq > self.v)
    }

    /// Returns the copy of an earlier life, late beside a later one; `None` if the snapshot has it.
    /// A final copy has the highest `v` of its life in the window, so a higher one is of a later
    /// life. An interim copy is of an earlier life only if an older one of it was set aside.
    fn late(&self, seen: &Snapshot, is_newest: Condition) -> Option<Update> {
        let carried = seen.carried.get(&self.shard);
        if carried.is_some_and(|finals| finals.contains(&self.v)) {
            return None;
        }
        let life = (self.shard, self.birth)..=(self.shard, self.v);
        let older = seen.unfinished.range(life).next_back();
        let older = older.map(|((shard, v), _)| (*v, Path::of(attr::unfinished(*shard, *v))));
        let mut changes = match &older {
            _ if self.is_final => self.carry(&self.usage, self.v),
            Some((v, _)) if *v < self.v => vec![self.set_aside(&self.usage, self.v)],
            _ => return None,
        };
        let carried = Path::of(attr::carried(self.shard));
        let is_first = Condition::Lacks(carried.clone(), self.v);
        let is_first = Condition::AbsentOr(carried, Box::new(is_first));
        let mut conditions = vec![is_newest, is_first];
        if let Some((_, older)) = older {
            conditions.push(Condition::Present(older.clone()));
            changes.push(AttributeUpdate::Remove(older));
        }
        Some(Update { key: self.key.item_key(), conditions, changes })
    }

    /// Returns the write after a copy for which the snapshot has no room: the window is never final.
    #[must_use]
    pub fn unfit(&self) -> Update {
        let is_there = Condition::Present(Path::of(attr::copied_at(self.shard)));
        Update {
            key: self.key.item_key(),
            conditions: vec![is_there],
            changes: vec![AttributeUpdate::DeleteFrom(Path::of(attr::FINAL), self.shards())],
        }
    }

    /// Returns whether the snapshot has an earlier life of the shard without its final copy. Its
    /// last usage is then missing.
    #[must_use]
    pub fn is_after_gap(&self, seen: &Snapshot) -> bool {
        let copied = seen.shards.get(&self.shard);
        copied.is_some_and(|copied| copied.write_seq < self.birth && !copied.is_final)
    }

    /// Returns whether the snapshot has room for what [`Self::after`] writes. A carry grows with
    /// each life that has other limits, so it has a bound.
    #[must_use]
    pub fn fits(&self, seen: &Snapshot) -> bool {
        let Some(copied) = seen.shards.get(&self.shard) else {
            return true;
        };
        let carried = match copied.write_seq < self.birth {
            true if !copied.is_final => return seen.unfinished.len() < MAX_UNFINISHED,
            true => &copied.usage,
            false if self.is_final && copied.write_seq > self.v => &self.usage,
            false => return true,
        };
        let lives: usize = seen.carried.values().map(BTreeSet::len).sum();
        let known = &seen.carry.tokens;
        let limits =
            known.len() + carried.tokens.keys().filter(|limit| !known.contains_key(*limit)).count();
        lives < MAX_LIVES && limits <= MAX_CARRIED_LIMITS
    }

    /// Removes the copied usage of limits that this copy lacks.
    fn others(&self, copied: &Usage) -> impl Iterator<Item = AttributeUpdate> {
        let others = copied.tokens.keys().filter(|limit| !self.usage.tokens.contains_key(*limit));
        others.map(|limit| AttributeUpdate::Remove(Path::of(attr::copied(limit, self.shard))))
    }

    /// Sets the usage of a life until `v` aside.
    fn set_aside(&self, usage: &Usage, v: i64) -> AttributeUpdate {
        let amount = |(limit, amount): (&LimitName, &MilliTotal)| {
            (limit.to_string(), Value::Tokens(*amount))
        };
        let mut amounts: BTreeMap<_, _> = usage.tokens.iter().map(amount).collect();
        amounts.insert("#".to_owned(), Value::Count(usage.acquires));
        let path = Path::of(attr::unfinished(self.shard, v));
        AttributeUpdate::Set(path, Value::Map(amounts))
    }

    /// Adds the usage of a life, whose final copy is of `v`, to the carry.
    fn carry(&self, usage: &Usage, v: i64) -> Vec<AttributeUpdate> {
        let carry = |counted: &str| Path::of(format!("{counted}{}", attr::CARRY));
        let tokens = usage.tokens.iter();
        let tokens = tokens.map(|(limit, amount)| {
            AttributeUpdate::Add(carry(limit.as_str()), Value::Tokens(*amount))
        });
        let takes = AttributeUpdate::Add(carry(""), Value::Count(usage.acquires));
        let life = AttributeUpdate::Add(
            Path::of(attr::carried(self.shard)),
            Value::Numbers(BTreeSet::from([v])),
        );
        tokens.chain([takes, life]).collect()
    }

    fn update(&self, conditions: Vec<Condition>, mut changes: Vec<AttributeUpdate>) -> Update {
        let amount = |(limit, amount): (&LimitName, &MilliTotal)| {
            AttributeUpdate::Set(Path::of(attr::copied(limit, self.shard)), Value::Tokens(*amount))
        };
        changes.extend(self.usage.tokens.iter().map(amount));
        changes.push(AttributeUpdate::Set(
            Path::of(attr::copied_takes(self.shard)),
            Value::Count(self.usage.acquires),
        ));
        changes
            .push(AttributeUpdate::Set(Path::of(attr::copied_at(self.shard)), Value::Int(self.v)));
        let finals = Path::of(attr::FINAL);
        changes.push(match self.is_final {
            true => AttributeUpdate::Add(finals, self.shards()),
            false => AttributeUpdate::DeleteFrom(finals, self.shards()),
        });
        // Keeps the `ttl` set at creation; a later copy with other settings must not shorten it.
        changes
            .push(AttributeUpdate::SetIfAbsent(Path::of(attr::TTL), Value::Int(self.ttl_seconds)));
        Update { key: self.key.item_key(), conditions, changes }
    }

    fn shards(&self) -> Value {
        Value::Numbers(BTreeSet::from([i64::from(self.shard)]))
    }
}

/// Source and target of the copy, for a log entry that replaces a failed copy.
impl fmt::Display for UsageCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ItemKey { pk, sk } = self.key.item_key();
        let kind = if self.is_final { "final" } else { "interim" };
        write!(f, "{kind} copy to {pk} {sk} of shard {} at {}", self.shard, self.v)?;
        for (limit, amount) in &self.usage.tokens {
            write!(f, ", {limit} {amount}")?;
        }
        write!(f, ", {} acquires", self.usage.acquires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketKey, Counter, Hour};

    #[test]
    fn a_copy_says_what_was_used_where() {
        let counter = |total| Counter { total, ..Counter::default() };
        let limits = [("rpm", 3000), ("tpm", -2000)];
        let meter = Meter {
            key: BucketKey::parse("default/BUCKET#e-1#gpt-4#3").unwrap(),
            write_seq: 8,
            birth_seq: 1,
            hour: Hour(498_648),
            acquires: counter(2),
            limits: limits
                .map(|(name, milli)| (LimitName::new(name).unwrap(), counter(milli)))
                .into(),
        };
        assert_eq!(
            UsageCopy::of(&meter, Window::Daily, true, 0).to_string(),
            "final copy to default/ENTITY#e-1 #USAGE#gpt-4#daily#2026-11-20T00:00:00Z of shard 3 at 8, rpm 3, tpm -2, \
             2 acquires"
        );
    }
}
