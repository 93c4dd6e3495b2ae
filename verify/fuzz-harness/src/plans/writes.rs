//! Every write that can be planned for a case.

use std::collections::BTreeMap;

use weirgate_reconciler::{Depth, review};
use weirgate_shared::write::{
    Action, Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update, expire, finish_writes,
    is_abandoned, may_split, merge, merged, recreate, refill, remove_covered, require_unchanged,
    sample, split, update_min_shards,
};
use weirgate_shared::{
    BucketKey, Hour, Lease, LimitsVersion, MilliTokens, VersionedLimits, WriteId,
};

use super::Case;

/// Plans every write.
pub(super) fn plan_writes(case: &Case) {
    let Case {
        bucket,
        other,
        limits,
        now,
        ..
    } = case;
    let now = *now;
    let mut actions = vec![];
    actions.extend(updates(case).into_iter().map(Action::Update));
    for (one, two) in [(bucket, other), (other, bucket)] {
        if let Some(next) = merged(one, two, now) {
            actions.extend(merge(one, next, &[two]));
        }
        actions.extend(remove_covered(one, two));
        let (_, hole) = one.shard().halves();
        actions.extend(recreate(
            hole,
            one,
            |_| case.amount,
            WriteId::from_bits(1),
            now,
        ));
        actions.push(require_unchanged(one));
        let largest = BTreeMap::from_iter(
            limits
                .iter()
                .map(|limit| (limit.name().clone(), case.amount)),
        );
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
            let changes = review.repairs.into_iter().chain(review.merges);
            actions.extend(changes.flat_map(|change| change.actions));
        }
    }
    for action in actions {
        let key = match action {
            Action::Update(update) => update.key,
            Action::Delete(key, _) | Action::Check(key, _) => key,
        };
        let written = BucketKey::parse(&key.pk).expect("a bucket's write is of a bucket");
        assert_eq!(
            written.with_shard(0),
            bucket.key.with_shard(0),
            "it is of the same one"
        );
    }
}

fn updates(case: &Case) -> Vec<Update> {
    let Case {
        bucket,
        limits,
        amount,
        now,
        ..
    } = case;
    let (now, roll) = (*now, Roll::to(Hour::of(*now)));
    let needs = BTreeMap::from_iter(limits.iter().map(|limit| (limit.name().clone(), *amount)));
    let id = WriteId::from_bits(7);
    let lease = Lease {
        expires_at: now,
        tokens: needs.clone(),
        owner: String::new(),
    };
    let mut updates = vec![];
    let (shared, stale) = (
        Contention::Shared,
        Contention::SharedStale {
            others_per_day: 86_400_000,
        },
    );
    let none = BTreeMap::new;
    for (contention, amounts, soft_amounts, counted_amounts) in [
        (Contention::Alone, needs.clone(), none(), needs.clone()),
        (shared, none(), needs.clone(), none()),
        (stale, none(), needs.clone(), needs.clone()),
    ] {
        let limits = VersionedLimits {
            limits,
            version: Some(LimitsVersion(1)),
            is_own: contention == shared,
        };
        let take = Take {
            amounts,
            soft_amounts,
            counted_amounts,
            acquires: amount.0,
            leases: vec![(id.clone(), lease.clone())],
            roll: Roll {
                by_others: contention == shared,
                ..roll
            },
            request_split: true,
            contention,
            unconfirmed: std::slice::from_ref(&id),
            ..Take::nothing(&bucket.key, limits, id.clone(), now)
        };
        updates.extend([take.plan(bucket, now), take.create(now)]);
    }
    for change in [
        LeaseChange::End,
        LeaseChange::Renew(now),
        LeaseChange::SetAmounts(BTreeMap::new()),
    ] {
        let settled = LimitDelta {
            available: *amount,
            consumed: -*amount,
            ceiling: Some(MilliTokens(now.0)),
        };
        let amounts = needs.keys().map(|limit| (limit.clone(), settled)).collect();
        let (lease, takes) = (Some((&id, change)), amount.0);
        let settle = Settle {
            key: &bucket.key,
            write_id: id.clone(),
            lease,
            amounts,
            acquires: takes,
            roll,
        };
        updates.extend([
            settle.full(None),
            settle.full(Some(bucket)),
            settle.capped(bucket),
        ]);
        updates.push(
            Settle {
                lease: None,
                ..settle
            }
            .capped(bucket),
        );
    }
    updates.extend(
        expire(bucket, now)
            .into_iter()
            .chain([sample(bucket, now)])
            .map(|(update, _)| update),
    );
    updates.extend(refill(bucket, &needs, now));
    updates.push(update_min_shards(bucket, bucket.scaling.min_shards, now));
    updates
}
