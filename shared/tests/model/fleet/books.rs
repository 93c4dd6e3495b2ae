//! Invariants of a bucket and all its shards, checked after every write.

use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use weirgate_shared::write::{Action, Update};
use weirgate_shared::{
    EpochMillis, LimitName, MilliTokens, MilliTotal, Shard, ShardIndex, WriteId, refill_between,
};

use super::{Event, Fleet};
use crate::model::table::Shards;
use crate::model::{assert_due_is_a_lower_bound, held, limit_name};

impl Fleet {
    pub(super) fn write(
        &mut self,
        update: Update,
        clock: Option<EpochMillis>,
    ) -> Result<bool, TestCaseError> {
        self.transact(&[Action::Update(update)], clock)
    }

    /// Runs the transaction, and records what it returned, split and merged. `clock` is the clock
    /// that planned it, if there was one.
    pub(super) fn transact(
        &mut self,
        actions: &[Action],
        clock: Option<EpochMillis>,
    ) -> Result<bool, TestCaseError> {
        let before = self.table.all();
        if !self.table.transact(actions) {
            return Ok(false);
        }
        self.past.push(self.table.shards().clone());
        let after = self.table.all();
        if let Some(mirror) = &mut self.mirror {
            mirror.advance(self.now);
        }
        let mut back = MilliTokens::ZERO;
        let is_held = |(shard, id): &(u32, WriteId)| {
            after
                .get(shard)
                .is_some_and(|shard| shard.leases.as_ref().unwrap().contains_key(id))
        };
        let gone: Vec<_> = self
            .leased
            .keys()
            .filter(|lease| !is_held(lease))
            .cloned()
            .collect();
        for (shard, id) in gone {
            let expires = before[&shard].leases.as_ref().unwrap()[&id].expires_at;
            prop_assert!(
                clock.is_some_and(|clock| expires <= clock),
                "I4: taken from its holder, whose lease lasted until {:?}",
                expires
            );
            let grant = self.leased.remove(&(shard, id)).unwrap();
            back += grant.rate;
            if let Some(mirror) = &mut self.mirror {
                mirror.give(shard, grant.rate);
            }
        }
        *self.used.entry(limit_name("rpm")).or_default() -= back;
        // A fast clock takes later refill. The shard has a debt until then, but a half that a
        // correct clock creates in between has none.
        let at = clock.unwrap_or(self.now);
        let owes =
            |shard: &Rc<Shard>| (-free(shard, &limit_name("rpm"), at)).max(MilliTokens::ZERO);
        let owed = if self.mirror.is_some() {
            MilliTokens::ZERO
        } else {
            after.values().map(owes).sum()
        };
        self.events.push(Event {
            clock,
            admitted: MilliTokens::ZERO,
            back,
            owed,
        });
        self.resharded(&before, &after)?;
        Ok(true)
    }

    /// I6: what there is at the instant of a split or a merge, free or held, is what there was.
    fn resharded(&mut self, before: &Shards, after: &Shards) -> Result<(), TestCaseError> {
        for upper in after
            .values()
            .filter(|shard| !before.is_empty() && !before.contains_key(&shard.key.shard))
        {
            let lower = upper.shard().parent().unwrap().index;
            let is_same =
                |lower: &Rc<Shard>| lower.shard_count == after[&lower.key.shard].shard_count;
            if self.is_torn && before.get(&lower).is_none_or(is_same) {
                // It was not split off, but created again.
                continue;
            }
            for limit in &self.limits {
                let name = limit.name();
                let sum =
                    |shard: &Rc<Shard>| free(shard, name, upper.refilled_at) + held(shard, name);
                let (was, is) = (sum(&before[&lower]), sum(&after[&lower]) + sum(upper));
                prop_assert_eq!(
                    was,
                    is,
                    "I6: {} was and is, after a split of {:?}",
                    name,
                    before[&lower]
                );
            }
            if let Some(mirror) = &mut self.mirror {
                mirror.split(lower, upper.limits["rpm"].available)?;
            }
        }
        for upper in before
            .values()
            .filter(|shard| !after.contains_key(&shard.key.shard))
        {
            let lower = upper.shard().parent().unwrap().index;
            let at = after[&lower].refilled_at;
            for limit in &self.limits {
                let name = limit.name();
                let lasting = |shard: &Rc<Shard>| -> MilliTokens {
                    let leases = shard
                        .leases
                        .iter()
                        .flatten()
                        .filter(|(_, lease)| lease.expires_at > at);
                    leases
                        .filter_map(|(_, lease)| lease.tokens.get(name))
                        .copied()
                        .sum()
                };
                let sum = |shard: &Rc<Shard>| shard.balance_at(name, at) + lasting(shard);
                let (was, is) = (sum(&before[&lower]) + sum(upper), sum(&after[&lower]));
                prop_assert_eq!(
                    was,
                    is,
                    "I6: {} was and is, after a merge of {:?}",
                    name,
                    upper
                );
            }
            if let Some(mirror) = &mut self.mirror {
                mirror.merge(upper.key.shard);
            }
        }
        Ok(())
    }

    /// Checks the invariants that hold at any time.
    pub(super) fn check(&mut self) -> Result<(), TestCaseError> {
        if self.table.shards().is_empty() {
            return Ok(());
        }
        prop_assert!(
            self.is_torn || self.table.whole().is_complete(),
            "I6: {:?}",
            self.table.shards().keys()
        );
        let (rate, slots) = (&self.limits[0], &self.limits[1]);
        // Tokens in an escrow exist, though they cannot be taken yet.
        let all = self.table.all();
        let shards = || all.values();

        // I4: leases contain what their holders have recorded.
        let leases = shards().flat_map(|shard| {
            let amount = |lease: &weirgate_shared::Lease, limit| {
                lease.tokens.get(limit).copied().unwrap_or_default()
            };
            let leases = shard.leases.iter().flatten();
            leases.map(move |(id, lease)| {
                (
                    (shard.key.shard, id.clone()),
                    (amount(lease, "rpm"), amount(lease, "slots")),
                )
            })
        });
        let known = self
            .leased
            .iter()
            .map(|(key, grant)| (key.clone(), (grant.rate, grant.slots)));
        prop_assert_eq!(
            leases.collect::<BTreeMap<_, _>>(),
            known.collect::<BTreeMap<_, _>>()
        );

        // Slots: each is free in one shard or held by one lease.
        let free: MilliTokens = shards()
            .map(|shard| shard.limits[slots.name()].available)
            .sum();
        let in_use: MilliTokens = self.leased.values().map(|grant| grant.slots).sum();
        prop_assert!(
            shards().all(|shard| shard.limits[slots.name()].available >= MilliTokens::ZERO)
        );
        prop_assert!(
            free + in_use <= slots.rule().capacity,
            "I1: a slot was made"
        );
        prop_assert!(
            self.is_torn || free + in_use == slots.rule().capacity,
            "I6: a slot was lost"
        );

        // I3: the stream shows the same consumption.
        for limit in &self.limits {
            let used = self.used.get(limit.name()).copied().unwrap_or_default();
            prop_assert_eq!(
                self.table.consumed(limit.name()),
                used,
                "I3: usage of {}",
                limit.name()
            );
        }
        prop_assert_eq!(self.table.takes(), i128::from(self.granted), "I3: acquires");

        // I1 over the whole run, with any clocks: granted and still available tokens equal the
        // first balance and the refill.
        let last = shards()
            .map(|shard| shard.refilled_at)
            .max()
            .unwrap()
            .max(self.now);
        let first = self.table.image(0, usize::MAX).unwrap().refilled_at;
        let left = |shard: &Rc<Shard>| {
            let state = shard.limits[rate.name()];
            state.available + refill_between(&state.rule, shard.shard(), shard.refilled_at, last)
        };
        let sum = shards().map(left).sum::<MilliTotal>() + self.table.consumed(rate.name());
        let flowed =
            rate.rule().capacity + refill_between(rate.rule(), ShardIndex::UNSPLIT, first, last);
        prop_assert!(
            sum <= flowed + self.forgotten,
            "I1: minted, {:?} of {:?}",
            sum,
            flowed
        );

        for (item, shard) in self.table.items() {
            assert_due_is_a_lower_bound(item, shard);
            prop_assert!(
                shard.shard().count == 1
                    || shard.due_at.is_some()
                    || self.rested.contains(&shard.key.shard),
                "no run would review whether {:?} is idle",
                shard
            );
        }
        if let Some(mirror) = &mut self.mirror {
            mirror.advance(self.now);
            mirror.check(&all, self.table.consumed(rate.name()).bounded())?;
        }
        Ok(())
    }

    /// I1 between any two writes: checks that takes get at most the capacity, the refill between
    /// the first and the last writer's clock, and the returns. With different clocks, the final
    /// debt is added.
    pub fn check_intervals(&self) -> Result<(), TestCaseError> {
        let rule = self.limits[0].rule();
        for (at, _) in self
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.admitted > MilliTokens::ZERO)
        {
            let (mut sum, mut back) = (MilliTokens::ZERO, MilliTokens::ZERO);
            let (mut from, mut to) = (EpochMillis(i64::MAX), EpochMillis(i64::MIN));
            for event in &self.events[at..] {
                sum += event.admitted;
                back += event.back;
                from = event.clock.map_or(from, |clock| from.min(clock));
                to = event.clock.map_or(to, |clock| to.max(clock));
                let most = rule.capacity
                    + refill_between(rule, ShardIndex::UNSPLIT, from, to)
                    + back
                    + event.owed;
                // A settlement has no clock and admits nothing; what is owed by then is less than
                // it was at the take before.
                let is_take = event.admitted > MilliTokens::ZERO;
                prop_assert!(
                    !is_take || sum <= most,
                    "I1: {:?} from {:?} to {:?}, at most {:?}",
                    sum,
                    from,
                    to,
                    most
                );
            }
        }
        Ok(())
    }
}

/// Returns the free amount of a limit at `at`, without returns from leases.
pub(super) fn free(shard: &Shard, name: &LimitName, at: EpochMillis) -> MilliTokens {
    let state = &shard.limits[name];
    if state.rule.is_concurrent() {
        state.available
    } else {
        shard.balance(state, at)
    }
}
