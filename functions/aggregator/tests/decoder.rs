//! Whatever JSON comes, the decoder answers: it never panics, and never copies what it cannot read.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Map, Value, json};
use weirgate_aggregator::parse::After;
use weirgate_aggregator::{Config, parse, plan};
use weirgate_shared::EpochMillis;

const SAMPLE: &str = include_str!("../../../events/aggregator-modify.json");

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[-0-9.eE]{0,45}".prop_map(Value::from),
        "(INSERT|MODIFY|REMOVE|aws:dynamodb|#STATE|d/BUCKET#a#b#0)".prop_map(Value::from),
    ];
    let name = prop_oneof![
        "(Records|dynamodb|eventName|eventSource|Keys|NewImage|OldImage|PK|SK|N|S|M|SequenceNumber|SizeBytes|v|rf|birth|uh)",
        "(ApproximateCreationDateTime|takes|th|td|shard_count|h|hot|due|min_shards|split_bytes|BOOL|b_[a-z]{0,3}_(tk|tc|cp|ra|rp|bh|bd)|b__tc|b_)",
        "\\PC{0,6}",
    ];
    leaf.prop_recursive(6, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..8)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Every place in the sample, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| places(value, &format!("{at}/{name}"), found)),
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(index, value)| places(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

fn run(text: &str) -> Option<(usize, usize, usize)> {
    let batch = parse::records(text).ok()?;
    let counts = (batch.records.len(), batch.skipped, batch.undecodable.len());
    assert_eq!(
        counts.0 + counts.1 + counts.2,
        batch.sequence_numbers.len(),
        "no record is lost"
    );
    let shards = plan::shards(batch.records);
    let config = Config {
        table_name: "t".to_owned(),
        snapshot_ttl_days: 90,
        write_concurrency: 1,
        max_shards: 64,
        refill_writes: 1,
        hot_units: 0,
    };
    let _ = plan::writes(&shards, &config, EpochMillis(i64::MAX));
    Some(counts)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 512,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_json_is_answered(value in any_json()) {
        run(&value.to_string());
        run(&json!({"Records": [value]}).to_string());
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        run(&text);
    }

    /// A value of any shape in any place spoils at most its own record.
    #[test]
    fn a_strange_value_spoils_its_own_record_only(place in any::<prop::sample::Index>(), value in any_json()) {
        let mut event: Value = serde_json::from_str(SAMPLE).unwrap();
        let mut all = vec![];
        places(&event["Records"][0], "/Records/0", &mut all);
        *event.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        let (records, skipped, undecodable) = run(&event.to_string()).expect("it is still an event");
        prop_assert!(records >= 1);
        prop_assert_eq!(records + skipped + undecodable, 2);
    }
}

#[test]
fn names_and_texts_may_be_escaped() {
    let escaped = SAMPLE
        .replace("b_tpm_tc", "b_tp\\u006d_tc")
        .replace("#STATE", "\\u0023STATE");
    let of = |text: &str| parse::records(text).unwrap().records;
    assert_eq!(of(&escaped), of(SAMPLE));
    assert!(
        matches!(&of(SAMPLE)[0].after, After::Live(shard) if shard.limits["tpm"].consumed.0 == 1_999_500)
    );
}

#[test]
fn the_fields_of_a_record_may_come_in_any_order() {
    fn reversed(value: &Value) -> String {
        match value {
            Value::Object(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .rev()
                    .map(|(name, value)| format!("{}:{}", json!(name), reversed(value)))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }
            Value::Array(values) => format!(
                "[{}]",
                values.iter().map(reversed).collect::<Vec<_>>().join(",")
            ),
            other => other.to_string(),
        }
    }
    let event: Value = serde_json::from_str(SAMPLE).unwrap();
    let text = reversed(&event);
    assert_eq!(
        parse::records(&text).unwrap().records,
        parse::records(SAMPLE).unwrap().records
    );
}
