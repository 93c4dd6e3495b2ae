//! Quotas: what other limits, operators and merges leave of their windows. What each window gives is
//! in the model and the simulation.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::model::START;
use crate::model::table::Table;
use crate::model::{bucket, bucket_key, config, limit_name, settle, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{
    BalanceChange, LeaseChange, LimitDelta, Take, change_balances, merged,
};
use weirgate_shared::{
    Calendar, EditId, EpochMillis, Lease, Limit, LimitKind, MilliTokens, Millis, Shard, ShardIndex,
    VersionedLimits, WindowCode, WriteId,
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
    VersionedLimits { calendar: CALENDAR, ..limits.into() }
}

proptest! {
    #![proptest_config(config(3_000))]

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
    let lease = Lease { expires_at: START.plus(Millis(9_000)), tokens, ..Lease::default() };
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
    assert_eq!(table.shards()[&0].limits[&name].available, MilliTokens(2_000));
}

/// A clock that was ahead has left `rf` in the future; windows go by the present clock.
#[test]
fn an_operator_begins_the_window_of_the_clock_and_not_of_the_refill() {
    let quota = Limit::quota_of("q", 10, window(3_600_000)).unwrap();
    let mut shard = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&quota), START);
    shard.refilled_at = START.plus(Millis(40 * 86_400_000));
    let changes = [(limit_name("q"), BalanceChange::Raise(MilliTokens(1_000)))].into();
    let update =
        change_balances(&shard, EditId::new(START, 0, None), &changes, CALENDAR, START).unwrap();
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
    let brought = [rate.clone(), Limit::quota_of("s", 10, session(WEEK)).unwrap()];
    for before in [vec![rate.clone()], vec![rate, quota]] {
        let (key, now) = (bucket_key(0), START.plus(Millis(3_600_000)));
        let mut table = Table::default();
        let create = take(&key, &before, BTreeMap::new(), WriteId::from_bits(1), START);
        let create = Take { limits: limits_of(&before), ..create };
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
    let nothing =
        take(&key, &quota, [(name, MilliTokens::ZERO)].into(), WriteId::from_bits(1), START);
    let update = Take { limits: limits_of(&quota), ..nothing }.plan(&seen, START);
    assert!(!Table::of(&there).update(update.clone()));
    assert!(Table::of(&seen).update(update));
}
