//! A bucket of any numbers, and every write that can be planned for it.

use std::collections::BTreeMap;

use weirgate_reconciler::{Depth, review};
use weirgate_shared::write::{
    Action, Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update, UsageCopy,
    cap_write_units, expire, finish_writes, is_abandoned, may_split, merge, merged, recreate,
    refill, remove_covered, require_unchanged, sample, split, update_min_shards,
};
use weirgate_shared::{
    ActivitySample, Bases, Bucket, BucketKey, Counter, EpochMillis, EpochSeconds, Hour, Lease,
    Limit, LimitName, LimitState, LiveShard, MilliTokens, RefillRule, Scaling, Shard, ShardIndex,
    ShardUsageCopy, Snapshot, VersionedLimits, Window, WriteId, usage,
};

use crate::numbers::Bytes;

/// A bucket shard, another one of the same bucket, and what is asked of them.
pub(crate) struct Case {
    bucket: Shard,
    other: Shard,
    limits: Vec<Limit>,
    version: Option<i64>,
    amount: MilliTokens,
    roll: Roll,
    now: EpochMillis,
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
}

/// Makes a case out of few bytes, and plans every write.
///
/// # Panics
/// If a number overflows, or a write is planned for another bucket.
pub fn plans(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let bucket = bucket(&mut bytes);
    let other = if bytes.one_in(2) {
        let (lower, upper) = bucket.shard().parent().unwrap_or(bucket.shard()).halves();
        let index = if bucket.key.shard == lower.index {
            upper.index
        } else {
            lower.index
        };
        Shard {
            key: bucket.key.with_shard(index),
            ..self::bucket(&mut bytes)
        }
    } else {
        self::bucket(&mut bytes)
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
    every(&Case {
        bucket,
        other,
        limits,
        version,
        amount,
        roll,
        now,
    });
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
        total: bytes.number(),
        bases: Bases {
            hour: bytes.number(),
            day: bytes.number(),
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
        consumed: MilliTokens(total),
        bases,
        rule,
    }
}

/// The last hour of the year 9998.
const LAST_HOUR: i64 = 253_370_764_800 / 3600 - 1;

/// Whatever an item can say.
fn bucket(bytes: &mut Bytes<'_>) -> Shard {
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
        config_version: bytes.one_in(2).then(|| bytes.number()),
        limits_changed_at: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        ttl: bytes.one_in(2).then(|| EpochSeconds(bytes.number())),
        write_units_left: MilliTokens(bytes.number()),
        leases: (!bytes.one_in(8)).then_some(leases),
        due_at: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        last_write_id: None,
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

/// Plans every write.
pub(crate) fn every(case: &Case) {
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
    looked_at(case);
    copied(case);
}

fn updates(case: &Case) -> Vec<Update> {
    let Case {
        bucket,
        limits,
        version,
        amount,
        now,
        roll,
        ..
    } = case;
    let (now, roll) = (*now, *roll);
    let needs = BTreeMap::from_iter(limits.iter().map(|limit| (limit.name().clone(), *amount)));
    let id = WriteId::from_bits(7);
    let lease = Lease {
        expires_at: now,
        tokens: needs.clone(),
        owner: String::new(),
    };
    let mut updates = vec![];
    for company in [
        Contention::Alone,
        Contention::Shared,
        Contention::SharedStale,
    ] {
        let take = Take {
            key: &bucket.key,
            limits: VersionedLimits {
                limits,
                version: *version,
                is_own: company == Contention::Shared,
            },
            amounts: if company == Contention::Alone {
                needs.clone()
            } else {
                BTreeMap::new()
            },
            soft_amounts: if company == Contention::Alone {
                BTreeMap::new()
            } else {
                needs.clone()
            },
            acquires: amount.0,
            leases: vec![(id.clone(), lease.clone())],
            roll,
            write_id: id.clone(),
            request_split: true,
            contention: company,
            unconfirmed: std::slice::from_ref(&id),
        };
        updates.extend([
            take.plan(None, now),
            take.plan(Some(bucket), now),
            take.create(now),
        ]);
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
    updates.extend(
        refill(bucket, &needs, now)
            .into_iter()
            .chain(cap_write_units(bucket, now)),
    );
    updates.push(update_min_shards(bucket, bucket.scaling.min_shards, now));
    updates
}

/// Copies of both shards, one after the other as if they were two lives of one, and the usage that
/// readers find.
fn copied(
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
            let live = [bucket, other].map(|bucket| LiveShard {
                meter: bucket.meter(),
                holds_leases: bucket.leases.is_none(),
            });
            let _ = (
                usage(window, copy.key.start, &snapshot, &live, *now),
                copy.supersedes(earlier),
                copy.to_string(),
            );
        }
    }
}

/// What callers and functions are told of it.
fn looked_at(
    Case {
        bucket,
        other,
        limits,
        version,
        amount,
        now,
        ..
    }: &Case,
) {
    let now = *now;
    let advanced = bucket.projected(
        VersionedLimits {
            limits,
            version: *version,
            is_own: false,
        },
        now,
    );
    let _ = (
        bucket.matches_rules(limits, now),
        bucket.is_near_write_limit(now),
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
