//! A bucket of several shards as a model: processes with views of any age, and the two functions,
//! take, return, split and merge in any order. After every write the bucket's ledger must balance.

mod model;

use std::collections::BTreeMap;

use model::fleet::fleet;
use model::ops::ops;
use model::table::{Table, whole};
use model::world::START;
use model::{bucket, bucket_key, config, held, limit_name, take};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use weirgate_shared::write::{finish_writes, merge, merged, remove_covered, sample, split};
use weirgate_shared::{EpochMillis, Lease, Limit, MilliTokens, Millis, Shard, ShardIndex, WriteId};

fn shard(limits: &[Limit], shard: ShardIndex) -> Shard {
    bucket(shard, limits, START)
}

fn op(id: u64) -> WriteId {
    WriteId::from_bits(id)
}

proptest! {
    #![proptest_config(config(10_000))]

    /// With one clock, every balance is exact to the millitoken at every moment; so are slots and
    /// usage.
    #[test]
    fn i1_i2_i3_i6_hold_through_any_takes_refills_releases_splits_and_merges(
        mut fleet in fleet(true), ops in ops(0),
    ) {
        for (op, skew) in &ops {
            fleet.step(op, *skew)?;
        }
        fleet.check_intervals()?;
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    /// Clocks that differ, and plans that come late.
    #[test]
    fn i1_i3_i6_hold_by_clocks_that_differ(mut fleet in fleet(false), ops in ops(2_000)) {
        for (op, skew) in &ops {
            fleet.step(op, *skew)?;
        }
        fleet.check_intervals()?;
    }

    #[test]
    fn i5_the_whole_is_ready_when_a_spread_succeeds_and_not_before(
        mut fleet in fleet(true), ops in ops(0), needs in vec((0..2usize, 0..=1050i64), 1..6),
    ) {
        for (op, skew) in &ops {
            fleet.step(op, *skew)?;
        }
        for (limit, part) in needs {
            fleet.check_ready(limit, part)?;
        }
    }

    /// A shard is deleted. With any later writes to it or to the others, tokens are only lost, and
    /// slots come back.
    #[test]
    fn i1_holds_when_items_are_deleted_manually_and_made_again(
        mut fleet in fleet(false), rounds in vec((ops(0), any::<Index>(), any::<bool>()), 1..4),
    ) {
        for (ops, which, fills) in &rounds {
            for (op, skew) in &ops[..ops.len().div_ceil(3)] {
                fleet.step(op, *skew)?;
            }
            fleet.delete_manually(*which);
            if *fills {
                fleet.fill()?;
            }
        }
        fleet.fill()?;
        fleet.check_intervals()?;
    }

    /// With any takes or returns since the image; and both halves refill to what their parent had.
    #[test]
    fn i6_a_split_or_a_merge_creates_and_destroys_no_token(
        (capacity, amount, period, slots) in (1..30i64, 1..30i64, 1..5000i64, 1..12i64),
        (depth, index) in (0..6u32, any::<Index>()),
        (tk, changed, used) in (-500..=1000i64, prop_oneof![Just(0), -50..=50i64, -1500..=1500i64], 0..12i64),
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
        let state = before.limits.get_mut(&rpm).unwrap();
        state.available = (state.available + MilliTokens(share(old).0 * changed / 1000)).min(share(old).max(state.available));
        let mut table = Table::of(&before);
        let planned = START.plus(Millis(rest + late));
        let free = |shard: &Shard, at: EpochMillis| shard.balance(&shard.limits[&rpm], at);
        if !table.split(&image, op(1), planned) {
            prop_assert!(changed != 0, "a split of what there is was refused");
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
        prop_assert_eq!(sum, MilliTokens::from_tokens(used));
        prop_assert!(sum == MilliTokens::ZERO || lower.limits[&slots].available > MilliTokens::ZERO);

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

/// A snapshot would take its first writes for some it has counted before.
#[test]
fn i3_a_split_from_before_a_merge_makes_no_shard_with_a_v_that_was() {
    let limits = [Limit::per_minute("rpm", 10).unwrap()];
    let mut table = Table::of(&shard(&limits, ShardIndex::UNSPLIT));
    let plan = split(&table.shards()[&0], 0, op(1), START);
    assert!(table.update(plan.clone()));
    assert_eq!(
        merged(
            &table.shards()[&0],
            &shard(&limits, ShardIndex { index: 1, count: 2 }),
            START
        ),
        None,
        "not finished"
    );
    table.finish(0);
    let next = merged(&table.shards()[&0], &table.shards()[&1], START).unwrap();
    let (lower, upper) = (table.shards()[&0].clone(), table.shards()[&1].clone());
    assert!(table.transact(&merge(&lower, next, &[&upper])));
    // All of it within a millisecond, so the shard is as it was: the request that comes once more
    // could happen.
    assert!(!table.update(plan));
    assert!(table.split(&table.shards()[&0].clone(), op(2), START));
    assert!(table.shards()[&1].write_seq > upper.write_seq);
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

#[test]
fn a_transaction_happens_whole_or_not_at_all() {
    let limits = [Limit::per_minute("rpm", 10).unwrap()];
    let halves = [0, 1].map(|index| shard(&limits, ShardIndex { index, count: 2 }));
    let mut table = Table::of(&halves[0]);
    let plan = merge(
        &halves[0],
        merged(&halves[0], &halves[1], START).unwrap(),
        &[&halves[1]],
    );
    let before = table.shards().clone();
    assert!(!table.transact(&plan), "one half is not there");
    assert_eq!(*table.shards(), before);
    assert!(table.transact(&plan[..1]));
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

#[test]
fn a_shard_that_holds_an_escrow_is_neither_split_nor_merged() {
    let (mut table, parent) = halved();
    assert!(!table.update(split(&parent, 0, op(2), START)));
    let [make, clear] = finish_writes(&parent).unwrap();
    assert!(table.update(make.clone()) && !table.update(make.clone()));
    assert!(!table.update(split(
        &Shard {
            escrow: None,
            ..parent.clone()
        },
        0,
        op(2),
        START
    )));
    let upper = Shard::clone(&table.shards()[&1]);
    assert_eq!(merged(&table.shards()[&0], &upper, START), None);
    assert!(table.update(clear.clone()) && !table.update(clear));
    let lower = Shard::clone(&table.shards()[&0]);
    assert!(table.transact(&merge(
        &lower,
        merged(&lower, &upper, START).unwrap(),
        &[&upper]
    )));
    // Within the same millisecond the next split makes the same half once more, and what is late
    // makes none.
    assert!(!table.update(make.clone()));
    assert!(table.update(split(&table.shards()[&0].clone(), 0, op(3), START)));
    assert!(
        !table.update(make),
        "what was merged away is of a later split than this"
    );
    let next = Shard::clone(&table.shards()[&0]);
    let late = Shard {
        escrow: parent.escrow.clone(),
        ..next.clone()
    };
    assert!(
        !table.update(finish_writes(&late).unwrap()[1].clone()),
        "it is another one's escrow"
    );
    table.finish(0);
    assert_eq!(table.shards().len(), 2);
}
