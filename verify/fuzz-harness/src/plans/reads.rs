//! What readers compute from a case: its usage, and what callers and functions are told.

use std::collections::BTreeMap;

use weirgate_shared::write::UsageCopy;
use weirgate_shared::{
    Bucket, LimitsVersion, Millis, Shard, ShardIndex, ShardUsageCopy, Snapshot, VersionedLimits,
    Window, usage,
};

use super::Case;

/// Plans copies of both shards, one after the other as if they were two lives of one, and the usage that
/// readers find.
pub(super) fn copy_usage(
    Case {
        bucket,
        other,
        amount,
        now,
        ..
    }: &Case,
) {
    for window in Window::ALL {
        let copies = [bucket, other]
            .map(|bucket| UsageCopy::of(&bucket.meter(), window, bucket.scaling.is_hot, amount.0));
        let lives = copies
            .iter()
            .flat_map(|one| copies.iter().map(move |other| (one, other)));
        for (copy, earlier) in lives {
            let copied = ShardUsageCopy {
                write_seq: earlier.v,
                usage: earlier.usage.clone(),
                is_final: earlier.is_final,
            };
            let carry = earlier.usage.clone();
            let snapshot = Snapshot {
                shards: [(copy.shard, copied)].into(),
                carry,
                ..Snapshot::default()
            };
            let updates = [Some(copy.first()), copy.after(&snapshot)];
            assert!(
                updates
                    .into_iter()
                    .flatten()
                    .all(|update| update.key == copy.key.item_key())
            );
            let live = [bucket, other].map(Shard::meter);
            let start = copy.key.start;
            let _ = (
                usage(
                    window,
                    start,
                    &[((window, start), snapshot)].into(),
                    &live,
                    (*now, Millis(i64::MAX)),
                ),
                copy.supersedes(earlier),
                copy.to_string(),
            );
        }
    }
}

/// Computes what callers and functions are told of the shard.
pub(super) fn evaluate(
    Case {
        bucket,
        other,
        limits,
        amount,
        now,
        ..
    }: &Case,
) {
    let now = *now;
    let advanced = bucket.projected(
        VersionedLimits {
            limits,
            version: Some(LimitsVersion(1)),
            is_own: false,
        },
        now,
    );
    let _ = (
        bucket.matches_rules(limits, now),
        bucket.has_heavy_leases(),
        bucket.write_units(),
    );
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
