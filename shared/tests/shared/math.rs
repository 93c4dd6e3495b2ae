//! Bucket math as properties: the times of reads create and lose no tokens.

use crate::model::config;
use proptest::prelude::*;
use weirgate_shared::{
    EpochMillis, MAX_PERIOD_MS, MilliTokens, Millis, RefillRule, ShardIndex, ready_at,
    refill_between, refilled,
};

/// 10^12 tokens, the largest limit.
const MOST: i64 = 1_000_000_000_000_000;

/// Amounts of every size: a plain range would hardly ever give a small one.
fn amount(least: i64) -> impl Strategy<Value = i64> {
    prop_oneof![least..=20, least..=100_000, least..=MOST]
}

fn rate() -> impl Strategy<Value = RefillRule> {
    let period = prop_oneof![1..=20i64, Just(1000), Just(60_000), 1..=MAX_PERIOD_MS];
    (amount(1), amount(1), period).prop_map(|(capacity, refill_amount, refill_period_ms)| {
        RefillRule {
            capacity: MilliTokens(capacity),
            refill_amount: MilliTokens(refill_amount),
            refill_period_ms,
        }
    })
}

fn shard() -> impl Strategy<Value = ShardIndex> {
    let count = prop_oneof![Just(1), Just(2), Just(8), 1..=100u32];
    count.prop_flat_map(|count| (0..count).prop_map(move |index| ShardIndex { index, count }))
}

fn shards(count: u32) -> impl Iterator<Item = ShardIndex> {
    (0..count).map(move |index| ShardIndex { index, count })
}

/// Returns whether an amount is exact: beyond `i64`, a million years of the fastest rate, amounts
/// and instants saturate.
fn fits(amount: MilliTokens) -> bool {
    amount.0 < i64::MAX
}

/// An instant of this century, or near the epoch.
fn instant() -> impl Strategy<Value = EpochMillis> {
    prop_oneof![0..10_000i64, 946_684_800_000..4_102_444_800_000i64].prop_map(EpochMillis)
}

/// From nothing over milliseconds to years.
fn span() -> impl Strategy<Value = Millis> {
    prop_oneof![0..=20i64, 0..=100_000i64, 0..=100_000_000_000i64].prop_map(Millis)
}

proptest! {
    #![proptest_config(config(256))]

    /// The drift of 200 % that rounding each piece up would give, or the starvation that rounding
    /// down would.
    #[test]
    fn cutting_an_interval_into_pieces_never_changes_the_credit(
        rule in rate(), shard in shard(), from in instant(), pieces in prop::collection::vec(span(), 0..20),
    ) {
        let (mut at, mut sum) = (from, 0i128);
        for piece in pieces {
            let next = at.plus(piece);
            sum += i128::from(refill_between(&rule, shard, at, next).0);
            at = next;
        }
        let whole = refill_between(&rule, shard, from, at);
        prop_assume!(fits(whole));
        prop_assert_eq!(sum, i128::from(whole.0));
    }

    #[test]
    fn refilling_in_steps_gives_what_refilling_at_once_gives(
        rule in rate(), shard in shard(), rf in instant(), first in span(), second in span(), tk in -MOST..=MOST,
    ) {
        let (between, end) = (rf.plus(first), rf.plus(first).plus(second));
        let stepped = refilled(MilliTokens(tk), &rule, shard, rf, between);
        let stepped = refilled(stepped, &rule, shard, between, end);
        prop_assert_eq!(stepped, refilled(MilliTokens(tk), &rule, shard, rf, end));
    }

    #[test]
    fn shards_together_are_credited_what_the_whole_bucket_is(
        rule in rate(), count in 1..=64u32, from in instant(), span in span(),
    ) {
        let to = from.plus(span);
        let whole = refill_between(&rule, ShardIndex::UNSPLIT, from, to);
        prop_assume!(fits(whole));
        let parts: i128 = shards(count).map(|shard| i128::from(refill_between(&rule, shard, from, to).0)).sum();
        prop_assert_eq!(parts, i128::from(whole.0));
    }

    #[test]
    fn shares_add_up_to_the_whole_and_differ_by_one_at_most(whole in any::<i64>(), count in 1..=200u32) {
        let shares: Vec<_> = shards(count).map(|shard| shard.share(MilliTokens(whole)).0).collect();
        prop_assert_eq!(shares.iter().copied().map(i128::from).sum::<i128>(), i128::from(whole));
        prop_assert!(shares[0] - shares[shares.len() - 1] <= 1);
        prop_assert!(shares.is_sorted_by(|left, right| left >= right));
    }

    /// Else a split would change what the bucket holds and gains: shard i of n becomes i and i+n of
    /// 2n.
    #[test]
    fn i6_the_two_halves_of_a_shard_share_and_gain_what_it_did(
        rule in rate(), shard in shard(), whole in any::<i64>(), from in instant(), span in span(),
    ) {
        let ShardIndex { index, count } = shard;
        let halves = [ShardIndex { index, count: count * 2 }, ShardIndex { index: index + count, count: count * 2 }];
        let shares: MilliTokens = halves.iter().map(|half| half.share(MilliTokens(whole))).sum();
        prop_assert_eq!(shares, shard.share(MilliTokens(whole)));
        let to = from.plus(span);
        let whole = refill_between(&rule, shard, from, to);
        prop_assume!(fits(whole));
        let gains: i128 = halves.iter().map(|half| i128::from(refill_between(&rule, *half, from, to).0)).sum();
        prop_assert_eq!(gains, i128::from(whole.0));
    }

    #[test]
    fn a_refill_never_passes_the_share_and_takes_only_what_is_above_it(
        rule in rate(), shard in shard(), rf in instant(), span in span(), tk in -MOST..=MOST,
    ) {
        let tk = MilliTokens(tk);
        let after = refilled(tk, &rule, shard, rf, rf.plus(span));
        prop_assert!(after >= tk.min(shard.share(rule.capacity)));
        prop_assert!(after <= shard.share(rule.capacity));
        // Below the ceiling it is exactly the credit: never less than entitled either.
        if after < shard.share(rule.capacity) {
            prop_assert_eq!(after, tk + refill_between(&rule, shard, rf, rf.plus(span)));
        }
    }

    #[test]
    fn time_never_runs_backwards(rule in rate(), shard in shard(), now in instant(), ahead in span(), tk in any::<i64>()) {
        let rf = now.plus(ahead);
        prop_assert_eq!(refill_between(&rule, shard, rf, now), MilliTokens::ZERO);
        let tk = MilliTokens(tk);
        prop_assert_eq!(refilled(tk, &rule, shard, rf, now), tk.min(shard.share(rule.capacity)));
    }

    /// An item can contain any 64-bit number; the math saturates and never overflows.
    #[test]
    fn no_numbers_of_an_item_make_the_math_panic(
        capacity in 0..=i64::MAX, refill in 0..=i64::MAX, period in 1..=i64::MAX, index in any::<u32>(),
        count in any::<u32>(), (need, tk, rf, now) in any::<(i64, i64, i64, i64)>(),
    ) {
        let rule = RefillRule {
            capacity: MilliTokens(capacity), refill_amount: MilliTokens(refill), refill_period_ms: period,
        };
        let shard = ShardIndex { index, count };
        let _ = refilled(MilliTokens(tk), &rule, shard, EpochMillis(rf), EpochMillis(now));
        let ready = ready_at(MilliTokens(need), MilliTokens(tk), &rule, shard, EpochMillis(rf));
        prop_assert!(ready.is_none_or(|ready| ready >= EpochMillis(rf)));
    }
}
