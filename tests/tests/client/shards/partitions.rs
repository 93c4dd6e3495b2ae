//! The model of a partition: what it takes, what it refuses, and what everything costs it.

use std::num::NonZeroU64;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{ItemKey, WriteId};
use weirgate_store::{
    ActionOutcome, ErrorKind, ReturnValues, StoreError, Table, TransactOutcome, WriteOutcome,
};
use weirgate_testkit::leased::id;
use weirgate_testkit::{Counts, Dynamo, Limits, Partitions};

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn add(pk: &str, conditions: Vec<Condition>) -> Update {
    let key = ItemKey { pk: pk.to_owned(), sk: "#STATE".to_owned() };
    Update { key, conditions, changes: vec![AttributeUpdate::Add(Path::of("n"), Value::Int(1))] }
}

async fn write(table: &Table, pk: &str) -> Result<WriteOutcome, StoreError> {
    table.update(&add(pk, vec![]), ReturnValues::None).await
}

/// How often an item was written to.
fn written(dynamo: &Dynamo, pk: &str) -> u64 {
    dynamo.item(pk, "#STATE")["n"]["N"].as_str().map_or(0, |number| number.parse().unwrap())
}

/// Partitions that take so much, and answer at once.
async fn partitions(units_per_second: u32, burst: u32) -> (Dynamo, Partitions, Table) {
    let dynamo = Dynamo::new().await;
    let limits = Limits {
        units_per_second,
        burst,
        latency: Duration::ZERO..=Duration::ZERO,
        ..Limits::default()
    };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    let table = partitions.table().await;
    (dynamo, partitions, table)
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
    let (dynamo, partitions, table) = partitions(1000, 300).await;
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
    let dynamo = Dynamo::new().await;
    let limits = Limits {
        units_per_second: 100,
        burst: 100,
        shared: NonZeroU64::new(1),
        splits_after: Some(millis(500)),
        latency: Duration::ZERO..=Duration::ZERO,
        ..Limits::default()
    };
    let partitions = Partitions::over(dynamo.clone(), limits, 1);
    offer(&partitions.table().await, &["hot"], 1, 3000).await;
    assert!(partitions.shared() > 2, "{}", partitions.shared());
    // From the first write to the last, 2,999 ms later.
    assert_eq!(written(&dynamo, "hot"), 100 + 299);
}

/// Keys that share partitions: what one of them uses, its neighbours lack, for the same reason.
#[tokio::test(start_paused = true)]
async fn keys_of_one_shared_partition_are_throttled_together_and_others_are_not() {
    let dynamo = Dynamo::new().await;
    let limits = Limits {
        units_per_second: 10,
        burst: 10,
        shared: NonZeroU64::new(4),
        latency: Duration::ZERO..=Duration::ZERO,
        ..Limits::default()
    };
    let partitions = Partitions::over(dynamo, limits, 1);
    let table = partitions.table().await;
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

/// A transaction that adds to each of these, if it is there.
async fn transact(
    table: &Table,
    pks: &[&str],
    token: &WriteId,
) -> Result<TransactOutcome, StoreError> {
    let there = || vec![Condition::Present(Path::of("n"))];
    let actions: Vec<_> = pks.iter().map(|pk| Action::Update(add(pk, there()))).collect();
    table.transact(&actions, token).await
}

#[tokio::test(start_paused = true)]
async fn a_transaction_costs_double_in_each_partition_also_when_it_is_cancelled() {
    let (dynamo, partitions, table) = partitions(1000, 100).await;
    for pk in ["a", "b"] {
        dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "n": {"N": "0"}}));
    }
    dynamo.put(&json!({"PK": {"S": "big"}, "SK": {"S": "#STATE"}, "n": {"N": "0"}, "x": {"S": "x".repeat(2500)}}));
    let units = || ["a", "b", "big", "none"].map(|pk| partitions.partition(pk).units);
    assert_eq!(transact(&table, &["a", "big"], &id("t")).await.unwrap(), TransactOutcome::Applied);
    assert_eq!(units(), [2, 0, 6, 0]);
    assert_eq!(transact(&table, &["a", "big"], &id("t")).await.unwrap(), TransactOutcome::Applied);
    assert_eq!(units(), [2, 0, 6, 0], "asked for again, it reads");
    let lost = transact(&table, &["b", "big", "none"], &id("u")).await.unwrap();
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
    let (dynamo, partitions, table) = partitions(1000, 1).await;
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

#[tokio::test(start_paused = true)]
async fn the_partitions_count_what_the_database_reports() {
    let partitions = Partitions::over(Dynamo::new().await, Limits::default(), 5);
    let (table, meter) = partitions.metered().await;
    let mut large = add("large", vec![]);
    large.changes.push(AttributeUpdate::Set(Path::of("x"), Value::Text("x".repeat(5000))));
    for update in [&add("a", vec![]), &large, &large] {
        table.update(update, ReturnValues::None).await.unwrap();
    }
    assert_eq!(
        transact(&table, &["a", "large"], &id("t")).await.unwrap(),
        TransactOutcome::Applied
    );
    let (units, used) = (partitions.counts().units, meter.take());
    assert_eq!((units, used.table), (1 + 5 + 5 + 2 * 6, 23.0), "{used:?}");
}
