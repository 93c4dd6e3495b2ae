//! A bucket that DynamoDB may delete is full by then and holds no lease, and the reconciler is due at or
//! before the end of each lease, whatever processes with views of any age did.

use std::collections::BTreeMap;

use crate::model::{Item, bucket, bucket_key, config, limit_name, settle, take};
use proptest::collection::vec;
use proptest::prelude::*;
use weirgate_shared::write::{
    LeaseChange, LimitDelta, Take, Update, expire, pause_ordered, refill,
};
use weirgate_shared::{
    Asks, EditId, Effect, EpochMillis, Lease, Limit, LimitState, MilliTokens, Millis, Shard,
    ShardIndex, VersionedLimits, WriteId,
};

const START: EpochMillis = EpochMillis(1_795_197_600_000);
const HOUR: i64 = 3_600_000;

#[derive(Debug, Clone)]
enum Op {
    Take {
        rate: i64,
        soft: i64,
        is_own: bool,
    },
    /// So many hours.
    Lease(i64),
    Adjust(i64),
    Renew(i64),
    Refill,
    Expire,
    /// An operator's pause of so many hours.
    Pause(i64),
    /// Other limits from now on.
    Change(i64),
}

#[derive(Debug, Clone)]
struct Step {
    /// By which process.
    by: usize,
    /// After so long.
    wait: i64,
    op: Op,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..40_i64, 0..200_i64, prop::bool::weighted(0.1))
            .prop_map(|(rate, soft, is_own)| Op::Take { rate, soft, is_own }),
        2 => (1..=24_i64).prop_map(Op::Lease),
        3 => prop_oneof![-50..50_i64, 100..100_000_i64].prop_map(Op::Adjust),
        2 => (1..=24_i64).prop_map(Op::Renew),
        1 => Just(Op::Refill),
        1 => Just(Op::Expire),
        2 => (1..72_i64).prop_map(Op::Pause),
        1 => (1..100_i64).prop_map(Op::Change),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![3 => 0..1000_i64, 2 => 0..HOUR, 1 => 0..40 * HOUR];
    (0..3_usize, wait, op()).prop_map(|(by, wait, op)| Step { by, wait, op })
}

/// Refilled in hours, or in years.
fn debt() -> impl Strategy<Value = i64> {
    prop_oneof![0..50_i64, 0..100_000_i64]
}

fn limits(capacity: i64) -> [Limit; 3] {
    let soft = Limit::per_day("soft", 100).unwrap();
    [
        Limit::custom("rate", capacity, 10, HOUR).unwrap(),
        soft,
        Limit::concurrent("slots", 8).unwrap(),
    ]
}

/// Returns the write planned from `view`, or `None` if there is nothing to write.
fn plan(op: &Op, view: &Shard, limits: &[Limit], id: u64, now: EpochMillis) -> Option<Update> {
    let edit = EditId(i64::try_from(id).expect("steps are few"));
    let (key, id) = (bucket_key(0), WriteId::from_bits(id));
    let mut plain = take(&key, limits, BTreeMap::new(), id.clone(), now);
    let held = view.leases.iter().flatten().next().map(|(id, _)| id);
    let tokens = MilliTokens::from_tokens;
    match *op {
        Op::Take { rate, soft, is_own } => {
            plain.limits = VersionedLimits { is_own, ..limits.into() };
            plain.asks = Asks::of(Effect::Enforce, [(limit_name("rate"), tokens(rate))])
                .and(Effect::IntoDebt, [(limit_name("soft"), tokens(soft))]);
        }
        Op::Lease(hours) => {
            let held = [(limit_name("slots"), tokens(1)), (limit_name("rate"), tokens(1))];
            plain.asks = Asks::of(Effect::Enforce, held.clone());
            let lease = Lease {
                expires_at: now.plus(Millis(hours * HOUR)),
                tokens: held.into(),
                ..Lease::default()
            };
            plain.leases = vec![(id, lease)];
        }
        Op::Adjust(more) => {
            let ceiling = Some(view.share(&view.limits["rate"]));
            let settled = LimitDelta {
                available: -tokens(more),
                consumed: tokens(more),
                ceiling,
                ..LimitDelta::default()
            };
            return Some(
                settle(&key, id, None, [(limit_name("rate"), settled)].into(), now)
                    .full(Some(view)),
            );
        }
        Op::Renew(hours) => {
            let renewed = LeaseChange::Renew(now.plus(Millis(hours * HOUR)));
            return Some(
                settle(&key, id, Some((held?, renewed)), BTreeMap::new(), now).full(Some(view)),
            );
        }
        Op::Refill => return refill(view, &[(limit_name("rate"), tokens(1000))].into(), now),
        Op::Pause(hours) => return pause_ordered(view, edit, Some(now.plus(Millis(hours * HOUR)))),
        Op::Expire => return expire(view, now).map(|(update, _)| update),
        Op::Change(_) => {}
    }
    Some(plain.plan(view, now))
}

/// Requires that the bucket is full at its `ttl`, and holds no lease then, and that none ends before its
/// `due`.
fn assert_nothing_is_lost(bucket: &Shard) -> Result<(), TestCaseError> {
    let leases = bucket.leases.iter().flatten();
    let first = leases.map(|(_, lease)| lease.expires_at).min();
    prop_assert!(
        first.is_none_or(|first| bucket.due_at.is_some_and(|due| due <= first)),
        "the first lease ends at {:?}: {:?}",
        first,
        bucket
    );
    let Some(ttl) = bucket.ttl else { return Ok(()) };
    let end = EpochMillis(ttl.0 * 1000);
    let is_rate = |state: &LimitState| state.rule.kind().refills();
    for (name, state) in bucket.limits.iter().filter(|(_, state)| is_rate(state)) {
        let left = bucket.balance_at(name, end);
        prop_assert_eq!(left, state.rule.capacity, "{} at its end {:?}: {:?}", name, end, bucket);
    }
    for (id, lease) in bucket.leases.iter().flatten() {
        prop_assert!(
            lease.expires_at <= end,
            "{:?} until {:?}, the bucket ends {:?}",
            id,
            lease.expires_at,
            end
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn nothing_is_lost_by_a_bucket_that_ends(
        first in 1..100_i64, [rate, soft] in [debt(), debt()], steps in vec(step(), 0..40),
    ) {
        let (mut now, mut capacity) = (START, first);
        let (mut item, key, made) = (Item::default(), bucket_key(0), limits(capacity));
        let debts = [("rate", rate), ("soft", soft)].map(|(name, need)| (limit_name(name), MilliTokens::from_tokens(need)));
        let create = take(&key, &made, BTreeMap::new(), WriteId::from_bits(0), now);
        let create = Take { asks: Asks::of(Effect::IntoDebt, debts), ..create }.create(now);
        prop_assert!(item.apply(&create));
        // Before any other write: each may raise `ttl`.
        assert_nothing_is_lost(&item.bucket())?;
        let mut views = vec![item.bucket(); 3];
        let nothing = Step { by: 0, wait: 0, op: Op::Change(first) };
        for (id, Step { by, wait, op }) in (1..).zip([nothing].into_iter().chain(steps)) {
            now = now.plus(Millis(wait));
            if let Op::Change(other) = op {
                capacity = other;
            }
            let limits = limits(capacity);
            // By what it saw before, and then by what the answer showed.
            for _ in 0..2 {
                let done = plan(&op, &views[by], &limits, id, now).is_none_or(|update| item.apply(&update));
                views[by] = item.bucket();
                if done {
                    break;
                }
            }
            assert_nothing_is_lost(&item.bucket())?;
        }
    }

    /// Processes whose views are fresh never fail for the end of a bucket: a write that gives its
    /// own reason to fail would fail again and again.
    #[test]
    fn a_write_by_what_is_there_happens(first in 1..100_i64, steps in vec(step(), 1..40)) {
        let mut now = START;
        let mut item = Item::of_bucket(&bucket(ShardIndex::UNSPLIT, &limits(first), START));
        for (id, Step { wait, op, .. }) in (1..).zip(steps) {
            now = now.plus(Millis(wait));
            let view = item.bucket();
            let fits = |name: &str, need: i64| view.balance_at(&limit_name(name), now) >= MilliTokens::from_tokens(need);
            let is_paused = view.pause.is_some_and(|pause| pause.until > now);
            let may = match op {
                Op::Take { .. } | Op::Lease(_) if is_paused => false,
                Op::Take { rate, .. } => fits("rate", rate),
                Op::Lease(_) => fits("rate", 1) && fits("slots", 1),
                // Giving back is cut by a second write.
                Op::Adjust(more) => more > 0,
                Op::Change(_) => false,
                Op::Renew(hours) => {
                    let held = view.leases.iter().flatten().next();
                    held.is_none_or(|(_, lease)| lease.expires_at <= now.plus(Millis(hours * HOUR)))
                }
                Op::Refill | Op::Expire | Op::Pause(_) => true,
            };
            if may {
                let applied = plan(&op, &view, &limits(first), id, now).is_none_or(|update| item.apply(&update));
                prop_assert!(applied, "{:?} on {:?}", op, view);
            }
        }
    }
}
