//! Quotas: what is taken in each window of the items, whatever arrives late, and however often the
//! bucket is split and merged.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::model::START;
use crate::model::table::Table;
use crate::model::{bucket, bucket_key, config, limit_name, settle, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{
    BalanceChange, LeaseChange, LimitDelta, Take, Update, change_balances, expire, may_split,
    merge, merged,
};
use weirgate_shared::{
    Asks, Calendar, EditId, Effect, EpochMillis, Lease, Limit, LimitKind, LimitName, MilliTokens,
    Millis, Shard, ShardIndex, VersionedLimits, WindowCode, WriteId,
};

/// Windows of so many ms since 1970, and sessions.
pub const CALENDAR: Calendar = Calendar::new(|code, now| {
    Some(match code.session() {
        Some(length) => now.plus(length),
        None => EpochMillis(now.0 - now.0.rem_euclid(length(code)) + length(code)),
    })
});

const fn length(code: WindowCode) -> i64 {
    code.0.unsigned_abs().cast_signed() & 0xffff_ffff
}

pub fn window(ms: i64) -> WindowCode {
    WindowCode(-(2 << 52 | ms))
}

pub fn session(ms: i64) -> WindowCode {
    WindowCode(-(6 << 52 | ms))
}

fn limits_of(limits: &[Limit]) -> VersionedLimits<'_> {
    VersionedLimits {
        calendar: CALENDAR,
        ..limits.into()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take {
        shard: usize,
        back: usize,
        need: i64,
        is_leased: bool,
        is_soft: bool,
        begun: bool,
        is_late: bool,
    },
    /// The oldest write under way arrives.
    Arrive,
    /// A grant without a lease, or with one, is adjusted by an amount, negative for a return.
    Adjust {
        grant: usize,
        by: i64,
        sees: bool,
    },
    TopUp {
        shard: usize,
        by: i64,
    },
    Expire {
        shard: usize,
        back: usize,
    },
    Split(usize),
    Merge(usize),
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let back = || prop_oneof![3 => Just(0usize), 1 => 1..4usize];
    let take = (
        0..4usize,
        back(),
        0..=500i64,
        any::<[bool; 3]>(),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            |(shard, back, need, [is_leased, is_soft, begun], is_late)| Step::Take {
                shard,
                back,
                need,
                is_leased,
                is_soft,
                begun,
                is_late,
            },
        );
    let adjust = (0..8usize, -500..=200i64, any::<bool>())
        .prop_map(|(grant, by, sees)| Step::Adjust { grant, by, sees });
    let step = prop_oneof![
        8 => take,
        2 => Just(Step::Arrive),
        4 => adjust,
        1 => (0..4usize, -300..=300i64).prop_map(|(shard, by)| Step::TopUp { shard, by }),
        2 => (0..4usize, back()).prop_map(|(shard, back)| Step::Expire { shard, back }),
        2 => (0..4usize).prop_map(Step::Split),
        2 => (0..4usize).prop_map(Step::Merge),
        4 => prop_oneof![1..100i64, 1..3_000i64].prop_map(Step::Wait),
    ];
    vec(step, 1..50)
}

/// Tokens that one process has.
#[derive(Debug, Clone)]
struct Grant {
    shard: u32,
    amount: MilliTokens,
    window: EpochMillis,
    lease: Option<WriteId>,
}

/// A write of a take until it arrives.
#[derive(Debug)]
struct Flying {
    update: Update,
    grant: Grant,
}

struct World {
    table: Table,
    limits: Vec<Limit>,
    name: LimitName,
    now: EpochMillis,
    /// What was taken less what was returned, by the end of the item's window.
    used: BTreeMap<EpochMillis, MilliTokens>,
    /// What operators added, by the end of the window.
    added: BTreeMap<EpochMillis, MilliTokens>,
    consumed: MilliTokens,
    grants: Vec<Grant>,
    flying: Vec<Flying>,
    /// Whether each write arrived as soon as it was planned, on the latest view.
    is_exact: bool,
    id: u64,
}

impl World {
    fn shard(&self, at: usize) -> Rc<Shard> {
        let shards = self.table.shards();
        Rc::clone(shards.values().nth(at % shards.len()).unwrap())
    }

    fn id(&mut self) -> WriteId {
        self.id += 1;
        WriteId::from_bits(self.id)
    }

    /// Applies a write to one shard, and counts the leases that it ends.
    fn apply(&mut self, shard: u32, update: Update, ended_by_caller: Option<&WriteId>) -> bool {
        let before = self.table.shards().get(&shard).cloned();
        if !self.table.update(update) {
            return false;
        }
        let after = Rc::clone(&self.table.shards()[&shard]);
        let leases = before
            .iter()
            .flat_map(|shard| shard.leases.iter().flatten());
        let gone = leases.filter(|(id, _)| !after.leases.as_ref().unwrap().contains_key(*id));
        for (id, _) in gone.filter(|(id, _)| ended_by_caller != Some(*id)) {
            let at = self
                .grants
                .iter()
                .position(|grant| grant.lease.as_ref() == Some(id));
            let grant = self.grants.remove(at.unwrap());
            self.gave_back(&after, grant.window, grant.amount);
        }
        true
    }

    fn gave_back(&mut self, after: &Shard, window: EpochMillis, amount: MilliTokens) {
        self.consumed -= amount;
        if after.limits[&self.name].window_end == window {
            *self.used.entry(window).or_default() -= amount;
        }
    }

    fn arrive(&mut self, Flying { update, grant }: Flying) {
        if self.apply(grant.shard, update, None) {
            let after = Rc::clone(&self.table.shards()[&grant.shard]);
            let window = after.limits[&self.name].window_end;
            *self.used.entry(window).or_default() += grant.amount;
            self.consumed += grant.amount;
            self.grants.push(Grant { window, ..grant });
        }
    }

    fn step(&mut self, step: Step) {
        let capacity = self.limits[0].rule().capacity;
        let part = |part: i64| MilliTokens(capacity.0 * part / 1_000);
        match step {
            Step::Wait(ms) => self.now = self.now.plus(Millis(ms)),
            Step::Arrive if !self.flying.is_empty() => {
                let flying = self.flying.remove(0);
                self.arrive(flying);
            }
            Step::Arrive => {}
            Step::Take {
                shard,
                back,
                need,
                is_leased,
                is_soft,
                begun,
                is_late,
            } => {
                let number = self.shard(shard).key.shard;
                let view = self.table.image(number, back).unwrap();
                let (op, need) = (self.id(), part(need));
                let tokens: BTreeMap<_, _> = [(self.name.clone(), need)].into();
                let lease = is_leased.then(|| {
                    (
                        self.id(),
                        Lease {
                            expires_at: self.now.plus(Millis(700)),
                            tokens: tokens.clone(),
                            windows: BTreeMap::new(),
                            owner: String::new(),
                        },
                    )
                });
                let effect = if is_soft {
                    Effect::IntoDebt
                } else {
                    Effect::Enforce
                };
                let update = Take {
                    limits: limits_of(&self.limits),
                    asks: Asks::of(effect, tokens),
                    leases: lease.iter().cloned().collect(),
                    windows_begun: begun,
                    ..take(&view.key, &self.limits, BTreeMap::new(), op, self.now)
                }
                .plan(&view, self.now);
                let grant = Grant {
                    shard: number,
                    amount: need,
                    window: EpochMillis::default(),
                    lease: lease.map(|(id, _)| id),
                };
                self.is_exact &= !is_late && back == 0;
                match is_late {
                    true => self.flying.push(Flying { update, grant }),
                    false => self.arrive(Flying { update, grant }),
                }
            }
            Step::Adjust { grant, by, sees } if !self.grants.is_empty() => {
                let at = grant % self.grants.len();
                let grant = self.grants[at].clone();
                let Some(shard) = self.table.shards().get(&grant.shard).cloned() else {
                    return;
                };
                let more = part(by).max(-grant.amount);
                let next = grant.amount + more;
                let delta = LimitDelta {
                    available: -more,
                    consumed: more,
                    ceiling: None,
                    window: Some(grant.window),
                };
                let deltas = [(self.name.clone(), delta)].into();
                let change =
                    LeaseChange::SetAmounts([(self.name.clone(), (grant.amount, next))].into());
                let lease = grant.lease.as_ref().map(|id| (id, change));
                let (op, key) = (self.id(), bucket_key(grant.shard));
                let settled = settle(&key, op, lease, deltas, self.now);
                let seen = sees.then_some(&*shard);
                if !self.apply(grant.shard, settled.full(seen), None)
                    && !self.apply(grant.shard, settled.capped(&shard), None)
                {
                    return;
                }
                let after = Rc::clone(&self.table.shards()[&grant.shard]);
                self.grants[at].amount = next;
                if more > MilliTokens::ZERO {
                    let window = after.limits[&self.name].window_end;
                    *self.used.entry(window).or_default() += more;
                    self.consumed += more;
                    // What is charged to another window returns to none.
                    self.is_exact &= window == grant.window;
                } else {
                    self.gave_back(&after, grant.window, -more);
                }
            }
            Step::Adjust { .. } => {}
            Step::TopUp { shard, by } => {
                let view = self.shard(shard);
                let edit = EditId::new(self.now, 0, view.edit);
                let changes = [(self.name.clone(), BalanceChange::Raise(part(by)))].into();
                let Some(update) = change_balances(&view, edit, &changes, CALENDAR, self.now)
                else {
                    return;
                };
                if self.apply(view.key.shard, update, None) {
                    let after = Rc::clone(&self.table.shards()[&view.key.shard]);
                    *self
                        .added
                        .entry(after.limits[&self.name].window_end)
                        .or_default() += part(by);
                }
            }
            Step::Expire { shard, back } => {
                let number = self.shard(shard).key.shard;
                let view = self.table.image(number, back).unwrap();
                if let Some((update, _)) = expire(&view, self.now) {
                    self.apply(number, update, None);
                }
            }
            Step::Split(shard) => {
                let view = self.shard(shard);
                if view.shard().count < 4 && may_split(&view, 4, &BTreeMap::new()) {
                    let op = self.id();
                    self.table.split(&view, op, self.now);
                }
            }
            Step::Merge(shard) => {
                let upper = self.shard(shard);
                let whole = upper.shard().parent();
                let lower = whole.and_then(|whole| self.table.shards().get(&whole.index).cloned());
                let Some(lower) = lower.filter(|lower| lower.key != upper.key) else {
                    return;
                };
                if let Some(next) = merged(&lower, &upper, self.now) {
                    // It ends the leases that have expired.
                    let has = |id: &WriteId| next.leases.as_ref().unwrap().contains_key(id);
                    let of = |shard: &Shard| shard.leases.clone().unwrap_or_default().into_keys();
                    let gone: Vec<_> = of(&lower).chain(of(&upper)).filter(|id| !has(id)).collect();
                    let ends = [&lower, &upper]
                        .map(|shard| (shard.key.shard, shard.limits[&self.name].window_end));
                    assert!(self.table.transact(&merge(&lower, next, &[&upper])));
                    for id in gone {
                        let at = self
                            .grants
                            .iter()
                            .position(|grant| grant.lease.as_ref() == Some(&id));
                        let grant = self.grants.remove(at.unwrap());
                        self.consumed -= grant.amount;
                        if ends.contains(&(grant.shard, grant.window)) {
                            *self.used.entry(grant.window).or_default() -= grant.amount;
                        }
                    }
                }
            }
        }
    }

    /// Requires that no window gives more than the quota, and loses nothing of it.
    fn check(&self) {
        let rule = self.limits[0].rule();
        let shards: Vec<_> = self.table.shards().values().collect();
        // Before its first window, a session is whole.
        for (window, used) in self.used.iter().filter(|(window, _)| window.0 > 0) {
            let added = self.added.get(window).copied().unwrap_or_default();
            // Debts of adjustments and soft limits are what callers report, whatever there is.
            let owed: MilliTokens = shards
                .iter()
                .map(|shard| shard.limits[&self.name])
                .filter(|state| state.window_end == *window)
                .map(|state| (-state.available).max(MilliTokens::ZERO))
                .sum();
            let is_last = shards
                .iter()
                .all(|shard| shard.limits[&self.name].window_end <= *window);
            if !is_last {
                continue;
            }
            let left: MilliTokens = shards
                .iter()
                .map(|shard| {
                    let state = &shard.limits[&self.name];
                    match state.window_end == *window {
                        true => state.available.max(MilliTokens::ZERO),
                        false => shard.share(state),
                    }
                })
                .sum();
            let sum = left - owed + *used;
            assert!(
                sum <= rule.capacity + added,
                "I1: {sum} of {} and {added}",
                rule.capacity
            );
            if self.is_exact {
                assert_eq!(
                    sum,
                    rule.capacity + added,
                    "I2: tokens of {window:?} are lost"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(config(3_000))]

    /// Each window of the items gives the quota, once: what is left of it in all shards, and what was
    /// taken, is the capacity and what operators added.
    #[test]
    fn i1_a_window_gives_its_quota_once(
        (capacity, length, is_session) in (1..30i64, 1..4_000i64, prop::bool::weighted(0.3)),
        has_rate in any::<bool>(), steps in steps(),
    ) {
        let code = if is_session { session(length) } else { window(length) };
        let mut limits = vec![Limit::quota_of("quota", capacity, code).unwrap()];
        if has_rate {
            limits.push(Limit::per_second("rate", 5).unwrap());
        }
        let mut world = World {
            table: Table::of(&bucket(ShardIndex::UNSPLIT, &limits, START)),
            name: limit_name("quota"),
            limits,
            now: START,
            used: BTreeMap::new(),
            added: BTreeMap::new(),
            consumed: MilliTokens::ZERO,
            grants: vec![],
            flying: vec![],
            is_exact: true,
            id: 0,
        };
        for step in steps {
            world.step(step);
            world.check();
        }
        let live = world.table.shards().values().map(|shard| shard.limits[&world.name].consumed);
        let mut consumed = live.map(|consumed| consumed.0).sum::<i128>();
        for (_, item) in world.table.merged() {
            consumed += item.live().limits[&world.name].total;
        }
        prop_assert_eq!(consumed, i128::from(world.consumed.0), "I3");
        // The next window is whole.
        let later = world.now.plus(Millis(10_000));
        for shard in world.table.shards().values() {
            prop_assert_eq!(shard.balance_at(&world.name, later), shard.share(&shard.limits[&world.name]));
        }
    }

    /// Whatever the limit was, what was used of it stays used, and nothing is added but the capacity.
    #[test]
    fn i1_a_change_between_rates_and_quotas_carries_what_was_used(
        kinds in [0..3usize, 0..3usize], capacities in [1..30i64, 1..30i64],
        (used, need, wait) in (0..=1000i64, prop_oneof![Just(0), 0..=1000i64], prop_oneof![0..50i64, 0..20_000i64]),
        lengths in [1..8_000i64, 1..8_000i64], taken_since in prop_oneof![Just(0), 0..=300i64],
    ) {
        let limit = |at: usize| match kinds[at] {
            0 => Limit::custom("l", capacities[at], 1, lengths[at]),
            1 => Limit::quota_of("l", capacities[at], window(lengths[at])),
            _ => Limit::quota_of("l", capacities[at], session(lengths[at])),
        }.unwrap();
        let name = limit_name("l");
        let (old, new) = (limit(0), limit(1));
        let milli = |limit: &Limit, part: i64| MilliTokens(limit.rule().capacity.0 * part / 1000);
        let needs = |amount| [(name.clone(), amount)].into();
        let mut table = Table::default();
        let (key, first) = (bucket_key(0), std::slice::from_ref(&old));
        let create = Take { limits: limits_of(first), ..take(&key, first, needs(milli(&old, used)), WriteId::from_bits(1), START) };
        prop_assert!(table.update(create.create(START)));
        let view = Rc::clone(&table.shards()[&0]);
        let now = START.plus(Millis(wait));
        let balance = view.balance(&view.limits[&name], now);
        // Another process takes meanwhile.
        let since = milli(&old, taken_since).min(balance);
        let other = Take { limits: limits_of(first), ..take(&key, first, needs(since), WriteId::from_bits(2), now) };
        let is_taken = since > MilliTokens::ZERO && table.update(other.plan(&view, now));
        let since = if is_taken { since } else { MilliTokens::ZERO };
        let second = std::slice::from_ref(&new);
        let next = view.projected(limits_of(second), now).limits[&name];
        let need = milli(&new, need).min(next.available).max(MilliTokens::ZERO);
        let change = Take { limits: limits_of(second), ..take(&key, second, needs(need), WriteId::from_bits(3), now) };
        if !table.update(change.plan(&view, now)) {
            prop_assert!(is_taken, "{:?}", change.plan(&view, now));
            return Ok(());
        }
        let after = &table.shards()[&0];
        let state = after.limits[&name];
        prop_assert_eq!(state.rule, *new.rule());
        let is_quota = |limit: &Limit| limit.rule().kind() == LimitKind::Quota;
        let expected = match is_quota(&old) && is_quota(&new) {
            true => balance + (new.rule().capacity - old.rule().capacity),
            false => balance.min(new.rule().capacity),
        };
        let most = expected - need;
        let left = after.balance(&state, now);
        let is_begun = need > MilliTokens::ZERO || !new.rule().is_session();
        if is_begun || !view.limits[&name].has_ended(now) {
            // A rate that was full lost what flowed over its brim meanwhile.
            prop_assert!(left <= most && left + since >= most, "{left} of {most}, {since} taken");
        } else {
            prop_assert_eq!(left, new.rule().capacity);
            // To a process with a slower clock, the last window is still open.
            prop_assert!(state.available <= view.limits[&name].available, "{}", state.available);
        }
    }
}
