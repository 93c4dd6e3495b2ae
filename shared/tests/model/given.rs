//! Buckets and leases that examples begin with.

use std::collections::BTreeMap;

use weirgate_shared::{
    ActivitySample, EpochMillis, Lease, Limit, LimitName, MilliTokens, Millis, Shard, ShardIndex,
    WriteId,
};

use super::limit_name;

/// A lease: its id, how long after the start it ends, and what it holds.
pub type Held<'a> = (u64, i64, &'a [(&'a str, i64)]);

pub const START: EpochMillis = EpochMillis(1_000_000);

pub fn id(bits: u64) -> WriteId {
    WriteId::from_bits(bits)
}

pub fn later(ms: i64) -> EpochMillis {
    START.plus(Millis(ms))
}

pub fn rate() -> Limit {
    Limit::custom("rpm", 10, 1, 100).unwrap()
}

pub fn slots() -> Limit {
    Limit::concurrent("slots", 6).unwrap()
}

/// One shard with `tk` of its rates, credited up to the start.
pub fn bucket(shard: ShardIndex, tk: i64, limits: &[Limit]) -> Shard {
    let mut bucket = Shard {
        last_write_id: Some(id(1)),
        ..super::bucket(shard, limits, START)
    };
    for state in bucket
        .limits
        .values_mut()
        .filter(|state| !state.rule.is_concurrent())
    {
        state.available = MilliTokens(tk);
    }
    bucket
}

pub fn whole(tk: i64) -> Shard {
    bucket(ShardIndex::UNSPLIT, tk, &[rate()])
}

pub fn half(index: u32, tk: i64) -> Shard {
    let mut bucket = bucket(ShardIndex { index, count: 2 }, tk, &[rate(), slots()]);
    bucket.scaling.sample = Some(ActivitySample {
        at: START,
        write_seq: bucket.write_seq - 7,
    });
    bucket.due_at = Some(later(60_000));
    bucket
}

pub fn needs(needs: &[(&str, i64)]) -> BTreeMap<LimitName, MilliTokens> {
    needs
        .iter()
        .map(|(limit, need)| (limit_name(limit), MilliTokens(*need)))
        .collect()
}

pub fn lease(expires: EpochMillis, held: &[(&str, i64)]) -> Lease {
    Lease {
        expires_at: expires,
        tokens: needs(held),
        owner: "me".to_owned(),
    }
}

pub fn with_leases(mut bucket: Shard, leases: &[Held<'_>]) -> Shard {
    let leases = leases
        .iter()
        .map(|(bits, ms, held)| (id(*bits), lease(later(*ms), held)));
    bucket.leases = Some(leases.collect());
    bucket.due_at = bucket
        .leases
        .iter()
        .flatten()
        .map(|(_, lease)| lease.expires_at)
        .min();
    bucket
}
