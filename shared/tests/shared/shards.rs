//! I6 for splits and merges: the tokens are those there were.

use crate::model::START;
use crate::model::table::Table;
use crate::model::{bucket, config, limit_name};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{merge, merged};
use weirgate_shared::{
    EpochMillis, Every, Limit, MilliTokens, Millis, RULES_STAND, Shard, ShardIndex, WriteId,
    refill_between,
};

proptest! {
    #![proptest_config(config(2_000))]

    /// With any takes or returns since the image; and both halves refill to what their parent had.
    #[test]
    fn i6_a_split_or_a_merge_creates_and_destroys_no_token(
        (capacity, amount, period, slots) in (1..30i64, 1..30i64, 1..5000i64, 1..12i64),
        (depth, index) in (0..6u32, any::<Index>()),
        (tk, changed, used) in (-500..=1000i64, prop_oneof![Just(0), -50..=50i64, -1500..=1500i64], 0..12i64),
        (gone, near) in (prop_oneof![Just(0), 1..12i64], option::of((0..3usize, -6..=6i64))),
        writes in prop_oneof![4 => Just(0), 1 => 1..4i64],
        (rest, late, later) in (prop_oneof![0..50i64, 0..20_000i64], -3000..1000i64, 0..20_000i64),
    ) {
        let limits = [
            Limit::custom("rpm", capacity, amount, period).unwrap(), Limit::concurrent("slots", slots).unwrap(),
        ];
        let (rpm, slots) = (limit_name("rpm"), limit_name("slots"));
        let old = ShardIndex { index: u32::try_from(index.index(1 << depth)).unwrap(), count: 1 << depth };
        let (kept, new) = old.halves();
        let share = |shard: ShardIndex| shard.share(limits[0].rule().capacity);
        let mut image = bucket(old, &limits, START);
        image.limits.get_mut(&rpm).unwrap().available = MilliTokens(share(old).0 * tk / 1000);
        image.limits.get_mut(&slots).unwrap().available = MilliTokens::from_tokens(used);
        let mut before = image.clone();
        before.write_seq += writes;
        let state = before.limits.get_mut(&rpm).unwrap();
        state.available = (state.available + MilliTokens(share(old).0 * changed / 1000)).min(share(old).max(state.available));
        let planned = START.plus(Millis(rest + late));
        // As near as that to what the conditions of the split allow.
        if let Some((edge, more)) = near {
            let flowed = refill_between(limits[0].rule(), old, START, planned);
            let part = (image.limits[&rpm].available + flowed) / 2;
            let edges = [share(old), part, share(kept) + part].map(|edge| edge - flowed + MilliTokens(more));
            before.limits.get_mut(&rpm).unwrap().available = edges[edge].min(share(old));
        }
        let all = MilliTokens::from_tokens((used - gone).max(0));
        before.limits.get_mut(&slots).unwrap().available = all;
        let mut table = Table::of(&before);
        let free = |shard: &Shard, at: EpochMillis| shard.balance(&shard.limits[&rpm], at);
        if !table.split(&image, WriteId::from_bits(1), planned) {
            let is_other = changed != 0 || gone > 0 || writes > 0 || near.is_some();
            prop_assert!(is_other, "a split of what there is was refused");
            return Ok(());
        }
        let (lower, upper) = (table.shards()[&kept.index].clone(), table.shards()[&new.index].clone());
        let (at, tk) = (upper.refilled_at, |shard: &Shard| shard.limits[&rpm].available);
        prop_assert_eq!(at, planned.max(START));
        prop_assert_eq!(lower.refilled_at, at);
        prop_assert_eq!(tk(&lower) + tk(&upper), free(&before, at), "I6, split");
        prop_assert!(tk(&lower) <= share(kept) && tk(&upper) <= share(new));
        // Either half has half of a debt.
        let debt = free(&image, at).min(MilliTokens::ZERO);
        prop_assert!(tk(&upper) >= debt / 2 && tk(&lower) >= free(&before, at).min(MilliTokens::ZERO));
        prop_assert!(debt == MilliTokens::ZERO || tk(&upper) == debt / 2);
        let sum = lower.limits[&slots].available + upper.limits[&slots].available;
        prop_assert_eq!(sum, all);
        let kept_slots = lower.limits[&slots].available;
        prop_assert!(kept_slots > MilliTokens::ZERO || kept_slots == MilliTokens::ZERO && (gone > 0 || used == 0));

        // The clock that merges is behind the one that split.
        prop_assert_eq!(merged(&lower, &upper, at.plus(Millis(-1))), None);
        let end = at.plus(Millis(later));
        let next = merged(&lower, &upper, end).unwrap();
        prop_assert!(table.transact(&merge(&lower, next, &[&upper])));
        let one = table.shards()[&old.index].clone();
        prop_assert_eq!(table.shards().len(), 1);
        prop_assert_eq!((one.shard(), one.refilled_at), (old, end));
        prop_assert_eq!(tk(&one), free(&lower, end) + free(&upper, end), "I6, merge");
        prop_assert!(tk(&one) <= free(&before, end), "a shard that was two has more than one that was not");
        prop_assert_eq!(one.limits[&slots].available, sum);
    }
}

/// Whichever half has the limits of another release, and since whenever.
#[test]
fn i1_i6_a_merged_shard_has_what_the_limits_of_the_lower_half_give() {
    let limits = |amount: i64| {
        [
            Limit::per_hour("rate", amount).unwrap(),
            Limit::concurrent("slots", amount).unwrap(),
            Limit::quota("quota", amount, Every::day()).unwrap(),
        ]
    };
    let now = START.plus(Millis(60_000));
    let sinces =
        [0, RULES_STAND.0 - 1, RULES_STAND.0, -1_000].map(|ago| Some(now.plus(Millis(-ago))));
    for (amounts, since) in [(10, 1_000), (1_000, 10), (10, 10)]
        .into_iter()
        .flat_map(|amounts| sinces.map(|since| (amounts, since)))
    {
        let half = |index, amount, since| {
            let shard = ShardIndex { index, count: 2 };
            let mut half = bucket(shard, &limits(100), START);
            let quota = half.limits.get_mut("quota").unwrap();
            quota.window_end = now.plus(Millis(1_000));
            let mut half = half.projected(&limits(amount), START);
            half.limits_changed_at = since;
            half
        };
        let (lower, upper) = (half(0, amounts.0, since), half(1, amounts.1, since));
        let calm = merged(&lower, &half(1, amounts.1, None), now).unwrap();
        let whole = merged(&lower, &upper, now).unwrap();
        assert_eq!(whole.limits, calm.limits, "{amounts:?} {since:?}");
        for state in whole.limits.values() {
            assert!(
                state.available <= MilliTokens::from_tokens(amounts.0),
                "{amounts:?} {since:?}"
            );
            assert_eq!(state.rule.capacity, MilliTokens::from_tokens(amounts.0));
        }
    }
}
