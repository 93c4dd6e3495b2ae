//! Takes by processes with different limits: configurations change while buckets are in use, and
//! reach the buckets with a take.

use std::collections::BTreeMap;

use crate::model::START;
use crate::model::{Item, bucket, bucket_key, config, take};
use proptest::prelude::*;
use weirgate_shared::write::Take;
use weirgate_shared::{
    EpochMillis, Limit, LimitsVersion, MilliTokens, Millis, RULES_STAND, RefillRule, Shard,
    ShardIndex, VersionedLimits, WriteId, refill_between,
};

fn shard() -> impl Strategy<Value = ShardIndex> {
    let split = (0..2u32).prop_map(|index| ShardIndex { index, count: 2 });
    prop_oneof![3 => Just(ShardIndex::UNSPLIT), 1 => split]
}

proptest! {
    #![proptest_config(config(512))]

    /// With a current view: the balance that `projected` returns can be taken, under the request's
    /// limits.
    #[test]
    fn a_changed_limit_takes_effect_with_the_take_that_brings_it(
        (old, new) in ((1..30i64, 1..30i64, 1..3000i64), (1..30i64, 1..30i64, 1..3000i64)),
        tk in -500..=1000i64, need in 0..=1000i64,
        wait in prop_oneof![Just(0i64), 0..5000i64], shard in shard(),
    ) {
        let limit = |(capacity, amount, period)| Limit::custom("rpm", capacity, amount, period).unwrap();
        let (old, new) = (limit(old), limit(new));
        prop_assume!(old != new);
        let name = old.name().clone();
        let mut before = bucket(shard, std::slice::from_ref(&old), START);
        let (old_share, new_share) = (shard.share(old.rule().capacity), shard.share(new.rule().capacity));
        before.limits.get_mut(&name).unwrap().available = MilliTokens(old_share.0 * tk / 1000);
        let mut item = Item::of_bucket(&before);
        let (now, limits) = (START.plus(Millis(wait)), std::slice::from_ref(&new));
        let need = MilliTokens(new_share.0 * need / 1000);
        let (key, needs) = (bucket_key(shard.index), [(name.clone(), need)].into());
        let take = take(&key, limits, needs, WriteId::from_bits(1), now);
        let balance = before.balance(&before.limits[&name], now);
        let there = before.projected(limits, now).limits[&name].available;
        let applied = item.apply(&take.plan(&item.bucket(), now));
        prop_assert_eq!(applied, need == MilliTokens::ZERO || there >= need);
        prop_assert!(there <= new_share, "above what the bucket now holds");
        // A higher limit adds headroom that refills at the new rate: processes with different
        // limits must not create tokens by turns.
        prop_assert_eq!(there, balance.min(new_share), "lowering takes only what is above the new share");
        if applied {
            let after = item.bucket();
            prop_assert!(after.matches_rules(limits, now));
            prop_assert_eq!((after.limits[&name].available, after.limits[&name].consumed), (there - need, need.into()));
            // A stale view with the old numbers must find another `rf`, even in the same
            // millisecond.
            prop_assert_eq!(after.refilled_at, now.max(START.plus(Millis(1))));
        }
    }

    /// The bucket's own numbers count for the time until the new ones come: no credit is rewritten.
    #[test]
    fn a_new_rate_credits_only_the_time_after_it_came(slow in 1..2000i64, first in 0..3000i64, second in 0..3000i64) {
        let old = Limit::custom("rpm", 1000, 1, slow).unwrap();
        let new = Limit::custom("rpm", 1000, 50, 7).unwrap();
        let name = old.name().clone();
        let mut before = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&old), START);
        before.limits.get_mut(&name).unwrap().available = MilliTokens::ZERO;
        let (came, later) = (START.plus(Millis(first)), START.plus(Millis(first)).plus(Millis(second)));
        let between = before.projected(std::slice::from_ref(&new), came);
        let flowed = |rule: &RefillRule, from, to| refill_between(rule, ShardIndex::UNSPLIT, from, to);
        let exact = flowed(old.rule(), START, came) + flowed(new.rule(), came, later);
        prop_assert_eq!(between.projected(&[], later).limits[&name].available, exact.min(new.rule().capacity));
    }
}

/// Returns a take of `need` tokens by a process with `limit`.
fn take_of(
    limit: &Limit,
    need: i64,
    view: &Shard,
    now: EpochMillis,
) -> weirgate_shared::write::Update {
    let (key, limits) = (bucket_key(0), std::slice::from_ref(limit));
    let needs = BTreeMap::from([(limit.name().clone(), MilliTokens::from_tokens(need))]);
    let needs = needs.into_iter().filter(|(_, need)| *need > MilliTokens::ZERO).collect();
    take(&key, limits, needs, WriteId::from_bits(1), now).plan(view, now)
}

/// A lower limit removes the balance above the new capacity; other processes took it in between.
#[test]
fn a_limit_lowered_by_a_take_of_another_one_makes_no_debt() {
    let (high, low) = (Limit::per_hour("rpm", 10).unwrap(), Limit::per_hour("rpm", 4).unwrap());
    let view = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&high), START);
    let mut item = Item::of_bucket(&view);
    assert!(item.apply(&take_of(&high, 8, &view, START)));
    assert!(
        !item.apply(&take_of(&low, 0, &view, START)),
        "of the 10 seen, only 2 are left to take 6 away from"
    );
    assert!(item.apply(&take_of(&low, 0, &item.bucket(), START)));
    assert_eq!(item.bucket().limits[low.name()].available, MilliTokens::from_tokens(2));
}

/// Within the millisecond of the last refill `rf` would stay, and the old capacity would be filled
/// up once more.
#[test]
fn a_process_with_the_old_limit_cannot_credit_by_it_after_a_change() {
    let (high, low) = (Limit::per_second("rpm", 10).unwrap(), Limit::per_second("rpm", 4).unwrap());
    let mut view = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&high), START);
    view.limits.get_mut(high.name()).unwrap().available = MilliTokens::ZERO;
    let mut item = Item::of_bucket(&view);
    assert!(item.apply(&take_of(&low, 0, &view, START)));
    assert!(!item.apply(&take_of(&high, 1, &view, START.plus(Millis(10_000)))));
}

/// A server that fails may lose a change. The next one has its number.
#[test]
fn of_two_changes_with_one_number_each_takes_effect_once_in_half_a_minute() {
    let limits = [30, 60].map(|rate| [Limit::per_minute("rpm", rate).unwrap()]);
    let key = bucket_key(0);
    let take_by = |at: usize, number: i64, view: &Shard, now: EpochMillis| {
        let plain = take(&key, &limits[at], BTreeMap::new(), WriteId::from_bits(1), now);
        let terms =
            VersionedLimits { version: Some(LimitsVersion::new(number)), ..(&limits[at]).into() };
        Take { limits: terms, ..plain }.plan(view, now)
    };
    let cp = |item: &Item| item.bucket().limits["rpm"].rule.capacity.whole_tokens();
    let mut item = Item::of_bucket(&bucket(ShardIndex::UNSPLIT, &limits[0], START));
    assert!(item.apply(&take_by(0, 2, &item.bucket(), START)));
    // The number, the limits, the time since the last change of them, and which rate is in force then.
    let stand = RULES_STAND.0;
    let mut now = START;
    for (number, at, wait, expected) in [
        (2, 1, 0, 60),
        (2, 0, 0, 60),
        (2, 0, stand - 1, 60),
        (2, 0, 1, 30),
        (2, 0, stand, 30),
        (1, 1, stand, 30),
        (2, 1, 0, 60),
        (3, 0, 0, 30),
        (3, 0, stand, 30),
    ] {
        now = now.plus(Millis(wait));
        assert!(item.apply(&take_by(at, number, &item.bucket(), now)));
        assert_eq!(cp(&item), expected, "change {number} to {at} after {wait} ms");
    }
}
