//! The model of reads, of indexes, and of a table as a whole.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use serde_json::json;
use tokio::time::sleep;
use weirgate_shared::write::{Action, AttributeUpdate, Path, Update, Value};
use weirgate_shared::{ItemKey, attr};
use weirgate_store::{ErrorKind, ReturnValues, Table, TransactOutcome};
use weirgate_testkit::leased::id;
use weirgate_testkit::{Dynamo, Limits, Partitions};

fn key(pk: &str) -> ItemKey {
    ItemKey { pk: pk.to_owned(), sk: "#STATE".to_owned() }
}

fn put(dynamo: &Dynamo, pk: &str, bytes: usize) {
    dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "x": {"S": "x".repeat(bytes)}}));
}

/// Sets these attributes of an item.
fn set(pk: &str, values: &[(&'static str, Value)]) -> Update {
    let changes = values
        .iter()
        .map(|(name, value)| AttributeUpdate::Set(Path::of(*name), value.clone()))
        .collect();
    Update { key: key(pk), conditions: vec![], changes }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// A bucket of a resource, as the index of resources has it.
fn of_resource(pk: &str, resource: &str) -> Update {
    set(pk, &[(attr::GSI2PK, text(resource)), (attr::GSI2SK, text(pk))])
}

async fn table(limits: Limits) -> (Dynamo, Partitions, Table) {
    let dynamo = Dynamo::new().await;
    let limits = Limits { latency: Duration::ZERO..=Duration::ZERO, ..limits };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    let table = partitions.table().await;
    (dynamo, partitions, table)
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
    sleep(Duration::from_secs(1)).await;
    assert_eq!(read(&client, &["a", "b", "c"], true).await, (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_spent_partition_of_an_index_throttles_the_writes_to_its_entries() {
    let (dynamo, partitions, table) =
        table(Limits { units_per_second: 10, burst: 3, ..Limits::default() }).await;
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
    sleep(Duration::from_millis(100)).await;
    write(&of_resource("d", "gpt-4")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn indexes_are_charged_what_the_database_reports() {
    let partitions = Partitions::over(Dynamo::new().await, Limits::default(), 5);
    let (table, meter) = partitions.metered().await;
    let due =
        |pk: &str, at| set(pk, &[(attr::DUE_SHARD, text("DUE#07")), (attr::DUE, Value::Int(at))]);
    let updates = [
        of_resource("a", "gpt-4"),
        of_resource("a", "gpt-4"),
        of_resource("a", "gpt-5"),
        due("a", 5),
        due("a", 6),
        set("a", &[("n", Value::Int(1))]),
    ];
    for update in &updates {
        table.update(update, ReturnValues::None).await.unwrap();
    }
    let both = [Action::Update(of_resource("b", "gpt-4")), Action::Update(due("a", 7))];
    assert_eq!(table.transact(&both, &id("t")).await.unwrap(), TransactOutcome::Applied);
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
    assert_eq!(partitions.counts().index_units, 9);
}
