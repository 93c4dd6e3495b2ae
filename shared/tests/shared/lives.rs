//! Writes that arrive at another item than they were planned for: it was deleted and created again
//! with other limits, or other processes have changed its limits.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::model::START;
use crate::model::planned::{planned, reshaped};
use crate::model::table::{Shards, Table};
use crate::model::{Item, bucket, bucket_key, config, held, take};
use crate::windows::{session, window};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use weirgate_shared::attr::Field;
use weirgate_shared::write::{
    Condition, Path, Take, Update, erase_shard, finish_writes, merge, merged, split,
};
use weirgate_shared::{
    Asks, Effect, EpochMillis, Lease, Limit, LimitName, MAX_BUCKET_LIMITS, MAX_LIMITS, MilliTokens,
    Millis, Shard, ShardIndex, WriteId,
};

/// A day of write sequences.
const DAY_V: i64 = 86_400_000 * 1000;

/// Returns limits of three names, each a rate or slots of any process.
fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let limit = |name: &'static str| {
        prop_oneof![
            (1..40i64, 1..40i64, 1..3_000i64).prop_map(move |(capacity, amount, period)| {
                Limit::custom(name, capacity, amount, period)
            }),
            (1..40i64).prop_map(move |slots| Limit::concurrent(name, slots)),
            (1..40i64, 1..3_000i64, any::<bool>()).prop_map(move |(tokens, ms, is_session)| {
                let code = if is_session { session(ms) } else { window(ms) };
                Limit::quota_of(name, tokens, code)
            }),
        ]
        .prop_map(Result::unwrap)
    };
    ["x", "y", "z"].map(limit).prop_flat_map(|all| subsequence(all.to_vec(), 1..=3))
}

/// Returns a shard with these limits, of which a lease holds a part.
fn life(limits: &[Limit], shard: ShardIndex, id: u64, at: EpochMillis, parts: i64) -> Shard {
    let mut bucket = bucket(shard, limits, at);
    let mut tokens = BTreeMap::new();
    for (name, state) in &mut bucket.limits {
        let part = MilliTokens(state.available.0 * parts / 1000);
        state.available -= part;
        state.consumed = part.into();
        tokens.insert(name.clone(), part);
    }
    let lease = Lease { expires_at: at.plus(Millis(500)), tokens, ..Lease::default() };
    bucket.due_at = Some(lease.expires_at);
    bucket.leases = Some([(WriteId::from_bits(id), lease)].into());
    bucket
}

fn shard() -> impl Strategy<Value = ShardIndex> {
    let half = (0..2u32).prop_map(|index| ShardIndex { index, count: 2 });
    prop_oneof![2 => Just(ShardIndex::UNSPLIT), 1 => half]
}

/// Returns the limits that the update changes without a condition that they exist, or that the
/// item or they do not.
fn unguarded(update: &Update) -> BTreeSet<String> {
    let limit = |path: &Path| Field::parse(&path.0[0]).map(|(limit, _)| limit.to_owned());
    let mut guarded = BTreeSet::new();
    for condition in &update.conditions {
        match condition {
            Condition::Absent(path) if matches!(&*path.0[0], "PK" | "rf") => return guarded,
            Condition::Absent(path)
            | Condition::Present(path)
            | Condition::Equals(path, _)
            | Condition::AtLeast(path, _)
            | Condition::AtMost(path, _) => guarded.extend(limit(path)),
            _ => {}
        }
    }
    let changed: BTreeSet<_> =
        update.changes.iter().filter_map(|change| limit(change.path())).collect();
    &changed - &guarded
}

/// Requires that an item can be read: as a shard, or as what a merge leaves.
fn assert_readable(item: &Item) {
    match item.is_merged() {
        true => drop(item.live()),
        false => drop(item.bucket()),
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// Also if the new item has the same `rf`, `v` and hour, as clocks that differ allow.
    #[test]
    fn no_write_makes_a_part_of_a_limit_or_changes_its_kind(
        seen in limits(), there in limits(), brought in limits(), shard in shard(),
        (parts, others, since) in (0..=1000i64, 0..=1000i64, prop_oneof![Just(0i64), 0..5_000i64]),
        (wait, by_others) in (prop_oneof![Just(0i64), 0..3_000i64, Just(30 * 3_600_000)], any::<bool>()),
        is_same_life in any::<bool>(),
    ) {
        let at = START.plus(Millis(wait));
        let view = Item::of_bucket(&life(&seen, shard, 1, START, parts)).bucket();
        let there = match is_same_life {
            true => view.clone(),
            false => life(&there, shard, 2, START.plus(Millis(since)), others),
        };
        let there = Item::of_bucket(&there);
        let before = there.bucket();
        let takes = Path::of("takes");
        // With the same `v`, two items cannot be told apart.
        let is_same_instant = !is_same_life && since == 0;
        for update in planned(&view, &brought, at, by_others).into_iter().chain(reshaped(&view, at)) {
            prop_assert_eq!(unguarded(&update), BTreeSet::new(), "{:?}", update);
            let is_here = update.key == view.key.item_key();
            let (mut missing, mut item) = (Item::default(), if is_here { there.clone() } else { Item::default() });
            if missing.apply(&update) {
                assert_readable(&missing);
            }
            if !item.apply(&update) || !is_here {
                continue;
            }
            assert_readable(&item);
            if item.is_merged() {
                continue;
            }
            let after = item.bucket();
            let is_split = after.shard_count != before.shard_count;
            // Without a lease, no process takes slots.
            let takes_without = update.changes.iter().any(|change| *change.path() == takes)
                && !after.leases.iter().flatten().any(|(id, _)| *id == WriteId::from_bits(4));
            for (name, old) in &before.limits {
                let new = &after.limits[name];
                prop_assert!(old.rule.kind().may_become(new.rule.kind()), "{:?}", update);
                if old.rule.kind().is_held() && !is_split && !takes_without && !is_same_instant {
                    let all = new.available + held(&after, name);
                    prop_assert_eq!(all, after.share(new), "slots of {}: {:?}", name, update);
                }
            }
        }
    }

    /// The write is repeated after some of its leases have ended, and other processes have written.
    #[test]
    fn a_late_copy_of_a_batch_takes_nothing_while_one_of_its_leases_is_there(
        count in 1..=20usize, ended in vec(any::<Index>(), 0..20), wait in 0..5_000i64,
    ) {
        let limit = Limit::concurrent("x", 1_000).unwrap();
        let (key, limits, one) = (bucket_key(0), std::slice::from_ref(&limit), MilliTokens::from_tokens(1));
        let view = bucket(ShardIndex::UNSPLIT, limits, START);
        let lease = |at: usize| (WriteId::from_bits(u64::try_from(at).unwrap() + 10), Lease {
            expires_at: START.plus(Millis(100_000)),
            tokens: [(limit.name().clone(), one)].into(),
            ..Lease::default()
        });
        let needs = [(limit.name().clone(), MilliTokens::from_tokens(i64::try_from(count).unwrap()))].into();
        let op = WriteId::from_bits(3);
        let batch = Take { leases: (0..count).map(lease).collect(), ..take(&key, limits, needs, op, START) };
        let update = batch.plan(&view, START);
        let mut item = Item::of_bucket(&view);
        prop_assert!(item.apply(&update));
        let now = START.plus(Millis(wait));
        for (at, which) in (100..).zip(&ended) {
            let leases = item.bucket().leases.unwrap();
            let ids: Vec<_> = leases.keys().collect();
            if ids.len() < 2 {
                break;
            }
            let back = weirgate_shared::write::LimitDelta { available: one, ..Default::default() };
            let change = Some((*which.get(&ids), weirgate_shared::write::LeaseChange::End));
            let ending = crate::model::settle(&key, WriteId::from_bits(at), change, [(limit.name().clone(), back)].into(), now);
            prop_assert!(item.apply(&ending.full(None)));
        }
        prop_assert!(!item.apply(&update), "{} slots are lost", count);
    }
}

/// A step in the history of a bucket whose limits change completely, again and again.
#[derive(Debug, Clone)]
enum Step {
    /// So many limits, from this one on, with a take of one token each.
    Bring {
        shard: usize,
        from: usize,
        count: usize,
    },
    Split(usize),
    Merge(usize),
    /// The item expires, as of a bucket of one shard, and the next take creates it.
    Expire,
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bring = (0..4usize, 0..200usize, 1..=MAX_LIMITS)
        .prop_map(|(shard, from, count)| Step::Bring { shard, from, count });
    let step = prop_oneof![
        4 => bring,
        2 => (0..4usize).prop_map(Step::Split),
        3 => (0..4usize).prop_map(Step::Merge),
        1 => Just(Step::Expire),
        2 => prop_oneof![1..1_000i64, 1..100_000_000i64].prop_map(Step::Wait),
    ];
    vec(step, 1..40)
}

fn pick(shards: &Shards, at: usize) -> Rc<Shard> {
    Rc::clone(shards.values().nth(at % shards.len()).unwrap())
}

fn brought(from: usize, count: usize) -> Vec<Limit> {
    let limit = |at| Limit::per_day(&format!("l{at}"), 1_000_000).unwrap();
    (from..from + count).map(limit).collect()
}

proptest! {
    #![proptest_config(config(128))]

    /// The table reads each item after each write.
    #[test]
    fn splits_merges_and_changes_of_limits_leave_as_many_limits_as_can_be_read(
        steps in steps(),
        (old, new) in (1..=MAX_LIMITS, 1..=MAX_LIMITS),
    ) {
        let (mut table, mut now, mut id) = (Table::of(&bucket(ShardIndex::UNSPLIT, &brought(0, 1), START)), START, 1_000);
        // The example that is rare otherwise: two lives of one bucket, each with as many limits as
        // it can have.
        let begin = [(200, old), (220, old)].map(|(from, count)| Step::Bring { shard: 0, from, count });
        let rest = [(240, new), (260, new)].map(|(from, count)| Step::Bring { shard: 0, from, count });
        let lives = begin.into_iter().chain([Step::Split(0), Step::Merge(1), Step::Expire]).chain(rest)
            .chain([Step::Split(0)]);
        for step in lives.chain(steps) {
            id += 1;
            now = now.plus(Millis(1));
            let (op, shards) = (WriteId::from_bits(id), table.shards().clone());
            match step {
                Step::Wait(ms) => now = now.plus(Millis(ms)),
                Step::Expire if shards.len() == 1 => table.delete(0),
                Step::Bring { from, count, .. } if shards.is_empty() => {
                    let (key, limits) = (bucket_key(0), brought(from, count));
                    prop_assert!(table.update(take(&key, &limits, BTreeMap::new(), op, now).create(now)));
                }
                _ if shards.is_empty() => {}
                Step::Bring { shard, from, count } => {
                    let view = pick(&shards, shard);
                    let limits = brought(from, count);
                    if view.limit_count_with(&limits) > MAX_BUCKET_LIMITS {
                        continue;
                    }
                    let needs: BTreeMap<LimitName, _> =
                        limits.iter().map(|limit| (limit.name().clone(), MilliTokens::from_tokens(1))).collect();
                    table.update(take(&view.key, &limits, needs, op, now).plan(&view, now));
                }
                Step::Split(shard) => {
                    let view = pick(&shards, shard);
                    if view.shard().count < 4 {
                        table.split(&view, op, now);
                    }
                }
                Step::Merge(shard) => {
                    let upper = pick(&shards, shard);
                    let whole = upper.shard().parent();
                    let Some(lower) = whole.and_then(|whole| shards.get(&whole.index)).filter(|lower| lower.key != upper.key) else {
                        continue;
                    };
                    match merged(lower, &upper, now) {
                        Some(next) => prop_assert!(table.transact(&merge(lower, next, &[&upper]))),
                        // Nothing but the limits hinders a merge here, and on the next day they do not.
                        None => {
                            let names = |shard: &Shard| shard.limits.keys().cloned().collect::<Vec<_>>();
                            let (later, pair) = (now.plus(Millis(86_400_000)), lower.shard() == whole.unwrap().halves().0);
                            let can = pair && names(lower) == names(&upper);
                            prop_assert_eq!(merged(lower, &upper, later).is_some(), can);
                        }
                    }
                }
                Step::Expire => {}
            }
        }
        let most = table.shards().values().map(|shard| shard.limits.len()).max();
        prop_assert!(most.unwrap_or_default() <= MAX_BUCKET_LIMITS);
    }

    /// Also if a process with a clock that was ahead wrote to the life before. Otherwise snapshots of
    /// that life would overrule the usage of the next, and no half of a split could be created.
    #[test]
    fn a_life_on_a_tombstone_begins_above_the_one_before_and_is_split_at_once(
        limits in limits(), erased in vec((-DAY_V..DAY_V, any::<bool>()), 1..3), since in 0..5_000i64,
        (takes, has_lease, is_bypass) in any::<(bool, bool, bool)>(),
    ) {
        let (mut items, mut last, mut now) = ([(); 2].map(|()| Item::default()), 0, START);
        for (id, (ahead, is_split)) in (1u64..).step_by(10).zip(erased) {
            now = now.plus(Millis(since));
            let (key, op) = (bucket_key(0), WriteId::from_bits(id));
            let need = limits[0].name().clone();
            let needs: BTreeMap<_, _> = [(need, MilliTokens::from_tokens(1))].into();
            let mut create = take(&key, &limits, BTreeMap::new(), op, now);
            match (takes, is_bypass) {
                (true, false) => create.asks = Asks::of(Effect::Enforce, needs.clone()),
                (true, true) => create.asks = Asks::of(Effect::Count, needs.clone()),
                _ => {}
            }
            let lease = Lease { expires_at: now.plus(Millis(500)), tokens: needs, ..Lease::default() };
            create.leases = has_lease.then(|| (WriteId::from_bits(id + 1), lease)).into_iter().collect();
            prop_assert!(items[0].apply(&create.create(now)));
            let made = items[0].bucket();
            prop_assert!(made.write_seq > last && made.birth_seq == made.write_seq, "{} after {}", made.write_seq, last);
            let mut seen = made;
            if is_split {
                prop_assert!(items[0].apply(&split(&seen, 0, WriteId::from_bits(id + 2), now)));
                let parent = items[0].bucket();
                for (at, update) in finish_writes(&parent).unwrap().into_iter().enumerate() {
                    prop_assert!(items[1 - at].apply(&update));
                }
                let half = items[1].bucket();
                prop_assert!(half.write_seq > last && half.birth_seq >= last);
                seen = items[0].bucket();
            }
            // A process with another clock writes, and then the bucket is erased.
            last = seen.write_seq.max(now.0 * 1000 + ahead) + 1;
            for (shard, item) in (0..).zip(&mut items) {
                let v = item.exists().then(|| item.live().write_seq);
                let names: Vec<_> = item.0.keys().cloned().collect();
                let names = names.iter().map(String::as_str);
                let erase = erase_shard(&bucket_key(shard), v, names, last, now);
                prop_assert!(item.apply(&erase) && item.is_merged());
            }
        }
    }
}
