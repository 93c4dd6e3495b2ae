//! What the aggregator's tests share: buckets that are used, their stream as events, and the
//! snapshots read back.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod usage;
pub mod uses;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate_aggregator::report::BatchError;
use weirgate_aggregator::{Config, Handled, Invocation, Response, handle};
use weirgate_shared::write::{
    self, AttributeUpdate, Contention, LimitDelta, Path, Roll, Settle, Take, Update,
};
use weirgate_shared::{
    Bucket, BucketKey, EpochMillis, Hour, Limit, LimitName, MilliTokens, Shard, ShardIndex,
    WriteId, attr,
};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_tests::Dynamo;

/// 2026-11-20T18:00:00Z.
pub const HOUR: EpochMillis = EpochMillis(1_795_197_600_000);

pub fn config() -> Config {
    Config {
        table_name: "weirgate".to_owned(),
        snapshot_ttl_days: 90,
        write_concurrency: 8,
        max_shards: 64,
        refill_writes: 1,
    }
}

pub fn limits() -> Vec<Limit> {
    // So large that no test refills by accident.
    vec![
        Limit::per_day("rpm", 1_000_000).unwrap(),
        Limit::per_day("tpm", 1_000_000_000).unwrap(),
    ]
}

pub fn name(limit: &str) -> LimitName {
    LimitName::new(limit).unwrap()
}

pub fn bucket(entity: &str, shard: u32) -> BucketKey {
    BucketKey::parse(&format!("default/BUCKET#{entity}#gpt-4#{shard}")).unwrap()
}

/// An id that no other write of the test has.
pub fn new_id() -> WriteId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    WriteId::from_bits(LAST.fetch_add(1, Ordering::Relaxed))
}

/// Takes one request and `tokens` from a bucket, which is created if it is not there.
pub async fn take(table: &Table, key: &BucketKey, tokens: i64) {
    take_in(table, key, tokens, 0).await;
}

/// The same, `hours` later.
pub async fn take_in(table: &Table, key: &BucketKey, tokens: i64, hours: i64) {
    let needs = BTreeMap::from([
        (name("rpm"), MilliTokens::from_tokens(1)),
        (name("tpm"), MilliTokens(tokens)),
    ]);
    take_at(table, key, &limits(), needs, later(hours)).await;
}

/// So many hours after [`HOUR`].
pub fn later(hours: i64) -> EpochMillis {
    EpochMillis(HOUR.0 + hours * 3_600_000)
}

/// Takes as the client does: on what the last answer showed.
pub async fn take_at(
    table: &Table,
    key: &BucketKey,
    limits: &[Limit],
    needs: BTreeMap<LimitName, MilliTokens>,
    at: EpochMillis,
) {
    let take = Take {
        key,
        limits: limits.into(),
        amounts: needs,
        soft_amounts: [].into(),
        acquires: 1,
        leases: vec![],
        roll: Roll::to(Hour::of(at)),
        write_id: new_id(),
        request_split: false,
        contention: Contention::Alone,
        unconfirmed: &[],
    };
    run(table, &take, at).await;
}

/// Takes one request and asks for a split, as a client does that was throttled.
pub async fn take_hot(table: &Table, key: &BucketKey) {
    let needs = BTreeMap::from([(name("rpm"), MilliTokens::from_tokens(1))]);
    let limits = &limits();
    let take = Take {
        key,
        limits: limits.into(),
        amounts: needs,
        soft_amounts: [].into(),
        acquires: 1,
        leases: vec![],
        roll: Roll::to(Hour::of(HOUR)),
        write_id: new_id(),
        request_split: true,
        contention: Contention::Alone,
        unconfirmed: &[],
    };
    run(table, &take, HOUR).await;
}

/// Takes until it is done or there is not enough.
pub async fn run(table: &Table, take: &Take<'_>, at: EpochMillis) {
    let mut update = take.plan(None, at);
    for _ in 0..4 {
        update = match table.update(&update, ReturnValues::None).await.unwrap() {
            WriteOutcome::Applied(_) => return,
            WriteOutcome::ConditionFailed(None) => create(take, at),
            WriteOutcome::ConditionFailed(Some(item)) => {
                take.plan(Some(&item.bucket().unwrap()), at)
            }
        };
    }
    panic!("there was not enough to take");
}

/// Makes the bucket, or a shard of it as if a split had.
fn create(take: &Take<'_>, at: EpochMillis) -> Update {
    let mut create = take.create(at);
    let count = write::Value::Int(i64::from(ShardIndex::at_creation(take.key.shard).count));
    create
        .changes
        .push(AttributeUpdate::Set(Path::of(attr::SHARD_COUNT), count));
    let is_count = |change: &AttributeUpdate| matches!(change, AttributeUpdate::Set(path, _) if *path == Path::of(attr::SHARD_COUNT));
    let first = create.changes.iter().position(is_count).unwrap();
    create.changes.swap_remove(first);
    create
}

/// Adds `tokens`, also negative ones, to what a bucket has consumed.
pub async fn settle(table: &Table, key: &BucketKey, tokens: i64) {
    settle_in(table, key, tokens, 0).await;
}

/// The same, `hours` after [`HOUR`].
pub async fn settle_in(table: &Table, key: &BucketKey, tokens: i64, hours: i64) {
    let settled = LimitDelta {
        available: MilliTokens(-tokens),
        consumed: MilliTokens(tokens),
        ceiling: None,
    };
    let amounts = BTreeMap::from([(name("tpm"), settled)]);
    let roll = Roll::to(Hour::of(later(hours)));
    let seen = table
        .read(&[key.item_key()])
        .await
        .unwrap()
        .first()
        .map(|item| item.bucket().unwrap());
    apply(
        table,
        &Settle {
            key,
            write_id: new_id(),
            lease: None,
            amounts,
            acquires: 0,
            roll,
        }
        .full(seen.as_ref()),
    )
    .await;
}

pub async fn apply(table: &Table, update: &Update) {
    let outcome = table.update(update, ReturnValues::None).await.unwrap();
    assert!(matches!(outcome, WriteOutcome::Applied(_)), "{outcome:?}");
}

pub fn event(records: &[Value]) -> String {
    json!({"Records": records}).to_string()
}

pub fn sequence_number(record: &Value) -> &str {
    record["dynamodb"]["SequenceNumber"].as_str().unwrap()
}

pub async fn deliver_text(table: &Table, event: &str, now: EpochMillis) -> Handled {
    let invocation = Invocation {
        now,
        deadline: Instant::now() + Duration::from_secs(60),
    };
    handle(event, table, &config(), invocation).await.unwrap()
}

pub async fn deliver(table: &Table, records: &[Value]) -> Handled {
    deliver_text(table, &event(records), HOUR).await
}

/// As Lambda does it: what the answer names comes again, with everything after it, until nothing
/// fails.
pub async fn deliver_until_done(table: &Table, records: &[Value]) {
    let mut from = 0;
    for _ in 0..100 {
        match deliver(table, &records[from..]).await.response {
            Ok(Response {
                batch_item_failures,
                ..
            }) if batch_item_failures.is_empty() => return,
            Ok(Response {
                batch_item_failures,
                ..
            }) => {
                let is_named = |record: &Value| {
                    batch_item_failures.iter().any(|failure| {
                        failure.item_identifier.as_deref() == Some(sequence_number(record))
                    })
                };
                from += records[from..]
                    .iter()
                    .position(is_named)
                    .expect("only records of the batch are named");
            }
            Err(BatchError::NothingWritten(_) | BatchError::NoSequenceNumber { .. }) => {}
        }
    }
    panic!("a batch never ends");
}

/// The records of what happened since the last call, dated by the hour that they count for.
pub fn records(dynamo: &Dynamo) -> Vec<Value> {
    dynamo.stream().into_iter().map(dated).collect()
}

fn dated(mut record: Value) -> Value {
    let image = &record["dynamodb"][if record["eventName"] == "REMOVE" {
        "OldImage"
    } else {
        "NewImage"
    }];
    if let Some(hour) = image["uh"]["N"].as_str() {
        let hour = Hour(hour.parse().unwrap());
        record["dynamodb"]["ApproximateCreationDateTime"] = json!(hour.start().0.div_euclid(1000));
    }
    record
}

/// A bucket that a client asks to be split, and the records of it.
pub async fn marked() -> (Dynamo, Table, Vec<Value>) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    take(&table, &bucket("a", 0), 1_500).await;
    take_hot(&table, &bucket("a", 0)).await;
    let records = records(&dynamo);
    (dynamo, table, records)
}

/// The shards of bucket `a`, by number.
pub async fn shards(table: &Table) -> Vec<Shard> {
    let keys: Vec<_> = (0..64).map(|shard| bucket("a", shard).item_key()).collect();
    let mut shards: Vec<_> = table
        .read(&keys)
        .await
        .unwrap()
        .iter()
        .map(|item| item.bucket().unwrap())
        .collect();
    shards.sort_by_key(|shard| shard.key.shard);
    shards
}

pub async fn counts(table: &Table) -> Vec<(u32, u32)> {
    shards(table)
        .await
        .iter()
        .map(|shard| (shard.key.shard, shard.shard_count))
        .collect()
}

/// What there is of each limit in all shards, at the start of the hour.
pub async fn held(table: &Table) -> Vec<MilliTokens> {
    let whole = Bucket::new(shards(table).await);
    assert!(whole.is_complete());
    let names = whole.shards()[0].limits.keys();
    names.map(|name| whole.balance_at(name, HOUR)).collect()
}
