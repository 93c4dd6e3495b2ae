//! Buckets with leases: as values, in the table, and back.

use std::collections::BTreeMap;

use weirgate_shared::write::{
    Change, Company, LeaseChange, Roll, Settle, Settled, Take, Update, Value, finish, split,
};
use weirgate_shared::{
    Bucket, BucketKey, EpochMillis, Hour, Lease, Limit, LimitName, MAX_PERIOD_MS, MilliTokens,
    WriteId, write_bucket,
};
use weirgate_store::{Answer, Outcome, Table};

/// An instant that has passed.
pub const NOW: EpochMillis = EpochMillis(1_767_225_600_000);

/// The key of an entity's bucket.
///
/// # Panics
/// If the entity's name is not valid.
#[must_use]
pub fn key(entity: &str) -> BucketKey {
    BucketKey::parse(&format!("default/BUCKET#{entity}#gpt-4#0"))
        .expect("the test's entity is a valid name")
}

/// A limit's name.
///
/// # Panics
/// If it is not valid.
#[must_use]
pub fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("the test's limit is a valid name")
}

/// Tokens of one limit.
#[must_use]
pub fn tokens(amount: i64) -> MilliTokens {
    MilliTokens::from_tokens(amount)
}

/// A full bucket with an empty map of leases, credited up to [`NOW`].
#[must_use]
pub fn full(entity: &str, limits: &[Limit]) -> Bucket {
    Bucket::full(key(entity), limits, NOW)
}

/// The bucket after a take of `amounts`, in tokens, with a lease `id` that expires at `expires`.
///
/// # Panics
/// If a name is not valid, or a limit is not in the bucket.
#[must_use]
pub fn holding(
    mut bucket: Bucket,
    id: &str,
    expires: EpochMillis,
    amounts: &[(&str, i64)],
) -> Bucket {
    let mut held = BTreeMap::new();
    for (name, amount) in amounts {
        let state = bucket
            .limits
            .get_mut(*name)
            .expect("the limit is in the bucket");
        state.tk -= tokens(*amount);
        state.tc += tokens(*amount);
        held.insert(limit(name), tokens(*amount));
    }
    let lease = Lease {
        expires,
        tokens: held,
        owner: "test".to_owned(),
    };
    let id = WriteId::new(id).expect("the test's lease is a valid id");
    bucket.leases.get_or_insert_default().insert(id, lease);
    bucket.due = Some(bucket.due.map_or(expires, |due| due.min(expires)));
    bucket
}

/// Writes the bucket as it is, over what is there.
///
/// # Panics
/// If DynamoDB does not take it.
pub async fn store(table: &Table, bucket: &Bucket) {
    let update = Update {
        key: bucket.key.item_key(),
        conditions: vec![],
        changes: write_bucket(bucket),
    };
    let outcome = table
        .update(&update, Answer::Nothing)
        .await
        .expect("the bucket is written");
    assert_eq!(outcome, Outcome::Applied(None));
}

/// Reads the bucket; `None` if it is not there.
///
/// # Panics
/// If it cannot be read.
pub async fn load(table: &Table, key: &BucketKey) -> Option<Bucket> {
    let items = table
        .read(&[key.item_key()])
        .await
        .expect("the bucket is read");
    items
        .first()
        .map(|item| item.bucket().expect("the bucket is whole"))
}

/// The item of a bucket as DynamoDB JSON, for loading many at once.
#[must_use]
pub fn item(bucket: &Bucket) -> serde_json::Value {
    let key = bucket.key.item_key();
    let mut item = serde_json::Map::from_iter([
        ("PK".to_owned(), serde_json::json!({"S": key.pk})),
        ("SK".to_owned(), serde_json::json!({"S": key.sk})),
    ]);
    for change in write_bucket(bucket) {
        if let Change::Set(path, value) = change {
            item.insert(path.0[0].to_string(), attribute(&value));
        }
    }
    item.into()
}

fn attribute(value: &Value) -> serde_json::Value {
    match value {
        Value::Int(number) => serde_json::json!({"N": number.to_string()}),
        Value::Tokens(amount) => serde_json::json!({"N": amount.to_string()}),
        Value::Text(text) => serde_json::json!({"S": text}),
        Value::Bool(is) => serde_json::json!({"BOOL": is}),
        Value::Numbers(numbers) => {
            serde_json::json!({"NS": numbers.iter().map(ToString::to_string).collect::<Vec<_>>()})
        }
        Value::Map(map) => {
            let map = map
                .iter()
                .map(|(name, value)| (name.clone(), attribute(value)));
            serde_json::json!({"M": serde_json::Map::from_iter(map)})
        }
    }
}

/// Limits whose tokens the test can add up: the rate refills a millitoken in 9 hours.
///
/// # Panics
/// Never: they are valid.
#[must_use]
pub fn limits() -> Vec<Limit> {
    let rate = Limit::custom("quota", 20, 1, MAX_PERIOD_MS).expect("a valid limit");
    vec![rate, Limit::concurrent("slots", 6).expect("a valid limit")]
}

/// The id of a lease or write.
///
/// # Panics
/// If it is not valid.
#[must_use]
pub fn id(text: &str) -> WriteId {
    WriteId::new(text).expect("the test's id is valid")
}

/// Checks what must always hold in a world without refill: nothing is lost, nothing is doubled, and
/// `due` is a lower bound.
///
/// # Panics
/// If it does not.
pub fn assert_sound(bucket: &Bucket) {
    let leases = bucket.leases.as_ref().expect("leases are there");
    let held: MilliTokens = leases
        .values()
        .filter_map(|lease| lease.tokens.get("slots"))
        .copied()
        .sum();
    let (rate, slots) = (bucket.limits["quota"], bucket.limits["slots"]);
    assert_eq!(
        slots.tk + held,
        tokens(6),
        "free slots and held ones are all there are: {bucket:?}"
    );
    assert!(
        slots.tk <= tokens(6) && slots.tk >= MilliTokens::ZERO,
        "{bucket:?}"
    );
    assert_eq!(rate.tk + rate.tc, tokens(20), "{bucket:?}");
    if let Some(first) = leases.values().map(|lease| lease.expires).min() {
        assert!(
            bucket.due.is_some_and(|due| due <= first),
            "due is a lower bound: {bucket:?}"
        );
    }
}

/// A take with a lease, as the caller plans it who has seen `view`.
#[must_use]
pub fn take(
    bucket: &Bucket,
    lease: &WriteId,
    expires: EpochMillis,
    rate: i64,
    slots: i64,
    view: Option<&Bucket>,
    now: EpochMillis,
) -> Update {
    let needs = BTreeMap::from([
        (limit("quota"), tokens(rate)),
        (limit("slots"), tokens(slots)),
    ]);
    let held = Lease {
        expires,
        tokens: needs.clone(),
        owner: "test".to_owned(),
    };
    let limits = limits();
    let take = Take {
        key: &bucket.key,
        terms: (&limits).into(),
        needs,
        soft: BTreeMap::new(),
        takes: 1,
        leases: vec![(lease.clone(), held)],
        roll: Roll::to(Hour::of(NOW)),
        op: lease.clone(),
        hot: false,
        company: Company::None,
        unknown: &[],
    };
    take.on(view, now)
}

/// Splits a shard as it was seen, with all three writes.
///
/// # Panics
/// If another process has written to it in a way that forbids it.
pub async fn split_at(table: &Table, shard: &Bucket, op: WriteId, at: EpochMillis) {
    let first = split(shard, shard.scaling.min_shards, op, at);
    let Outcome::Applied(Some(item)) = table
        .update(&first, Answer::Item)
        .await
        .expect("DynamoDB works")
    else {
        panic!("{shard:?} is not what it was");
    };
    let parent = item.bucket().expect("it is a bucket");
    for update in finish(&parent).expect("it holds an escrow") {
        let done = table
            .update(&update, Answer::Nothing)
            .await
            .expect("DynamoDB works");
        assert!(matches!(done, Outcome::Applied(_)), "{update:?}");
    }
}

/// Ends a lease: its slots come back, and its rate tokens too if they were not used.
#[must_use]
pub fn end(bucket: &Bucket, lease: &WriteId, rate: Option<i64>, slots: i64) -> Update {
    let mut amounts = BTreeMap::from([(
        limit("slots"),
        Settled {
            tk: tokens(slots),
            ..Settled::default()
        },
    )]);
    if let Some(rate) = rate {
        let back = Settled {
            tk: tokens(rate),
            tc: tokens(-rate),
            ceiling: Some(tokens(20)),
        };
        amounts.insert(limit("quota"), back);
    }
    let op = id(&format!("end{lease}"));
    let roll = Roll::to(Hour::of(NOW));
    Settle {
        key: &bucket.key,
        op,
        lease: Some((lease, LeaseChange::End)),
        amounts,
        takes: 0,
        roll,
    }
    .whole(None)
}
