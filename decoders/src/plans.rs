//! A bucket of any numbers, and every write that can be planned for it.

use std::collections::BTreeMap;

use weirgate_reconciler::{Depth, review};
use weirgate_shared::write::{
    Action, Company, Copy, LeaseChange, Roll, Settle, Settled, Take, Update, cut_units, expire,
    fill, finish, is_left, joined, keep, look, may_split, merge, refill, remove, split, still,
};
use weirgate_shared::{
    Bases, Bucket, BucketKey, Copied, Counter, EpochMillis, EpochSeconds, Hour, Lease, Limit,
    LimitName, LimitState, Live, Look, MilliTokens, Rule, Scaling, Shard, Snapshot, Terms, Whole,
    Window, WriteId, usage,
};

use crate::numbers::Bytes;

/// A bucket shard, another one of the same bucket, and what is asked of them.
pub(crate) struct Case {
    bucket: Bucket,
    other: Bucket,
    limits: Vec<Limit>,
    version: Option<i64>,
    amount: MilliTokens,
    roll: Roll,
    now: EpochMillis,
}

impl Case {
    /// What an item says, beside what it splits off.
    pub(crate) fn of(bucket: Bucket, now: EpochMillis) -> Self {
        let (_, half) = bucket.shard().halves();
        let other = Bucket {
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
        let (lower, upper) = bucket.shard().whole().unwrap_or(bucket.shard()).halves();
        let index = if bucket.key.shard == lower.index {
            upper.index
        } else {
            lower.index
        };
        Bucket {
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
    let rule = Rule {
        capacity,
        refill_amount,
        refill_period_ms: bytes.amount().max(1),
    };
    LimitState {
        tk,
        tc: MilliTokens(total),
        bases,
        rule,
    }
}

/// The last hour of the year 9998.
const LAST_HOUR: i64 = 253_370_764_800 / 3600 - 1;

/// Whatever an item can say.
fn bucket(bytes: &mut Bytes<'_>) -> Bucket {
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
            expires: EpochMillis(bytes.number()),
            tokens,
            owner: String::new(),
        };
        leases.insert(WriteId::from_bits(id), lease);
    }
    let v = bytes.amount();
    let half = key.with_shard(Shard::born(key.shard).halves().1.index);
    let escrow = bytes
        .one_in(4)
        .then(|| Box::new(Bucket::full(half, &[], EpochMillis(bytes.number()))));
    Bucket {
        key,
        shard_count: bytes.count().max(1),
        rf: EpochMillis(bytes.number()),
        v,
        birth: bytes.amount().min(v),
        hour: Hour(bytes.amount().min(LAST_HOUR)),
        takes: counter(bytes),
        limits,
        unheld: if bytes.one_in(4) {
            [(name("q-1"), counter(bytes))].into()
        } else {
            BTreeMap::new()
        },
        version: bytes.one_in(2).then(|| bytes.number()),
        rule_at: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        ttl: bytes.one_in(2).then(|| EpochSeconds(bytes.number())),
        write_units_left: MilliTokens(bytes.number()),
        leases: (!bytes.one_in(8)).then_some(leases),
        due: bytes.one_in(2).then(|| EpochMillis(bytes.number())),
        op: None,
        scaling: Scaling {
            is_hot: bytes.one_in(2),
            look: bytes.one_in(2).then(|| Look {
                at: EpochMillis(bytes.number()),
                v: bytes.number(),
            }),
            min_shards: bytes.count(),
            split_bytes: bytes.number(),
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
        if let Some(joined) = joined(one, two, now) {
            actions.extend(merge(one, joined, &[two]));
        }
        actions.extend(remove(one, two));
        let (_, hole) = one.shard().halves();
        actions.extend(fill(hole, one, |_| case.amount, WriteId::from_bits(1), now));
        actions.push(still(one));
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
        actions.extend(finish(one).into_iter().flatten().map(Action::Update));
        let _ = is_left(one, now);
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
        expires: now,
        tokens: needs.clone(),
        owner: String::new(),
    };
    let mut updates = vec![];
    for company in [Company::None, Company::Others, Company::Unseen] {
        let take = Take {
            key: &bucket.key,
            terms: Terms {
                limits,
                version: *version,
                is_own: company == Company::Others,
            },
            needs: if company == Company::None {
                needs.clone()
            } else {
                BTreeMap::new()
            },
            soft: if company == Company::None {
                BTreeMap::new()
            } else {
                needs.clone()
            },
            takes: amount.0,
            leases: vec![(id.clone(), lease.clone())],
            roll,
            op: id.clone(),
            hot: true,
            company,
            unknown: std::slice::from_ref(&id),
        };
        updates.extend([
            take.on(None, now),
            take.on(Some(bucket), now),
            take.create(now),
        ]);
    }
    for change in [
        LeaseChange::End,
        LeaseChange::Renew(now),
        LeaseChange::Hold(BTreeMap::new()),
    ] {
        let settled = Settled {
            tk: *amount,
            tc: -*amount,
            ceiling: Some(MilliTokens(now.0)),
        };
        let amounts = needs.keys().map(|limit| (limit.clone(), settled)).collect();
        let (lease, takes) = (Some((&id, change)), amount.0);
        let settle = Settle {
            key: &bucket.key,
            op: id.clone(),
            lease,
            amounts,
            takes,
            roll,
        };
        updates.extend([
            settle.whole(None),
            settle.whole(Some(bucket)),
            settle.cut(bucket),
        ]);
        updates.push(
            Settle {
                lease: None,
                ..settle
            }
            .cut(bucket),
        );
    }
    updates.extend(
        expire(bucket, now)
            .into_iter()
            .chain([look(bucket, now)])
            .map(|(update, _)| update),
    );
    updates.extend(
        refill(bucket, &needs, now)
            .into_iter()
            .chain(cut_units(bucket, now)),
    );
    updates.push(keep(bucket, bucket.scaling.min_shards, now));
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
            .map(|bucket| Copy::of(&bucket.meter(), window, bucket.scaling.is_hot, amount.0));
        let lives = copies
            .iter()
            .flat_map(|one| copies.iter().map(move |other| (one, other)));
        for (copy, earlier) in lives {
            let copied = Copied {
                v: earlier.v,
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
            let live = [bucket, other].map(|bucket| Live {
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
    let advanced = bucket.advanced(
        Terms {
            limits,
            version: *version,
            is_own: false,
        },
        now,
    );
    let _ = (
        bucket.has_rules(limits, now),
        bucket.is_out_of_units(now),
        bucket.is_crowded(),
        bucket.write_units(),
    );
    let whole = Whole::new(vec![advanced, other.clone()]);
    let _ = whole.is_complete();
    let needs = BTreeMap::from_iter(bucket.limits.keys().map(|name| (name.clone(), *amount)));
    let _ = whole.spread(&needs, now);
    for (name, state) in &bucket.limits {
        if let Some(at) = bucket.ready_at(name, *amount) {
            let _ = bucket.holds(name, at);
        }
        let _ = (
            bucket.balance(state, now),
            bucket.is_full(state, now),
            whole.ready_at(name, *amount, now),
        );
    }
    let _ = Bucket::full(bucket.key.clone(), limits, now).shard() == Shard::born(bucket.key.shard);
}
