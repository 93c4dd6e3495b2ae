//! Every write that can be planned for a bucket shard, whatever its numbers are.

mod reads;
mod writes;

use weirgate_shared::{EpochMillis, Limit, MilliTokens, Shard};

/// A bucket shard, the one that it would split off, and what is asked of them.
pub(crate) struct Case {
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
    ];
    let limits: Vec<_> = limits
        .into_iter()
        .map(|limit| limit.expect("a limit"))
        .collect();
    for (now, amount) in [
        (i64::MIN, 1),
        (0, i64::MAX),
        (1_795_195_341_000, 1000),
        (i64::MAX, i64::MIN),
    ] {
        let case = Case {
            bucket: bucket.clone(),
            other: Shard {
                key: bucket.key.with_shard(half.index),
                ..bucket.clone()
            },
            limits: limits.clone(),
            amount: MilliTokens(amount),
            now: EpochMillis(now),
        };
        writes::plan_writes(&case);
        reads::evaluate(&case);
        reads::copy_usage(&case);
    }
}
