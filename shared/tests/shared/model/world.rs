//! One shard, its writers, and the ledger kept beside it.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{Contention, LeaseChange, LimitDelta, Take, expire, refill};
use weirgate_shared::{
    EpochMillis, Lease, Limit, LimitName, MilliTokens, Millis, Shard, ShardIndex, WriteId,
    refill_between, refilled,
};

use super::{
    Item, START, assert_due_is_a_lower_bound, bucket_key, contention, held, limit_name, settle,
    take,
};

/// Age of a writer's view, in images; `None` for one that reads first, or settles without a view.
pub type View = Option<usize>;

/// The next step.
#[derive(Debug, Clone)]
pub enum Op {
    Wait(i64),
    /// Takes a part (of 1000) of the rate's share, and slots; with a lease if slots are among it.
    Take {
        view: View,
        part: i64,
        slots: i64,
        lease: Option<i64>,
        contention: Contention,
    },
    /// Ends a lease: slots go back, rate tokens were used.
    End(Index),
    /// Changes what a lease holds of the rate to a part of it, up to twice as much.
    Hold {
        lease: Index,
        part: i64,
        view: View,
    },
    Renew(Index, i64),
    /// Gives back a take that had no lease.
    GiveBack {
        take: Index,
        view: View,
    },
    Expire(View),
    Refill {
        view: usize,
    },
}

pub fn op() -> impl Strategy<Value = Op> {
    let view = || prop_oneof![1 => Just(None), 6 => (0..6usize).prop_map(Some)];
    prop_oneof![
        3 => prop_oneof![1..50i64, 1..3000i64].prop_map(Op::Wait),
        6 => (view(), 1..=1000i64, 0..3i64, option::of(0..3000i64), contention())
            .prop_map(|(view, part, slots, lease, contention)| Op::Take { view, part, slots, lease, contention }),
        1 => any::<Index>().prop_map(Op::End),
        1 => (any::<Index>(), 0..2000i64, view()).prop_map(|(lease, part, view)| Op::Hold { lease, part, view }),
        1 => (any::<Index>(), 0..5000i64).prop_map(|(lease, later)| Op::Renew(lease, later)),
        1 => (any::<Index>(), view()).prop_map(|(take, view)| Op::GiveBack { take, view }),
        1 => view().prop_map(Op::Expire),
        2 => (0..6usize).prop_map(|view| Op::Refill { view }),
    ]
}

/// Returns operations, each with its writer's clock offset in ms.
pub fn ops() -> impl Strategy<Value = Vec<(Op, i64)>> {
    let skew = prop_oneof![3 => Just(0), 1 => -2000..2000i64];
    vec((op(), skew), 1..60)
}

/// Returns capacities, rates and slots small enough to be used up, of an unsplit bucket or of one
/// shard among several.
pub fn world() -> impl Strategy<Value = World> {
    let shard = prop_oneof![
        3 => Just(ShardIndex::UNSPLIT),
        1 => (1..5u32).prop_flat_map(|count| (0..count).prop_map(move |index| ShardIndex { index, count })),
    ];
    (
        1..30i64,
        1..30i64,
        1..5000i64,
        5..12i64,
        shard,
        any::<bool>(),
    )
        .prop_map(|(capacity, amount, period, slots, shard, is_there)| {
            let rate = Limit::custom("rpm", capacity, amount, period).unwrap();
            World::new(
                rate,
                Limit::concurrent("slots", slots).unwrap(),
                shard,
                is_there,
            )
        })
}

/// One bucket shard, everything ever seen of it, and the books kept beside it.
#[derive(Debug)]
pub struct World {
    limits: Vec<Limit>,
    shard: ShardIndex,
    item: Item,
    now: EpochMillis,
    /// Shard after each write, and the time of the write.
    images: Vec<(EpochMillis, Shard)>,
    /// Amounts that the holder of each lease has recorded: of the rate, and slots.
    held: BTreeMap<WriteId, (MilliTokens, MilliTokens)>,
    /// Takes without a lease that were not returned.
    loose: Vec<MilliTokens>,
    /// Grants less returns, of the rate.
    used: MilliTokens,
    takes: i64,
    ids: u64,
}

impl World {
    fn new(rate: Limit, slots: Limit, shard: ShardIndex, is_there: bool) -> Self {
        let mut item = Item::default();
        let mut images = vec![];
        // Clients create only shard 0 of 1.
        if is_there || shard != ShardIndex::UNSPLIT {
            item = Item::of_bucket(&super::bucket(shard, &[rate.clone(), slots.clone()], START));
            images.push((START, item.bucket()));
        }
        let (held, loose) = (BTreeMap::new(), vec![]);
        let (limits, used) = (vec![rate, slots], MilliTokens::ZERO);
        Self {
            limits,
            shard,
            item,
            now: START,
            images,
            held,
            loose,
            used,
            takes: 0,
            ids: 0,
        }
    }

    fn share(&self, limit: usize) -> MilliTokens {
        self.shard.share(self.limits[limit].rule().capacity)
    }

    fn id(&mut self) -> WriteId {
        self.ids += 1;
        WriteId::from_bits(self.ids)
    }

    fn view(&self, back: View) -> Option<Shard> {
        let last = self.images.len().checked_sub(1)?;
        Some(self.images[last.saturating_sub(back?)].1.clone())
    }

    fn lease(&self, which: Index) -> Option<WriteId> {
        (!self.held.is_empty()).then(|| {
            which
                .get(&self.held.keys().collect::<Vec<_>>())
                .to_owned()
                .clone()
        })
    }

    /// Closes the leases that are gone from the item but still recorded by their holders: the last
    /// write returned them in full.
    fn close_leases_given_back(&mut self, after: &Shard) {
        let leases = after.leases.as_ref().unwrap();
        let gone: Vec<_> = self
            .held
            .keys()
            .filter(|id| !leases.contains_key(*id))
            .cloned()
            .collect();
        for id in gone {
            self.used -= self.held.remove(&id).unwrap().0;
        }
    }

    /// Checks the invariants that hold after every write.
    fn check(&self) -> Result<(), TestCaseError> {
        if !self.item.exists() {
            return Ok(());
        }
        let bucket = self.item.bucket();
        let (rate, slots) = (
            &bucket.limits[self.limits[0].name()],
            &bucket.limits[self.limits[1].name()],
        );
        // I4: what left the bucket's leases is exactly what their holders lost, and the other way
        // round.
        let leases: BTreeMap<_, _> = bucket.leases.iter().flatten().collect();
        prop_assert_eq!(
            leases.keys().copied().collect::<Vec<_>>(),
            self.held.keys().collect::<Vec<_>>()
        );
        prop_assert_eq!(
            rate.consumed,
            self.used,
            "usage is not what was admitted less what came back"
        );
        // Slots: all that are not free are held by a recorded holder.
        let in_use: MilliTokens = self.held.values().map(|(_, slots)| *slots).sum();
        prop_assert_eq!(held(&bucket, self.limits[1].name()), in_use);
        prop_assert_eq!(
            slots.available + in_use,
            self.share(1),
            "a slot was made or lost"
        );
        prop_assert!(
            slots.available >= MilliTokens::ZERO,
            "more slots are held than there are"
        );
        // I1 over the whole run, exact: granted and still available tokens are at most the refill.
        let flowed = self.share(0)
            + refill_between(
                &rate.rule,
                self.shard,
                START.min(self.images[0].1.refilled_at),
                bucket.refilled_at,
            );
        prop_assert!(
            rate.consumed + rate.available <= flowed,
            "minted: {:?} used, {:?} left of {flowed:?}",
            rate.consumed,
            rate.available
        );
        prop_assert!(rate.available <= self.share(0));
        prop_assert_eq!(bucket.acquires.total, i128::from(self.takes));
        assert_due_is_a_lower_bound(&self.item, &bucket);
        Ok(())
    }

    /// Notes the write that was just applied; `v` counts each by one, or a copy of it would be
    /// taken for an older one.
    fn applied(&mut self) -> Result<Shard, TestCaseError> {
        let bucket = self.item.bucket();
        if let Some((_, before)) = self.images.last() {
            prop_assert_eq!(bucket.write_seq, before.write_seq + 1);
        }
        self.images.push((self.now, bucket.clone()));
        Ok(bucket)
    }

    pub fn step(&mut self, op: &Op, skew: i64) -> Result<(), TestCaseError> {
        let clock = self.now.plus(Millis(skew));
        let key = bucket_key(self.shard.index);
        match op {
            Op::Wait(span) => self.now = self.now.plus(Millis(*span)),
            Op::Take {
                view,
                part,
                slots,
                lease,
                contention,
            } => self.take(
                (self.view(*view), *contention),
                *part,
                *slots,
                *lease,
                clock,
            )?,
            Op::End(which) => {
                let Some(lease) = self.lease(*which) else {
                    return Ok(());
                };
                let back = self.held[&lease].1;
                let settled = LimitDelta {
                    available: back,
                    ..LimitDelta::default()
                };
                let amounts = [(limit_name("slots"), settled)].into();
                let settle = settle(
                    &key,
                    self.id(),
                    Some((&lease, LeaseChange::End)),
                    amounts,
                    clock,
                );
                prop_assert!(self.item.apply(&settle.full(None)));
                prop_assert!(
                    !self.item.apply(&settle.full(None)),
                    "a lease gave back twice"
                );
                self.held.remove(&lease);
                self.applied()?;
            }
            Op::Hold { lease, part, view } => {
                let Some(lease) = self.lease(*lease) else {
                    return Ok(());
                };
                let old = self.held[&lease].0;
                let new = MilliTokens(old.0 * part / 1000);
                let settled = LimitDelta {
                    available: old - new,
                    consumed: new - old,
                    ceiling: Some(self.share(0)),
                };
                let change = LeaseChange::SetAmounts([(limit_name("rpm"), (old, new))].into());
                let amounts = [(limit_name("rpm"), settled)].into();
                let settle = settle(&key, self.id(), Some((&lease, change)), amounts, clock);
                let update = self
                    .view(*view)
                    .map_or_else(|| settle.full(None), |bucket| settle.capped(&bucket));
                if self.item.apply(&update) || self.item.apply(&settle.capped(&self.item.bucket()))
                {
                    self.held.get_mut(&lease).unwrap().0 = new;
                    self.used += new - old;
                    self.applied()?;
                }
            }
            Op::Renew(which, later) => {
                let Some(lease) = self.lease(*which) else {
                    return Ok(());
                };
                let expires = self.item.bucket().leases.unwrap()[&lease]
                    .expires_at
                    .plus(Millis(*later));
                let change = Some((&lease, LeaseChange::Renew(expires)));
                let settle = settle(&key, self.id(), change, BTreeMap::new(), clock);
                prop_assert!(self.item.apply(&settle.full(None)));
                self.applied()?;
            }
            Op::GiveBack { take, view } => {
                if self.loose.is_empty() {
                    return Ok(());
                }
                let at = take.index(self.loose.len());
                let taken = self.loose[at];
                let settled = LimitDelta {
                    available: taken,
                    consumed: -taken,
                    ceiling: Some(self.share(0)),
                };
                let amounts = [(limit_name("rpm"), settled)].into();
                let settle = settle(&key, self.id(), None, amounts, clock);
                let update = self
                    .view(*view)
                    .map_or_else(|| settle.full(None), |bucket| settle.capped(&bucket));
                if self.item.apply(&update) {
                    self.loose.remove(at);
                    self.used -= taken;
                    self.applied()?;
                }
            }
            Op::Expire(view) => {
                let Some((update, restored)) =
                    self.view(*view).and_then(|bucket| expire(&bucket, clock))
                else {
                    return Ok(());
                };
                let before = self.item.bucket();
                if self.item.apply(&update) {
                    let after = self.applied()?;
                    prop_assert_eq!(
                        expire(&after, clock),
                        None,
                        "a second run finds something to do"
                    );
                    let gone = before.leases.as_ref().unwrap().len()
                        - after.leases.as_ref().unwrap().len();
                    prop_assert_eq!(restored.leases, gone);
                    for (name, amount) in &restored.tokens {
                        prop_assert_eq!(
                            after.limits[name].available,
                            before.limits[name].available + *amount
                        );
                    }
                    self.close_leases_given_back(&after);
                }
            }
            Op::Refill { view } => {
                let Some((_, image)) = self.images.iter().rev().nth(*view).cloned() else {
                    return Ok(());
                };
                let consumed = [(limit_name("rpm"), self.share(0))].into();
                let Some(update) = refill(&image, &consumed, clock) else {
                    return Ok(());
                };
                let before = self.item.bucket();
                if self.item.apply(&update) {
                    let after = self.applied()?;
                    prop_assert!(
                        after.refilled_at > before.refilled_at && after.refilled_at <= clock
                    );
                    // Never more than the next refilling take would have found, now or ever.
                    let name = limit_name("rpm");
                    for later in [
                        clock,
                        clock.plus(Millis(1)),
                        clock.plus(Millis(777)),
                        clock.plus(Millis(99_999)),
                    ] {
                        let balance = |bucket: &Shard| bucket.balance(&bucket.limits[&name], later);
                        prop_assert!(balance(&after) <= balance(&before));
                    }
                }
            }
        }
        self.check()
    }

    fn take(
        &mut self,
        (view, contention): (Option<Shard>, Contention),
        part: i64,
        slots: i64,
        lease: Option<i64>,
        clock: EpochMillis,
    ) -> Result<(), TestCaseError> {
        let need = MilliTokens(self.share(0).0 * part / 1000);
        let slots = MilliTokens::from_tokens(slots);
        let mut needs: BTreeMap<LimitName, _> = [(limit_name("rpm"), need)].into();
        if slots > MilliTokens::ZERO {
            needs.insert(limit_name("slots"), slots);
        }
        // Slots are always held by a lease, or they could never come back.
        let lease = lease.or((slots > MilliTokens::ZERO).then_some(1500));
        let leases: Vec<_> = lease
            .map(|ms| Lease {
                expires_at: clock.plus(Millis(ms)),
                tokens: needs.clone(),
                owner: "me".to_owned(),
            })
            .map(|lease| (self.id(), lease))
            .into_iter()
            .collect();
        let (key, op) = (bucket_key(self.shard.index), self.id());
        let limits = self.limits.clone();
        let take = Take {
            leases,
            contention,
            ..take(&key, &limits, needs, op, clock)
        };
        let update = if self.item.exists() {
            take.plan(view.as_ref().unwrap_or(&self.item.bucket()), clock)
        } else {
            take.create(clock)
        };
        let before = self.item.exists().then(|| self.item.bucket());
        let applied = self.item.apply(&update);
        if let Some(before) = &before {
            let free = before.projected(&self.limits, clock);
            // Of nothing there is always enough, even from a debt.
            let has = |bucket: &Shard| {
                take.amounts.iter().all(|(name, need)| {
                    *need == MilliTokens::ZERO || bucket.limits[name].available >= *need
                })
            };
            let is_enough = has(&free);
            let is_stale = matches!(contention, Contention::SharedStale { .. });
            if view.as_ref().is_none_or(|view| view == before) && !is_stale {
                // I5: a writer with a current view is never denied available tokens, and never
                // granted others.
                prop_assert_eq!(applied, is_enough || has(before));
            } else if applied {
                // Any other view may fail, but never gets unavailable tokens.
                prop_assert!(is_enough, "taken: {:?}", update);
            }
        }
        if !applied {
            return Ok(());
        }
        let needs = take.amounts.clone();
        let leased: Vec<_> = take.leases.iter().map(|(id, _)| id.clone()).collect();
        let after = self.applied()?;
        prop_assert_eq!(after.last_write_id, Some(take.write_id));
        self.takes += 1;
        self.used += need;
        match leased.first() {
            Some(id) => drop(self.held.insert(id.clone(), (need, slots))),
            None => self.loose.push(need),
        }
        if let Some(before) = before.filter(|before| before.refilled_at != after.refilled_at) {
            // A take from refill never leaves more than the balance and all returns from leases.
            let state = &before.limits[&limit_name("rpm")];
            let ended = before
                .leases
                .iter()
                .flatten()
                .filter(|(id, _)| !after.leases.as_ref().unwrap().contains_key(*id));
            let back: MilliTokens = ended
                .filter_map(|(_, lease)| lease.tokens.get("rpm"))
                .copied()
                .sum();
            let there = refilled(
                state.available,
                &state.rule,
                self.shard,
                before.refilled_at,
                after.refilled_at,
            ) + back;
            prop_assert!(
                after.limits[&limit_name("rpm")].available + needs[&limit_name("rpm")] <= there
            );
        }
        let after = self.item.bucket();
        self.close_leases_given_back(&after);
        Ok(())
    }
}
