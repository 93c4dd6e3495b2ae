//! The aggregator serves all tenants of a table at once: what one of them writes reaches no item of
//! another.

use crate::fixtures::aggregator;
use crate::fixtures::aggregator::{HOUR, deliver_text, event, later, records, take_in};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use weirgate_aggregator::Handled;
use weirgate_shared::{BucketKey, Hour, Millis};
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, runtime};
use weirgate_tests::{assert_has, fresh};

fn key_of(pk: &str) -> BucketKey {
    BucketKey::parse(pk).expect("it is a bucket's")
}

/// Takes `tokens` in one hour after [`HOUR`] and begins the next one, so that what was taken is
/// copied.
async fn used(table: &Table, pk: &str, tokens: &[i64], hours: i64) {
    for (tokens, hours) in tokens.iter().map(|tokens| (*tokens, hours)).chain([(0, hours + 1)]) {
        take_in(table, &key_of(pk), tokens, hours).await;
    }
}

/// A table where `b` and a look-alike of `a` have used what `a` uses, and the records of what `a`
/// used.
async fn shared() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table) = fresh().await;
    for pk in ["b/BUCKET#e#gpt-4#0", "a-b/BUCKET#e#gpt-4#0", "A/BUCKET#e#gpt-4#0"] {
        used(&table, pk, &[5_000, 6_000], 0).await;
    }
    let theirs = records(&dynamo);
    deliver_text(&table, &event(&theirs), HOUR).await.response.unwrap();
    used(&table, "a/BUCKET#e#gpt-4#0", &[1_500, 2_500], 0).await;
    let mut ours = records(&dynamo);
    // Without those of the others' snapshots.
    ours.retain(|record| record["dynamodb"]["Keys"]["PK"]["S"] == "a/BUCKET#e#gpt-4#0");
    (dynamo, table, ours)
}

/// What an item of `a` can say of itself and is another's.
fn lie() -> impl Strategy<Value = (&'static str, Value)> {
    let text = |name, texts: &'static [&'static str]| {
        prop::sample::select(texts).prop_map(move |text| (name, json!({"S": text}))).boxed()
    };
    prop_oneof![
        text("PK", &["b/BUCKET#e#gpt-4#0", "b/ENTITY#e", "a-b/BUCKET#e#gpt-4#0"]),
        text("SK", &["#META", "#CONFIG", "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z"]),
        text("parent_id", &["b", "b/BUCKET#e#gpt-4#0", "e"]),
        text("GSI2PK", &["b/RESOURCE#gpt-4"]),
        text("GSI3PK", &["b/ENTITY#e"]),
        text("due_shard", &["DUE#00", "b"]),
        text("op", &["b", "b/x"]),
        text("uh", &["b"]),
        Just(("cascade", json!({"BOOL": true}))),
        Just(("hot", json!({"BOOL": true}))),
        Just(("shard_count", json!({"N": "4294967295"}))),
        Just(("min_shards", json!({"N": "64"}))),
        Just(("takes", json!({"N": "9223372036854775807"}))),
        Just(("v", json!({"N": "9223372036854775807"}))),
        Just(("birth", json!({"N": "9223372036854775807"}))),
        Just(("uh", json!({"N": "70380767"}))),
        Just(("uh", json!({"N": "-1"}))),
        Just(("th", json!({"N": "-9223372036854775808"}))),
        Just(("b_tpm_bd", json!({"N": "-9223372036854775808"}))),
        Just(("rf", json!({"N": "-9223372036854775808"}))),
        Just(("b_tpm_tc", json!({"N": "9223372036854775807"}))),
        Just(("b_tpm_tk", json!({"N": "-9223372036854775808"}))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// The key identifies a record's tenant; its images may contain anything.
    #[test]
    fn a_record_counts_for_the_namespace_of_its_key_whatever_its_images_say(
        new in prop::collection::vec(lie(), 0..6), old in prop::collection::vec(lie(), 0..6), at in 1..3_usize,
    ) {
        runtime().block_on(async {
            let (dynamo, table, mut records) = shared().await;
            used(&table, "a/BUCKET#good#gpt-4#0", &[3_000], 0).await;
            let good = aggregator::records(&dynamo);
            records.extend(good.into_iter().filter(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"));
            let before = dynamo.items_of_others("a");
            for (image, lies) in [("NewImage", new), ("OldImage", old)] {
                for (name, value) in lies {
                    records[at]["dynamodb"][image][name] = value;
                }
            }
            let handled = deliver_text(&table, &event(&records), HOUR).await;
            assert_has!(handled.summary, records: 5, failed: 0; "{:?}", handled.summary);
            assert_eq!(handled.response.unwrap(), Default::default());
            // The records behind the lies count, whatever becomes of theirs.
            assert_eq!(tpm_of(&dynamo, "a/ENTITY#good"), "3");
            assert_eq!(dynamo.items_of_others("a"), before);
        });
    }
}

/// What `a` did with its own item by `spoil`, hot as it is, when an hour began, and good records of
/// `b` behind it, delivered.
async fn delivered_beside(spoil: impl Fn(&mut Value)) -> (Dynamo, Handled, Vec<Value>) {
    let (dynamo, table, _) = shared().await;
    let mut item = dynamo.item("a/BUCKET#e#gpt-4#0", "#STATE");
    item["hot"] = json!({"BOOL": true});
    item["uh"] = json!({"N": Hour::of(later(2)).0.to_string()});
    spoil(&mut item);
    dynamo.put(&item);
    used(&table, "b/BUCKET#e#gpt-4#0", &[7_000], 1).await;
    let mut records = records(&dynamo);
    records.retain(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
    let last = records
        .iter()
        .rposition(|record| record["dynamodb"]["Keys"]["PK"]["S"] == "a/BUCKET#e#gpt-4#0");
    // Only the spoiled image: what is before it is good.
    let records = records.split_off(last.expect("it was written"));
    let handled = deliver_text(&table, &event(&records), HOUR.plus(Millis(300))).await;
    (dynamo, handled, records)
}

fn tpm_of(dynamo: &Dynamo, entity: &str) -> Value {
    dynamo.item(entity, "#USAGE#gpt-4#daily#2026-11-20T00:00:00Z")["tpm#0"]["N"].clone()
}

fn tpm_of_hour(dynamo: &Dynamo, entity: &str) -> Value {
    dynamo.item(entity, "#USAGE#gpt-4#hourly#2026-11-20T19:00:00Z")["tpm#0"]["N"].clone()
}

/// A tenant that may write to a bucket may write anything into it. No write that plans to split or credit
/// it must keep the records of others from being counted.
#[tokio::test]
async fn an_item_of_too_many_limits_delays_no_other_record() {
    for number in [40, 41, 60, 150, 350] {
        let spoil = |item: &mut Value| {
            for limit in 2..number {
                for field in ["tk", "tc", "bh", "bd", "cp", "ra", "rp"] {
                    item[format!("b_l{limit}_{field}")] = json!({"N": "9000"});
                }
            }
        };
        let (dynamo, handled, records) = delivered_beside(spoil).await;
        assert_eq!(records.len(), 3);
        assert_has!(handled.summary, undecodable: usize::from(number > 40), failed: 0; "{number}");
        assert_eq!(handled.response.unwrap(), Default::default(), "{number}");
        assert_eq!(tpm_of_hour(&dynamo, "b/ENTITY#e"), "7", "{number}");
    }
}

/// A split adds attributes, and so may a credit by its longer numbers: there is no room for either.
#[tokio::test]
async fn a_full_item_delays_no_other_record() {
    for (is_hot, tokens, capacity) in [(true, "9000000000", "9000000000000"), (false, "-1", "8999")]
    {
        let spoil = |item: &mut Value| {
            item["hot"]["BOOL"] = json!(is_hot);
            // A limit that is short beside its use, and gets more digits.
            for (field, value) in
                [("tk", tokens), ("cp", capacity), ("ra", "9000000000000"), ("tc", "100000")]
            {
                item[format!("b_tpm_{field}")] = json!({"N": value});
            }
            fill(item);
        };
        let (dynamo, handled, _) = delivered_beside(spoil).await;
        assert_has!(handled.summary, refused: 1, failed: 0; "{:?}", handled.summary);
        assert_eq!(handled.response.unwrap(), Default::default());
        // Its usage is copied anyway.
        assert_eq!(
            ["b/ENTITY#e", "a/ENTITY#e"].map(|entity| tpm_of_hour(&dynamo, entity)),
            [json!("7"), json!("0")]
        );
    }
}

type Spoil = fn(&mut Value);

/// A tenant may write to its own snapshots, too. Usage that has no place in one is told in the log.
#[tokio::test]
async fn a_damaged_snapshot_delays_no_other_record() {
    let [day, hourly] =
        ["#USAGE#gpt-4#daily#2026-11-20T00:00:00Z", "#USAGE#gpt-4#hourly#2026-11-20T23:00:00Z"];
    let spoil: [(Spoil, usize); 6] = [
        (|item| item["q0"] = json!({"S": "far"}), 1),
        // An earlier life, whose numbers cannot be carried over.
        (|item| (item["q0"], item["tpm#0"]) = (json!({"N": "1"}), json!({"S": "many"})), 1),
        (|item| (item["q0"], item["tpm#c"]) = (json!({"N": "1"}), json!({"S": "many"})), 1),
        (|item| item["final"] = json!({"S": "all"}), 1),
        (
            |item| {
                // The copy adds what is missing.
                item.as_object_mut().unwrap().remove("q0");
                fill(item);
            },
            1,
        ),
        // The copy says all there is to say.
        (|item| item["tpm"] = json!({"S": "many"}), 0),
    ];
    for (case, (spoil, refused)) in spoil.iter().enumerate() {
        let (dynamo, table, ours) = shared().await;
        deliver_text(&table, &event(&ours), HOUR).await.response.unwrap();
        let good = dynamo.item("a/ENTITY#e", day);
        let mut spoiled = good.clone();
        spoil(&mut spoiled);
        dynamo.put(&spoiled);
        // The last hour of the day.
        used(&table, "a/BUCKET#e#gpt-4#0", &[2_000], 5).await;
        used(&table, "b/BUCKET#e#gpt-4#0", &[7_000], 5).await;
        let mut records = records(&dynamo);
        records.retain(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
        let handled = deliver_text(&table, &event(&records), HOUR).await;
        let summary = &handled.summary;
        assert_has!(summary, refused: *refused, failed: 0; "{case}");
        assert_eq!(handled.response.unwrap(), Default::default(), "{case}");
        assert_eq!(tpm_of(&dynamo, "b/ENTITY#e"), "18", "{case}");
        assert_eq!(dynamo.item("a/ENTITY#e", day) == spoiled, *refused == 1, "{case}");
        // The hour has its part, and the day has all when the records come again to a snapshot that
        // was mended.
        assert_eq!(dynamo.item("a/ENTITY#e", hourly)["tpm#0"]["N"], "2", "{case}");
        if *refused == 1 {
            dynamo.put(&good);
            deliver_text(&table, &event(&records), HOUR).await.response.unwrap();
        }
        assert_eq!(tpm_of(&dynamo, "a/ENTITY#e"), "6", "{case}");
    }
}

/// Makes an item as large as one may be.
fn fill(item: &mut Value) {
    let used: usize =
        item.as_object().unwrap().iter().map(|(name, value)| name.len() + size(value)).sum();
    item["pad"] = json!({"S": "x".repeat(400 * 1024 - "pad".len() - used)});
}

/// What a value measures in an item, as DynamoDB says.
fn size(value: &Value) -> usize {
    let (kind, value) =
        value.as_object().and_then(|value| value.iter().next()).expect("a value has a type");
    match (&**kind, value) {
        ("N", number) => {
            let digits = number.as_str().unwrap().trim_end_matches('0');
            digits.trim_start_matches('-').len().div_ceil(2)
                + 1
                + usize::from(digits.starts_with('-'))
        }
        ("S", text) => text.as_str().unwrap().len(),
        ("M", map) => {
            3 + map
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| 1 + name.len() + size(value))
                .sum::<usize>()
        }
        _ => 1,
    }
}

/// A snapshot has a number attribute for each limit. If an index needs a text there, DynamoDB
/// refuses the whole write, and all later records are delivered again until they are discarded.
#[test]
fn no_limit_has_the_name_of_an_indexed_attribute() {
    for index in weirgate_store::indexes() {
        for name in [index.hash, index.range.0] {
            let error = weirgate_shared::LimitName::new(name).expect_err(name);
            assert!(error.rule.contains(name), "{error}");
        }
    }
}
