//! What a merge leaves of a shard: its counters, for readers of usage and for the next shard of its
//! number, and nothing else.

use std::collections::BTreeSet;
use weirgate_tests::aggregator;
use weirgate_tests::fleet::shards::split;

use serde_json::{Value, json};
use weirgate::{FakeClock, Limit, RateLimiter};
use weirgate_shared::{BucketKey, EpochMillis, Meter, Usage, Window};
use weirgate_store::Table;
use weirgate_testkit::leased::{NOW, load, tokens};
use weirgate_testkit::{Dynamo, live};
use weirgate_tests::aggregator::{name, records, take_at, usage};
use weirgate_tests::sharded::{DUE, counts, later, limits, run, sharded, shards, total};

const HOUR_MS: i64 = 3_600_000;

/// A bucket of four shards, each of them used, and a limiter; the clock is theirs.
async fn used() -> (Dynamo, Table, BucketKey, RateLimiter, FakeClock) {
    let clock = FakeClock::at(NOW);
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let table = dynamo.table_by(clock.clone()).await;
    let key = sharded(&table, 4).await;
    for shard in 0..4 {
        take(&table, &key.with_shard(shard), 1 + i64::from(shard), NOW).await;
    }
    let limiter = RateLimiter::builder("weirgate")
        .table(table.clone())
        .build()
        .await
        .unwrap();
    (dynamo, table, key, limiter, clock)
}

async fn take(table: &Table, shard: &BucketKey, amount: i64, at: EpochMillis) {
    take_at(
        table,
        shard,
        &limits(),
        [(name("quota"), tokens(amount))].into(),
        at,
    )
    .await;
}

async fn read(limiter: &RateLimiter) -> [Usage; 2] {
    let [hour, day] = Window::ALL.map(|window| limiter.usage("e-1", "gpt-4", window, NOW));
    [hour.await.unwrap().usage, day.await.unwrap().usage]
}

fn item(dynamo: &Dynamo, shard: &BucketKey) -> Value {
    let key = shard.item_key();
    dynamo.item(&key.pk, &key.sk)
}

fn meters(dynamo: &Dynamo, key: &BucketKey) -> Vec<Meter> {
    (0..4)
        .map(|shard| live(&item(dynamo, &key.with_shard(shard))))
        .collect()
}

/// The partition keys of the items that a partition of an index lists.
fn listed(dynamo: &Dynamo, index: &str, attribute: &str, partition: &str) -> BTreeSet<String> {
    let request = json!({
        "TableName": "weirgate", "IndexName": index, "KeyConditionExpression": "#pk = :pk",
        "ExpressionAttributeNames": {"#pk": attribute}, "ExpressionAttributeValues": {":pk": {"S": partition}},
    });
    let found = serde_json::to_value(
        dynamo
            .db()
            .query(serde_json::from_value(request).unwrap())
            .unwrap(),
    )
    .unwrap();
    found["Items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["PK"]["S"].as_str().unwrap().to_owned())
        .collect()
}

/// All shards of the bucket that some index lists.
fn indexed(dynamo: &Dynamo, key: &BucketKey) -> BTreeSet<String> {
    let of_shard = |shard: u32| {
        let key = key.with_shard(shard);
        let ((by_resource, _), (by_entity, _)) = (key.by_resource(), key.by_entity());
        let mut found = listed(dynamo, "GSI2", "GSI2PK", &by_resource);
        found.extend(listed(dynamo, "GSI3", "GSI3PK", &by_entity));
        found.extend(listed(dynamo, "DueIndex", "due_shard", &key.due_shard()));
        found
    };
    (0..4).flat_map(of_shard).collect()
}

#[tokio::test(start_paused = true)]
async fn i3_a_merged_shard_is_in_no_index_and_the_next_one_goes_on_counting() {
    let (dynamo, table, key, limiter, clock) = used().await;
    let (before, counted, quota) = (
        read(&limiter).await,
        meters(&dynamo, &key),
        total(&table, &key, "quota", DUE).await,
    );
    assert_eq!(
        (before[0].tokens["quota"], before[0].acquires),
        (tokens(1 + 2 + 3 + 4).into(), 4)
    );
    assert_eq!(
        indexed(&dynamo, &key).len(),
        4,
        "the check sees live shards"
    );

    clock.skew(60_000);
    assert_eq!(run(&table, DUE).await.shards_merged, 3);
    assert_eq!(counts(&table, &key).await, [(0, 1)]);
    for (shard, was) in (1..).zip(&counted[1..]) {
        assert_eq!(load(&table, &key.with_shard(shard)).await, None);
        let left = item(&dynamo, &key.with_shard(shard));
        let left_over =
            ["PK", "SK", "birth", "takes", "td", "th", "ttl", "uh", "v"].map(str::to_owned);
        let of_limits = ["quota", "slots"]
            .map(|limit| ["bd", "bh", "tc"].map(|field| format!("b_{limit}_{field}")));
        let expected: BTreeSet<_> = of_limits.into_iter().flatten().chain(left_over).collect();
        assert_eq!(
            left.as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect::<BTreeSet<_>>(),
            expected
        );
        assert_eq!(
            live(&left),
            Meter {
                write_seq: was.write_seq + 1,
                ..was.clone()
            },
            "its counters stay"
        );
    }
    assert_eq!(indexed(&dynamo, &key), [key.item_key().pk].into());
    assert_eq!(run(&table, later(DUE, HOUR_MS)).await.buckets_seen, 0);
    assert_eq!(read(&limiter).await, before);

    split(&limiter, &limits(), 4).await;
    for (shard, was) in shards(&table, &key).await.iter().zip(&counted) {
        let meter = shard.meter();
        assert!(
            meter.write_seq > was.write_seq + 1,
            "no two images have the same number"
        );
        assert_eq!(
            meter,
            Meter {
                write_seq: meter.write_seq,
                ..was.clone()
            }
        );
    }
    assert_eq!(total(&table, &key, "quota", DUE).await, quota);
    assert_eq!(read(&limiter).await, before);
    take(&table, &key.with_shard(3), 7, DUE).await;
    let [hour, day] = read(&limiter).await;
    assert_eq!(
        (hour.tokens["quota"], hour.acquires),
        (tokens(10 + 7).into(), 5)
    );
    assert_eq!(day, hour);
}

/// The bucket was deleted manually and made again with other limits, so the next shards of the
/// numbers lack a limit that the merged ones have counted.
#[tokio::test(start_paused = true)]
async fn i3_a_limit_that_only_the_merged_shard_had_counts_in_no_later_hour() {
    let (dynamo, table, key, limiter, clock) = used().await;
    assert_eq!(run(&table, DUE).await.shards_merged, 3);
    let mut all = records(&dynamo);
    aggregator::deliver_text(&table, &aggregator::event(&all), NOW).await;
    dynamo.delete(&key.item_key().pk, "#STATE");
    let others = [Limit::per_day("rpm", 1_000).unwrap()];
    for hours in 0..3 {
        clock.skew(60_000 + hours * HOUR_MS);
        split(&limiter, &others, 4).await;
        let at = later(DUE, hours * HOUR_MS);
        take_at(
            &table,
            &key.with_shard(1),
            &others,
            [(name("rpm"), tokens(1))].into(),
            at,
        )
        .await;
        all.extend(records(&dynamo));
        aggregator::deliver_text(&table, &aggregator::event(&all), NOW).await;
        usage::assert_exact(&dynamo, &all);
    }
    let hour = &usage::read(&dynamo, Window::Hourly)[&(key, NOW)];
    assert_eq!(
        (hour.tokens["quota"], hour.tokens["rpm"]),
        (tokens(10).into(), tokens(1).into())
    );
}
