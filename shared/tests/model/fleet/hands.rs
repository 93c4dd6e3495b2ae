//! Items that somebody deletes by hand, and how they are made again.

use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::fill;
use weirgate_shared::{Limit, MilliTokens, Millis, Shard};

use super::Fleet;
use super::books::free;
use crate::model::table::Shards;
use crate::model::{held, limit_name};

impl Fleet {
    /// Deletes a shard, but not the last one. What it held nobody knows, and who held its leases has them no more.
    pub fn delete_by_hand(&mut self, which: Index) {
        let numbers: Vec<_> = self.table.shards().keys().copied().collect();
        if numbers.len() > 1 {
            let shard = *which.get(&numbers);
            // The `v` of a new item is above that of a former one only if a moment has passed.
            self.now = self.now.after(Millis(1));
            self.is_torn = true;
            self.forgotten +=
                (-free(&self.table.shards()[&shard], &limit_name("rpm"), self.now)).max(MilliTokens::ZERO);
            self.table.delete(shard);
            self.leased.retain(|(held, _), _| *held != shard);
            self.past.push(self.table.shards().clone());
        }
    }

    /// Makes the shards that are missing, with the slots that are missing.
    pub fn fill(&mut self) -> Result<(), TestCaseError> {
        while let Some((shard, other)) = missing(self.table.shards(), Shard::WHOLE) {
            prop_assert!(!self.table.whole().is_complete());
            let shards = self.table.shards().clone();
            let slots = |limit: &Limit| {
                let known = shards.values().map(|shard| shard.limits[limit.name()].tk + held(shard, limit.name()));
                limit.rule().capacity - known.sum()
            };
            let actions = fill(shard, &shards[&other], slots, self.id(), self.now);
            prop_assert!(self.transact(&actions, Some(self.now))?, "not filled: {:?}", shard);
            prop_assert!(!self.table.transact(&actions), "I7: its answer was lost, and it was filled once more");
            let made = &self.table.shards()[&shard.index];
            prop_assert_eq!(made.limits["rpm"].tk, MilliTokens::ZERO, "I1: nobody knows what it had");
            self.check()?;
        }
        if self.is_torn {
            let slots = &self.limits[1];
            let all = |shard: &std::rc::Rc<weirgate_shared::Bucket>| {
                shard.limits[slots.name()].tk + held(shard, slots.name())
            };
            let sum: MilliTokens = self.table.shards().values().map(all).sum();
            prop_assert_eq!(sum, slots.rule().capacity, "a slot is gone for good");
            prop_assert!(self.table.whole().is_complete());
        }
        Ok(())
    }
}

/// The largest part of `whole` of which there is no shard, and a shard of the other half of what it is a half of: while
/// that one is what it is, nobody has made the two one.
fn missing(shards: &Shards, whole: Shard) -> Option<(Shard, u32)> {
    let is_there = |part: Shard| shards.get(&part.index).is_some_and(|shard| shard.shard() == part);
    let in_part = |part: Shard| {
        let is_in = |shard: &Shard| shard.count > part.count && shard.index % part.count == part.index;
        shards.values().map(|shard| shard.shard()).find(is_in).or(is_there(part).then_some(part))
    };
    if shards.is_empty() || is_there(whole) {
        return None;
    }
    let (lower, upper) = whole.halves();
    match (in_part(lower), in_part(upper)) {
        (None, Some(other)) => Some((lower, other.index)),
        (Some(other), None) => Some((upper, other.index)),
        _ => missing(shards, lower).or_else(|| missing(shards, upper)),
    }
}
