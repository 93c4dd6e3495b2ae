//! I1 for a merged shard: no write can change it.

use crate::model::planned::planned;
use crate::model::table::Table;
use crate::model::{START, hours};
use crate::model::{bucket, bucket_key, config, rpm, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{
    Action, finish_writes, merge, merged, recreate, remove_covered, require_unchanged, split,
};
use weirgate_shared::{EpochMillis, Limit, MilliTokens, Shard, ShardIndex, WriteId};

fn limits() -> [Limit; 2] {
    [Limit::custom("rpm", 100, 100, 1000).unwrap(), Limit::concurrent("slots", 6).unwrap()]
}

fn id(bits: u64) -> WriteId {
    WriteId::from_bits(bits)
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
        let (key, view, at) = (bucket_key(*shard), table.shards()[shard].clone(), hours(*hour));
        table.update(take(&key, &limits, rpm(*tokens), id(1), at).plan(&view, at));
        last = last.max(at);
    }
    let (lower, upper) = (table.shards()[&0].clone(), table.shards()[&1].clone());
    let next = merged(&lower, &upper, last).unwrap();
    assert!(table.transact(&merge(&lower, next, &[&upper])));
    (table, Shard::clone(&upper))
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
        finish_writes(view).into_iter().flatten().map(|update| vec![Action::Update(update)]),
    );
    if let Some(lower) =
        whole.and_then(|whole| image(whole.index)).filter(|lower| lower.key != view.key)
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
