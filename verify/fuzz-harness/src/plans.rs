//! Every write that can be planned for a bucket shard, whatever its numbers are.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_reconciler::{Depth, review};
use weirgate_shared::write::{
    Action, BalanceChange, Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update,
    UsageCopy, change_balances, expire, finish_writes, is_abandoned, may_split, merge, merged,
    recreate, refill, remove_covered, require_unchanged, sample, split, update_min_shards,
};
use weirgate_shared::{
    Asks, Bucket, BucketKey, Calendar, EditId, Effect, EpochMillis, Every, Hour, Lease, Limit,
    LimitsVersion, MilliTokens, Millis, Shard, ShardIndex, ShardUsageCopy, Snapshot, UsageHorizon,
    VersionedLimits, Window, WriteId, usage,
};

/// A calendar of sessions, and of windows that end within a day, until the end of time.
const CALENDAR: Calendar = Calendar::new(|code, now| {
    let length = code.session().unwrap_or(Millis(86_400_000));
    Some(EpochMillis(now.0.saturating_add(length.0)))
});

/// A bucket shard, the one that it would split off, and what is asked of them.
struct Case {
    bucket: Shard,
    other: Shard,
    limits: Vec<Limit>,
    amount: MilliTokens,
    now: EpochMillis,
}

/// Plans every write to a shard, and computes what readers are told.
///
/// Panics if a number overflows, or a write is planned for another bucket.
pub(crate) fn every(bucket: &Shard) {
    let (_, half) = bucket.shard().halves();
    let limits = [
        Limit::per_minute("rpm", 600),
        Limit::concurrent("slots", 1_000_000_000_000),
        Limit::custom("q-1", 1, 1_000_000_000_000, 1),
        Limit::quota("tpm", 1_000_000_000_000, Every::month().on_day(31)),
        Limit::session("session", 1, Duration::from_secs(366 * 86_400)),
    ];
    let limits: Vec<_> = limits.into_iter().map(|limit| limit.expect("a limit")).collect();
    for (now, amount) in
        [(i64::MIN, 1), (0, i64::MAX), (1_795_195_341_000, 1000), (i64::MAX, i64::MIN)]
    {
        let case = Case {
            bucket: bucket.clone(),
            other: Shard { key: bucket.key.with_shard(half.index), ..bucket.clone() },
            limits: limits.clone(),
            amount: MilliTokens(amount),
            now: EpochMillis(now),
        };
        plan_writes(&case);
        evaluate(&case);
        copy_usage(&case);
    }
}

/// Plans every write.
fn plan_writes(case: &Case) {
    let Case { bucket, other, limits, now, .. } = case;
    let now = *now;
    let mut actions = vec![];
    actions.extend(updates(case).into_iter().map(Action::Update));
    for (one, two) in [(bucket, other), (other, bucket)] {
        if let Some(next) = merged(one, two, now) {
            actions.extend(merge(one, next, &[two]));
        }
        actions.extend(remove_covered(one, two));
        let (_, hole) = one.shard().halves();
        actions.extend(recreate(hole, one, |_| case.amount, WriteId::from_bits(1), now));
        actions.push(require_unchanged(one));
        let largest =
            BTreeMap::from_iter(limits.iter().map(|limit| (limit.name().clone(), case.amount)));
        let _ = may_split(one, u32::MAX, &largest);
        actions.push(Action::Update(split(
            one,
            two.scaling.min_shards,
            WriteId::from_bits(2),
            now,
        )));
        actions.extend(finish_writes(one).into_iter().flatten().map(Action::Update));
        let _ = is_abandoned(one, now);
    }
    for depth in [Depth::All, Depth::Pairs] {
        let shards = [bucket.clone(), other.clone()];
        for shards in [&shards[..1], &shards] {
            let review = review(shards, true, depth, now, || WriteId::from_bits(3));
            let changes = review.fill.into_iter().chain(review.repairs).chain(review.merges);
            actions.extend(changes.flat_map(|change| change.actions));
        }
    }
    for action in actions {
        let key = match action {
            Action::Update(update) => update.key,
            Action::Delete(key, _) | Action::Check(key, _) => key,
        };
        let written = BucketKey::parse(&key.pk).expect("a bucket's write is of a bucket");
        assert_eq!(written.with_shard(0), bucket.key.with_shard(0), "it is of the same one");
    }
}

fn updates(case: &Case) -> Vec<Update> {
    let Case { bucket, limits, amount, now, .. } = case;
    let (now, roll) = (*now, Roll::to(Hour::of(*now)));
    let needs = BTreeMap::from_iter(limits.iter().map(|limit| (limit.name().clone(), *amount)));
    let id = WriteId::from_bits(7);
    let lease = Lease { expires_at: now, tokens: needs.clone(), ..Lease::default() };
    let mut updates = vec![];
    let (shared, stale) =
        (Contention::Shared, Contention::SharedStale { others_per_day: 86_400_000 });
    let none = BTreeMap::new;
    for (contention, effect, counted) in [
        (Contention::Alone, Effect::Enforce, needs.clone()),
        (shared, Effect::IntoDebt, none()),
        (stale, Effect::IntoDebt, needs.clone()),
    ] {
        let limits = VersionedLimits {
            limits,
            version: Some(LimitsVersion::new(1)),
            is_own: contention == shared,
            calendar: CALENDAR,
        };
        let take = Take {
            asks: Asks::of(effect, needs.clone()).and(Effect::Count, counted),
            acquires: amount.0,
            leases: vec![(id.clone(), lease.clone())],
            roll: Roll { by_others: contention == shared, ..roll },
            request_split: true,
            contention,
            windows_begun: contention == shared,
            unconfirmed: std::slice::from_ref(&id),
            ..Take::nothing(&bucket.key, limits, id.clone(), now)
        };
        updates.extend([take.plan(bucket, now), take.create(now)]);
    }
    for change in
        [LeaseChange::End, LeaseChange::Renew(now), LeaseChange::SetAmounts(BTreeMap::new())]
    {
        let windows = [None, Some(now)]
            .into_iter()
            .chain(bucket.limits.values().map(|state| Some(state.window_end)));
        let settled = |window| LimitDelta {
            available: *amount,
            consumed: -*amount,
            ceiling: Some(MilliTokens(now.0)),
            window,
        };
        let names = needs.keys().chain(bucket.limits.keys()).cloned();
        let amounts = names.zip(windows.map(settled).cycle()).collect();
        let (lease, takes) = (Some((&id, change)), amount.0);
        let settle = Settle {
            key: &bucket.key,
            write_id: id.clone(),
            lease,
            amounts,
            acquires: takes,
            roll,
        };
        updates.extend([settle.full(None), settle.full(Some(bucket)), settle.capped(bucket)]);
        updates.push(Settle { lease: None, ..settle }.capped(bucket));
    }
    updates.extend(
        expire(bucket, now).into_iter().chain([sample(bucket, now)]).map(|(update, _)| update),
    );
    updates.extend(refill(bucket, &needs, now));
    for change in [BalanceChange::SetTo(*amount), BalanceChange::Raise(*amount)] {
        let changes = bucket.limits.keys().map(|name| (name.clone(), change));
        let edit = EditId::new(now, 0, bucket.edit);
        updates.extend(change_balances(bucket, edit, &changes.collect(), CALENDAR, now));
    }
    updates.push(update_min_shards(bucket, bucket.scaling.min_shards, now));
    updates
}

/// Plans copies of both shards, one after the other as if they were two lives of one, and the usage that
/// readers find.
fn copy_usage(Case { bucket, other, amount, now, .. }: &Case) {
    for window in Window::ALL {
        let copies = [bucket, other].map(|bucket| {
            UsageCopy::of(&bucket.meter(), window, bucket.scaling.hot_at.is_some(), amount.0)
        });
        let lives = copies.iter().flat_map(|one| copies.iter().map(move |other| (one, other)));
        for (copy, earlier) in lives {
            let copied = ShardUsageCopy {
                write_seq: earlier.v,
                usage: earlier.usage.clone(),
                is_final: earlier.is_final,
            };
            let carry = earlier.usage.clone();
            let snapshot =
                Snapshot { shards: [(copy.shard, copied)].into(), carry, ..Snapshot::default() };
            let updates = [Some(copy.first()), copy.after(&snapshot)];
            assert!(updates.into_iter().flatten().all(|update| update.key == copy.key.item_key()));
            let live = [bucket, other].map(Shard::meter);
            let start = copy.key.start;
            let _ = (
                usage(
                    window,
                    start,
                    &[((window, start), snapshot)].into(),
                    &live,
                    &UsageHorizon::of_stream(*now, Millis(i64::MAX)),
                ),
                copy.supersedes(earlier),
                copy.to_string(),
            );
        }
    }
}

/// Computes what callers and functions are told of the shard.
fn evaluate(Case { bucket, other, limits, amount, now, .. }: &Case) {
    let now = *now;
    let advanced = bucket.projected(
        VersionedLimits {
            limits,
            version: Some(LimitsVersion::new(1)),
            is_own: false,
            calendar: CALENDAR,
        },
        now,
    );
    let _ = (bucket.matches_rules(limits, now), bucket.has_heavy_leases(), bucket.write_units());
    let whole = Bucket::new(vec![advanced, other.clone()]);
    let _ = whole.is_complete();
    let needs = BTreeMap::from_iter(bucket.limits.keys().map(|name| (name.clone(), *amount)));
    let _ = whole.spread(&needs, now);
    for (name, state) in &bucket.limits {
        if let Some(at) = bucket.ready_at(name, *amount) {
            let _ = bucket.balance_at(name, at);
        }
        let _ = (
            bucket.balance(state, now),
            bucket.is_full(state, now),
            whole.ready_at(name, *amount, now),
        );
    }
    let _ = Shard::full(bucket.key.clone(), limits, now).shard()
        == ShardIndex::at_creation(bucket.key.shard);
}
