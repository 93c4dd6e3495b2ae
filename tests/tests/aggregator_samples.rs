//! The sample events in `events/`, one per case, each as the README's `cargo lambda invoke` sends it.

mod aggregator;

use aggregator::{HOUR, deliver_text};
use weirgate_aggregator::{Summary, parse};
use weirgate_tests::Dynamo;

fn summary(records: usize) -> Summary {
    Summary { records, ..Summary::default() }
}

/// What the function does with the event, and the snapshot of its hour.
async fn handled(event: &str) -> (Summary, serde_json::Value) {
    let dynamo = Dynamo::new().await;
    let handled = deliver_text(&dynamo.table().await, event, HOUR).await;
    assert_eq!(handled.response.unwrap(), Default::default());
    (handled.summary, dynamo.item("default/ENTITY#user-123", "#USAGE#gpt-4#hourly#2026-11-20T17:00:00Z"))
}

#[tokio::test]
async fn insert_counts_from_zero() {
    let (done, hour) = handled(include_str!("../../events/aggregator-insert.json")).await;
    assert_eq!(done, Summary { counted: 3, ..summary(1) });
    assert_eq!((&hour["rpm"]["N"], &hour["tpm"]["N"]), (&"1".into(), &"1250".into()));
    assert_eq!((&hour["total_events"]["N"], &hour["q0"]["N"]), (&"1".into(), &"1795195320000000".into()));
}

#[tokio::test]
async fn modify_counts_the_difference_also_a_negative_one() {
    // A take of 749.5 tokens, and an adjustment by -250.
    let (done, hour) = handled(include_str!("../../events/aggregator-modify.json")).await;
    assert_eq!(done, Summary { counted: 3, ..summary(2) });
    assert_eq!((&hour["rpm"]["N"], &hour["tpm"]["N"]), (&"1".into(), &"499.5".into()));
    assert_eq!((&hour["total_events"]["N"], &hour["q0"]["N"]), (&"1".into(), &"1795195320000003".into()));
}

#[tokio::test]
async fn an_item_of_zae_limiter_counts_without_v() {
    let (done, hour) = handled(include_str!("../../events/aggregator-zae.json")).await;
    assert_eq!(done, Summary { counted: 3, ..summary(1) });
    assert_eq!((&hour["rpm"]["N"], &hour["tpm"]["N"]), (&"1".into(), &"500".into()));
    assert_eq!(hour["total_events"]["N"], "1");
    assert!(hour.get("q0").is_none() && hour.get("g0").is_none());
}

#[tokio::test]
async fn ttl_remove_is_skipped() {
    let (done, hour) = handled(include_str!("../../events/aggregator-ttl-remove.json")).await;
    assert_eq!((done, hour), (Summary { skipped: 1, ..summary(1) }, serde_json::Value::Null));
}

#[tokio::test]
async fn foreign_is_skipped() {
    let (done, _) = handled(include_str!("../../events/aggregator-foreign.json")).await;
    assert_eq!(done, Summary { skipped: 2, ..summary(2) });
}

#[tokio::test]
async fn undecodable_is_counted_and_skipped() {
    let event = include_str!("../../events/aggregator-undecodable.json");
    let (done, hour) = handled(event).await;
    assert_eq!((done, hour), (Summary { undecodable: 2, ..summary(2) }, serde_json::Value::Null));
    let why: Vec<_> = parse::records(event).unwrap().undecodable.into_iter().map(|record| record.why).collect();
    assert!(why[0].contains("b_tpm_tc is \"1e6 tokens\""), "{why:?}");
    assert!(why[1].contains("OldImage is missing"), "{why:?}");
}
