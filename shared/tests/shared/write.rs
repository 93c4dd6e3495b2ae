//! What a take counts that bypasses its limit, and when a bucket is ready.

use std::collections::BTreeMap;

use crate::model::START;
use crate::model::{Item, bucket_key, config, contention, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::Take;
use weirgate_shared::{
    Asks, Effect, EpochMillis, Lease, Limit, MilliTokens, Millis, Shard, ShardIndex, WriteId,
};

/// A bucket of one limit that was never split, with `tk` of it.
fn bucket(limit: &Limit, tk: MilliTokens) -> Shard {
    let mut bucket = crate::model::bucket(ShardIndex::UNSPLIT, std::slice::from_ref(limit), START);
    bucket.limits.get_mut(limit.name()).unwrap().available = tk;
    bucket
}

proptest! {
    #![proptest_config(config(512))]

    /// With amounts that bypass the limit, a write takes what it takes without them, or fails as
    /// well. Alone they are counted whatever the balance is, also if the view is old.
    #[test]
    fn i1_amounts_that_bypass_a_limit_only_count(
        (capacity, amount, period) in (1..30i64, 1..30i64, 1..5000i64),
        balances in vec(-1000..=1000i64, 2),
        (wait, need, counted) in (0..20_000i64, 0..=1000i64, 1..5_000_000i64),
        (brings, contention) in (0..3u32, contention()),
    ) {
        let limit = Limit::custom("rpm", capacity, amount, period).unwrap();
        let part = |part: i64| MilliTokens(limit.rule().capacity.0 * part / 1000);
        let (key, name, now) = (bucket_key(0), limit.name().clone(), START.plus(Millis(wait)));
        // The limit of the requests is the bucket's, a changed one, or a new one.
        let brought = match brings {
            1 => Limit::custom("rpm", capacity + 3, amount, period).unwrap(),
            _ => limit.clone(),
        };
        let of = |tk| match brings {
            2 => Shard { limits: BTreeMap::new(), ..bucket(&limit, tk) },
            _ => bucket(&limit, tk),
        };
        let (seen, there) = (of(part(balances[0])), of(part(balances[1])));
        let (limits, needs) = (std::slice::from_ref(&brought), [(name.clone(), part(need))].into());
        let plain = Take { contention, ..take(&key, limits, needs, WriteId::from_bits(1), now) };
        let plain = match need {
            0 => Take { asks: Asks::default(), ..plain },
            _ => plain,
        };
        let counts = [(name.clone(), MilliTokens(counted))];
        let bypass = Take { asks: plain.asks.clone().and(Effect::Count, counts.clone()), ..plain.clone() };
        let (mut one, mut both) = (Item::of_bucket(&there), Item::of_bucket(&there));
        let is_done = both.apply(&bypass.plan(&seen, now));
        prop_assert_eq!(is_done, one.apply(&plain.plan(&seen, now)));
        // A write that changes limits requires the balances of its view.
        prop_assert!(is_done || need > 0 || brings > 0, "{:?}", there);
        let fresh = Take { asks: Asks::of(Effect::Count, counts), ..bypass.clone() };
        prop_assert!(is_done || both.apply(&fresh.plan(&there, now)));
        if is_done {
            let (mut one, both) = (one.bucket(), both.bucket());
            one.limits.get_mut(&name).unwrap().consumed += MilliTokens(counted);
            prop_assert_eq!(Shard { size_bytes: both.size_bytes, ..one }, both);
        }
        let (mut one, mut both) = (Item::default(), Item::default());
        prop_assert!(one.apply(&plain.create(now)) && both.apply(&bypass.create(now)));
        let (one, both) = (one.bucket().limits[&name], both.bucket().limits[&name]);
        prop_assert_eq!((one.available, one.consumed + MilliTokens(counted)), (both.available, both.consumed));
    }

    /// By refill, by the expiry of leases, or by both: the first instant at which a take would get
    /// it.
    #[test]
    fn i5_a_bucket_is_ready_when_a_take_succeeds_and_not_before(
        (capacity, amount, period) in (1..30i64, 0..30i64, 1..5000i64),
        tk in 0..=1000i64,
        leases in vec((-1000..20_000i64, 0..5000i64), 0..6),
        need in 0..=1100i64,
    ) {
        let limit = match amount {
            0 => Limit::concurrent("rpm", capacity),
            amount => Limit::custom("rpm", capacity, amount, period),
        }.unwrap();
        let share = limit.rule().capacity;
        let name = limit.name();
        let lease = |(at, (ms, held)): (usize, (i64, i64))| {
            let tokens = [(name.clone(), MilliTokens(held))].into();
            let id = WriteId::from_bits(u64::try_from(at).unwrap());
            (id, Lease { expires_at: START.plus(Millis(ms)), tokens, ..Lease::default() })
        };
        let leases: BTreeMap<_, _> = leases.into_iter().enumerate().map(lease).collect();
        let bucket = Shard { leases: Some(leases), ..bucket(&limit, MilliTokens(share.0 * tk / 1000)) };
        let need = MilliTokens(share.0 * need / 1000);
        let there = |at: EpochMillis| bucket.projected(&[], at).limits[name].available;
        match bucket.ready_at(name, need) {
            Some(ready) => {
                prop_assert!(there(ready) >= need, "{:?} is too early", ready);
                let before = EpochMillis(ready.0 - 1);
                prop_assert!(ready <= START || there(before) < need, "{:?} was enough", before);
            }
            None => prop_assert!(there(EpochMillis(START.0 * 2)) < need),
        }
    }
}
