//! Amounts and rates of the whole range that limits accept, for ten years: a shard grants what the
//! definition of its limit grants, computed in 128 bits.

use std::collections::BTreeMap;

use crate::model::{Item, bucket, bucket_key, config, contention, settle, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{Contention, LimitDelta, Take, refill};
use weirgate_shared::{
    Asks, Effect, EpochMillis, Limit, LimitName, MAX_PERIOD_MS, MAX_TOKENS, MIN_BALANCE,
    MilliTokens, Millis, Shard, ShardIndex, WriteId,
};

const START: EpochMillis = EpochMillis(1_795_197_600_000);
const TEN_YEARS: i64 = 3_653 * 86_400_000;

/// Returns numbers of any size up to `most`.
fn any_size(most: i64) -> impl Strategy<Value = i64> {
    let sizes = (0..=most.ilog2()).prop_flat_map(move |bits| (1 << bits)..=most.min(2 << bits));
    prop_oneof![4 => sizes, 1 => Just(most), 1 => Just(1)]
}

fn rate(name: &'static str) -> impl Strategy<Value = Limit> {
    (any_size(MAX_TOKENS), any_size(MAX_TOKENS), any_size(MAX_PERIOD_MS)).prop_map(
        move |(capacity, amount, period)| Limit::custom(name, capacity, amount, period).unwrap(),
    )
}

#[derive(Debug, Clone)]
enum Op {
    /// Thousandths of the share, or as many millitokens below zero, by a view of this age in writes.
    Take { parts: i64, back: usize, contention: Contention },
    /// All that is there and so many millitokens, by the current view.
    There(i64),
    /// An amount into debt, in tokens.
    Debt(i64),
    /// An adjustment without a lease, in tokens.
    Adjust(i64),
    /// The aggregator's.
    Refill,
}

fn steps() -> impl Strategy<Value = Vec<(i64, Op)>> {
    let op = prop_oneof![
        4 => (prop_oneof![3 => 0..=1000i64, 1 => -3..0i64], 0..4usize, contention())
            .prop_map(|(parts, back, contention)| Op::Take { parts, back, contention }),
        4 => (-1..=1i64).prop_map(Op::There),
        2 => any_size(MAX_TOKENS).prop_map(Op::Debt),
        1 => any_size(MAX_TOKENS).prop_map(Op::Adjust),
        1 => Just(Op::Refill),
    ];
    vec((prop_oneof![Just(0), any_size(TEN_YEARS / 8)], op), 1..40)
}

/// A limit by its definition.
struct Exact {
    limit: Limit,
    shard: ShardIndex,
    balance: i128,
    at: EpochMillis,
}

impl Exact {
    fn share(&self, whole: i128) -> i128 {
        let (index, count) = (i128::from(self.shard.index), i128::from(self.shard.count));
        whole.div_euclid(count) + i128::from(index < whole.rem_euclid(count))
    }

    fn flowed(&self, at: EpochMillis) -> i128 {
        let rule = self.limit.rule();
        let whole = i128::from(at.0) * i128::from(rule.refill_amount.0);
        self.share(whole.div_euclid(i128::from(rule.refill_period_ms)))
    }

    fn advance(&mut self, now: EpochMillis) {
        let most = self.share(i128::from(self.limit.rule().capacity.0));
        let refilled = self.balance + self.flowed(now) - self.flowed(self.at);
        (self.balance, self.at) = (refilled.min(most), now);
    }
}

/// Returns whether a balance and its refill since `rf` are what the definition says.
fn balance(shard: &Shard, name: &LimitName, now: EpochMillis) -> i128 {
    i128::from(shard.balance_at(name, now).0)
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn every_rate_grants_for_ten_years_what_it_defines(
        rates in [rate("x"), rate("y")], steps in steps(), shards in prop_oneof![Just(1u32), Just(2), Just(64)],
    ) {
        let shard = ShardIndex { index: shards / 2, count: shards };
        let key = bucket_key(shard.index);
        let mut item = Item::of_bucket(&bucket(shard, &rates, START));
        let name = rates[0].name().clone();
        let mut exact = rates.clone().map(|limit| {
            let mut exact = Exact { limit, shard, balance: i128::MAX >> 1, at: START };
            exact.advance(START);
            exact
        });
        let mut images = vec![item.bucket()];
        let mut now = START;
        for (id, (wait, op)) in (1..).zip(steps) {
            now = now.plus(Millis(wait));
            exact.iter_mut().for_each(|exact| exact.advance(now));
            let (there, id) = (exact[0].balance, WriteId::from_bits(id));
            let view = item.bucket();
            prop_assert_eq!(balance(&view, &name, now), there, "{:?}", view);
            let share = shard.share(rates[0].rule().capacity);
            let plan = |need: MilliTokens, soft: bool, view: &Shard, contention| {
                let needs = [(name.clone(), need)];
                let effect = if soft { Effect::IntoDebt } else { Effect::Enforce };
                let take = take(&key, &rates, BTreeMap::new(), id.clone(), now);
                Take { asks: Asks::of(effect, needs), contention, ..take }.plan(view, now)
            };
            let (taken, is_done) = match op {
                Op::Take { parts, back, contention } => {
                    let part = || i64::try_from(i128::from(share.0) * i128::from(parts) / 1000).unwrap();
                    let need = MilliTokens(if parts < 0 { -parts } else { part() });
                    let view = &images[images.len().saturating_sub(back + 1)];
                    let is_done = item.apply(&plan(need, false, view, contention));
                    prop_assert!(!is_done || need.0 == 0 || there >= i128::from(need.0));
                    (need.0, is_done)
                }
                Op::There(more) => {
                    let need = MilliTokens(i64::try_from(there + i128::from(more)).unwrap());
                    if need <= MilliTokens::ZERO || need > share {
                        continue;
                    }
                    let is_done = item.apply(&plan(need, false, &view, Contention::Alone));
                    prop_assert_eq!(is_done, more <= 0, "{} of {}", need, there);
                    (need.0, is_done)
                }
                Op::Debt(tokens) => {
                    let need = MilliTokens::from_tokens(tokens);
                    let is_done = item.apply(&plan(need, true, &view, Contention::Alone));
                    // Refused only at the end of what a balance holds.
                    let most = i128::from(MIN_BALANCE.0) / 2;
                    prop_assert!(is_done || there - i128::from(need.0) < most, "{} from {}", need, there);
                    (need.0, is_done)
                }
                Op::Adjust(tokens) => {
                    let need = MilliTokens::from_tokens(tokens);
                    let delta = LimitDelta { available: -need, consumed: need, ..LimitDelta::default() };
                    let settle = settle(&key, id.clone(), None, [(name.clone(), delta)].into(), now);
                    (need.0, item.apply(&settle.full(Some(&view))))
                }
                Op::Refill => {
                    let used = [(name.clone(), MilliTokens(share.0 / 2 + 1))].into();
                    let is_done = refill(&view, &used, now).is_some_and(|update| item.apply(&update));
                    (0, is_done)
                }
            };
            if !is_done {
                continue;
            }
            let after = item.bucket();
            let (most, left) = (exact[0].balance - i128::from(taken), balance(&after, &name, now));
            match op {
                // Of what has overflowed since the take, it can be more.
                Op::Adjust(_) => prop_assert!(left >= most),
                // A process with an old view may leave headroom when it cuts.
                _ => prop_assert!(left <= most && most - left <= i128::from(share.0 / 128), "{} {}", left, most),
            }
            exact[0].balance = left;
            prop_assert!(i128::from(after.limits[&name].available.0) >= i128::from(MIN_BALANCE.0) * 3 / 2);
            // It is ready when it says, and not a millisecond earlier.
            if let Some(ready) = after.ready_at(&name, share).filter(|ready| ready.0 < i64::MAX / 2) {
                prop_assert!(balance(&after, &name, ready) >= i128::from(share.0));
                prop_assert!(ready <= now || balance(&after, &name, EpochMillis(ready.0 - 1)) < i128::from(share.0));
            }
            images.push(after);
        }
    }
}
