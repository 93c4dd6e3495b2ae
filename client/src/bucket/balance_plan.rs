//! Plans an operator's change of a bucket's balances over all its shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{BalanceChange, Update};
use weirgate_shared::{
    BalanceStep, Bucket, EpochMillis, LimitName, MAX_SHARDS, MilliTokens, Shard, ShardIndex, Stamp,
};
use weirgate_store::Consistency;

use super::refresh::read_shards;
use super::state::BucketState;
use crate::session::Session;
use crate::values::{Amounts, Error, check_next_windows};

/// Change of one limit's balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AmountChange {
    /// To the capacity.
    Fill,
    /// To an amount.
    Set(MilliTokens),
    /// By an amount: a rate at most to the capacity, a quota until the end of its window.
    Add(MilliTokens),
}

/// The steps of a change, and the balances that it finds and leaves.
#[derive(Debug, Default)]
pub(crate) struct BalancePlan {
    pub(crate) steps: BTreeMap<LimitName, BalanceStep>,
    pub(crate) before: Amounts,
    pub(crate) after: Amounts,
}

impl BucketState {
    /// Returns all shards, read now, without unfinished splits; none if the bucket has no item. A
    /// dry run finishes no split: a half in escrow counts as made.
    ///
    /// A read of several items is no snapshot: of a bucket that is split meanwhile it may show a
    /// part, which is then read again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a shard is missing in every read, because its item was deleted.
    pub(crate) async fn read_whole(
        &self,
        session: &Session,
        is_dry_run: bool,
    ) -> Result<Vec<Arc<Shard>>, Error> {
        /// Splits that come between so many reads are not to be expected.
        const READS: u32 = 5;
        let keys = (0..MAX_SHARDS).map(|shard| self.key.with_shard(shard).item_key());
        let keys: Vec<_> = keys.collect();
        for _ in 0..READS {
            let (_, mut shards) = read_shards(session, &keys, Consistency::Strong).await?;
            let is_unfinished = |shard: &&Shard| shard.escrow.is_some();
            let unfinished: Vec<_> = shards.iter().filter(is_unfinished).cloned().collect();
            if !is_dry_run {
                self.finish(session, &unfinished).await?;
            }
            let taken = shards.iter_mut().filter_map(|shard| shard.escrow.take());
            let halves: Vec<_> = taken.map(|half| *half).collect();
            for half in halves {
                if shards.iter().all(|shard| shard.key != half.key) {
                    shards.push(half);
                }
            }
            let is_whole = shards.is_empty() || Bucket::new(shards.clone()).is_complete();
            if is_whole && (is_dry_run || unfinished.is_empty()) {
                return Ok(shards.into_iter().map(Arc::new).collect());
            }
        }
        Err(Error::Invalid(format!(
            "bucket {} lacks a shard: wait for the reconciler, which repairs it within minutes, and try again",
            self.key.item_key().pk
        )))
    }

    /// Reads the shards after a change of all, for the views.
    pub(crate) async fn view_again(&self, session: &Session) {
        self.forget_denials(session.now());
        self.summary().set_max_shards_seen(MAX_SHARDS);
        let read = self.refresh(session, None, Consistency::Strong).await;
        if let Err(error) = read {
            tracing::debug!(%error, "bucket not read after its change");
        }
    }

    /// Returns the write that ends the bucket's denial stamp, if it may have one.
    pub(crate) fn void_stamp(&self, now: EpochMillis) -> Option<Update> {
        let void = Stamp {
            at: now,
            until: now,
            shards: 0,
            available: BTreeMap::new(),
        };
        self.is_stamped().then(|| void.update(&self.key))
    }

    /// Forgets the denials that rest on balances from before a change, and wakes the requests that
    /// wait for tokens.
    fn forget_denials(&self, now: EpochMillis) {
        *self.denied() = None;
        *self.stamp() = None;
        self.summary().record_return(now);
        self.summary().tokens_returned.notify_waiters();
    }
}

impl BalancePlan {
    /// Plans `changes`; without a limit's name, for every rate.
    pub(crate) fn of(
        shards: &[Arc<Shard>],
        changes: &[(Option<LimitName>, AmountChange)],
        now: EpochMillis,
    ) -> Result<Self, Error> {
        let changes = named(shards, changes)?;
        for shard in shards {
            check_next_windows(shard, changes.keys(), now)?;
        }
        let mut plan = Self::default();
        for (name, change) in changes {
            let balances: Vec<_> = shards
                .iter()
                .map(|shard| shard.balance(&shard.limits[&name], now))
                .collect();
            let before = balances.iter().copied().sum();
            let step = step(shards, &name, change, &balances)?;
            let after = |(shard, balance): (&Arc<Shard>, &MilliTokens)| {
                let share = shard.share(&shard.limits[&name]);
                match step.part(shard.shard(), share) {
                    BalanceChange::SetTo(amount) => amount,
                    BalanceChange::Raise(amount) => *balance + amount,
                }
            };
            let after = shards.iter().zip(&balances).map(after).sum();
            plan.before.insert(name.clone(), before);
            plan.after.insert(name.clone(), after);
            plan.steps.insert(name, step);
        }
        Ok(plan)
    }
}

/// Returns the balances of the rates that `changes` name, as far as the bucket has them.
pub(crate) fn balances(
    shards: &[Arc<Shard>],
    changes: &[(Option<LimitName>, AmountChange)],
    now: EpochMillis,
) -> Amounts {
    let is_named = |name: &LimitName| {
        let mut names = changes.iter().map(|(named, _)| named);
        names.any(|named| named.as_ref().is_none_or(|named| named == name))
    };
    let mut found = Amounts::new();
    for shard in shards {
        for (name, state) in &shard.limits {
            if is_named(name) && !state.rule.kind().is_held() {
                *found.entry(name.clone()).or_default() += shard.balance(state, now);
            }
        }
    }
    found
}

/// Returns the changes by limit. Requires that each is a rate of the bucket.
fn named(
    shards: &[Arc<Shard>],
    changes: &[(Option<LimitName>, AmountChange)],
) -> Result<BTreeMap<LimitName, AmountChange>, Error> {
    let mut named = BTreeMap::new();
    let Some(first) = shards.first() else {
        return Ok(named);
    };
    let of_all = || shards.iter().flat_map(|shard| shard.limits.keys());
    for (name, change) in changes {
        let Some(name) = name else {
            let can_set = |name: &&LimitName| shards.iter().any(|shard| can_set(shard, name));
            named.extend(of_all().filter(can_set).map(|name| (name.clone(), *change)));
            continue;
        };
        if !of_all().any(|known| known == name) {
            let known: Vec<_> = first.limits.keys().map(LimitName::as_str).collect();
            return Err(Error::Invalid(format!(
                "limit {name:?} is not among those of the bucket: {}; name one of them",
                known.join(", ")
            )));
        }
        let is_held = |shard: &Arc<Shard>| {
            let state = shard.limits.get(name);
            state.is_some_and(|state| state.rule.kind().is_held())
        };
        if shards.iter().all(is_held) {
            return Err(Error::Invalid(format!(
                "limit {name:?} has slots, whose number follows from their leases: release those"
            )));
        }
        if named.insert(name.clone(), *change).is_some() {
            return Err(Error::Invalid(format!(
                "limit {name:?} is changed twice in one call: change it once"
            )));
        }
    }
    // Shards get new limits one by one, with the next take from each.
    if let Some(name) = named
        .keys()
        .find(|name| !shards.iter().all(|shard| can_set(shard, name)))
    {
        return Err(Error::Invalid(format!(
            "limit {name:?} is not the same in all shards of the bucket yet: apply the limits to all shards first, or change the limit after its next takes"
        )));
    }
    Ok(named)
}

fn can_set(shard: &Shard, name: &LimitName) -> bool {
    let state = shard.limits.get(name);
    state.is_some_and(|state| !state.rule.kind().is_held())
}

/// Returns the change of one limit, whose shards have these `balances`.
fn step(
    shards: &[Arc<Shard>],
    name: &LimitName,
    change: AmountChange,
    balances: &[MilliTokens],
) -> Result<BalanceStep, Error> {
    let share = |shard: &Arc<Shard>| shard.share(&shard.limits[name]);
    let capacity: MilliTokens = shards.iter().map(share).sum();
    match change {
        AmountChange::Fill => Ok(BalanceStep::Fill),
        AmountChange::Set(amount) if amount > capacity => Err(Error::Invalid(format!(
            "limit {name:?} has a capacity of {capacity} tokens, {amount} were to be set: set at most {capacity}, or configure a greater capacity"
        ))),
        AmountChange::Set(amount) => Ok(BalanceStep::Set(amount)),
        AmountChange::Add(amount) if shards[0].limits[name].rule.kind().has_window() => {
            let parts = shards.iter().map(|shard| shard.shard().share(amount));
            Ok(BalanceStep::Raise(by_smallest(
                shards,
                &parts.collect::<Vec<_>>(),
            )))
        }
        AmountChange::Add(amount) => {
            let zero = MilliTokens::ZERO;
            let room =
                |(shard, balance): (&Arc<Shard>, &MilliTokens)| (share(shard) - *balance).max(zero);
            let rooms: Vec<_> = shards.iter().zip(balances).map(room).collect();
            let total: MilliTokens = rooms.iter().copied().sum();
            if amount > total {
                return Err(Error::Invalid(format!(
                    "limit {name:?} has room for {total} more tokens below its capacity of {capacity}, {amount} were to be added: add at most {total}, reset it, or configure a greater capacity"
                )));
            }
            // Each shard its share as far as there is room, and the rest where there is more.
            let even =
                |(shard, room): (&Arc<Shard>, &MilliTokens)| shard.shard().share(amount).min(*room);
            let mut parts: Vec<_> = shards.iter().zip(&rooms).map(even).collect();
            let mut left = amount - parts.iter().copied().sum();
            for (part, room) in parts.iter_mut().zip(&rooms) {
                let more = left.min(*room - *part);
                (*part, left) = (*part + more, left - more);
            }
            Ok(BalanceStep::Raise(by_smallest(shards, &parts)))
        }
    }
}

/// Returns the parts of shards of different counts as if all were split as often as the smallest.
fn by_smallest(shards: &[Arc<Shard>], parts: &[MilliTokens]) -> Vec<MilliTokens> {
    let count = shards.iter().map(|shard| shard.shard().count).max();
    let count = count.unwrap_or(1);
    let of_index = |index: u32| {
        let is_in = |shard: &Arc<Shard>| index % shard.shard().count == shard.key.shard;
        let (shard, part) = shards.iter().zip(parts).find(|(shard, _)| is_in(shard))?;
        let whole = shard.shard().count;
        let within = ShardIndex {
            index: index / whole,
            count: count / whole,
        };
        Some(within.share(*part))
    };
    (0..count)
        .map(|index| of_index(index).unwrap_or_default())
        .collect()
}
