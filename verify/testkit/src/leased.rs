//! Buckets with leases: as values, in the table, and back.

use std::collections::BTreeMap;

use weirgate_shared::write::{
    AttributeUpdate, LeaseChange, LimitDelta, Roll, Settle, Take, Update, Value, finish_writes,
    split,
};
use weirgate_shared::{
    Asks, BucketKey, Effect, EpochMillis, Hour, Lease, Limit, LimitName, MAX_PERIOD_MS,
    MilliTokens, Shard, WriteId, write_shard,
};
use weirgate_store::{ReturnValues, Table, WriteOutcome};

/// An instant that has passed.
pub const NOW: EpochMillis = EpochMillis(1_767_225_600_000);

/// The key of an entity's bucket.
pub fn key(entity: &str) -> BucketKey {
    BucketKey::parse(&format!("default/BUCKET#{entity}#gpt-4#0"))
        .expect("the test's entity is a valid name")
}

/// A limit's name.
pub fn limit(name: &str) -> LimitName {
    LimitName::new(name).expect("the test's limit is a valid name")
}

/// Tokens of one limit.
pub fn tokens(amount: i64) -> MilliTokens {
    MilliTokens::from_tokens(amount)
}

/// A full bucket with an empty map of leases, credited up to [`NOW`].
pub fn full(entity: &str, limits: &[Limit]) -> Shard {
    Shard::full(key(entity), limits, NOW)
}

/// The bucket after a take of `amounts`, in tokens, with a lease `id` that expires at `expires`.
pub fn holding(
    mut bucket: Shard,
    id: &str,
    expires: EpochMillis,
    amounts: &[(&str, i64)],
) -> Shard {
    let mut held = BTreeMap::new();
    for (name, amount) in amounts {
        let state = bucket.limits.get_mut(*name).expect("the limit is in the bucket");
        state.available -= tokens(*amount);
        state.consumed += tokens(*amount);
        held.insert(limit(name), tokens(*amount));
    }
    let lease =
        Lease { expires_at: expires, tokens: held, owner: "test".to_owned(), ..Lease::default() };
    let id = WriteId::new(id).expect("the test's lease is a valid id");
    bucket.leases.get_or_insert_default().insert(id, lease);
    bucket.due_at = Some(bucket.due_at.map_or(expires, |due| due.min(expires)));
    bucket
}

/// Writes the bucket as it is, over what is there.
pub async fn store(table: &Table, bucket: &Shard) {
    let update =
        Update { key: bucket.key.item_key(), conditions: vec![], changes: write_shard(bucket) };
    let outcome = table.update(&update, ReturnValues::None).await.expect("the bucket is written");
    assert_eq!(outcome, WriteOutcome::Applied(None));
}

/// Reads the bucket; `None` if it is not there.
pub async fn load(table: &Table, key: &BucketKey) -> Option<Shard> {
    let items = table.read(&[key.item_key()]).await.expect("the bucket is read");
    items.first().map(|item| item.bucket().expect("the bucket is whole"))
}

/// The item of a bucket as DynamoDB JSON, for loading many at once.
pub fn item(bucket: &Shard) -> serde_json::Value {
    let key = bucket.key.item_key();
    let mut item = serde_json::Map::from_iter([
        ("PK".to_owned(), serde_json::json!({"S": key.pk})),
        ("SK".to_owned(), serde_json::json!({"S": key.sk})),
    ]);
    for change in write_shard(bucket) {
        if let AttributeUpdate::Set(path, value) = change {
            item.insert(path.0[0].to_string(), attribute(&value));
        }
    }
    item.into()
}

fn attribute(value: &Value) -> serde_json::Value {
    match value {
        Value::Int(number) => serde_json::json!({"N": number.to_string()}),
        Value::Count(count) => serde_json::json!({"N": count.to_string()}),
        Value::Tokens(amount) => serde_json::json!({"N": amount.to_string()}),
        Value::Text(text) => serde_json::json!({"S": text}),
        Value::Bool(is) => serde_json::json!({"BOOL": is}),
        Value::Numbers(numbers) => {
            serde_json::json!({"NS": numbers.iter().map(ToString::to_string).collect::<Vec<_>>()})
        }
        Value::Map(map) => {
            let map = map.iter().map(|(name, value)| (name.clone(), attribute(value)));
            serde_json::json!({"M": serde_json::Map::from_iter(map)})
        }
    }
}

/// Limits whose tokens the test can add up: the rate refills a millitoken in 9 hours.
pub fn limits() -> Vec<Limit> {
    let rate = Limit::custom("quota", 20, 1, MAX_PERIOD_MS).expect("a valid limit");
    vec![rate, Limit::concurrent("slots", 6).expect("a valid limit")]
}

/// The id of a lease or write.
pub fn id(text: &str) -> WriteId {
    WriteId::new(text).expect("the test's id is valid")
}

/// Checks what must always hold in a world without refill: nothing is lost, nothing is doubled, and
/// `due` is a lower bound.
pub fn assert_sound(bucket: &Shard) {
    let leases = bucket.leases.as_ref().expect("leases are there");
    let held: MilliTokens =
        leases.values().filter_map(|lease| lease.tokens.get("slots")).copied().sum();
    let (rate, slots) = (bucket.limits["quota"], bucket.limits["slots"]);
    assert_eq!(
        slots.available + held,
        tokens(6),
        "free slots and held ones are all there are: {bucket:?}"
    );
    assert!(slots.available <= tokens(6) && slots.available >= MilliTokens::ZERO, "{bucket:?}");
    assert_eq!(rate.consumed + rate.available, tokens(20), "{bucket:?}");
    if let Some(first) = leases.values().map(|lease| lease.expires_at).min() {
        assert!(bucket.due_at.is_some_and(|due| due <= first), "due is a lower bound: {bucket:?}");
    }
}

/// Returns a take with a lease, planned from `view`.
pub fn take(
    bucket: &Shard,
    lease: &WriteId,
    expires: EpochMillis,
    rate: i64,
    slots: i64,
    view: &Shard,
    now: EpochMillis,
) -> Update {
    let needs = BTreeMap::from([(limit("quota"), tokens(rate)), (limit("slots"), tokens(slots))]);
    let held = Lease {
        expires_at: expires,
        tokens: needs.clone(),
        owner: "test".to_owned(),
        ..Lease::default()
    };
    let limits = limits();
    let take = Take {
        asks: Asks::of(Effect::Enforce, needs),
        acquires: 1,
        leases: vec![(lease.clone(), held)],
        ..Take::nothing(&bucket.key, &limits, lease.clone(), NOW)
    };
    take.plan(view, now)
}

/// Splits a shard as it was seen, with all three writes.
pub async fn split_at(table: &Table, shard: &Shard, op: WriteId, at: EpochMillis) {
    let first = split(shard, shard.scaling.min_shards, op, at);
    let WriteOutcome::Applied(Some(item)) =
        table.update(&first, ReturnValues::AllNew).await.expect("DynamoDB works")
    else {
        panic!("{shard:?} is not what it was");
    };
    let parent = item.bucket().expect("it is a bucket");
    for update in finish_writes(&parent).expect("it holds an escrow") {
        let done = table.update(&update, ReturnValues::None).await.expect("DynamoDB works");
        assert!(matches!(done, WriteOutcome::Applied(_)), "{update:?}");
    }
}

/// Ends a lease: its slots come back, and its rate tokens too if they were not used.
pub fn end(bucket: &Shard, lease: &WriteId, rate: Option<i64>, slots: i64) -> Update {
    let mut amounts = BTreeMap::from([(
        limit("slots"),
        LimitDelta { available: tokens(slots), ..LimitDelta::default() },
    )]);
    if let Some(rate) = rate {
        let back = LimitDelta {
            available: tokens(rate),
            consumed: tokens(-rate),
            ceiling: Some(tokens(20)),
            ..LimitDelta::default()
        };
        amounts.insert(limit("quota"), back);
    }
    let op = id(&format!("end{lease}"));
    let roll = Roll::to(Hour::of(NOW));
    Settle {
        key: &bucket.key,
        write_id: op,
        lease: Some((lease, LeaseChange::End)),
        amounts,
        acquires: 0,
        roll,
    }
    .full(None)
}
