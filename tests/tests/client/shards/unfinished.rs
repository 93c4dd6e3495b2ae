//! Splits that a process has begun and not finished: any other one finishes them, and nothing is
//! denied meanwhile.

use std::collections::BTreeMap;
use weirgate_tests::fleet;
use weirgate_tests::sharded;

use weirgate::Limit;
use weirgate_shared::write::split;
use weirgate_shared::{BucketKey, EpochMillis, LimitName, MilliTokens, Millis, Shard};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::leased::{NOW, full, key, limits, load, store};
use weirgate_tests::fleet::{Fleet, secs};
use weirgate_tests::scaling::facts;
use weirgate_tests::sharded::{DUE, counts, new_id, run};

/// The bucket `e-1` whose split was begun at `at`, as it was before.
async fn begun(table: &Table, bucket: &Shard, at: EpochMillis) {
    store(table, bucket).await;
    let first = split(bucket, 0, new_id(), at);
    assert!(matches!(table.update(&first, ReturnValues::None).await, Ok(WriteOutcome::Applied(_))));
}

/// What shards and escrows have of each limit.
async fn held(table: &Table, key: &BucketKey, at: EpochMillis) -> BTreeMap<LimitName, MilliTokens> {
    let mut held = BTreeMap::<LimitName, MilliTokens>::new();
    for shard in sharded::shards(table, key).await {
        for half in std::iter::once(&shard).chain(shard.escrow.as_deref()) {
            for name in half.limits.keys() {
                *held.entry(name.clone()).or_default() += half.balance_at(name, at);
            }
        }
    }
    held
}

#[tokio::test]
async fn i6_the_reconciler_finishes_a_split_within_a_minute() {
    let dynamo = weirgate_testkit::Dynamo::new().await;
    let table = dynamo.table().await;
    let bucket = full("e-1", &sharded::limits());
    begun(&table, &bucket, NOW).await;
    let before = held(&table, &bucket.key, NOW).await;
    let summary = run(&table, EpochMillis(DUE.0 - 1)).await;
    assert_eq!(counts(&table, &bucket.key).await, [(0, 2)], "{summary:?}");
    drop(run(&table, DUE).await);
    let escrow = load(&table, &bucket.key).await.unwrap().escrow;
    assert_eq!(escrow, None);
    assert_eq!(held(&table, &bucket.key, NOW).await, before);
}

#[tokio::test(start_paused = true)]
async fn i2_no_request_is_denied_for_what_a_split_has_put_aside() {
    // Begun a moment ago, or left.
    for age in [0, 5_000] {
        let fleet = Fleet::new().await;
        let limits = [Limit::per_day("rpm", 100).unwrap()];
        let limiter = fleet.limiter().await;
        let ask = async |amount| {
            limiter
                .acquire("e-1", "gpt-4")
                .limits(&limits)
                .take("rpm", amount)
                .send()
                .await
                .unwrap()
                .is_granted()
        };
        assert!(ask(1).await);
        let table = fleet.dynamo.table().await;
        let image = load(&table, &key("e-1")).await.unwrap();
        let first = split(&image, 0, new_id(), image.refilled_at.plus(Millis(1)));
        assert!(matches!(
            table.update(&first, ReturnValues::None).await,
            Ok(WriteOutcome::Applied(_))
        ));
        fleet::pass(secs(age / 1_000)).await;
        // The old half has 50 of 99.
        assert!(ask(45).await);
        if age == 0 {
            // The process that has begun goes on a moment later.
            let parent = load(&table, &key("e-1")).await.unwrap();
            let finish = async {
                tokio::time::sleep(fleet::millis(200)).await;
                for update in weirgate_shared::write::finish_writes(&parent).unwrap() {
                    assert!(matches!(
                        table.update(&update, ReturnValues::None).await,
                        Ok(WriteOutcome::Applied(_))
                    ));
                }
            };
            let (is_granted, ()) = tokio::join!(ask(40), finish);
            assert!(is_granted, "it waits");
        } else {
            assert!(ask(40).await, "it finishes the split");
        }
        assert_eq!(load(&table, &key("e-1")).await.unwrap().escrow, None);
        assert!(!ask(20).await && ask(10).await, "14 are left");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_goes_on_from_a_split_that_another_process_has_left() {
    let fleet = Fleet::new().await;
    let table = fleet.dynamo.table().await;
    let limiter = fleet.limiter().await;
    let bucket = full("e-1", &limits());
    begun(&table, &bucket, EpochMillis(bucket.refilled_at.0 + 1)).await;
    let before = held(&table, &bucket.key, bucket.refilled_at).await;
    assert_eq!(limiter.admin().set_shards("e-1", "gpt-4", &limits(), 4).await.unwrap(), 4);
    assert_eq!(counts(&table, &bucket.key).await, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    let after = held(&table, &bucket.key, bucket.refilled_at).await;
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert_eq!(limiter.admin().set_shards("e-1", "gpt-4", &limits(), 1).await.unwrap(), 1);
}

/// Three writes, and each index entry of the new half; the first split gives shard 0 an entry in
/// `DueIndex` too.
#[tokio::test]
async fn a_split_costs_three_write_units_and_the_index_entries_of_the_new_half() {
    let dynamo = weirgate_testkit::Dynamo::new().await;
    let (table, meter) = dynamo.metered().await;
    let whole = |units: u64| f64::from(u32::try_from(units).unwrap());
    let bucket = full("e-1", &limits());
    store(&dynamo.table().await, &bucket).await;
    for due in [1 + facts::FIRST_SPLIT_INDEX_UNITS, 1, 1] {
        let shard = load(&table, &bucket.key).await.unwrap();
        let _ = meter.take();
        weirgate_testkit::leased::split_at(&table, &shard, new_id(), EpochMillis(NOW.0 + 1)).await;
        let units = meter.take();
        assert_eq!((units.table, units.requests), (whole(facts::SPLIT_UNITS), 3), "{units:?}");
        let indexes = [("DueIndex", whole(due)), ("GSI2", 1.0), ("GSI3", 1.0)];
        assert_eq!(units.indexes, indexes.map(|(index, units)| (index.to_owned(), units)).into());
        assert_eq!(units.total, whole(facts::SPLIT_UNITS + facts::SPLIT_INDEX_UNITS + due - 1));
    }
}
