//! Items that an operator deletes, and how they are made again.

use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::recreate;
use weirgate_shared::{Limit, MilliTokens, Millis, ShardIndex};

use super::Fleet;
use super::books::free;
use crate::model::table::Shards;
use crate::model::{held, limit_name};

impl Fleet {
    /// Deletes a shard, but not the last one. Its tokens and leases are lost.
    pub fn delete_manually(&mut self, which: Index) {
        let numbers: Vec<_> = self.table.shards().keys().copied().collect();
        if numbers.len() > 1 {
            self.delete(*which.get(&numbers));
        }
    }

    /// Deletes the item of a merged shard.
    pub fn delete_merged(&mut self, which: Index) {
        let numbers: Vec<_> = self.table.merged().map(|(number, _)| number).collect();
        if !numbers.is_empty() {
            self.delete(*which.get(&numbers));
        }
    }

    /// Deletes all shards. The next take makes a new bucket.
    pub fn delete_all(&mut self) {
        for shard in self.table.shards().clone().into_keys() {
            self.delete(shard);
        }
        self.forgotten += self.limits[0].rule().capacity;
    }

    fn delete(&mut self, shard: u32) {
        self.finish_all();
        // The debt at the instant of the deletion: a slow clock may create the item again as of any
        // later one, so what flows in until then may be counted for both.
        if let Some(gone) = self.table.shards().get(&shard) {
            self.forgotten += (-free(gone, &limit_name("rpm"), self.now)).max(MilliTokens::ZERO);
        }
        // The `v` of a new item is above that of a former one only if clocks have passed what they
        // are apart.
        self.now = self.now.plus(Millis(5_000));
        self.is_torn = true;
        self.table.delete(shard);
        self.leased.retain(|(held, _), _| *held != shard);
        self.past.push(self.table.shards().clone());
    }

    /// Makes the shards that are missing, with the slots that are missing.
    pub fn fill(&mut self) -> Result<(), TestCaseError> {
        self.finish_all();
        while let Some((shard, other)) = missing(self.table.shards(), ShardIndex::UNSPLIT) {
            prop_assert!(!self.table.whole().is_complete());
            let shards = self.table.shards().clone();
            let slots = |limit: &Limit| {
                let known = shards
                    .values()
                    .map(|shard| shard.limits[limit.name()].available + held(shard, limit.name()));
                limit.rule().capacity - known.sum()
            };
            let actions = recreate(shard, &shards[&other], slots, self.id(), self.now);
            prop_assert!(
                self.transact(&actions, Some(self.now))?,
                "not filled: {:?}",
                shard
            );
            prop_assert!(
                !self.table.transact(&actions),
                "I7: its answer was lost, and it was filled once more"
            );
            let made = &self.table.shards()[&shard.index];
            prop_assert_eq!(
                made.limits["rpm"].available,
                MilliTokens::ZERO,
                "I1: its tokens are unknown"
            );
            self.check()?;
        }
        if self.is_torn && !self.table.shards().is_empty() {
            let slots = &self.limits[1];
            let all = |shard: &std::rc::Rc<weirgate_shared::Shard>| {
                shard.limits[slots.name()].available + held(shard, slots.name())
            };
            let sum: MilliTokens = self.table.shards().values().map(all).sum();
            prop_assert_eq!(sum, slots.rule().capacity, "a slot is lost");
            prop_assert!(self.table.whole().is_complete());
        }
        Ok(())
    }
}

/// The largest part of `whole` of which there is no shard, and a shard of the other half of what it
/// is a half of: while that one is what it is, no merge has joined the two.
fn missing(shards: &Shards, whole: ShardIndex) -> Option<(ShardIndex, u32)> {
    let is_there = |part: ShardIndex| {
        shards
            .get(&part.index)
            .is_some_and(|shard| shard.shard() == part)
    };
    let in_part = |part: ShardIndex| {
        let is_in =
            |shard: &ShardIndex| shard.count > part.count && shard.index % part.count == part.index;
        shards
            .values()
            .map(|shard| shard.shard())
            .find(is_in)
            .or(is_there(part).then_some(part))
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
