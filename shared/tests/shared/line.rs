//! The line of a rate: acquires that queue start in the order of their writes, when what was taken
//! before them and for them is repaid.

use crate::model::{Item, START, bucket, bucket_key, config, contention, limit_name, settle, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{Contention, LimitDelta, Place, Take};
use weirgate_shared::{
    Asks, Effect, EpochMillis, Limit, LimitMode, LimitName, MIN_BALANCE, MilliTokens, Millis,
    Shard, ShardIndex, WriteId, refill_between,
};

const NAMES: [&str; 2] = ["rpm", "tpm"];

/// A place that asks for so much of each limit, in thousandths of the share, and waits so long.
type Asked = ([Option<i64>; 2], i64);

fn asked() -> impl Strategy<Value = Asked> {
    let amount = prop_oneof![
        6 => 0..=600_i64,
        1 => 900..=1_100_i64,
    ];
    let amounts =
        [prop::option::weighted(0.8, amount.clone()), prop::option::weighted(0.4, amount)];
    (amounts, prop_oneof![1 => Just(0), 3 => 0..4_000_i64])
}

fn rates() -> impl Strategy<Value = [Limit; 2]> {
    let rate = || (1..8_i64, 1..20_i64, 1..1_500_i64);
    (rate(), rate()).prop_map(|rates| {
        let mut names = NAMES.into_iter();
        <[_; 2]>::from(rates).map(|(capacity, amount, period)| {
            Limit::custom(names.next().unwrap(), capacity, amount, period).unwrap()
        })
    })
}

/// The places of a write to a shard, each with its amounts by the share of the limits.
fn places(asked: &[Asked], limits: &[Limit], shard: ShardIndex) -> Vec<Place> {
    let place = |(amounts, wait): &Asked| {
        let amounts = limits.iter().zip(amounts);
        let amounts = amounts.filter_map(|(limit, part)| {
            let share = shard.share(limit.rule().capacity).0;
            Some((limit.name().clone(), MilliTokens(share * (*part)? / 1_000)))
        });
        Place { asks: Asks::of(Effect::Enforce, amounts), wait: Millis(*wait) }
    };
    asked.iter().map(place).collect()
}

/// Returns the take of these places.
fn take_of<'a>(take: Take<'a>, places: &[Place]) -> Take<'a> {
    let mut asks = Asks::default();
    for ask in places.iter().flat_map(|place| &place.asks) {
        asks.add(ask.clone());
    }
    Take { asks, line: places.to_vec(), acquires: i64::try_from(places.len()).unwrap(), ..take }
}

/// When each place starts by one limit, as a line that is served tick by tick: `None` if that is
/// later than its wait allows, the debt and the amount are too much, or the amount is and has to
/// wait. `balance` is that at `now`.
fn served(
    places: &[Place],
    limit: &Limit,
    shard: ShardIndex,
    balance: MilliTokens,
    now: EpochMillis,
) -> Vec<(EpochMillis, MilliTokens, bool)> {
    let share = shard.share(limit.rule().capacity);
    let mut ahead = MilliTokens::ZERO;
    let places = places.iter().filter_map(|place| {
        let amount = place.asks.enforced(limit.name().as_str())?;
        ahead += amount;
        let has = |at| balance + refill_between(limit.rule(), shard, now, at) >= ahead;
        let mut start = now;
        while !has(start) && start < now.plus(Millis(200_000)) {
            start = start.plus(Millis(1));
        }
        let debt = ahead - amount - balance;
        let is_short_line = debt.max(MilliTokens::ZERO) + amount <= share;
        let wait = match limit.mode() {
            LimitMode::Enforced => place.wait,
            _ => Millis(0),
        };
        let fits = start == now || is_short_line && amount <= share && start.since(now) <= wait;
        Some((start, amount, fits))
    });
    places.collect()
}

/// Requires that a grant starts when the line serves it, by the shard as its write left it.
fn assert_starts(
    after: &Shard,
    name: &LimitName,
    served: &[(EpochMillis, MilliTokens, bool)],
    now: EpochMillis,
) -> Result<(), TestCaseError> {
    let mut later = MilliTokens::ZERO;
    for (start, amount, _) in served.iter().rev() {
        prop_assert_eq!(after.repaid_at(name, later).map(|at| at.max(now)), Some(*start));
        later += *amount;
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(2_000))]

    /// By a view of any age, with limits that it has, that change, or that others have changed: what
    /// is written starts in time, and what a fresh view can serve is written.
    #[test]
    fn i1_a_write_takes_for_acquires_that_start_in_time(
        limits in rates(), index in prop_oneof![2 => Just((0, 1)), 1 => Just((1, 2)), 1 => Just((0, 4))],
        balances in [[-1_000..=1_000_i64, -1_000..=1_000_i64], [-1_000..=1_000_i64, -1_000..=1_000_i64]],
        (passed, credited) in (-20..6_000_i64, prop_oneof![2 => Just(0), 1 => 0..3_000_i64]),
        is_fresh in any::<bool>(), brings in 0..3_i64, is_shadow in prop::bool::weighted(0.1),
        asked in vec(asked(), 1..6), contention in contention(),
    ) {
        let shard = ShardIndex { index: index.0, count: index.1 };
        let (key, now) = (bucket_key(shard.index), START.plus(Millis(passed)));
        let of = |balances: [i64; 2], rf: i64| {
            let mut made = bucket(shard, &limits, START);
            for (name, part) in NAMES.iter().zip(balances) {
                let state = made.limits.get_mut(*name).unwrap();
                state.available = MilliTokens(shard.share(state.rule.capacity).0 * part / 1_000);
            }
            Shard { refilled_at: START.plus(Millis(rf)), ..made }
        };
        let there = of(balances[0], credited);
        let seen = if is_fresh { there.clone() } else { of(balances[1], 0) };
        let mut brought = limits.clone();
        if brings == 1 {
            let rule = *brought[0].rule();
            brought[0] = Limit::custom("rpm", rule.capacity.0 / 1_000 + 2, 3, 700).unwrap();
        }
        if is_shadow {
            brought[0] = brought[0].clone().in_mode(LimitMode::Shadow);
        }
        let places = places(&asked, &limits, shard);
        let plain = take(&key, &brought, [].into(), WriteId::from_bits(1), now);
        let take = take_of(Take { contention, ..plain }, &places);
        let mut item = Item::of_bucket(&there);
        let is_done = item.apply(&take.plan(&seen, now));
        let (before, after) = (there.projected(take.limits, now), item.bucket());
        // A change moves `rf` also within a millisecond, or if the clock is behind.
        let at = if is_done { now.max(after.refilled_at) } else { before.refilled_at };
        let is_alone = contention == Contention::Alone;
        let mut fits = true;
        for limit in &brought {
            let (name, rule) = (limit.name(), limit.rule());
            let taken = take.asks.enforced(name.as_str()).unwrap_or_default();
            let mut balance = before.limits[name].available;
            if is_done {
                let left = after.balance(&after.limits[name], at);
                prop_assert!(after.limits[name].available >= MIN_BALANCE);
                prop_assert!(left <= balance - taken, "{name} has too much: {left:?}");
                prop_assert!(left == balance - taken || !is_alone && balance - taken - left <= shard.share(rule.capacity) / 128);
                balance = left + taken;
            }
            let served = served(&places, limit, shard, balance, at);
            fits &= served.iter().all(|(_, _, fits)| *fits);
            if is_done {
                assert_starts(&after, name, &served, at)?;
            }
        }
        prop_assert!(fits || !is_done, "starts too late: {:?}", after);
        let is_sure = is_fresh && is_alone && now >= there.refilled_at;
        prop_assert!(is_done || !fits || !is_sure, "{:?}", take.plan(&seen, now));
    }

    /// Processes with views of any age queue in one shard. Counted at their starts, no interval has
    /// more than the capacity and its refill; the millisecond in which the first one starts had
    /// begun before. The earlier write starts first.
    #[test]
    fn i1_starts_are_in_the_order_of_writes_and_never_exceed_the_rate(
        limits in rates(), contention in contention(),
        steps in vec((0..3_usize, 0..700_i64, vec(asked(), 1..4)), 1..25),
    ) {
        let (limit, shard, key) = (&limits[0], ShardIndex::UNSPLIT, bucket_key(0));
        let limits = std::slice::from_ref(limit);
        let share = limit.rule().capacity;
        let mut item = Item::of_bucket(&bucket(shard, limits, START));
        let (mut views, mut now) = (vec![item.bucket(); 3], START);
        let mut starts: Vec<(EpochMillis, MilliTokens)> = vec![];
        for (id, (by, passed, asked)) in (1..).zip(steps) {
            now = now.plus(Millis(passed));
            let asked: Vec<_> = asked.into_iter().map(|(amounts, wait)| ([amounts[0], None], wait)).collect();
            let places = places(&asked, limits, shard);
            let plain = take(&key, limits, [].into(), WriteId::from_bits(id), now);
            let take = take_of(Take { contention, ..plain }, &places);
            let is_done = item.apply(&take.plan(&views[by], now));
            views[by] = item.bucket();
            if !is_done {
                continue;
            }
            let mut later = take.asks.enforced("rpm").unwrap_or_default();
            for place in &places {
                let Some(amount) = place.asks.enforced("rpm") else { continue };
                // An amount of 0 waits for nothing.
                if amount == MilliTokens::ZERO {
                    continue;
                }
                later -= amount;
                let start = views[by].repaid_at(limit.name(), later).unwrap().max(now);
                prop_assert!(start.since(now) <= place.wait);
                prop_assert!(starts.last().is_none_or(|(last, _)| *last <= start), "the order");
                starts.push((start, amount));
            }
        }
        for (at, (from, _)) in starts.iter().enumerate() {
            let mut sum = MilliTokens::ZERO;
            for (to, amount) in &starts[at..] {
                sum += *amount;
                let begun = EpochMillis(from.0 - 1);
                let most = share + refill_between(limit.rule(), shard, begun, *to);
                prop_assert!(sum <= most, "{sum:?} from {from:?} to {to:?} of {most:?}: {starts:?}");
            }
        }
    }

    /// What leaves makes room for the next one in line. Starts that were told before do not change.
    #[test]
    fn an_acquire_that_leaves_lets_the_next_one_start_earlier(
        amounts in [1..=500_i64, 1..=300_i64, 1..=200_i64],
    ) {
        let limit = Limit::custom("rpm", 1, 1, 1_000).unwrap();
        let (limits, key, rpm) = (std::slice::from_ref(&limit), bucket_key(0), limit_name("rpm"));
        let mut empty = bucket(ShardIndex::UNSPLIT, limits, START);
        empty.limits.get_mut("rpm").unwrap().available = MilliTokens::ZERO;
        let mut item = Item::of_bucket(&empty);
        let queue = |item: &mut Item, id: u64, amount: i64| {
            let places = places(&[([Some(amount), None], 1_000)], limits, ShardIndex::UNSPLIT);
            let take = take(&key, limits, [].into(), WriteId::from_bits(id), START);
            assert!(item.apply(&take_of(take, &places).plan(&item.bucket(), START)));
            item.bucket().repaid_at(&rpm, MilliTokens::ZERO).unwrap().since(START).0
        };
        let [first, second, third] = amounts;
        prop_assert_eq!(queue(&mut item, 1, first), first);
        prop_assert_eq!(queue(&mut item, 2, second), first + second);
        let back = LimitDelta { available: MilliTokens(first), consumed: -MilliTokens(first), ..LimitDelta::default() };
        let leaves = settle(&key, WriteId::from_bits(3), None, [(rpm.clone(), back)].into(), START);
        let seen = item.bucket();
        prop_assert!(item.apply(&leaves.full(Some(&seen))));
        prop_assert_eq!(queue(&mut item, 4, third), second + third);
    }
}
