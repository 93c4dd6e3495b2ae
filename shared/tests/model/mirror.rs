//! A rate's balances in a bucket and its shards, computed the simple way: every step refills each
//! balance up to the current time. Items do not do so: they keep their `refilled_at`, and their
//! conditions make both equal.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weirgate_shared::{EpochMillis, MilliTokens, RefillRule, ShardIndex, refill_between};

use super::limit_name;
use super::table::Shards;

/// The balances of all shards at one moment.
#[derive(Debug)]
pub struct Mirror {
    rule: RefillRule,
    born: EpochMillis,
    at: EpochMillis,
    balances: BTreeMap<u32, (ShardIndex, MilliTokens)>,
    /// Refill and returns that full shards lost.
    lost: MilliTokens,
}

impl Mirror {
    /// Returns a full, unsplit bucket.
    pub fn new(rule: RefillRule, born: EpochMillis) -> Self {
        let balances = [(0, (ShardIndex::UNSPLIT, rule.capacity))].into();
        Self {
            rule,
            born,
            at: born,
            balances,
            lost: MilliTokens::ZERO,
        }
    }

    pub fn advance(&mut self, now: EpochMillis) {
        for number in self.balances.keys().copied().collect::<Vec<_>>() {
            let flowed = refill_between(&self.rule, self.balances[&number].0, self.at, now);
            self.give(number, flowed);
        }
        self.at = now;
    }

    /// Returns tokens to a shard; those above its share are lost.
    pub fn give(&mut self, number: u32, amount: MilliTokens) {
        let (shard, balance) = self.balances.get_mut(&number).unwrap();
        let sum = *balance + amount;
        *balance = sum.min(shard.share(self.rule.capacity));
        self.lost += sum - *balance;
    }

    /// Returns tokens that no request can use.
    pub fn forfeit(&mut self, amount: MilliTokens) {
        self.lost += amount;
    }

    pub fn take(&mut self, number: u32, need: MilliTokens) -> Result<(), TestCaseError> {
        let balance = &mut self.balances.get_mut(&number).unwrap().1;
        prop_assert!(
            need <= MilliTokens::ZERO || *balance >= need,
            "I1: {need:?} taken of {balance:?}"
        );
        *balance -= need;
        Ok(())
    }

    /// A cut left headroom: the shard has `left`, and what refill and returns it leaves out is lost.
    pub fn leave_headroom(&mut self, number: u32, left: MilliTokens) -> Result<(), TestCaseError> {
        let (shard, balance) = self.balances.get_mut(&number).unwrap();
        let most = shard.share(self.rule.capacity) / 128;
        let lost = *balance - left;
        prop_assert!(
            (MilliTokens::ZERO..=most).contains(&lost),
            "I2: {lost:?} left out, at most {most:?}"
        );
        *balance = left;
        self.lost += lost;
        Ok(())
    }

    /// Records usage above the amount taken. `over` is the overflow since the item's `refilled_at`:
    /// a settlement has no current time, so a debt uses up the overflow first.
    pub fn owe(&mut self, number: u32, debt: MilliTokens, over: MilliTokens) {
        let balance = &mut self.balances.get_mut(&number).unwrap().1;
        let spared = debt.min(over);
        *balance -= debt - spared;
        self.lost -= spared;
    }

    /// The shard `number` gave `part` to its new half.
    pub fn split(&mut self, number: u32, part: MilliTokens) -> Result<(), TestCaseError> {
        let (shard, balance) = self.balances[&number];
        let (kept, new) = shard.halves();
        let rest = balance - part;
        let share = |shard: ShardIndex| shard.share(self.rule.capacity);
        prop_assert!(
            part >= MilliTokens::ZERO && part <= share(new),
            "I6: {part:?} of {:?}",
            share(new)
        );
        prop_assert!(
            rest <= share(kept),
            "I6: {rest:?} left, above {:?}",
            share(kept)
        );
        prop_assert!(
            rest >= balance.min(MilliTokens::ZERO),
            "I6: the split made a debt of {rest:?}"
        );
        self.balances
            .extend([(kept.index, (kept, rest)), (new.index, (new, part))]);
        Ok(())
    }

    /// The shard `number` became part of its other half.
    pub fn merge(&mut self, number: u32) {
        let (shard, upper) = self.balances.remove(&number).unwrap();
        let whole = shard.parent().unwrap();
        let lower = self.balances[&whole.index].1;
        self.balances.insert(whole.index, (whole, lower + upper));
    }

    /// Every item says what its shard has, to the millitoken; and together with what was `used` and
    /// what did not fit into full shards it is all that there ever was.
    pub fn check(&self, shards: &Shards, used: MilliTokens) -> Result<(), TestCaseError> {
        let name = limit_name("rpm");
        let said = shards.iter().map(|(number, shard)| {
            (
                *number,
                (shard.shard(), shard.balance(&shard.limits[&name], self.at)),
            )
        });
        prop_assert_eq!(
            said.collect::<BTreeMap<_, _>>(),
            self.balances.clone(),
            "I2, I6: left, what items say"
        );
        let sum: MilliTokens = self.balances.values().map(|(_, balance)| *balance).sum();
        let all = self.rule.capacity
            + refill_between(&self.rule, ShardIndex::UNSPLIT, self.born, self.at);
        prop_assert_eq!(sum + used + self.lost, all, "I2: a token is nowhere");
        Ok(())
    }
}
