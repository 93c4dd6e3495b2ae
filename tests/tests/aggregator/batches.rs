//! What a batch of a load costs, beside what it was: copies, refills and nothing else.

use crate::fixtures::aggregator::{config, deliver_text, later};
use weirgate_aggregator::{Invocation, handle};
use weirgate_shared::Millis;
use weirgate_testkit::batches::{BATCH_START, batch, event};

#[tokio::test]
async fn the_cost_table_usage_and_refill_of_100_records_is_at_most_14_write_units() {
    let (dynamo, records) = batch(14, 100).await;
    let (table, meter) = dynamo.metered().await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    let invocation = Invocation {
        now: BATCH_START.plus(Millis(6_000)),
        deadline,
    };
    let handled = handle(&event(&records), &table, &config(), invocation)
        .await
        .unwrap();
    let units = meter.take();
    assert_eq!((handled.summary.refilled, handled.summary.failed), (14, 0));
    assert!(units.total <= 14.0, "{units:?} for {:?}", handled.summary);
    assert_eq!(units.indexes.values().sum::<f64>(), 0.0, "{units:?}");
}

#[tokio::test]
async fn a_batch_within_an_hour_copies_nothing() {
    let (dynamo, records) = batch(14, 100).await;
    let handled = deliver_text(&dynamo.table().await, &event(&records), later(0)).await;
    assert_eq!((handled.summary.records, handled.summary.copied), (100, 0));
}
