//! What a record says, at the edges of what is ours.

use serde_json::{Value, json};
use weirgate_aggregator::parse::After;
use weirgate_aggregator::{parse, plan};
use weirgate_shared::write::UsageCopy;
use weirgate_shared::{Hour, Shard, Window};

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

fn live(record: &parse::Record) -> &Shard {
    match &record.after {
        After::Live(shard) => shard,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_event_says_what_it_lacks() {
    for (text, why) in [
        ("[]", "it is no object"),
        ("{}", "Records is missing"),
        (r#"{"Records": 1}"#, "a list of Records"),
    ] {
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
    let keys = live(&record).key.item_key();
    assert_eq!(live(&record).size_bytes, (1000 - keys.pk.len() - keys.sk.len() - "PKSK".len()) / 2);
}

/// Of software that does not count its writes, before the write or after it.
#[test]
fn a_record_of_an_item_without_v_is_skipped() {
    for image in ["OldImage", "NewImage"] {
        let text =
            event(|record| drop(record["dynamodb"][image].as_object_mut().unwrap().remove("v")));
        let batch = parse::records(&text).unwrap();
        assert_eq!((batch.skipped, batch.undecodable.len()), (1, 0), "{image}");
    }
}

#[test]
fn an_hour_that_has_not_begun_is_no_hour_of_ours() {
    let of = |image: &str, after: i64| {
        let written = json!(1_795_195_341);
        let text = event(|record| {
            record["dynamodb"]["ApproximateCreationDateTime"] = written;
            record["dynamodb"][image]["uh"]["N"] = json!((498_665 + after).to_string());
        });
        let batch = parse::records(&text).unwrap();
        (batch.records.len(), batch.undecodable.first().map(|record| record.why.clone()))
    };
    for image in ["OldImage", "NewImage"] {
        // The clock of a writer may be ahead.
        assert_eq!(of(image, 1), (1, None), "{image}");
        let (records, why) = of(image, 2);
        assert!(records == 0 && why.is_some_and(|why| why.contains("uh is 498667")), "{image}");
    }
}

#[test]
fn names_and_texts_may_be_escaped() {
    let escaped = SAMPLE.replace("b_tpm_tc", "b_tp\\u006d_tc").replace("#STATE", "\\u0023STATE");
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
            Value::Array(values) => {
                format!("[{}]", values.iter().map(reversed).collect::<Vec<_>>().join(","))
            }
            other => other.to_string(),
        }
    }
    let event: Value = serde_json::from_str(SAMPLE).unwrap();
    let text = reversed(&event);
    assert_eq!(parse::records(&text).unwrap().records, parse::records(SAMPLE).unwrap().records);
}

/// What an old image counts is read as its new one is; of what was merged away, nothing else is
/// there.
#[test]
fn both_images_are_read_for_what_they_counted() {
    let record = one(SAMPLE);
    let Some(meter) = &record.before else { panic!("{record:?}") };
    assert_eq!(
        (meter.write_seq + 1, meter.limits.keys().collect::<Vec<_>>()),
        (live(&record).write_seq, live(&record).limits.keys().collect())
    );
    let merged = parse::records(include_str!("../../../events/aggregator-merged.json"))
        .unwrap()
        .records
        .remove(0);
    let (Some(before), After::Merged(after)) = (merged.before, merged.after) else {
        panic!("it was merged away");
    };
    assert_eq!(
        (after.write_seq, &after.limits, after.hour),
        (before.write_seq + 1, &before.limits, before.hour)
    );
}

/// The copies of some records, with the index of the record behind each.
fn copies(records: Vec<parse::Record>) -> Vec<(UsageCopy, usize)> {
    plan::copies(&plan::shards(records), 90).collect()
}

/// A record that changes an item from one image to the other.
fn modify(index: usize, before: &Shard, after: &Shard) -> parse::Record {
    let before = Some(before.meter());
    parse::Record { index, before, after: After::Live(Box::new(after.clone())), ..one(SAMPLE) }
}

#[test]
fn a_shard_is_copied_when_its_hour_ends_or_a_few_thousand_writes_after_the_last_time() {
    let first = Shard { write_seq: 8_191, birth_seq: 5, ..live(&one(SAMPLE)).clone() };
    let next = |v| Shard { write_seq: v, ..first.clone() };
    let rolled = |v, hours| Shard { hour: Hour(first.hour.0 + hours), ..next(v) };
    let of = |records| {
        let said =
            |(copy, record): (UsageCopy, usize)| (copy.key.window, copy.v, copy.is_final, record);
        copies(records).into_iter().map(said).collect::<Vec<_>>()
    };
    let (hour, day) = (Window::Hourly, Window::Daily);
    assert_eq!(of(vec![modify(3, &first, &next(8_193))]), []);
    assert_eq!(
        of(vec![modify(3, &first, &next(8_192))]),
        [(hour, 8_192, false, 3), (day, 8_192, false, 3)]
    );
    assert_eq!(of(vec![modify(3, &first, &rolled(8_193, 1))]), [(hour, 8_191, true, 3)]);
    assert_eq!(
        of(vec![modify(3, &first, &rolled(8_193, 7))]),
        [(hour, 8_191, true, 3), (day, 8_191, true, 3), (day, 8_193, false, 3)]
    );
    // The newest of each window.
    let batch = vec![
        modify(3, &first, &next(8_192)),
        modify(4, &next(8_192), &rolled(8_193, 1)),
        modify(5, &rolled(8_193, 1), &rolled(12_288, 1)),
    ];
    let [one, two, three] =
        [(hour, 8_192, true, 4), (hour, 12_288, false, 5), (day, 12_288, false, 5)];
    assert_eq!(of(batch), [one, two, three]);
    // An hour of the far future was a mistake, and its end is none of the hour that is counted.
    assert_eq!(of(vec![modify(3, &rolled(8_191, 1), &first)]), []);
}

#[test]
fn a_shard_that_goes_is_copied_and_so_is_its_next_life_after_it() {
    let first = live(&one(SAMPLE)).clone();
    let gone = parse::Record { after: After::Gone, ..modify(1, &first, &first) };
    let again = Shard {
        write_seq: first.write_seq + 9_000,
        birth_seq: first.write_seq + 9_000,
        ..first.clone()
    };
    let made = parse::Record {
        index: 2,
        before: None,
        after: After::Live(Box::new(again.clone())),
        ..gone.clone()
    };
    let merged = parse::Record { index: 3, after: After::Merged(again.meter()), ..gone.clone() };
    let merged = parse::Record { before: Some(again.meter()), ..merged };
    let after = Shard { write_seq: again.write_seq + 2, ..again.clone() };
    let revived =
        parse::Record { index: 4, before: Some(again.meter()), ..modify(4, &again, &after) };
    let of = |records| {
        let hourly =
            copies(records).into_iter().filter(|(copy, _)| copy.key.window == Window::Hourly);
        hourly.map(|(copy, record)| (copy.birth, copy.v, copy.is_final, record)).collect::<Vec<_>>()
    };
    let end = (first.birth_seq, first.write_seq, true, 1);
    assert_eq!(of(vec![gone.clone(), made.clone()]), [end]);
    assert_eq!(
        of(vec![gone.clone(), made.clone(), merged.clone()]),
        [end, (again.birth_seq, again.write_seq, false, 3)]
    );
    // A merge is no end, and a revived shard goes on from its copy.
    assert_eq!(
        of(vec![gone, made, merged, revived]),
        [end, (again.birth_seq, again.write_seq, false, 3)]
    );
}

#[test]
fn a_shard_is_no_smaller_than_its_leases() {
    let leases: serde_json::Map<String, Value> = (0..60)
        .map(|number| {
            (
                format!("{number:022}"),
                json!({"M": {"x": {"N": "1795195341000"}, "slots": {"N": "1000"}}}),
            )
        })
        .collect();
    let text = event(|record| {
        record["dynamodb"]["SizeBytes"] = json!(0);
        record["dynamodb"]["NewImage"]["h"] = json!({"M": leases});
    });
    assert!(live(&one(&text)).has_heavy_leases());
}
