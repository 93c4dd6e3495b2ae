//! Classes of callers: the pools of a limit add up to it, whatever changes, and a class has its part.

use std::time::Duration;

use crate::model::{Item, START, bucket, bucket_key, config, contention, take};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use weirgate_shared::write::{Place, Take, may_split, merged};
use weirgate_shared::{
    Ask, Asks, Class, ClassName, Effect, EpochMillis, Limit, LimitsVersion, MilliTokens, Millis,
    Shard, ShardIndex, VersionedLimits, WriteId, refill_between,
};

/// Classes of successive configurations.
const CLASSES: [&[(&str, u8, u8)]; 6] = [
    &[],
    &[("a", 10, 30)],
    &[("a", 25, 0), ("b", 20, 50)],
    &[("b", 60, 10)],
    &[("c", 0, 40)],
    &[("a", 1, 99), ("b", 33, 0), ("c", 65, 0)],
];

fn limit_with(limit: &Limit, classes: &[(&str, u8, u8)]) -> Limit {
    let class = |(name, at_least, leaves): &(&str, u8, u8)| {
        Class::new(name, *at_least).unwrap().leaving(*leaves).unwrap()
    };
    let classes = classes.iter().map(class);
    limit.clone().with_classes(classes).unwrap()
}

/// The balances of all pools together.
fn total(shard: &Shard, now: EpochMillis) -> MilliTokens {
    let states = shard.limits.values();
    states.map(|state| shard.balance(state, now)).sum()
}

/// What can be taken, which a debt of another pool does not make less.
fn takeable(shard: &Shard, now: EpochMillis) -> MilliTokens {
    let states = shard.limits.values();
    let has = |state| shard.balance(state, now).max(MilliTokens::ZERO);
    states.map(has).sum()
}

/// One request of a process.
#[derive(Debug, Clone)]
struct Step {
    process: usize,
    passed: i64,
    /// Changes of the classes since the one before.
    changes: usize,
    /// Whether the process knows the newest classes.
    is_current: bool,
    class: Option<&'static str>,
    /// Thousandths of the capacity.
    part: i64,
    is_into_debt: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let class = select(vec![None, Some("a"), Some("b"), Some("c")]);
    let time = prop_oneof![3 => 0..50_i64, 2 => 0..1_500_i64];
    let changes = prop_oneof![5 => Just(0_usize), 1 => 1..3_usize];
    (0..3_usize, time, changes, any::<bool>(), class, 0..=700_i64, prop::bool::weighted(0.1))
        .prop_map(|(process, passed, changes, is_current, class, part, is_into_debt)| Step {
            process,
            passed,
            changes,
            is_current,
            class,
            part,
            is_into_debt,
        })
}

/// Asks one pool for an amount.
fn asks(choice: &weirgate_shared::PoolChoice, amount: MilliTokens, is_into_debt: bool) -> Asks {
    let mut asks = Asks::default();
    asks.add(Ask {
        limit: choice.pool.clone(),
        amount,
        most: amount,
        effect: if is_into_debt { Effect::IntoDebt } else { Effect::Enforce },
        floor: if is_into_debt { MilliTokens::ZERO } else { choice.floor },
    });
    asks
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn pools_add_up_to_the_limit(
        (capacity, amount, period) in (1..100_000_i64, 1..100_000_i64, 1..100_000_i64),
        percents in vec((0..50_u8, 0..=99_u8), 1..5),
    ) {
        let limit = Limit::custom("tpm", capacity, amount, period).unwrap();
        let sum: u32 = percents.iter().map(|(at_least, _)| u32::from(*at_least)).sum();
        let classes = percents.iter().enumerate().map(|(at, (at_least, leaves))| {
            Class::new(&format!("c{at}"), *at_least).unwrap().leaving(*leaves).unwrap()
        });
        let with = limit.clone().with_classes(classes);
        let of = |percent: u32| i64::from(percent) * capacity >= 100;
        let has_tokens = percents.iter().all(|(at_least, _)| *at_least == 0 || of((*at_least).into()))
            && of(100 - sum.min(99));
        prop_assert_eq!(with.is_ok(), sum <= 99 && has_tokens);
        let Ok(with) = with else { return Ok(()) };
        let pools = with.pools();
        let sum = |of: fn(&Limit) -> i64| pools.iter().map(of).sum::<i64>();
        prop_assert_eq!(sum(|pool| pool.rule().capacity.0), limit.rule().capacity.0);
        prop_assert_eq!(sum(|pool| pool.rule().refill_amount.0), limit.rule().refill_amount.0);
        prop_assert!(pools.iter().all(|pool| pool.rule().refill_amount.0 > 0));
        prop_assert_eq!(with.to_string().parse::<Limit>(), Ok(with.clone()));
    }

    /// Processes with views of any age, some with classes that are older, take, go into debt, and bring
    /// other classes. Over no interval more is taken than the limit has, a write never makes the pools
    /// richer in all, consumption is what was taken, and at rest the pools are full.
    #[test]
    fn i1_pools_have_no_more_than_the_limit_whatever_classes_change(
        (capacity, amount, period) in (100..900_i64, 1..2_000_i64, 1..1_500_i64),
        index in prop_oneof![3 => Just((0, 1)), 1 => Just((1, 2))],
        contention in contention(), is_versioned in any::<bool>(),
        steps in vec(step(), 1..40),
    ) {
        let limit = Limit::custom("tpm", capacity, amount, period).unwrap();
        let shard = ShardIndex { index: index.0, count: index.1 };
        let (key, share) = (bucket_key(shard.index), shard.share(limit.rule().capacity));
        let mut item = Item::of_bucket(&bucket(shard, std::slice::from_ref(&limit), START));
        let (mut views, mut now, mut newest) = (vec![item.bucket(); 3], START, 0_usize);
        let (mut takes, mut consumed) = (vec![], MilliTokens::ZERO);
        let terms = |pools: &'static [Limit], version: usize| VersionedLimits {
            version: is_versioned.then(|| LimitsVersion::new(i64::try_from(version).unwrap())),
            ..VersionedLimits::from(pools)
        };
        for (id, step) in (1..).zip(steps) {
            now = now.plus(Millis(step.passed));
            newest += step.changes;
            let version = newest.saturating_sub(usize::from(!step.is_current));
            let named = limit_with(&limit, CLASSES[version % CLASSES.len()]);
            // As long as the test, because a take borrows them.
            let pools: &'static [Limit] = named.pools().leak();
            let class = step.class.map(|class| ClassName::new(class).unwrap());
            let amount = MilliTokens(share.0 * step.part / 1_000);
            let choices = named.choices(class.as_ref()).or_else(|| named.choices(None)).unwrap();
            for choice in choices {
                let view = views[step.process].clone();
                let asks = asks(&choice, amount, step.is_into_debt);
                let known = view.projected(terms(pools, version), now);
                let lacks = |(name, need)| known.limits.get(name).is_none_or(|state| state.available < need);
                if asks.required(shard).any(lacks) {
                    continue;
                }
                let has_floor = asks.has_floor();
                let place = Place { asks: asks.clone(), wait: Millis(0) };
                let take = Take {
                    asks,
                    acquires: 1,
                    contention,
                    line: if has_floor { vec![place] } else { vec![] },
                    ..Take::nothing(&key, terms(pools, version), WriteId::from_bits(id), now)
                };
                let before = item.bucket();
                let is_done = item.apply(&take.plan(&view, now));
                let after = item.bucket();
                views[step.process] = after.clone();
                if !is_done {
                    continue;
                }
                let at = now.max(after.refilled_at).max(before.refilled_at);
                let (had, has) = (total(&before, at), total(&after, at));
                prop_assert!(has <= had - amount, "{had:?} less {amount:?} became {has:?}: {before:?} {after:?}");
                let (had, has) = (takeable(&before, at), takeable(&after, at));
                let paid = if step.is_into_debt { MilliTokens::ZERO } else { amount };
                prop_assert!(has <= had - paid, "{had:?} less {paid:?} became {has:?}: {before:?} {after:?}");
                if !step.is_into_debt {
                    let floor = shard.share(choice.floor);
                    let left = after.balance(&after.limits[&choice.pool], at);
                    prop_assert!(left >= floor || choice.floor == MilliTokens::ZERO || amount == MilliTokens::ZERO, "{left:?} of {floor:?}");
                    takes.push((now, amount));
                }
                consumed += amount;
                break;
            }
            for (at, (from, _)) in takes.iter().enumerate() {
                let sum: MilliTokens = takes[at..].iter().map(|(_, amount)| *amount).sum();
                // A change moves `rf` by a millisecond at least.
                let most = share + refill_between(limit.rule(), shard, EpochMillis(from.0 - 1), now.plus(Millis(1)));
                prop_assert!(sum <= most, "{sum:?} of {most:?} from {from:?} to {now:?}");
            }
        }
        let used: MilliTokens = item.bucket().limits.values().map(|state| MilliTokens(i64::try_from(state.consumed.0).unwrap())).sum();
        prop_assert_eq!(used, consumed);
        // Whatever they had, the pools that are in force fill.
        let later = now.plus(Millis(1_000_000_000));
        let pools = i64::try_from(item.bucket().limits.len()).unwrap();
        let full = total(&item.bucket(), later);
        prop_assert!(full <= share && share - full <= MilliTokens(pools), "{full:?} of {share:?}");
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    /// Classes, capacities, slots and quotas change in one configuration, from any balances. A take of another
    /// limit applies by a fresh view, leaves what the view foresaw, and changes the others as if there were
    /// no classes.
    #[test]
    fn a_change_of_classes_is_written_by_any_take_and_touches_no_other_limit(
        capacities in [100..900_i64, 100..900_i64], slots in [1..30_i64, 1..30_i64], quotas in [1..900_i64, 1..900_i64],
        classes in [0..CLASSES.len(), 0..CLASSES.len()], parts in vec(-300..=1_000_i64, 6), passed in 0..5_000_i64,
        brings in any::<bool>(),
    ) {
        let terms = |at: usize| {
            let rate = Limit::custom("tpm", capacities[at], 7, 1_000).unwrap();
            let others = [
                Limit::per_minute("rpm", 60).unwrap(),
                Limit::concurrent("slots", slots[at]).unwrap(),
                Limit::session("tpd", quotas[at], Duration::from_hours(1)).unwrap(),
            ];
            let mut limits = limit_with(&rate, CLASSES[classes[at]]).pools();
            limits.extend(others);
            limits
        };
        let (old, new) = (terms(0), terms(1));
        let now = START.plus(Millis(passed));
        let mut there = bucket(ShardIndex::UNSPLIT, &old, START);
        for (state, part) in there.limits.values_mut().zip(parts) {
            let lower = if state.rule.kind().is_held() { part.max(0) } else { part };
            state.available = MilliTokens(state.rule.capacity.0 / 1_000 * lower);
            if state.rule.kind().has_window() {
                state.window_end = START.plus(Millis(3_600_000));
            }
        }
        there.limits.get_mut("rpm").unwrap().available = MilliTokens::from_tokens(60);
        let brought = if brings { &new } else { &old };
        let key = bucket_key(0);
        let take = take(&key, brought, [("rpm".try_into().unwrap(), MilliTokens::from_tokens(1))].into(), WriteId::from_bits(1), now);
        let mut item = Item::of_bucket(&there);
        let update = take.plan(&there, now);
        prop_assert!(item.apply(&update), "{update:?} of {there:?}");
        let (foreseen, after) = (there.projected(&brought[..], now), item.bucket());
        let plain = |limits: &[Limit]| limits.iter().filter(|limit| limit.name().base() != "tpm").cloned().collect::<Vec<_>>();
        let alone = Shard { limits: there.limits.clone().into_iter().filter(|(name, _)| name.base() != "tpm").collect(), ..there.clone() };
        let alone = alone.projected(&plain(brought)[..], now);
        for (name, state) in &after.limits {
            let taken = MilliTokens(if name.as_str() == "rpm" { 1_000 } else { 0 });
            let at = now.max(after.refilled_at);
            // A change moves `rf` by a millisecond at least, which is not refilled.
            prop_assert_eq!(after.balance(state, at), foreseen.balance(&foreseen.limits[name], now) - taken, "{}", name);
            if let Some(known) = alone.limits.get(name) {
                prop_assert_eq!(foreseen.limits[name].available, known.available, "{}", name);
            }
        }
    }
}

/// What is left of a class that is gone holds up nothing.
#[test]
fn a_shard_splits_after_its_class_is_gone() {
    let limit = Limit::per_minute("tpm", 1_000).unwrap();
    let with = limit_with(&limit, CLASSES[1]);
    let shard = bucket(ShardIndex::UNSPLIT, &with.pools(), START);
    let without = shard.projected(std::slice::from_ref(&limit), START);
    assert!(may_split(&shard, 64, &[].into()) && may_split(&without, 64, &[].into()));
    assert!(without.is_gone(&"tpm@a".try_into().unwrap()));
    assert_eq!(without.whole_rule(limit.name()), Some(*limit.rule()));
    assert_eq!(shard.whole_rule(limit.name()), Some(*limit.rule()));
}

/// I6: shards of which one still has a class that is gone in the other keep all tokens as they merge.
#[test]
fn i6_a_merge_keeps_the_tokens_of_a_class_that_is_gone_in_one_half() {
    let limit = Limit::per_minute("tpm", 1_000).unwrap();
    let with = limit_with(&limit, CLASSES[1]).pools();
    let half = |index| bucket(ShardIndex { index, count: 2 }, &with, START);
    let without = half(0).projected(std::slice::from_ref(&limit), START);
    let whole = merged(&without, &half(1), START).unwrap();
    assert_eq!(total(&whole, START), limit.rule().capacity);
    assert_eq!(whole.whole_rule(limit.name()), Some(*limit.rule()));
}

#[test]
fn classes_that_cannot_be_are_refused_with_the_reason() {
    for (text, part) in [
        ("tpm=9/m,class=a", "its class must be NAME:AT_LEAST%"),
        ("tpm=9/m,class=a:10", "its class must be NAME:AT_LEAST%"),
        ("tpm=9/m,class=a:-1%", "its class must be NAME:AT_LEAST%"),
        ("tpm=9/m,class=a:10%:x", "its class must be NAME:AT_LEAST%"),
        ("tpm=9/m,class=a:100%", "class \"a\": at_least must be 0 to 99 %, got 100 %"),
        ("tpm=9/m,class=a:1%:100%", "class \"a\": leaves must be 0 to 99 %, got 100 %"),
        ("tpm=9/m,class=a:50%,class=b:50%", "classes of 100 % together"),
        ("tpm=9/m,class=a:1%,class=a:2%", "class \"a\": limit \"tpm\" has it twice"),
        ("tpm=9/m,class=1a:1%", "class \"1a\" is not a valid name"),
        ("slots=9,class=a:1%", "is no rate, and only rates have classes"),
        ("tpm=quota:9/month,class=a:1%", "is no rate, and only rates have classes"),
        (
            "tpm=9/m,class=a:10%",
            "class \"a\": its pool of limit \"tpm\" must have at least 1 token, got 0.9",
        ),
        (
            "tpm=9/m,class=a:95%",
            "class \"shared\": its pool of limit \"tpm\" must have at least 1 token",
        ),
        ("tpm=100/m,class=a:1%,schedule=0 8 * * * for 1h scale 1/2", "each of its classes 1"),
        ("tpm@a=9/m", "limit \"tpm@a\" is not a valid name"),
    ] {
        let error = text.parse::<Limit>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let long = "l".repeat(60);
    let error = format!("{long}=9/m,class=batch:1%").parse::<Limit>().unwrap_err();
    assert!(error.to_string().contains("is not a valid name"), "{error}");
}

/// The preferred pool of a class is its own, that of others the shared one.
#[test]
fn a_caller_takes_from_its_own_pool_first() {
    let limit: Limit = "tpm=1000/m,class=batch:10%:30%,class=rest:0%:50%".parse().unwrap();
    let choices = |class: Option<&str>| {
        let class = class.map(|class| ClassName::new(class).unwrap());
        let choices = limit.choices(class.as_ref())?.into_iter();
        Some(
            choices
                .map(|choice| (choice.pool.to_string(), choice.floor.whole_tokens()))
                .collect::<Vec<_>>(),
        )
    };
    let of = |all: &[(&str, i64)]| {
        Some(all.iter().map(|(name, floor)| ((*name).to_owned(), *floor)).collect())
    };
    assert_eq!(choices(Some("batch")), of(&[("tpm@batch", 0), ("tpm", 270)]));
    assert_eq!(choices(Some("rest")), of(&[("tpm", 450)]));
    assert_eq!(choices(None), of(&[("tpm", 0), ("tpm@batch", 50)]));
    assert_eq!(choices(Some("other")), None);
}
