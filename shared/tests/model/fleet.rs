//! A bucket of several shards, its writers, and the ledger kept beside it.

mod books;
mod hands;
mod takes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{
    Action, LeaseChange, LimitDelta, Update, expire, finish_writes, merge, merged, refill, sample,
    split,
};
use weirgate_shared::{EpochMillis, Limit, LimitName, MilliTokens, Millis, Shard, WriteId};

use super::mirror::Mirror;
use super::ops::{Back, Op};
use super::table::{Shards, Table};
use super::world::START;
use super::{bucket_key, limit_name, settle};
use takes::Belief;

type Needs = BTreeMap<LimitName, MilliTokens>;

/// More shards than this are not made. Whole tokens have even shares in up to 8.
const MAX_SHARDS: u32 = 32;

/// A grant, as its holder has recorded it.
#[derive(Debug, Clone)]
struct Grant {
    rate: MilliTokens,
    slots: MilliTokens,
    /// The share of the rate when it was taken.
    ceiling: MilliTokens,
}

/// An applied write: its clock, the tokens that it granted of the rate, and those that leases and
/// rollbacks returned.
#[derive(Debug, Clone, Copy)]
struct Event {
    clock: Option<EpochMillis>,
    admitted: MilliTokens,
    back: MilliTokens,
    /// Debt of the shards at that time.
    owed: MilliTokens,
}

/// The bucket, and the books.
pub struct Fleet {
    limits: Vec<Limit>,
    table: Table,
    now: EpochMillis,
    /// Shards after each write.
    past: Vec<Shards>,
    /// Kept while all clocks are correct.
    mirror: Option<Mirror>,
    /// Amounts of the leases, by shard and id.
    leased: BTreeMap<(u32, WriteId), Grant>,
    /// Takes without a lease, with their shards.
    loose: Vec<(u32, Grant)>,
    /// Grants less returns, by limit; returned slots count as used.
    used: Needs,
    granted: i64,
    events: Vec<Event>,
    /// Every split and merge planned so far, and when.
    plans: Vec<(EpochMillis, Vec<Action>)>,
    /// Every write that finished a split, or tried.
    finishing: Vec<Update>,
    ids: u64,
    /// Shards that were idle at a sample, and are not sampled again.
    rested: BTreeSet<u32>,
    /// Whether items were deleted manually. Their debts are dropped, and a new bucket begins full.
    is_torn: bool,
    forgotten: MilliTokens,
}

/// Capacities, rates and slots small enough to run dry, and odd; not yet there, or already split
/// some times.
pub fn fleet(are_clocks_right: bool) -> impl Strategy<Value = Fleet> {
    let rounds = prop_oneof![12 => 0..5u32, 1 => Just(5)];
    (1..30i64, 1..30i64, 1..5000i64, 1..12i64, rounds).prop_map(
        move |(capacity, amount, period, slots, rounds)| {
            let rate = Limit::custom("rpm", capacity, amount, period).unwrap();
            Fleet::new(
                rate,
                Limit::concurrent("slots", slots).unwrap(),
                rounds,
                are_clocks_right,
            )
        },
    )
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} shards of {:?}",
            self.table.shards().len(),
            self.limits
        )
    }
}

impl Fleet {
    fn new(rate: Limit, slots: Limit, rounds: u32, are_clocks_right: bool) -> Self {
        let mirror = are_clocks_right.then(|| Mirror::new(*rate.rule(), START));
        let mut fleet = Self {
            limits: vec![rate, slots],
            table: Table::default(),
            now: START,
            past: vec![],
            mirror,
            leased: BTreeMap::new(),
            loose: vec![],
            used: Needs::new(),
            granted: 0,
            events: vec![],
            plans: vec![],
            finishing: vec![],
            ids: 0,
            rested: BTreeSet::new(),
            is_torn: false,
            forgotten: MilliTokens::ZERO,
        };
        if rounds > 0 {
            let update = fleet.planned(0, None, &Needs::new(), None, 0, Belief::at(START));
            fleet.write(update, Some(START)).unwrap();
        }
        for _ in 1..rounds {
            for shard in fleet.table.shards().clone().values() {
                let first = split(shard, 0, fleet.id(), START);
                fleet.write(first, Some(START)).unwrap();
                fleet.finish(shard.key.shard, 0, true).unwrap();
            }
        }
        fleet.check().unwrap();
        fleet
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn now(&self) -> EpochMillis {
        self.now
    }

    fn id(&mut self) -> WriteId {
        self.ids += 1;
        WriteId::from_bits(self.ids)
    }

    /// A shard that there is, or now and then one that there was.
    fn number(&self, which: Index) -> u32 {
        let there = || self.table.shards().keys().copied();
        let numbers: Vec<_> = there().chain(there()).chain(self.table.numbers()).collect();
        if numbers.is_empty() {
            0
        } else {
            *which.get(&numbers)
        }
    }

    pub fn step(&mut self, op: &Op, skew: i64) -> Result<(), TestCaseError> {
        let clock = self.now.plus(Millis(skew));
        match op {
            Op::Wait(span) => self.now = self.now.plus(Millis(*span)),
            Op::Take { shard, back, ask } => self.take(self.number(*shard), *back, ask, clock)?,
            Op::Spread { back, alone, ask } => self.spread(*back, *alone, ask, clock)?,
            Op::End(which) => {
                let Some((shard, id)) = self.lease(*which) else {
                    return Ok(());
                };
                let grant = self.leased.remove(&(shard, id.clone())).unwrap();
                let settled = LimitDelta {
                    available: grant.slots,
                    ..LimitDelta::default()
                };
                let (key, amounts) = (bucket_key(shard), [(limit_name("slots"), settled)].into());
                let settle = settle(
                    &key,
                    self.id(),
                    Some((&id, LeaseChange::End)),
                    amounts,
                    clock,
                );
                prop_assert!(self.write(settle.full(None), None)?);
                prop_assert!(
                    !self.table.update(settle.full(None)),
                    "I4: a lease gave back twice"
                );
            }
            Op::Renew(which, later) => {
                let Some((shard, id)) = self.lease(*which) else {
                    return Ok(());
                };
                let expires = self.table.shards()[&shard].leases.as_ref().unwrap()[&id]
                    .expires_at
                    .plus(Millis(*later));
                let (key, change) = (bucket_key(shard), Some((&id, LeaseChange::Renew(expires))));
                let settle = settle(&key, self.id(), change, BTreeMap::new(), clock);
                prop_assert!(self.write(settle.full(None), None)?);
            }
            Op::Adjust { grant, part, back } => self.adjust(*grant, *part, *back, clock)?,
            Op::Expire {
                shard,
                back,
                look: is_look,
            } => {
                let shard = self.number(*shard);
                let Some(image) = self.table.image(shard, *back) else {
                    return Ok(());
                };
                let plan = if *is_look {
                    Some(sample(&image, clock))
                } else {
                    expire(&image, clock)
                };
                let is_there = self.table.shards().contains_key(&shard);
                if let Some((update, _)) = plan {
                    if *is_look
                        && image
                            .scaling
                            .sample
                            .is_some_and(|sample| sample.write_seq == image.write_seq)
                    {
                        self.rested.insert(shard);
                    }
                    let is_done = self.write(update, Some(clock))?;
                    prop_assert!(is_done || *back > 0 || !is_there);
                }
            }
            Op::Refill { shard, back } => {
                let Some(image) = self.table.image(self.number(*shard), *back) else {
                    return Ok(());
                };
                let consumed = [(limit_name("rpm"), self.limits[0].rule().capacity)].into();
                if let Some(update) = refill(&image, &consumed, clock) {
                    self.write(update, Some(clock))?;
                }
            }
            Op::Split { shard, back } => self.split(self.number(*shard), *back, clock)?,
            Op::Finish { shard, back, clear } => self.finish(self.number(*shard), *back, *clear)?,
            Op::Late(which) => {
                if !self.finishing.is_empty() {
                    self.write(which.get(&self.finishing).clone(), None)?;
                }
            }
            Op::Merge { pair, backs } => self.merge(*pair, *backs, clock)?,
            Op::Repeat(which) => {
                // While clocks are right, a plan that is late is one by a clock that is wrong.
                let is_now = |(at, _): &&(EpochMillis, _)| self.mirror.is_none() || *at == self.now;
                let plans: Vec<_> = self.plans.iter().filter(is_now).cloned().collect();
                if !plans.is_empty() {
                    let (at, actions) = which.get(&plans);
                    self.transact(actions, Some(*at))?;
                }
            }
        }
        self.check()
    }

    fn lease(&self, which: Index) -> Option<(u32, WriteId)> {
        (!self.leased.is_empty()).then(|| {
            which
                .get(&self.leased.keys().collect::<Vec<_>>())
                .to_owned()
                .clone()
        })
    }

    fn split(&mut self, shard: u32, back: Back, clock: EpochMillis) -> Result<(), TestCaseError> {
        let Some(image) = self
            .table
            .image(shard, back)
            .filter(|image| image.shard_count < MAX_SHARDS)
        else {
            return Ok(());
        };
        let (one, other) = (self.id(), self.id());
        let first = split(&image, 0, one, clock);
        let is_there = self.table.shards().contains_key(&shard);
        self.plans
            .push((clock, vec![Action::Update(first.clone())]));
        if self.write(first.clone(), Some(clock))? {
            let again = split(&image, 0, other, clock);
            prop_assert!(
                !self.table.update(first),
                "I7: its answer was lost, and it split once more"
            );
            prop_assert!(
                !self.table.update(again),
                "I7: two split it, and it is split twice"
            );
        } else {
            let may = back == 0 && is_there && image.escrow.is_none();
            prop_assert!(!may, "a split of what there is was refused: {first:?}");
        }
        Ok(())
    }

    /// Makes the new half of a shard that is being split, and removes the escrow if `clear`.
    fn finish(&mut self, shard: u32, back: Back, clear: bool) -> Result<(), TestCaseError> {
        // A write arrives within seconds, and does not meet items deleted in between.
        let back = if self.is_torn { 0 } else { back };
        let Some([make, remove]) = self
            .table
            .image(shard, back)
            .and_then(|image| finish_writes(&image))
        else {
            return Ok(());
        };
        if self.write(make.clone(), None)? {
            prop_assert!(
                !self.table.update(make.clone()),
                "I7: its answer was lost, and it was made once more"
            );
        }
        self.finishing.push(make);
        if clear {
            self.write(remove.clone(), None)?;
            prop_assert!(
                !self.table.update(remove.clone()),
                "I7: it was removed twice"
            );
            self.finishing.push(remove);
        }
        Ok(())
    }

    /// Finishes all splits. Of late writes that belong to them, none comes after this.
    fn finish_all(&mut self) {
        for shard in self.table.shards().clone().into_keys() {
            self.finish(shard, 0, true)
                .expect("what holds after each write");
        }
        self.finishing.clear();
    }

    fn merge(
        &mut self,
        pair: Index,
        backs: (Back, Back),
        clock: EpochMillis,
    ) -> Result<(), TestCaseError> {
        let shards = self.table.shards();
        let lower = |upper: &Shard| {
            let whole = upper
                .shard()
                .parent()
                .filter(|whole| whole.index != upper.key.shard)?;
            let lower = shards
                .get(&whole.index)
                .filter(|lower| lower.shard_count == upper.shard_count)?;
            Some((lower.key.shard, upper.key.shard))
        };
        let pairs: Vec<_> = shards.values().filter_map(|upper| lower(upper)).collect();
        if pairs.is_empty() {
            return Ok(());
        }
        let (lower, upper) = *pair.get(&pairs);
        let image = |shard, back| self.table.image(shard, back).unwrap();
        let (lower, upper) = (image(lower, backs.0), image(upper, backs.1));
        let Some(next) = merged(&lower, &upper, clock) else {
            let mut leases = upper.leases.iter().flatten();
            let is_split = lower.escrow.is_some() || upper.escrow.is_some();
            let is_used = is_split
                || leases.any(|(_, lease)| lease.expires_at > clock)
                || lower.refilled_at.max(upper.refilled_at) > clock;
            prop_assert!(
                is_used || backs != (0, 0),
                "they stay two: {:?} {:?}",
                lower,
                upper
            );
            return Ok(());
        };
        let actions = merge(&lower, next, &[&upper]);
        self.plans.push((clock, actions.clone()));
        if self.transact(&actions, Some(clock))? {
            prop_assert!(
                !self.table.transact(&actions),
                "I7: its answer was lost, and it merged once more"
            );
        } else {
            prop_assert!(
                backs != (0, 0),
                "a merge of what there is was refused: {actions:?}"
            );
        }
        Ok(())
    }
}
