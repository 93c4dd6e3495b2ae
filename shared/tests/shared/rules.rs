//! Takes by processes with different limits: configurations change while buckets are in use, and
//! reach the buckets with a take.

use std::collections::BTreeMap;

use crate::model::START;
use crate::model::table::Table;
use crate::model::{
    Item, assert_due_is_a_lower_bound, bucket, bucket_key, config, held, limit_name, settle, take,
};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{LeaseChange, Take, expire};
use weirgate_shared::{
    EpochMillis, Lease, Limit, MilliTokens, Millis, RefillRule, Shard, ShardIndex, WriteId,
    refill_between,
};

/// Rates that differ in one number or in all.
fn rates() -> [Limit; 4] {
    [(10, 5, 1000), (10, 9, 1000), (4, 5, 1000), (25, 25, 400)]
        .map(|(capacity, amount, period)| Limit::custom("rpm", capacity, amount, period).unwrap())
}

fn slots() -> [Limit; 3] {
    [5, 2, 9].map(|slots| Limit::concurrent("slots", slots).unwrap())
}

/// Returns limits that are a rate for some processes and slots for others, also of the same
/// capacity.
fn kinds() -> [Limit; 3] {
    [
        Limit::concurrent("both", 6).unwrap(),
        Limit::custom("both", 6, 6, 1000).unwrap(),
        Limit::concurrent("both", 4).unwrap(),
    ]
}

/// A take, an expiry, or the end of the oldest lease, after some time and with a view of some age.
#[derive(Debug, Clone)]
struct Step {
    wait: i64,
    view: usize,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Take {
        knows: (usize, usize, usize),
        needs: [i64; 3],
        lease: i64,
    },
    Expire,
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let need = || prop_oneof![2 => Just(0i64), 3 => 1..6000i64];
    let take = (
        (0..4usize, 0..3usize, 0..3usize),
        (need(), 0..3i64, 0..3i64),
        0..1500i64,
    )
        .prop_map(|(knows, (rate, slots, both), lease)| What::Take {
            knows,
            needs: [rate, slots * 1000, both * 1000],
            lease,
        });
    let what = prop_oneof![6 => take, 1 => Just(What::Expire), 1 => Just(What::End)];
    // Often within one millisecond: then `rf` does not move, and cannot tell two images apart.
    let wait = prop_oneof![Just(0i64), 0..300i64, 0..2000i64];
    vec(
        (wait, 0..4usize, what).prop_map(|(wait, view, what)| Step { wait, view, what }),
        1..50,
    )
}

fn shard() -> impl Strategy<Value = ShardIndex> {
    let split = (0..2u32).prop_map(|index| ShardIndex { index, count: 2 });
    prop_oneof![3 => Just(ShardIndex::UNSPLIT), 1 => split]
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn limits_that_change_with_takes_neither_make_nor_lose_slots_nor_debts(steps in steps(), shard in shard()) {
        let (rates, slots, kinds) = (rates(), slots(), kinds());
        let names = ["rpm", "slots", "both"].map(limit_name);
        let key = bucket_key(shard.index);
        // The limit of two kinds is new to the bucket.
        let mut table = Table::of(&bucket(shard, &[rates[0].clone(), slots[0].clone()], START));
        let (mut now, mut id) = (START, 0);
        for Step { wait, view, what } in steps {
            now = now.plus(Millis(wait));
            id += 1;
            let op = WriteId::from_bits(id);
            let view = table.image(shard.index, view).unwrap();
            let update = match what {
                What::Take { knows, needs, lease } => {
                    let limits = [rates[knows.0].clone(), slots[knows.1].clone(), kinds[knows.2].clone()];
                    let needs: BTreeMap<_, _> = names
                        .iter()
                        .cloned()
                        .zip(needs.map(MilliTokens))
                        .filter(|(_, need)| *need > MilliTokens::ZERO)
                        .collect();
                    let lease =
                        Lease { expires_at: now.plus(Millis(lease)), tokens: needs.clone(), owner: String::new() };
                    let leases = vec![(op.clone(), lease)];
                    Take { leases, ..take(&key, &limits, needs, op, now) }.plan(&view, now)
                }
                What::Expire => match expire(&view, now) {
                    Some((update, _)) => update,
                    None => continue,
                },
                What::End => {
                    let bucket = &table.shards()[&shard.index];
                    let leases = bucket.leases.as_ref().unwrap();
                    let Some((lease, held)) = leases.first_key_value() else { continue };
                    let slots = |(name, held): (&weirgate_shared::LimitName, &MilliTokens)| {
                        let available = if bucket.limits[name].rule.is_concurrent() { *held } else { MilliTokens::ZERO };
                        (name.clone(), weirgate_shared::write::LimitDelta { available, ..Default::default() })
                    };
                    let amounts = held.tokens.iter().map(slots).collect();
                    settle(&key, op, Some((lease, LeaseChange::End)), amounts, now).full(None)
                }
            };
            if !table.update(update) {
                continue;
            }
            let (item, after) = table.items().next().unwrap();
            let rate = after.limits[&names[0]];
            prop_assert!(rates.iter().any(|limit| *limit.rule() == rate.rule), "numbers of two callers are mixed");
            let balance = after.balance(&rate, now);
            prop_assert!(balance >= MilliTokens::ZERO, "a lowered limit made a debt: {:?}", balance);
            for (name, state) in after.limits.iter().filter(|(_, state)| state.rule.is_concurrent()) {
                let all = state.available + held(after, name);
                prop_assert_eq!(all, after.share(state), "slots of {} made or lost", name);
            }
            assert_due_is_a_lower_bound(item, after);
        }
    }

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
    let needs = needs
        .into_iter()
        .filter(|(_, need)| *need > MilliTokens::ZERO)
        .collect();
    take(&key, limits, needs, WriteId::from_bits(1), now).plan(view, now)
}

/// A lower limit removes the balance above the new capacity; other processes took it in between.
#[test]
fn a_limit_lowered_by_a_take_of_another_one_makes_no_debt() {
    let (high, low) = (
        Limit::per_hour("rpm", 10).unwrap(),
        Limit::per_hour("rpm", 4).unwrap(),
    );
    let view = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&high), START);
    let mut item = Item::of_bucket(&view);
    assert!(item.apply(&take_of(&high, 8, &view, START)));
    assert!(
        !item.apply(&take_of(&low, 0, &view, START)),
        "of the 10 seen, only 2 are left to take 6 away from"
    );
    assert!(item.apply(&take_of(&low, 0, &item.bucket(), START)));
    assert_eq!(
        item.bucket().limits[low.name()].available,
        MilliTokens::from_tokens(2)
    );
}

/// Within the millisecond of the last refill `rf` would stay, and the old capacity would be filled
/// up once more.
#[test]
fn a_process_with_the_old_limit_cannot_credit_by_it_after_a_change() {
    let (high, low) = (
        Limit::per_second("rpm", 10).unwrap(),
        Limit::per_second("rpm", 4).unwrap(),
    );
    let mut view = bucket(ShardIndex::UNSPLIT, std::slice::from_ref(&high), START);
    view.limits.get_mut(high.name()).unwrap().available = MilliTokens::ZERO;
    let mut item = Item::of_bucket(&view);
    assert!(item.apply(&take_of(&low, 0, &view, START)));
    assert!(!item.apply(&take_of(&high, 1, &view, START.plus(Millis(10_000)))));
}
