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
    /// Other limits, while the bucket has one shard.
    Change {
        capacity: i64,
        length: i64,
        is_session: bool,
    },
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
    let change =
        (1..30i64, 1..4_000i64, any::<bool>()).prop_map(|(capacity, length, is_session)| {
            Step::Change {
                capacity,
                length,
                is_session,
            }
        });
    let step = prop_oneof![
        1 => change,
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
        for (id, lease) in after.leases.iter().flatten() {
            let is_new = before.as_ref().is_none_or(|before| {
                let mut leases = before.leases.iter().flatten();
                !leases.any(|(known, _)| known == id)
            });
            let window = after.limits[&self.name].window_end;
            let named = lease.windows.get(&self.name);
            let is_taken = lease.tokens.values().any(|held| *held > MilliTokens::ZERO);
            assert!(
                !is_new || !is_taken || named == Some(&window),
                "{lease:?} of {window:?}"
            );
        }
        let leases = before
            .iter()
            .flat_map(|shard| shard.leases.iter().flatten());
        let gone = leases.filter(|(id, _)| !after.leases.as_ref().unwrap().contains_key(*id));
        for (id, _) in gone.filter(|(id, _)| ended_by_caller != Some(*id)) {
            let grant = self.ended(id);
            // It returned before the write changed the window.
            let seen = before.as_ref().unwrap();
            self.gave_back(seen, grant.window, grant.amount);
        }
        true
    }

    /// Returns the grant whose lease has ended.
    fn ended(&mut self, id: &WriteId) -> Grant {
        let is_it = |grant: &Grant| grant.lease.as_ref() == Some(id);
        let at = self.grants.iter().position(is_it);
        self.grants.remove(at.unwrap())
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
            Step::Change { .. } if self.table.shards().len() > 1 => {}
            Step::Change {
                capacity,
                length,
                is_session,
            } => {
                let view = self.shard(0);
                let code = if is_session {
                    session(length)
                } else {
                    window(length)
                };
                let mut limits = self.limits.clone();
                limits[0] = Limit::quota_of("quota", capacity, code).unwrap();
                let op = self.id();
                let terms = limits_of(&limits);
                let nothing = Take {
                    limits: terms,
                    ..take(&view.key, &limits, BTreeMap::new(), op, self.now)
                };
                let before = view.limits[&self.name];
                // One change of limits without a version a while.
                let overrules = terms.overrule(&view, self.now);
                if !overrules || before.rule == *limits[0].rule() {
                    return;
                }
                let update = Take {
                    acquires: 0,
                    ..nothing
                }
                .plan(&view, self.now);
                if self.apply(0, update, None) {
                    let after = self.table.shards()[&0].limits[&self.name];
                    self.limits = limits;
                    if before.has_ended_by(&after.rule, self.now)
                        && after.window_end == before.window_end
                    {
                        // What is left stays that of the capacity before, for slower clocks.
                        let kept = before.rule.capacity - after.rule.capacity;
                        *self.added.entry(after.window_end).or_default() += kept;
                    }
                    if !before.has_ended_by(&after.rule, self.now)
                        && after.window_end != before.window_end
                    {
                        for of in [&mut self.used, &mut self.added] {
                            let carried = of.remove(&before.window_end).unwrap_or_default();
                            of.insert(after.window_end, carried);
                        }
                        // What is returned to the window before is lost.
                        self.is_exact = false;
                    }
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
                        let grant = self.ended(&id);
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
            let ends = shards
                .iter()
                .map(|shard| shard.limits[&self.name].window_end);
            let is_last = ends.max() == Some(*window);
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
        lengths in prop_oneof![[1..8_000i64, 1..8_000i64], (1..8_000i64).prop_map(|length| [length; 2])], taken_since in prop_oneof![Just(0), 0..=300i64],
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
            true if view.limits[&name].has_ended_by(new.rule(), now) => new.rule().capacity,
            true => balance + (new.rule().capacity - old.rule().capacity),
            false => balance.min(new.rule().capacity),
        };
        let most = expected - need;
        let left = after.balance(&state, now);
        let is_begun = need > MilliTokens::ZERO || !new.rule().is_session();
        let is_over = view.limits[&name].has_ended_by(new.rule(), now);
        if is_begun || !is_over {
            // A rate that was full lost what flowed over its brim meanwhile.
            prop_assert!(left <= most && left + since >= most, "{left} of {most}, {since} taken");
        } else {
            // The other process may have begun the session.
            let whole = new.rule().capacity;
            prop_assert!(left <= whole && left + since >= whole, "{left} of {whole}, {since} taken");
            // To a process with a slower clock, the last window is not open either.
            prop_assert!(is_taken || state.window_end.0 == 0 || state.available <= view.limits[&name].available);
        }
    }
}

proptest! {
    #![proptest_config(config(500))]

    /// Otherwise DynamoDB deletes a bucket whose window is open, and its next life is whole.
    #[test]
    fn i1_no_bucket_ends_before_its_window(
        lengths in [1..40i64, 1..40i64], is_session in any::<[bool; 2]>(),
        steps in vec((0..4usize, any::<bool>(), 0..100i64, 0..20i64), 1..20),
    ) {
        const HALF_DAY: i64 = 43_200_000;
        let limits = [0, 1].map(|at| {
            let ms = lengths[at] * HALF_DAY;
            let code = if is_session[at] { session(ms) } else { window(ms) };
            Limit::quota_of(["a", "b"][at], 1_000, code).unwrap()
        });
        let (mut table, mut now, key) = (Table::default(), START, bucket_key(0));
        for (id, (step, is_own, need, wait)) in (1..).zip(steps) {
            now = now.plus(Millis(wait * HALF_DAY / 4));
            let limit = limits[step % 2].name();
            let needs = [(limit.clone(), MilliTokens::from_tokens(need))].into();
            let op = WriteId::from_bits(id);
            let take = Take {
                limits: VersionedLimits { is_own, ..limits_of(&limits) },
                ..take(&key, &limits, needs, op, now)
            };
            match table.shards().get(&0).cloned() {
                None => drop(table.update(take.create(now))),
                Some(seen) if step < 3 => drop(table.update(take.plan(&seen, now))),
                Some(seen) => {
                    let (edit, raise) = (EditId::new(now, 0, seen.edit), BalanceChange::Raise(MilliTokens(need)));
                    let changes = [(limit.clone(), raise)].into();
                    table.update(change_balances(&seen, edit, &changes, CALENDAR, now).unwrap());
                }
            }
            let shard = &table.shards()[&0];
            let ends = shard.limits.values().map(|state| state.window_end.0);
            let last = ends.max().unwrap();
            prop_assert!(shard.ttl.is_none_or(|ttl| ttl.0 * 1_000 >= last), "{:?} {last}", shard.ttl);
        }
    }
}

/// Two shards of a bucket with these rules of one quota, whose windows end so.
fn halves(rules: [&Limit; 2], ends: [EpochMillis; 2]) -> [Shard; 2] {
    [0, 1].map(|at| {
        let index = u32::try_from(at).unwrap();
        let shard = ShardIndex { index, count: 2 };
        let mut half = bucket(shard, std::slice::from_ref(rules[at]), START);
        half.limits.get_mut(rules[at].name()).unwrap().window_end = ends[at];
        half
    })
}

#[test]
fn an_end_belongs_to_its_rule_so_halves_of_two_windows_stay_apart() {
    let [hour, year] =
        [3_600_000, 31_536_000_000].map(|ms| Limit::quota_of("q", 10, window(ms)).unwrap());
    let now = START.plus(Millis(1));
    let [soon, later] = [9, 10].map(|ms| START.plus(Millis(ms)));
    for (rules, ends, are_joined) in [
        ([&hour, &year], [START, soon], false),
        ([&hour, &year], [START; 2], true),
        ([&hour; 2], [soon, later], false),
        ([&hour; 2], [soon; 2], true),
        ([&hour; 2], [START, soon], true),
    ] {
        let [lower, upper] = halves(rules, ends);
        let joined = merged(&lower, &upper, now);
        assert_eq!(joined.is_some(), are_joined, "{ends:?}");
    }
}

/// A lease of a rate that became a quota: its window does not get what it never gave.
#[test]
fn i1_what_was_taken_from_a_rate_returns_to_no_quota() {
    let quota = Limit::quota_of("l", 100, window(3_600_000)).unwrap();
    let (name, id) = (limit_name("l"), WriteId::from_bits(1));
    let mut shard = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&quota), START);
    let tokens = [(name.clone(), MilliTokens(5_000))].into();
    let lease = Lease {
        expires_at: START.plus(Millis(9_000)),
        tokens,
        ..Lease::default()
    };
    shard.leases = Some([(id.clone(), lease)].into());
    let state = shard.limits.get_mut(&name).unwrap();
    (state.available, state.window_end) = (MilliTokens(2_000), START.plus(Millis(60_000)));
    let mut table = Table::of(&shard);
    let back = LimitDelta {
        available: MilliTokens(5_000),
        consumed: MilliTokens(-5_000),
        ceiling: Some(MilliTokens(100_000)),
        window: None,
    };
    let change =
        LeaseChange::SetAmounts([(name.clone(), (MilliTokens(5_000), MilliTokens::ZERO))].into());
    let key = bucket_key(0);
    let settled = settle(
        &key,
        WriteId::from_bits(2),
        Some((&id, change)),
        [(name.clone(), back)].into(),
        START,
    );
    assert!(!table.update(settled.full(Some(&shard))));
    assert!(table.update(settled.capped(&shard)));
    assert_eq!(
        table.shards()[&0].limits[&name].available,
        MilliTokens(2_000)
    );
}

/// A clock that was ahead has left `rf` in the future; windows go by the present clock.
#[test]
fn an_operator_begins_the_window_of_the_clock_and_not_of_the_refill() {
    let quota = Limit::quota_of("q", 10, window(3_600_000)).unwrap();
    let mut shard = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&quota), START);
    shard.refilled_at = START.plus(Millis(40 * 86_400_000));
    let changes = [(limit_name("q"), BalanceChange::Raise(MilliTokens(1_000)))].into();
    let update = change_balances(
        &shard,
        EditId::new(START, 0, None),
        &changes,
        CALENDAR,
        START,
    )
    .unwrap();
    let mut table = Table::of(&shard);
    assert!(table.update(update));
    let end = CALENDAR.end_after(window(3_600_000), START);
    assert_eq!(Some(table.shards()[&0].limits["q"].window_end), end);
}

/// Also if a limit changes, or is new, in the write that begins the session.
#[test]
fn i1_a_session_that_begins_with_new_limits_keeps_its_bucket_and_its_lease() {
    const WEEK: i64 = 7 * 86_400_000;
    let rate = Limit::per_minute("rate", 10).unwrap();
    let quota = Limit::quota_of("s", 10, window(60_000)).unwrap();
    let brought = [
        rate.clone(),
        Limit::quota_of("s", 10, session(WEEK)).unwrap(),
    ];
    for before in [vec![rate.clone()], vec![rate, quota]] {
        let (key, now) = (bucket_key(0), START.plus(Millis(3_600_000)));
        let mut table = Table::default();
        let create = take(&key, &before, BTreeMap::new(), WriteId::from_bits(1), START);
        let create = Take {
            limits: limits_of(&before),
            ..create
        };
        assert!(table.update(create.create(START)));
        let seen = table.shards()[&0].clone();
        assert!(seen.ttl.is_some());
        let tokens: BTreeMap<_, _> = [(limit_name("s"), MilliTokens::from_tokens(10))].into();
        let lease = Lease {
            expires_at: now.plus(Millis(9_000)),
            tokens: tokens.clone(),
            ..Lease::default()
        };
        let take = Take {
            limits: limits_of(&brought),
            leases: vec![(WriteId::from_bits(2), lease)],
            ..take(&key, &brought, tokens, WriteId::from_bits(3), now)
        };
        assert!(table.update(take.plan(&seen, now)));
        let after = &table.shards()[&0];
        let end = after.limits["s"].window_end;
        assert_eq!(end, now.plus(Millis(WEEK)));
        assert!(after.ttl.unwrap().0 * 1_000 >= end.0);
        let leases = after.leases.as_ref().unwrap();
        assert_eq!(leases.values().next().unwrap().windows["s"], end);
    }
}

#[test]
fn another_length_of_a_session_keeps_its_begin() {
    let [long, short] =
        [session(6_000), session(2_000)].map(|code| Limit::quota_of("s", 10, code).unwrap());
    let mut shard = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&long), START);
    let begun = START.plus(Millis(1_000));
    shard.limits.get_mut("s").unwrap().window_end = begun.plus(Millis(6_000));
    let now = START.plus(Millis(2_500));
    let limits = [short];
    let next = shard.projected(limits_of(&limits), now).limits["s"];
    assert_eq!(next.window_end, begun.plus(Millis(2_000)));
}

#[test]
fn nothing_is_granted_of_a_debt() {
    let quota = [Limit::quota_of("q", 10, window(3_600_000)).unwrap()];
    let (key, name) = (bucket_key(0), limit_name("q"));
    let mut seen = bucket(ShardIndex::UNSPLIT, &quota, START);
    seen.limits.get_mut(&name).unwrap().window_end = START.plus(Millis(60_000));
    let mut there = seen.clone();
    there.limits.get_mut(&name).unwrap().available = MilliTokens(-1);
    let nothing = take(
        &key,
        &quota,
        [(name, MilliTokens::ZERO)].into(),
        WriteId::from_bits(1),
        START,
    );
    let update = Take {
        limits: limits_of(&quota),
        ..nothing
    }
    .plan(&seen, START);
    assert!(!Table::of(&there).update(update.clone()));
    assert!(Table::of(&seen).update(update));
}
