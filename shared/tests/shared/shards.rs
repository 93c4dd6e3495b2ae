//! Splits, merges and repairs of shards: the tokens are those there were, and no shard is made or
//! removed beside a state that it was not planned for.

use std::collections::BTreeMap;

use crate::model::START;
use crate::model::table::{Table, whole};
use crate::model::{bucket, bucket_key, config, held, limit_name, take};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{merge, merged, remove_covered, sample, split};
use weirgate_shared::{
    EpochMillis, Lease, Limit, MilliTokens, Millis, Shard, ShardIndex, WriteId, refill_between,
};

fn shard(limits: &[Limit], shard: ShardIndex) -> Shard {
    bucket(shard, limits, START)
}

fn op(id: u64) -> WriteId {
    WriteId::from_bits(id)
}

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
        let mut image = shard(&limits, old);
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
            let part = (image.limits[&rpm].available + flowed).max(MilliTokens::ZERO) / 2;
            let edges = [share(old), part, share(kept) + part].map(|edge| edge - flowed + MilliTokens(more));
            before.limits.get_mut(&rpm).unwrap().available = edges[edge].min(share(old));
        }
        let all = MilliTokens::from_tokens((used - gone).max(0));
        before.limits.get_mut(&slots).unwrap().available = all;
        let mut table = Table::of(&before);
        let free = |shard: &Shard, at: EpochMillis| shard.balance(&shard.limits[&rpm], at);
        if !table.split(&image, op(1), planned) {
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
        prop_assert!(tk(&upper) >= MilliTokens::ZERO && tk(&lower) >= free(&before, at).min(MilliTokens::ZERO));
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

/// An item's end counts nothing, so what its expired leases return is subtracted from the other
/// half.
#[test]
fn i3_what_expired_leases_give_back_in_a_merge_was_not_used() {
    let limits = [Limit::per_minute("rpm", 10).unwrap()];
    let (lower, mut upper) = (
        shard(&limits, ShardIndex { index: 0, count: 2 }),
        shard(&limits, ShardIndex { index: 1, count: 2 }),
    );
    let two = MilliTokens::from_tokens(2);
    let state = upper.limits.get_mut("rpm").unwrap();
    (state.available, state.consumed) = (state.available - two, two.into());
    let lease = Lease {
        expires_at: START,
        tokens: [(limit_name("rpm"), two)].into(),
        owner: String::new(),
    };
    upper.leases = Some([(op(1), lease)].into());
    let mut table = Table::of(&lower);
    table.put(&upper);
    let next = merged(&lower, &upper, START).unwrap();
    assert!(table.transact(&merge(&lower, next, &[&upper])));
    assert_eq!(
        table.shards()[&0].limits["rpm"].available,
        MilliTokens::from_tokens(10)
    );
    assert_eq!(table.consumed(&limit_name("rpm")), MilliTokens::ZERO);
}

/// A hot shard is written to all the time, and a split is planned from an earlier view.
#[test]
fn a_split_happens_though_others_took_since_it_was_seen() {
    let limits = [Limit::per_minute("rpm", 10).unwrap()];
    let (mut table, image) = (Table::default(), shard(&limits, ShardIndex::UNSPLIT));
    table.put(&image);
    let three = MilliTokens::from_tokens(3);
    for id in 0..100 {
        let (key, op) = (bucket_key(0), op(id));
        let needs = [(
            limit_name("rpm"),
            if id == 0 { three } else { MilliTokens::ZERO },
        )]
        .into();
        let take = take(&key, &limits, needs, op, START);
        assert!(table.update(take.plan(&image, START)));
    }
    assert!(table.split(&image, op(100), START.plus(Millis(1))));
    let tk = |shard: u32| table.shards()[&shard].limits["rpm"].available;
    assert_eq!(
        (tk(0), tk(1)),
        (MilliTokens::from_tokens(2), MilliTokens::from_tokens(5))
    );
}

#[test]
fn i6_a_merge_waits_for_the_leases_of_the_shard_that_goes() {
    let limits = [Limit::concurrent("slots", 4).unwrap()];
    let (lower, mut upper) = (
        shard(&limits, ShardIndex { index: 0, count: 2 }),
        shard(&limits, ShardIndex { index: 1, count: 2 }),
    );
    let one = MilliTokens::from_tokens(1);
    let expires = START.plus(Millis(1000));
    let lease = Lease {
        expires_at: expires,
        tokens: [(limit_name("slots"), one)].into(),
        owner: String::new(),
    };
    upper.leases = Some([(op(1), lease)].into());
    upper.limits.get_mut("slots").unwrap().available = one;
    assert_eq!(merged(&lower, &upper, EpochMillis(expires.0 - 1)), None);
    let joined = merged(&lower, &upper, expires).unwrap();
    assert_eq!(
        joined.limits["slots"].available,
        MilliTokens::from_tokens(4)
    );
    assert_eq!(held(&joined, &limit_name("slots")), MilliTokens::ZERO);
}

/// The last shard of a split bucket is a half of an unsplit one that was created beside it.
#[test]
fn a_shard_goes_only_while_the_one_it_is_part_of_is_there() {
    let limits = [Limit::per_minute("rpm", 10).unwrap()];
    let (one, part) = (
        shard(&limits, ShardIndex::UNSPLIT),
        shard(&limits, ShardIndex { index: 1, count: 2 }),
    );
    let mut there = Table::default();
    there.put(&one);
    there.put(&part);
    assert!(!there.whole().is_complete());
    let plan = remove_covered(&part, &one);
    let (mut gone, mut split_up, mut used) = (there.clone(), there.clone(), there.clone());
    gone.delete(0);
    split_up.put(&Shard {
        write_seq: one.write_seq + 1,
        ..shard(&limits, ShardIndex { index: 0, count: 2 })
    });
    let held = Lease {
        expires_at: START,
        tokens: BTreeMap::new(),
        owner: String::new(),
    };
    let leases = Some([(WriteId::from_bits(1), held)].into());
    used.put(&Shard {
        write_seq: part.write_seq + 1,
        leases,
        ..part.clone()
    });
    for table in [&mut gone, &mut split_up, &mut used] {
        assert!(!table.transact(&plan), "{:?}", table.shards().keys());
    }
    // Takes by processes without the current view do not keep it.
    there.put(&Shard {
        write_seq: part.write_seq + 1,
        ..part.clone()
    });
    assert!(there.transact(&plan));
    assert!(there.whole().is_complete());
    assert!(!whole(split_up.shards()).shards().is_empty() && split_up.whole().is_complete());
}

/// A shard, and what its split has put aside.
fn halved() -> (Table, Shard) {
    let limits = [
        Limit::per_minute("rpm", 10).unwrap(),
        Limit::concurrent("slots", 4).unwrap(),
    ];
    let mut table = Table::of(&shard(&limits, ShardIndex::UNSPLIT));
    assert!(table.update(split(&table.shards()[&0].clone(), 0, op(1), START)));
    let parent = Shard::clone(&table.shards()[&0]);
    (table, parent)
}

#[test]
fn i6_what_a_split_has_put_aside_is_in_the_item_until_the_new_half_is_there() {
    let (mut table, parent) = halved();
    let half = Shard::clone(parent.escrow.as_deref().unwrap());
    let tk = |bucket: &Shard, limit: &str| bucket.limits[limit].available;
    assert_eq!(table.shards().len(), 1);
    for (limit, all) in [("rpm", 10), ("slots", 4)] {
        assert_eq!(
            tk(&parent, limit) + tk(&half, limit),
            MilliTokens::from_tokens(all)
        );
    }
    // A refill, a take, a sample and other limits leave it unchanged.
    let later = START.plus(Millis(90_000));
    let changed = [
        Limit::per_minute("rpm", 100).unwrap(),
        Limit::concurrent("slots", 8).unwrap(),
    ];
    let (key, needs) = (
        bucket_key(0),
        BTreeMap::from([(limit_name("rpm"), MilliTokens::from_tokens(1))]),
    );
    assert!(table.update(take(&key, &changed, needs, op(2), later).plan(&parent, later)));
    assert!(table.update(sample(&table.shards()[&0].clone(), later).0));
    let parent = Shard::clone(&table.shards()[&0]);
    assert_eq!(parent.escrow.as_deref(), Some(&half));
    assert_eq!(
        parent.limits["rpm"].rule.capacity,
        MilliTokens::from_tokens(100)
    );
    table.finish(0);
    let made = |bucket: &Shard| Shard {
        size_bytes: 0,
        lease_bytes: 0,
        ..bucket.clone()
    };
    assert_eq!(
        made(&table.shards()[&1]),
        half,
        "by the limits of the split, so nothing is minted"
    );
    assert_eq!(table.shards()[&0].escrow, None);
}
