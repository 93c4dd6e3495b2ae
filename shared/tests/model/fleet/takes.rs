//! Takes from one shard and from several, and what becomes of them afterwards.

use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{
    Action, Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update,
};
use weirgate_shared::{
    EpochMillis, Hour, Lease, MilliTokens, Millis, Shard, WriteId, refill_between,
};

use super::{Fleet, Grant, Needs};
use crate::model::ops::{Ask, Back, Much};
use crate::model::table::whole;
use crate::model::{bucket_key, limit_name, settle, take};

/// What a writer believes besides its view of a shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Belief {
    clock: EpochMillis,
    by_others: bool,
    contention: Contention,
}

impl Belief {
    /// Returns a writer that knows no other.
    pub(super) fn at(clock: EpochMillis) -> Self {
        Self {
            clock,
            by_others: false,
            contention: Contention::Alone,
        }
    }

    fn of(ask: &Ask, clock: EpochMillis) -> Self {
        Self {
            clock,
            by_others: ask.by_others,
            contention: ask.contention,
        }
    }

    /// Returns whether it holds, so that a current view finds all tokens.
    fn is_sure(self) -> bool {
        !self.by_others && !matches!(self.contention, Contention::SharedStale { .. })
    }
}

/// The lease of a take, and when it expires.
type Until = (WriteId, EpochMillis);

impl Fleet {
    /// A take of one shard, or the bucket's first.
    pub(super) fn planned(
        &mut self,
        shard: u32,
        view: Option<&Shard>,
        needs: &Needs,
        lease: Option<&Until>,
        takes: i64,
        belief: Belief,
    ) -> Update {
        let (key, op) = (bucket_key(shard), self.id());
        let lease = lease.map(|(id, expires)| {
            (
                id.clone(),
                Lease {
                    expires_at: *expires,
                    tokens: needs.clone(),
                    owner: "me".to_owned(),
                },
            )
        });
        let (leases, unknown) = (lease.into_iter().collect(), std::slice::from_ref(&op));
        let take = take(&key, &self.limits, needs.clone(), op.clone(), belief.clock);
        let take = Take {
            acquires: takes,
            leases,
            roll: Roll {
                by_others: belief.by_others,
                ..take.roll
            },
            contention: belief.contention,
            unconfirmed: unknown,
            ..take
        };
        if self.table.shards().is_empty() {
            return take.create(belief.clock);
        }
        // Without a view, the process reads first.
        let last = self.table.image(shard, 0).unwrap();
        take.plan(view.unwrap_or(&last), belief.clock)
    }

    pub(super) fn take(
        &mut self,
        shard: u32,
        back: Option<Back>,
        ask: &Ask,
        clock: EpochMillis,
    ) -> Result<(), TestCaseError> {
        let rpm = limit_name("rpm");
        let creates = self.table.shards().is_empty();
        let shard = if creates { 0 } else { shard };
        let view = back.and_then(|back| self.table.image(shard, back));
        let there = self.table.shards().get(&shard).cloned();
        let whole = self.limits[0].rule().capacity;
        let (share, holds) = there.as_ref().map_or((whole, whole), |there| {
            (
                there.share(&there.limits[&rpm]),
                there.balance_at(&rpm, clock),
            )
        });
        let (mut needs, lease) = self.asked(ask, share, holds, clock);
        if creates {
            // A request for more than the bucket's capacity is never written.
            for limit in &self.limits {
                needs
                    .entry(limit.name().clone())
                    .and_modify(|need| *need = (*need).min(limit.rule().capacity));
            }
        }
        let belief = Belief::of(ask, clock);
        let update = self.planned(shard, view.as_deref(), &needs, lease.as_ref(), 1, belief);
        let is_done = self.write(update, Some(clock))?;
        match there {
            None => prop_assert_eq!(is_done, creates, "a take made a shard that is not there"),
            Some(there) => {
                let is_enough = is_enough(&there, &needs, clock);
                prop_assert!(
                    is_enough || !is_done,
                    "I1: {:?} taken at {:?} from {:?}",
                    needs,
                    clock,
                    there
                );
                let is_sure = back == Some(0) && belief.is_sure();
                prop_assert!(
                    is_done || !is_enough || !is_sure,
                    "I2: {:?} of {:?}",
                    needs,
                    there
                );
            }
        }
        if is_done {
            self.book(&[(shard, needs)], lease.as_ref(), belief)
        } else {
            Ok(())
        }
    }

    pub(super) fn spread(
        &mut self,
        back: Back,
        alone: bool,
        ask: &Ask,
        clock: EpochMillis,
    ) -> Result<(), TestCaseError> {
        // A take creates the shard if there is none.
        let is_there = !self.table.shards().is_empty();
        let Some(seen) = self
            .past
            .iter()
            .nth_back(back)
            .filter(|_| is_there)
            .cloned()
        else {
            return Ok(());
        };
        let (rpm, whole) = (limit_name("rpm"), whole(&seen));
        let (needs, lease) = self.asked(
            ask,
            self.limits[0].rule().capacity,
            whole.balance_at(&rpm, clock),
            clock,
        );
        let is_in_all = needs
            .iter()
            .all(|(limit, need)| whole.balance_at(limit, clock) >= *need);
        let parts = whole.spread(&needs, clock);
        prop_assert_eq!(parts.is_some(), is_in_all);
        let Some(mut parts) = parts else {
            return Ok(());
        };
        for (limit, need) in &needs {
            let sum: MilliTokens = parts
                .iter()
                .filter_map(|(_, part)| part.get(limit))
                .copied()
                .sum();
            prop_assert_eq!(sum, *need, "the parts are not what was asked");
        }
        if let Some(one) = seen
            .values()
            .find(|shard| alone && is_enough(shard, &needs, clock))
        {
            parts = vec![(one.key.shard, needs)];
        }
        let before = self.table.shards().clone();
        let (belief, mut actions) = (Belief::of(ask, clock), vec![]);
        for (at, (shard, needs)) in parts.iter().enumerate() {
            let (view, takes) = (Some(&*seen[shard]), i64::from(at == 0));
            actions.push(Action::Update(self.planned(
                *shard,
                view,
                needs,
                lease.as_ref(),
                takes,
                belief,
            )));
        }
        if actions.is_empty() {
            return Ok(());
        }
        if !self.transact(&actions, Some(clock))? {
            prop_assert!(
                back > 0 || !belief.is_sure(),
                "I2: {:?} of {:?} is there, and was refused",
                parts,
                before
            );
            return Ok(());
        }
        for (shard, needs) in &parts {
            prop_assert!(
                is_enough(&before[shard], needs, clock),
                "I1: {:?} taken from {:?}",
                needs,
                before[shard]
            );
        }
        self.book(&parts, lease.as_ref(), belief)
    }

    /// I5: a spread of so many thousandths of the capacity succeeds at the instant that is named,
    /// and not before.
    pub fn check_ready(&mut self, limit: usize, part: i64) -> Result<(), TestCaseError> {
        self.finish_all();
        let (limit, whole) = (self.limits[limit].clone(), self.table.whole());
        let mut need = MilliTokens(limit.rule().capacity.0 * part / 1000);
        if limit.rule().is_concurrent() {
            need = MilliTokens::from_tokens(need.whole_tokens());
        }
        let needs: Needs = [(limit.name().clone(), need)].into();
        let Some(at) = whole.ready_at(limit.name(), need, self.now) else {
            let never = whole.spread(&needs, EpochMillis(self.now.0 * 2));
            prop_assert_eq!(never, None, "time brings {:?} of {:?}", needs, whole);
            return Ok(());
        };
        if at > self.now {
            let early = whole.spread(&needs, EpochMillis(at.0 - 1));
            prop_assert_eq!(
                early,
                None,
                "{:?} is not the first instant for {:?} of {:?}",
                at,
                needs,
                whole
            );
        }
        let parts = whole.spread(&needs, at);
        prop_assert!(
            parts.is_some(),
            "{:?} is too early for {:?} of {:?}",
            at,
            needs,
            whole
        );
        let shards = self.table.shards().clone();
        let plan = |(shard, needs)| {
            Action::Update(self.planned(
                shard,
                Some(&shards[&shard]),
                &needs,
                None,
                1,
                Belief::at(at),
            ))
        };
        let actions: Vec<_> = parts.unwrap().into_iter().map(plan).collect();
        prop_assert!(
            self.table.clone().transact(&actions),
            "{:?} is too early for {:?} of {:?}",
            at,
            needs,
            whole
        );
        Ok(())
    }

    fn asked(
        &mut self,
        ask: &Ask,
        of: MilliTokens,
        there: MilliTokens,
        clock: EpochMillis,
    ) -> (Needs, Option<Until>) {
        let rate = match ask.rate {
            Much::Part(part) => MilliTokens(of.0 * part / 1000),
            Much::There(more) => there + MilliTokens(more),
            Much::Headroom(more) => of / 128 + MilliTokens(more),
        };
        let mut needs: Needs = [(limit_name("rpm"), rate.max(MilliTokens::ZERO))].into();
        if ask.slots > 0 {
            needs.insert(limit_name("slots"), MilliTokens::from_tokens(ask.slots));
        }
        // Slots are always held by a lease, or they could never come back.
        let lasts = ask.lease.or((ask.slots > 0).then_some(300));
        (needs, lasts.map(|ms| (self.id(), clock.plus(Millis(ms)))))
    }

    /// Enters a take that was applied.
    fn book(
        &mut self,
        parts: &[(u32, Needs)],
        lease: Option<&Until>,
        belief: Belief,
    ) -> Result<(), TestCaseError> {
        for (shard, needs) in parts {
            let hour = self.table.shards()[shard].hour;
            prop_assert!(
                hour >= Hour::of(belief.clock),
                "I3: taken at {:?}, and counted for {:?}",
                belief.clock,
                hour
            );
            let need = |limit: &str| needs.get(limit).copied().unwrap_or_default();
            let bucket = &self.table.shards()[shard];
            let ceiling = bucket.share(&bucket.limits[&limit_name("rpm")]);
            let grant = Grant {
                rate: need("rpm"),
                slots: need("slots"),
                ceiling,
            };
            for (limit, need) in needs {
                *self.used.entry(limit.clone()).or_default() += *need;
            }
            self.events.last_mut().unwrap().admitted += grant.rate;
            if let Some(mirror) = &mut self.mirror {
                mirror.take(*shard, grant.rate)?;
                if belief.contention != Contention::Alone {
                    let state = &bucket.limits[&limit_name("rpm")];
                    mirror.leave_headroom(*shard, bucket.balance(state, self.now))?;
                }
            }
            match lease {
                Some((id, _)) => drop(self.leased.insert((*shard, id.clone()), grant)),
                None => self.loose.push((*shard, grant)),
            }
        }
        self.granted += 1;
        Ok(())
    }

    pub(super) fn adjust(
        &mut self,
        which: Index,
        part: i64,
        back: Option<Back>,
        clock: EpochMillis,
    ) -> Result<(), TestCaseError> {
        let (rpm, leased) = (
            limit_name("rpm"),
            self.leased.keys().cloned().collect::<Vec<_>>(),
        );
        if leased.len() + self.loose.len() == 0 {
            return Ok(());
        }
        let at = which.index(leased.len() + self.loose.len());
        let (mut shard, id, grant) = match leased.get(at) {
            Some((shard, id)) => (*shard, Some(id), &self.leased[&(*shard, id.clone())]),
            None => (
                self.loose[at - leased.len()].0,
                None,
                &self.loose[at - leased.len()].1,
            ),
        };
        let (old, new) = (grant.rate, MilliTokens(grant.rate.0 * part / 1000));
        if old == MilliTokens::ZERO {
            return Ok(());
        }
        let settled = LimitDelta {
            available: old - new,
            consumed: new - old,
            ceiling: Some(grant.ceiling),
        };
        while !self.table.shards().contains_key(&shard) {
            // It has become part of the one it was split off.
            let Some(bit) = shard.checked_ilog2() else {
                return Ok(());
            };
            shard -= 1 << bit;
        }
        let (key, op) = (bucket_key(shard), self.id());
        let lease = id.map(|id| {
            (
                id,
                LeaseChange::SetAmounts([(rpm.clone(), (old, new))].into()),
            )
        });
        // Some count acquires that were granted before.
        let takes = part % 2;
        let settle = Settle {
            acquires: takes,
            ..settle(&key, op, lease, [(rpm.clone(), settled)].into(), clock)
        };
        let before = self.table.shards()[&shard].clone();
        let view = back.and_then(|back| self.table.image(shard, back));
        let update = view.map_or_else(|| settle.full(None), |view| settle.capped(&view));
        prop_assert!(self.write(update, None)? || self.write(settle.capped(&before), None)?);
        let given =
            self.table.shards()[&shard].limits[&rpm].available - before.limits[&rpm].available;
        *self.used.entry(rpm.clone()).or_default() += new - old;
        self.granted += takes;
        if let Some(mirror) = &mut self.mirror {
            if new > old {
                let state = &before.limits[&rpm];
                let flowed =
                    refill_between(&state.rule, before.shard(), before.refilled_at, self.now);
                let over = (state.available + flowed - before.share(state)).max(MilliTokens::ZERO);
                mirror.owe(shard, new - old, over);
            } else {
                mirror.give(shard, given);
                mirror.forfeit(old - new - given);
            }
        }
        self.events.last_mut().unwrap().back += given.max(MilliTokens::ZERO);
        match id {
            Some(id) => {
                self.leased
                    .get_mut(&(leased[at].0, id.clone()))
                    .unwrap()
                    .rate = new
            }
            None => self.loose[at - leased.len()].1.rate = new,
        }
        Ok(())
    }
}

fn is_enough(shard: &Shard, needs: &Needs, clock: EpochMillis) -> bool {
    needs
        .iter()
        .all(|(limit, need)| *need == MilliTokens::ZERO || shard.balance_at(limit, clock) >= *need)
}
