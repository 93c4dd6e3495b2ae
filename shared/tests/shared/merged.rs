//! I3 and I6 for a merged shard: what its item keeps, that no write can change it, and how its
//! counters continue when a split creates the shard again.

use std::collections::BTreeMap;

use crate::model::planned::planned;
use crate::model::table::Table;
use crate::model::{START, hours};
use crate::model::{bucket, bucket_key, config, limit_name, rpm, take, used};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{
    Action, finish_writes, merge, merged, recreate, remove_covered, require_unchanged, split,
};
use weirgate_shared::{EpochMillis, Limit, Meter, MilliTokens, Millis, Shard, ShardIndex, WriteId};

fn limits() -> [Limit; 2] {
    [
        Limit::custom("rpm", 100, 100, 1000).unwrap(),
        Limit::concurrent("slots", 6).unwrap(),
    ]
}

/// Of no write of the fleet.
fn id(bits: u64) -> WriteId {
    WriteId::from_bits(bits << 40)
}

/// A bucket that was split, and merged again after these takes of shards, tokens and hours; and its
/// upper half before that.
fn merged_after(takes: &[(u32, i64, i64)]) -> (Table, Shard) {
    let mut table = Table::of(&bucket(ShardIndex::UNSPLIT, &limits(), START));
    let whole = table.shards()[&0].clone();
    assert!(table.split(&whole, id(7), START));
    let limits = limits();
    let mut last = hours(1);
    for (shard, tokens, hour) in takes {
        let (key, view, at) = (
            bucket_key(*shard),
            table.shards()[shard].clone(),
            hours(*hour),
        );
        table.update(take(&key, &limits, rpm(*tokens), id(1), at).plan(&view, at));
        last = last.max(at);
    }
    let (lower, upper) = (table.shards()[&0].clone(), table.shards()[&1].clone());
    let next = merged(&lower, &upper, last).unwrap();
    assert!(table.transact(&merge(&lower, next, &[&upper])));
    (table, Shard::clone(&upper))
}

/// The same after one take in the upper half.
fn merged_bucket() -> (Table, Shard) {
    merged_after(&[(1, 8, 1)])
}

#[test]
fn a_shard_that_was_merged_away_keeps_what_it_counted_and_nothing_else() {
    let (table, upper) = merged_bucket();
    let (_, item) = table.merged().next().unwrap();
    assert_eq!(
        item.live(),
        Meter {
            write_seq: upper.write_seq + 1,
            ..upper.meter()
        }
    );
    assert!(item.is_merged());
    let names: Vec<_> = item.0.keys().map(String::as_str).collect();
    let kept = [
        "PK",
        "SK",
        "b_rpm_bd",
        "b_rpm_bh",
        "b_rpm_tc",
        "b_slots_bd",
        "b_slots_bh",
        "b_slots_tc",
    ];
    assert_eq!(
        names,
        [
            kept.as_slice(),
            &["birth", "takes", "td", "th", "ttl", "uh", "v"]
        ]
        .concat()
    );
}

#[test]
fn a_shard_of_the_same_number_goes_on_counting() {
    let (mut table, upper) = merged_bucket();
    let whole = table.shards()[&0].clone();
    let filled = recreate(
        upper.shard(),
        &whole,
        |_| MilliTokens::ZERO,
        id(9),
        hours(1),
    );
    let mut by_repair = table.clone();
    assert!(by_repair.transact(&filled));
    assert!(table.split(&whole, id(8), hours(1)));
    for table in [&table, &by_repair] {
        let revived = &table.shards()[&1];
        assert!(revived.write_seq > upper.write_seq + 1);
        assert_eq!(
            revived.meter(),
            Meter {
                write_seq: revived.write_seq,
                ..upper.meter()
            }
        );
        assert_eq!(used(revived), [(8, 1), (8, 1)]);
    }
    let (key, limits, revived) = (bucket_key(1), limits(), table.shards()[&1].clone());
    assert!(table.update(take(&key, &limits, rpm(2), id(1), hours(2)).plan(&revived, hours(2))));
    assert_eq!(used(&table.shards()[&1]), [(2, 1), (10, 2)]);
}

/// The capacity was lowered, and the last write with the new one went to the lower shard.
#[test]
fn i1_a_merge_keeps_no_more_of_a_rate_than_its_capacity() {
    let higher = [Limit::custom("rpm", 400, 100, 1000).unwrap()];
    let lower = [Limit::custom("rpm", 100, 100, 1000).unwrap()];
    let [first, second] = [0, 1].map(|index| ShardIndex { index, count: 2 });
    let lower = bucket(first, &lower, START);
    let upper = Shard {
        limits_changed_at: Some(START),
        ..bucket(second, &higher, START)
    };
    let merged = merged(&lower, &upper, START.plus(Millis(1))).unwrap();
    let state = merged.limits[&limit_name("rpm")];
    assert_eq!(state.available, state.rule.capacity);
}

/// Its copies would be taken for older ones.
#[test]
fn no_shard_goes_on_below_the_v_it_was_merged_away_with() {
    let (table, _) = merged_bucket();
    let (_, item) = table.merged().next().unwrap();
    let v = item.live().write_seq;
    for (lower_v, is_made) in [(v - 1, false), (v, true)] {
        let whole = Shard {
            write_seq: lower_v,
            ..bucket(ShardIndex::UNSPLIT, &limits(), EpochMillis(0))
        };
        let mut table = Table::of(&whole);
        assert!(table.update(split(&whole, 0, id(8), EpochMillis(0))));
        let [make, _] = finish_writes(&table.shards()[&0]).unwrap();
        assert_eq!(item.clone().apply(&make), is_made);
    }
}

/// The bucket was deleted and made again with other limits. The table checks each image by what was
/// used.
#[test]
fn a_limit_that_a_revived_shard_does_not_hold_is_used_no_more_until_it_is_brought_again() {
    let (mut table, upper) = merged_bucket();
    table.delete(0);
    let (at, only_slots) = (hours(1).plus(Millis(60_000)), [limits()[1].clone()]);
    let take_of = |shard, limits: &[Limit], needs, at, view: Option<&Shard>| {
        let key = bucket_key(shard);
        let take = take(&key, limits, needs, id(1), at);
        view.map_or_else(|| take.create(at), |view| take.plan(view, at))
    };
    assert!(table.update(take_of(0, &only_slots, BTreeMap::new(), at, None)));
    let whole = table.shards()[&0].clone();
    assert!(table.split(&whole, id(8), at));
    let revived = table.shards()[&1].clone();
    assert_eq!(
        (revived.birth_seq, revived.limits.len(), used(&revived)),
        (upper.birth_seq, 1, [(8, 1), (8, 1)])
    );
    assert!(table.update(take_of(
        1,
        &only_slots,
        BTreeMap::new(),
        hours(2),
        Some(&revived)
    )));
    let rolled = table.shards()[&1].clone();
    assert_eq!(used(&rolled), [(0, 1), (8, 2)]);
    assert!(table.update(take_of(1, &limits(), rpm(2), hours(2), Some(&rolled))));
    assert_eq!(
        (used(&table.shards()[&1]), table.shards()[&1].limits.len()),
        ([(2, 2), (10, 3)], 2)
    );
}

/// Returns the plans for several shards, of which one, now merged, was as in `view`.
fn resharding(table: &Table, view: &Shard, at: EpochMillis) -> Vec<Vec<Action>> {
    let (whole, (_, new)) = (view.shard().parent(), view.shard().halves());
    let image = |number: u32| table.image(number, 0);
    let filled = recreate(new, view, |_| MilliTokens::ZERO, id(9), at);
    let mut plans = vec![
        vec![Action::Update(split(view, 0, id(8), at))],
        filled,
        vec![require_unchanged(view)],
    ];
    plans.extend(
        finish_writes(view)
            .into_iter()
            .flatten()
            .map(|update| vec![Action::Update(update)]),
    );
    if let Some(lower) = whole
        .and_then(|whole| image(whole.index))
        .filter(|lower| lower.key != view.key)
    {
        plans.extend(merged(&lower, view, at).map(|next| merge(&lower, next, &[view])));
        plans.push(remove_covered(view, &lower));
    }
    if let Some(upper) = image(new.index) {
        plans.extend(merged(view, &upper, at).map(|next| merge(view, next, &[&upper])));
    }
    plans
}

proptest! {
    #![proptest_config(config(64))]

    /// With any view of the shard: no write takes from it, returns to it, or leaves anything in it.
    #[test]
    fn i1_no_write_reaches_a_shard_that_was_merged_away(
        takes in vec((0..2u32, 0..60i64, 0..30i64), 0..6), by_others in any::<bool>(),
    ) {
        let (table, _) = merged_after(&takes);
        let (number, item) = table.merged().next().unwrap();
        let views: Vec<_> = (0..5).filter_map(|back| table.image(number, back)).collect();
        for (view, at) in views.iter().flat_map(|view| [START, hours(30)].map(|at| (view, at))) {
            let changed = [Limit::custom("rpm", 7, 7, 700).unwrap()];
            let brought = [limits().as_slice(), &changed, &[]].map(<[Limit]>::to_vec);
            for update in brought.iter().flat_map(|brought| planned(view, brought, at, by_others)) {
                prop_assert!(!item.clone().apply(&update), "{:?} to {:?}", update, item);
            }
            for plan in resharding(&table, view, at) {
                prop_assert!(!table.clone().transact(&plan), "{:?} to {:?}", plan, item);
            }
        }
    }
}
