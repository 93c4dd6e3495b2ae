//! The model of conflicts: which transactions are cancelled, and which writes are refused beside
//! one.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weirgate_shared::write::{Action, AttributeUpdate, Path, Update, Value};
use weirgate_shared::{ItemKey, WriteId};
use weirgate_store::{ErrorKind, ReturnValues, StoreError, Table, TransactOutcome, WriteOutcome};
use weirgate_testkit::leased::id;
use weirgate_testkit::{Dynamo, Limits, Partitions};

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn key(pk: &str) -> ItemKey {
    ItemKey { pk: pk.to_owned(), sk: "#STATE".to_owned() }
}

fn add(pk: &str) -> Update {
    Update {
        key: key(pk),
        conditions: vec![],
        changes: vec![AttributeUpdate::Add(Path::of("n"), Value::Int(1))],
    }
}

async fn write(table: &Table, pk: &str) -> Result<WriteOutcome, StoreError> {
    table.update(&add(pk), ReturnValues::None).await
}

async fn transact(
    table: &Table,
    pks: &[&str],
    token: &WriteId,
) -> Result<TransactOutcome, StoreError> {
    let actions: Vec<_> = pks.iter().map(|pk| Action::Update(add(pk))).collect();
    table.transact(&actions, token).await
}

/// A table whose conflicts last so long, and which answers at once.
async fn table(conflict_window: Duration) -> (Dynamo, Partitions, Table) {
    let dynamo = Dynamo::new().await;
    let limits =
        Limits { conflict_window, latency: Duration::ZERO..=Duration::ZERO, ..Limits::default() };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    let table = partitions.table().await;
    (dynamo, partitions, table)
}

fn n(dynamo: &Dynamo, pk: &str) -> u64 {
    dynamo.item(pk, "#STATE")["n"]["N"].as_str().map_or(0, |number| number.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_cancelled_by_a_write_within_the_window() {
    for window in [1, 2, 5, 10] {
        let (dynamo, partitions, table) = table(millis(window)).await;
        write(&table, "a").await.unwrap();
        sleep(millis(window)).await;
        let error = transact(&table, &["a", "b"], &id("t")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Conflict, "{window} ms");
        assert!(error.reason.starts_with("TransactionConflict at a #STATE"), "{error}");
        assert!(!error.reason.contains("at b"), "{error}");
        assert_eq!([n(&dynamo, "a"), n(&dynamo, "b")], [1, 0]);
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
        assert_eq!([n(&dynamo, "a"), n(&dynamo, "b")], [2, 1]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_to_an_item_of_a_running_transaction_conflicts() {
    let (dynamo, partitions, table) = table(millis(5)).await;
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
    assert_eq!(["a", "b", "c"].map(|pk| n(&dynamo, pk)), [2, 1, 1]);
}
