//! The model of a partition: what it takes, what it refuses, and what everything costs it; of reads, of
//! indexes, and of a table as a whole; and of conflicts: which transactions are cancelled, and which
//! writes are refused beside one.

use std::num::NonZeroU64;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{ItemKey, WriteId, attr};
use weirgate_store::{
    ActionOutcome, ErrorKind, ReturnValues, StoreError, Table, TransactOutcome, WriteOutcome,
};
use weirgate_testkit::leased::id;
use weirgate_testkit::{Counts, Dynamo, Limits, Partitions};
use weirgate_tests::fleet::{millis, secs};

/// Changes an item without conditions.
fn update(pk: &str, changes: Vec<AttributeUpdate>) -> Update {
    let key = ItemKey { pk: pk.to_owned(), sk: "#STATE".to_owned() };
    Update { key, conditions: vec![], changes }
}

fn add(pk: &str) -> Update {
    update(pk, vec![AttributeUpdate::Add(Path::of("n"), Value::Int(1))])
}

async fn write(table: &Table, pk: &str) -> Result<WriteOutcome, StoreError> {
    table.update(&add(pk), ReturnValues::None).await
}

/// A transaction that adds to each of these.
async fn transact(
    table: &Table,
    pks: &[&str],
    token: &WriteId,
) -> Result<TransactOutcome, StoreError> {
    let actions: Vec<_> = pks.iter().map(|pk| Action::Update(add(pk))).collect();
    table.transact(&actions, token).await
}

/// How often an item was written to.
fn written(dynamo: &Dynamo, pk: &str) -> u64 {
    dynamo.item(pk, "#STATE")["n"]["N"].as_str().map_or(0, |number| number.parse().unwrap())
}

/// Partitions with these limits, which answer at once.
async fn table(limits: Limits) -> (Dynamo, Partitions, Table) {
    let dynamo = Dynamo::new().await;
    let limits = Limits { latency: Duration::ZERO..=Duration::ZERO, ..limits };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    let table = partitions.table().await;
    (dynamo, partitions, table)
}

/// Partitions that take so much.
async fn takes(units_per_second: u32, burst: u32) -> (Dynamo, Partitions, Table) {
    table(Limits { units_per_second, burst, ..Limits::default() }).await
}

/// Offers each of these keys so many writes, evenly, every millisecond for a time.
async fn offer(table: &Table, pks: &[&'static str], each_ms: usize, ms: u64) {
    let (started, mut writes) = (Instant::now(), JoinSet::new());
    for at in 0..ms {
        sleep_until(started + millis(at)).await;
        for pk in pks.iter().flat_map(|pk| [*pk].repeat(each_ms)) {
            let table = table.clone();
            writes.spawn(async move { write(&table, pk).await });
        }
    }
    for result in writes.join_all().await {
        if let Err(error) = result {
            assert_eq!(error.kind, ErrorKind::Throttled { key_range: true }, "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_takes_a_thousand_units_a_second_and_the_burst() {
    let (dynamo, partitions, table) = takes(1000, 300).await;
    offer(&table, &["hot"], 2, 2000).await;
    // From the first write to the last, 1,999 ms later.
    assert_eq!(written(&dynamo, "hot"), 300 + 1999);
    let counts = partitions.counts();
    assert_eq!(
        counts,
        Counts {
            requests: 4000,
            writes: 4000,
            throttled: 4000 - 2299,
            units: 2299,
            ..Counts::default()
        }
    );
    assert_eq!(partitions.partition("hot"), counts);
    let seconds = partitions.seconds();
    assert_eq!(
        (seconds[&0].units, seconds[&1].units),
        (1299, 1000),
        "the burst is spent in the first second"
    );
    assert_eq!((seconds[&0].writes, seconds[&1].writes), (2000, 2000));
    assert_eq!(seconds[&1].throttled_share(), 0.5);
}

/// No split divides a key: it gets no more of a half than of the whole.
#[tokio::test(start_paused = true)]
async fn a_single_hot_key_gains_nothing_by_splits_of_its_partition() {
    let limits = Limits {
        units_per_second: 100,
        burst: 100,
        shared: NonZeroU64::new(1),
        splits_after: Some(millis(500)),
        ..Limits::default()
    };
    let (dynamo, partitions, table) = table(limits).await;
    offer(&table, &["hot"], 1, 3000).await;
    assert!(partitions.shared() > 2, "{}", partitions.shared());
    // From the first write to the last, 2,999 ms later.
    assert_eq!(written(&dynamo, "hot"), 100 + 299);
}

/// Keys that share partitions: what one of them uses, its neighbours lack, for the same reason.
#[tokio::test(start_paused = true)]
async fn keys_of_one_shared_partition_are_throttled_together_and_others_are_not() {
    let shared = NonZeroU64::new(4);
    let limits = Limits { units_per_second: 10, burst: 10, shared, ..Limits::default() };
    let (_, partitions, table) = table(limits).await;
    for _ in 0..10 {
        write(&table, "hot").await.unwrap();
    }
    let (mut refused, mut taken) = (0, 0);
    for key in 0..40 {
        match write(&table, &format!("calm-{key}")).await {
            Ok(_) => taken += 1,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Throttled { key_range: true });
                refused += 1;
            }
        }
    }
    // Three partitions have ten units each, and none of the four has more than its part of the keys.
    assert!(taken <= 30 && refused >= 10, "{taken} taken");
    assert!(taken >= 20, "{taken} taken: other partitions are free");
    assert_eq!(partitions.partition("hot").units, 10);
    assert_eq!(partitions.counts().units, 10 + taken);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_costs_double_in_each_partition_also_when_it_is_cancelled() {
    let (dynamo, partitions, table) = takes(1000, 100).await;
    for pk in ["a", "b"] {
        dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "n": {"N": "0"}}));
    }
    dynamo.put(&json!({"PK": {"S": "big"}, "SK": {"S": "#STATE"}, "n": {"N": "0"}, "x": {"S": "x".repeat(2500)}}));
    let units = || ["a", "b", "big", "none"].map(|pk| partitions.partition(pk).units);
    assert_eq!(transact(&table, &["a", "big"], &id("t")).await.unwrap(), TransactOutcome::Applied);
    assert_eq!(units(), [2, 0, 6, 0]);
    assert_eq!(transact(&table, &["a", "big"], &id("t")).await.unwrap(), TransactOutcome::Applied);
    assert_eq!(units(), [2, 0, 6, 0], "asked for again, it reads");
    let there = |pk| Update { conditions: vec![Condition::Present(Path::of("n"))], ..add(pk) };
    let actions = ["b", "big", "none"].map(|pk| Action::Update(there(pk)));
    let lost = table.transact(&actions, &id("u")).await.unwrap();
    assert_eq!(
        lost,
        TransactOutcome::ConditionFailed(vec![
            ActionOutcome::NotReported,
            ActionOutcome::NotReported,
            ActionOutcome::ConditionFailed(None)
        ])
    );
    assert_eq!(units(), [2, 2, 12, 2]);
    assert_eq!(
        partitions.counts(),
        Counts { requests: 3, writes: 3, units: 18, ..Counts::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_cancelled_if_one_of_its_partitions_is_spent() {
    let (dynamo, partitions, table) = takes(1000, 1).await;
    for pk in ["a", "b"] {
        dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "n": {"N": "0"}}));
    }
    write(&table, "b").await.unwrap();
    let error = transact(&table, &["a", "b"], &id("t")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::IndexThrottled, "a reason has no field for the key range");
    assert!(error.reason.starts_with("ThrottlingError at b #STATE"), "{error}");
    assert_eq!(["a", "b"].map(|pk| written(&dynamo, pk)), [0, 1]);
    assert_eq!(["a", "b"].map(|pk| partitions.partition(pk).throttled), [0, 1]);
    assert_eq!(
        partitions.counts(),
        Counts { requests: 2, writes: 2, throttled: 1, units: 1, ..Counts::default() }
    );

    tokio::time::sleep(millis(1)).await;
    assert_eq!(transact(&table, &["a", "b"], &id("t")).await.unwrap(), TransactOutcome::Applied);
    assert_eq!(["a", "b"].map(|pk| written(&dynamo, pk)), [1, 2]);
    let again = transact(&table, &["a", "b"], &id("t")).await.unwrap();
    assert_eq!(
        again,
        TransactOutcome::Applied,
        "one that has happened says so on spent partitions too"
    );
}

/// A table whose conflicts last so long.
async fn conflicting(conflict_window: Duration) -> (Dynamo, Partitions, Table) {
    table(Limits { conflict_window, ..Limits::default() }).await
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_cancelled_by_a_write_within_the_window() {
    for window in [1, 2, 5, 10] {
        let (dynamo, partitions, table) = conflicting(millis(window)).await;
        write(&table, "a").await.unwrap();
        sleep(millis(window)).await;
        let error = transact(&table, &["a", "b"], &id("t")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict, "{window} ms");
        assert!(error.reason.starts_with("TransactionConflict at a #STATE"), "{error}");
        assert!(!error.reason.contains("at b"), "{error}");
        assert_eq!([written(&dynamo, "a"), written(&dynamo, "b")], [1, 0]);
        assert_eq!(partitions.counts().conflicts, 1);
        assert_eq!(
            partitions.counts().units,
            1 + 4,
            "a cancelled transaction costs what an applied one does"
        );

        sleep(millis(1)).await;
        assert_eq!(
            transact(&table, &["a", "b"], &id("t")).await.unwrap(),
            TransactOutcome::Applied,
            "{window} ms"
        );
        assert_eq!([written(&dynamo, "a"), written(&dynamo, "b")], [2, 1]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_to_an_item_of_a_running_transaction_conflicts() {
    let (dynamo, partitions, table) = conflicting(millis(5)).await;
    let (started, beside) = (Instant::now(), table.clone());
    let running = tokio::spawn(async move {
        transact(&beside, &["a", "b"], &id("t")).await.unwrap();
        started.elapsed()
    });
    sleep(millis(2)).await;
    let error = write(&table, "a").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.reason.starts_with("TransactionConflictException"), "{error}");
    let other = transact(&table, &["b", "c"], &id("u")).await.unwrap_err();
    assert!(other.reason.starts_with("TransactionConflict at b #STATE"), "{other}");
    write(&table, "c").await.unwrap();
    assert_eq!(partitions.counts().conflicts, 2);
    assert_eq!(running.await.unwrap(), millis(5), "a transaction is answered when it has ended");
    write(&table, "a").await.unwrap();
    assert_eq!(["a", "b", "c"].map(|pk| written(&dynamo, pk)), [2, 1, 1]);
}

fn put(dynamo: &Dynamo, pk: &str, bytes: usize) {
    dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "x": {"S": "x".repeat(bytes)}}));
}

/// Sets these attributes of an item.
fn set(pk: &str, values: &[(&'static str, Value)]) -> Update {
    let set = |(name, value): &(_, Value)| AttributeUpdate::Set(Path::of(*name), value.clone());
    update(pk, values.iter().map(set).collect())
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// A bucket of a resource, as the index of resources has it.
fn of_resource(pk: &str, resource: &str) -> Update {
    set(pk, &[(attr::GSI2PK, text(resource)), (attr::GSI2SK, text(pk))])
}

/// Reads of a partition whose balance holds so many units, and gets no more for a while.
async fn few_reads(read_burst: u32) -> (Dynamo, Partitions, Table) {
    table(Limits { reads_per_second: 1, read_burst, ..Limits::default() }).await
}

/// Reads with or without strong consistency: how many items were found, and how many keys were
/// given back.
async fn read(client: &Client, pks: &[&str], is_consistent: bool) -> (usize, usize) {
    let keys = pks.iter().map(|pk| {
        [(attr::PK, *pk), (attr::SK, "#STATE")]
            .map(|(name, value)| (name.to_owned(), AttributeValue::S(value.to_owned())))
            .into()
    });
    let keys = KeysAndAttributes::builder()
        .set_keys(Some(keys.collect()))
        .consistent_read(is_consistent)
        .build();
    let answer =
        client.batch_get_item().request_items("weirgate", keys.unwrap()).send().await.unwrap();
    let left = answer.unprocessed_keys.unwrap_or_default();
    assert!(left.values().all(|left| left.consistent_read == Some(is_consistent)), "{left:?}");
    let found = answer.responses.unwrap_or_default().values().map(Vec::len).sum();
    (found, left.values().map(|left| left.keys.len()).sum())
}

#[tokio::test(start_paused = true)]
async fn a_read_costs_a_unit_for_each_4_kb_and_half_without_consistency() {
    let (dynamo, partitions, _) = table(Limits::default()).await;
    let client = partitions.client().await;
    for (pk, bytes, halves) in
        [("none", 0, 2), ("small", 100, 2), ("large", 4_200, 4), ("larger", 40_000, 20)]
    {
        if bytes > 0 {
            put(&dynamo, pk, bytes);
        }
        read(&client, &[pk], true).await;
        assert_eq!(partitions.partition(pk).half_reads, halves, "{pk}");
        read(&client, &[pk], false).await;
        assert_eq!(
            partitions.partition(pk).half_reads,
            halves + halves / 2,
            "{pk}, eventually consistent"
        );
    }
    assert_eq!(partitions.counts().half_reads, (2 + 2 + 4 + 20) / 2 * 3);
}

#[tokio::test(start_paused = true)]
async fn keys_of_spent_partitions_are_given_back_and_come_with_a_later_read() {
    let (dynamo, partitions, _) = few_reads(2).await;
    let client = partitions.client().await;
    for pk in ["a", "b", "c"] {
        put(&dynamo, pk, 100);
    }
    assert_eq!(read(&client, &["a"], true).await, (1, 0));
    assert_eq!(read(&client, &["a"], true).await, (1, 0));
    assert_eq!(read(&client, &["a", "b", "c"], true).await, (2, 1));
    assert_eq!((partitions.counts().kept_back, partitions.partition("a").kept_back), (1, 1));
    assert_eq!((partitions.counts().reads_throttled, partitions.counts().throttled), (0, 0));
    sleep(secs(1)).await;
    assert_eq!(read(&client, &["a", "b", "c"], true).await, (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_spent_partition_of_an_index_throttles_the_writes_to_its_entries() {
    let (dynamo, partitions, table) = takes(10, 3).await;
    let write = async |update: &Update| table.update(update, ReturnValues::None).await;
    for pk in ["a", "b", "c"] {
        write(&of_resource(pk, "gpt-4")).await.unwrap();
    }
    let error = write(&of_resource("d", "gpt-4")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::IndexThrottled);
    assert!(dynamo.item("d", "#STATE").is_null(), "a throttled write is not applied");
    write(&of_resource("e", "other")).await.unwrap();
    write(&set("b", &[("n", Value::Int(1))])).await.unwrap();
    write(&of_resource("a", "gpt-4")).await.unwrap();
    assert!(
        write(&of_resource("a", "another")).await.is_err(),
        "the entry that goes is written too"
    );

    let (counts, of) = (partitions.counts(), partitions.index_partition("GSI2", "gpt-4"));
    assert_eq!((counts.throttled, counts.index_throttled, counts.index_units), (2, 2, 4));
    assert_eq!((of.throttled, of.units), (2, 3));
    assert_eq!(partitions.partition("d").throttled, 0, "the table's partition is not spent");
    sleep(millis(100)).await;
    write(&of_resource("d", "gpt-4")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_table_and_its_indexes_are_charged_what_the_database_reports() {
    let partitions = Partitions::over(Dynamo::new().await, Limits::default(), 5);
    let (table, meter) = partitions.metered().await;
    let due =
        |pk: &str, at| set(pk, &[(attr::DUE_SHARD, text("DUE#07")), (attr::DUE, Value::Int(at))]);
    let large = set("large", &[("x", text(&"x".repeat(5000)))]);
    let updates = [
        of_resource("a", "gpt-4"),
        of_resource("a", "gpt-4"),
        of_resource("a", "gpt-5"),
        due("a", 5),
        due("a", 6),
        set("a", &[("n", Value::Int(1))]),
        large.clone(),
        large,
    ];
    for update in &updates {
        table.update(update, ReturnValues::None).await.unwrap();
    }
    let all = [of_resource("b", "gpt-4"), due("a", 7), add("large")].map(Action::Update);
    assert_eq!(table.transact(&all, &id("t")).await.unwrap(), TransactOutcome::Applied);
    let used = meter.take();
    let of = |index: &str| used.indexes.get(index).copied().unwrap_or_default();
    let counted = |index, pks: &[&str]| -> f64 {
        let units: u64 = pks.iter().map(|pk| partitions.index_partition(index, pk).units).sum();
        f64::from(u32::try_from(units).unwrap())
    };
    assert_eq!(
        (counted("GSI2", &["gpt-4", "gpt-5"]), counted("DueIndex", &["DUE#07"])),
        (3.0 + 1.0, 3.0 + 2.0)
    );
    assert_eq!((of("GSI2"), of("DueIndex")), (4.0, 5.0), "{used:?}");
    let counts = partitions.counts();
    assert_eq!((counts.index_units, counts.units), (9, 6 + 5 + 5 + 2 * 7));
    assert_eq!(used.table, 30.0, "{used:?}");
}
