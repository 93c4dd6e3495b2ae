//! What a record says, at the edges of what is ours.

use serde_json::{Value, json};
use weirgate_aggregator::parse;
use weirgate_aggregator::plan;
use weirgate_shared::MilliTokens;

const SAMPLE: &str = include_str!("../../../events/aggregator-modify.json");

/// The sample's first record, and nothing else.
fn event(change: impl FnOnce(&mut Value)) -> String {
    let mut event: Value = serde_json::from_str(SAMPLE).unwrap();
    let records = event["Records"].as_array_mut().unwrap();
    records.truncate(1);
    change(&mut records[0]);
    event.to_string()
}

fn one(text: &str) -> parse::Record {
    parse::records(text).unwrap().records.remove(0)
}

#[test]
fn what_is_no_event_says_what_it_lacks() {
    for (text, why) in
        [("[]", "it is no object"), ("{}", "Records is missing"), (r#"{"Records": 1}"#, "a list of Records")]
    {
        let error = parse::records(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_record_is_shown_as_it_came() {
    let text = r#"{"Records": [{"a": 1}, {"b":2}]}"#;
    assert_eq!(parse::texts(text), [r#"{"a": 1}"#, r#"{"b":2}"#]);
}

#[test]
fn only_states_of_buckets_are_ours() {
    for (at, key) in [("SK", "#META"), ("PK", "default/ENTITY#e-1")] {
        let text = event(|record| record["dynamodb"]["Keys"][at]["S"] = json!(key));
        let batch = parse::records(&text).unwrap();
        assert_eq!((batch.skipped, batch.undecodable.len()), (1, 0), "{at}");
    }
}

#[test]
fn an_image_is_half_of_what_both_measure_without_their_keys() {
    let text = event(|record| record["dynamodb"]["SizeBytes"] = json!(1000));
    let record = one(&text);
    let keys = record.bucket.key.item_key();
    assert_eq!(record.bucket.size_bytes, (1000 - keys.pk.len() - keys.sk.len() - "PKSK".len()) / 2);
}

#[test]
fn a_span_rises() {
    let with = |old: i64, new: i64| {
        let text = event(|record| {
            record["dynamodb"]["OldImage"]["v"] = json!({ "N": old.to_string() });
            record["dynamodb"]["NewImage"]["v"] = json!({ "N": new.to_string() });
        });
        one(&text).span
    };
    assert_eq!([with(4, 5), with(5, 5), with(6, 5)], [Some((4, 5)), None, None]);
}

/// Their usage would be counted at each delivery, and say nothing.
#[test]
fn a_write_without_a_span_counts_if_it_says_anything() {
    let counts = |events: i64, used: i64| {
        let record = parse::Record { span: None, events, ..one(SAMPLE) };
        let used = record.used.iter().map(|_| MilliTokens(used)).collect();
        let usage = plan::usage(vec![parse::Record { used, ..record }]);
        let snapshots = weirgate_aggregator::Snapshots { windows: vec![weirgate_shared::Window::Hourly], ttl_days: 1 };
        let config =
            weirgate_aggregator::Config { table_name: "t".to_owned(), snapshots, write_concurrency: 1, max_shards: 1 };
        let writes = plan::writes(&usage, &config, weirgate_shared::EpochMillis(0));
        writes.iter().filter(|write| matches!(write.kind, plan::Kind::Count(_))).count()
    };
    assert_eq!([counts(0, 0), counts(1, 0), counts(0, 1)], [0, 1, 1]);
}
