//! A shard of any numbers, and a request for it.

use std::collections::BTreeMap;

use weirgate_shared::write::Roll;
use weirgate_shared::{
    ActivitySample, Bases, BucketKey, Counter, EditId, EpochMillis, EpochSeconds, Hour, Lease,
    Limit, LimitName, LimitState, LimitsVersion, MilliTokens, MilliTotal, RefillRule, Scaling,
    Shard, ShardIndex, WriteId,
};

use crate::numbers::Bytes;

/// A bucket shard, another one of the same bucket, and what is asked of them.
pub(crate) struct Case {
    pub(super) bucket: Shard,
    pub(super) other: Shard,
    pub(super) limits: Vec<Limit>,
    pub(super) version: Option<i64>,
    pub(super) amount: MilliTokens,
    pub(super) roll: Roll,
    pub(super) now: EpochMillis,
}

impl Case {
    /// What an item says, beside what it splits off.
    pub(crate) fn of(bucket: Shard, now: EpochMillis) -> Self {
        let (_, half) = bucket.shard().halves();
        let other = Shard {
            key: bucket.key.with_shard(half.index),
            ..bucket.clone()
        };
        let limits = ["rpm", "tpm"]
            .iter()
            .filter_map(|name| Limit::per_minute(name, 600).ok())
            .collect();
        let roll = Roll::to(Hour::of(now));
        Self {
            bucket,
            other,
            limits,
            version: Some(1),
            amount: MilliTokens(1000),
            roll,
            now,
        }
    }

    /// Makes a case out of few bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut bytes = Bytes(bytes);
        let bucket = shard(&mut bytes);
        let other = if bytes.one_in(2) {
            let (lower, upper) = bucket.shard().parent().unwrap_or(bucket.shard()).halves();
            let index = if bucket.key.shard == lower.index {
                upper.index
            } else {
                lower.index
            };
            Shard {
                key: bucket.key.with_shard(index),
                ..shard(&mut bytes)
            }
        } else {
            shard(&mut bytes)
        };
        let limits = ["rpm", "slots", "q-1"]
            .iter()
            .filter_map(|name| limit(&mut bytes, name))
            .collect();
        let version = bytes.one_in(2).then(|| bytes.number());
        let (amount, now) = (MilliTokens(bytes.number()), EpochMillis(bytes.number()));
        let roll = Roll {
            hour: Hour(bytes.number()),
            by_others: bytes.one_in(2),
        };
        Self {
            bucket,
            other,
            limits,
            version,
            amount,
            roll,
            now,
        }
    }
}

fn limit(bytes: &mut Bytes<'_>, name: &str) -> Option<Limit> {
    let (capacity, amount, period) = (bytes.amount(), bytes.amount(), bytes.amount());
    let limit = if bytes.one_in(4) {
        Limit::concurrent(name, capacity)
    } else {
        Limit::custom(name, capacity, amount, period)
    };
    limit.ok()
}

fn counter(bytes: &mut Bytes<'_>) -> Counter {
    Counter {
        total: bytes.number().into(),
        bases: Bases {
            hour: bytes.number().into(),
            day: bytes.number().into(),
        },
    }
}

fn state(bytes: &mut Bytes<'_>) -> LimitState {
    let (tk, Counter { total, bases }) = (MilliTokens(bytes.number()), counter(bytes));
    let (capacity, refill_amount) = (MilliTokens(bytes.amount()), MilliTokens(bytes.amount()));
    let rule = RefillRule {
        capacity,
        refill_amount,
        refill_period_ms: bytes.amount().max(1),
    };
    LimitState {
        available: tk,
        consumed: MilliTotal(total),
        bases,
        rule,
    }
}

/// The last hour of the year 9998.
const LAST_HOUR: i64 = 253_370_764_800 / 3600 - 1;

/// Returns a shard with any values that an item can have.
fn shard(bytes: &mut Bytes<'_>) -> Shard {
    let key = BucketKey::parse("n/BUCKET#e#r#0")
        .map(|key| key.with_shard(bytes.count()))
        .expect("it is a key");
    let name = |name: &str| LimitName::new(name).expect("it is a name");
    let mut limits = BTreeMap::new();
    for limit in ["rpm", "slots"] {
        if !bytes.one_in(4) {
            limits.insert(name(limit), state(bytes));
        }
    }
    let mut leases = BTreeMap::new();
    for id in 0..u64::from(bytes.byte() % 4) {
        let tokens = BTreeMap::from([
            (name("rpm"), MilliTokens(bytes.number())),
            (name("slots"), MilliTokens(bytes.number())),
        ]);
        let lease = Lease {
            expires_at: EpochMillis(bytes.number()),
            tokens,
            owner: String::new(),
        };
        leases.insert(WriteId::from_bits(id), lease);
    }
    let v = bytes.amount();
    let half = key.with_shard(ShardIndex::at_creation(key.shard).halves().1.index);
    let escrow = bytes
        .one_in(4)
        .then(|| Box::new(Shard::full(half, &[], EpochMillis(bytes.number()))));
    Shard {
        key,
        shard_count: bytes.count().max(1),
        refilled_at: EpochMillis(bytes.number()),
        write_seq: v,
        birth_seq: bytes.amount().min(v),
        hour: Hour(bytes.amount().min(LAST_HOUR)),
        acquires: counter(bytes),
        limits,
        departed: if bytes.one_in(4) {
            [(name("q-1"), counter(bytes))].into()
        } else {
            BTreeMap::new()
        },
        config_version: bytes.one_in(2).then(|| LimitsVersion(bytes.number())),
        limits_changed_at: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        ttl: bytes.one_in(2).then(|| EpochSeconds(bytes.number())),
        leases: (!bytes.one_in(8)).then_some(leases),
        due_at: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        last_write_id: None,
        edit: bytes.one_in(4).then(|| EditId(bytes.number())),
        scaling: Scaling {
            is_hot: bytes.one_in(2),
            sample: bytes.one_in(2).then(|| ActivitySample {
                at: EpochMillis(bytes.number()),
                write_seq: bytes.number(),
            }),
            min_shards: bytes.count(),
            lease_bytes_at_split: bytes.number(),
        },
        escrow,
        size_bytes: if bytes.is_over() {
            0
        } else {
            usize::from(bytes.byte()) * 64
        },
        lease_bytes: usize::from(bytes.byte()) * 32,
    }
}
