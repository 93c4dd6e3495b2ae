//! Three batches of 100 records each, recorded from zae-limiter 0.17 under load: counted, refilled, and what it costs.

mod aggregator;

use std::collections::BTreeMap;

use aggregator::{Used, config, counted, deliver_text, milli, snapshots};
use serde_json::Value;
use weirgate_aggregator::{Config, Snapshots};
use weirgate_shared::{EpochMillis, Window};
use weirgate_tests::Dynamo;

const BATCHES: [(&str, &str); 3] = [
    ("batch-0", include_str!("../data/stream-batches/batch-0.json")),
    ("batch-3", include_str!("../data/stream-batches/batch-3.json")),
    ("batch-7", include_str!("../data/stream-batches/batch-7.json")),
];

fn records(batch: &str) -> Vec<Value> {
    let mut event: Value = serde_json::from_str(batch).unwrap();
    event["Records"].as_array_mut().map(std::mem::take).unwrap()
}

/// What the batch consumed, from its JSON and nothing else.
fn expected(batch: &str) -> BTreeMap<String, Used> {
    let mut sums: BTreeMap<String, Used> = BTreeMap::new();
    for record in records(batch) {
        let number = |image: &str, limit: &str| {
            record["dynamodb"][image][format!("b_{limit}_tc")]["N"].as_str().unwrap().parse::<i128>().unwrap()
        };
        let entity = record["dynamodb"]["NewImage"]["entity_id"]["S"].as_str().unwrap();
        let sum = sums.entry(entity.to_owned()).or_default();
        for limit in ["rpm", "tpm"] {
            *sum.entry(limit.to_owned()).or_default() += number("NewImage", limit) - number("OldImage", limit);
        }
        *sum.entry("takes".to_owned()).or_default() += 1;
    }
    sums
}

/// The items as they are in the table when the batch arrives: as in each one's last record.
fn put_buckets(dynamo: &Dynamo, batch: &str) {
    for record in records(batch) {
        dynamo.put(&record["dynamodb"]["NewImage"]);
    }
    drop(dynamo.stream());
}

/// The time of a batch's last record.
fn time_of(batch: &str) -> EpochMillis {
    let created = |record: &Value| record["dynamodb"]["ApproximateCreationDateTime"].to_string();
    EpochMillis(i64::try_from(milli(&created(records(batch).last().unwrap()))).unwrap())
}

#[tokio::test]
async fn the_recorded_batches_are_counted_in_every_window() {
    for (name, batch) in BATCHES {
        let dynamo = Dynamo::new().await;
        let handled = deliver_text(&dynamo.table().await, batch, time_of(batch)).await;
        assert_eq!((handled.summary.undecodable, handled.summary.skipped, handled.summary.failed), (0, 0, 0), "{name}");
        assert_eq!(handled.response.unwrap(), Default::default());
        for window in Window::ALL {
            assert_eq!(counted(&dynamo, window), expected(batch), "{name} {window}");
        }
        let snapshot = &snapshots(&dynamo, Window::Daily)[0];
        assert!(snapshot.get("q0").is_none() && snapshot.get("wcu").is_none(), "{snapshot}");
    }
    let total: i128 = BATCHES.iter().flat_map(|(_, batch)| expected(batch).into_values()).map(|used| used["rpm"]).sum();
    assert_eq!(total, 300_000, "each record of these is one request");
}

#[tokio::test]
async fn the_cost_table_usage_and_refill_of_100_records_is_at_most_45_write_units() {
    let config =
        Config { snapshots: Snapshots { windows: vec![Window::Hourly, Window::Daily], ttl_days: 90 }, ..config() };
    for (name, batch) in BATCHES {
        let dynamo = Dynamo::new().await;
        put_buckets(&dynamo, batch);
        let (table, meter) = dynamo.metered().await;
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        let invocation = weirgate_aggregator::Invocation { now: time_of(batch), deadline };
        let handled = weirgate_aggregator::handle(batch, &table, &config, invocation).await.unwrap();
        let units = meter.take();
        assert!(units.total <= 45.0, "{name}: {units:?} for {:?}", handled.summary);
        assert_eq!(units.indexes.values().sum::<f64>(), 0.0, "{name}: {units:?}");
        assert_eq!(units.requests, u64::try_from(handled.summary.counted + handled.summary.refilled).unwrap());
    }
}

#[tokio::test]
async fn items_of_other_software_are_refilled_and_get_no_v() {
    let (_, batch) = BATCHES[0];
    let dynamo = Dynamo::new().await;
    let all = records(batch);
    let entity = all.last().unwrap()["dynamodb"]["NewImage"]["entity_id"]["S"].as_str().unwrap();
    let of_entity: Vec<_> =
        all.iter().filter(|record| record["dynamodb"]["NewImage"]["entity_id"]["S"] == entity).cloned().collect();
    // The same records, of a bucket whose requests ran out six seconds before the last one.
    let seen = time_of(&aggregator::event(&of_entity));
    let dry = |mut record: Value| {
        record["dynamodb"]["NewImage"]["b_rpm_tk"]["N"] = "0".into();
        record["dynamodb"]["NewImage"]["rf"]["N"] = (seen.0 - 6_000).to_string().into();
        record
    };
    let of_entity: Vec<_> = of_entity.into_iter().map(dry).collect();
    let last = &of_entity.last().unwrap()["dynamodb"]["NewImage"];
    dynamo.put(last);
    let handled = deliver_text(&dynamo.table().await, &aggregator::event(&of_entity), seen).await;
    assert_eq!(handled.summary.refilled, 1);
    let item = dynamo.item(last["PK"]["S"].as_str().unwrap(), "#STATE");
    assert_eq!(item["b_rpm_tk"]["N"], "60000", "600 a minute for six seconds");
    assert!(item.get("v").is_none() && item.get("op").is_none(), "{item}");
    // Its record, with no use in it, is no event.
    let before = counted(&dynamo, Window::Daily);
    let records = dynamo.stream();
    let refill = records.last().unwrap().clone();
    assert_eq!(refill["eventName"], "MODIFY", "of the refill");
    let handled = aggregator::deliver(&dynamo.table().await, &[refill]).await;
    assert_eq!((handled.summary.counted, handled.summary.refilled), (0, 0));
    assert_eq!(counted(&dynamo, Window::Daily), before);
}
