//! What the reconciler does to a bucket whose leases have expired, and to everything else: nothing.

use crate::fixtures::sharded::{DUE, change, hold, run, with_shards};
use serde_json::{Value, json};
use weirgate_reconciler::Summary;
use weirgate_shared::{EpochMillis, Limit, MilliTokens, MilliTotal, Millis};
use weirgate_testkit::leased::{NOW, full, holding, key, limit, load, store, tokens};
use weirgate_testkit::{Lines, Process};
use weirgate_tests::{assert_has, fresh};

const PAST: EpochMillis = EpochMillis(NOW.0 - 1_000);
const LATER: EpochMillis = EpochMillis(NOW.0 + 60_000);

fn limits() -> [Limit; 2] {
    [Limit::per_minute("rpm", 10).unwrap(), Limit::concurrent("slots", 4).unwrap()]
}

fn answer(summary: &Summary) -> Value {
    serde_json::from_str(&serde_json::to_string(summary).unwrap()).unwrap()
}

#[tokio::test]
async fn i4_all_expired_leases_of_a_bucket_come_back_in_one_write() {
    let (dynamo, table) = fresh().await;
    let bucket = full("e-1", &limits());
    let bucket = holding(bucket, "a", PAST, &[("rpm", 3), ("slots", 1)]);
    let bucket = holding(bucket, "b", NOW, &[("rpm", 2), ("slots", 1)]);
    let bucket = holding(bucket, "c", LATER, &[("rpm", 1), ("slots", 1)]);
    store(&table, &bucket).await;
    let _ = dynamo.take_operations();

    let summary = run(&table, NOW).await;
    assert_eq!(dynamo.take_operations()["UpdateItem"], 1, "one write per bucket, not per lease");
    assert_has!(summary, buckets_seen: 1, leases_restored: 2, oldest_due_age_ms: 1_000);
    assert_eq!(answer(&summary)["tokens_restored"], json!({"rpm": 5, "slots": 2}));

    let after = load(&table, &key("e-1")).await.unwrap();
    let (rpm, slots) = (after.limits["rpm"], after.limits["slots"]);
    assert_has!(rpm, available: tokens(9), consumed: MilliTotal::from(tokens(1)); "rate tokens were not used");
    assert_has!(
        slots, available: tokens(3), consumed: MilliTotal::from(tokens(3));
        "a slot counts when it is taken, once"
    );
    let leases = after.leases.unwrap();
    assert_eq!(leases.keys().map(ToString::to_string).collect::<Vec<_>>(), ["c"]);
    assert_eq!(after.due_at, Some(LATER), "due moves to the next expiry");
    assert_eq!(after.write_seq, bucket.write_seq + 1);
    assert_eq!(
        after.last_write_id, bucket.last_write_id,
        "the id of a client's write stays, it may still be looked for"
    );
    // A second run changes nothing.
    let (_, before) = (dynamo.take_operations(), dynamo.items());
    let again = run(&table, NOW).await;
    assert_has!(again, buckets_seen: 0, leases_restored: 0, oldest_due_age_ms: 0);
    assert!(again.tokens_restored.is_empty());
    assert_eq!(dynamo.items(), before);
    let operations = dynamo.take_operations();
    assert_eq!(operations, [("Query".to_owned(), 16)].into(), "no bucket is read");
}

/// Some 3 MB of leases, of which the review of a bucket reads a part: all have their turn in one run.
#[tokio::test]
async fn i4_leases_come_back_also_where_a_review_leaves_shards_out() {
    const LEASES: u64 = 2_000;
    let (_, table, key) = with_shards(16).await;
    for number in 0..16 {
        let (is_over, end) = (number % 2 == 0, DUE.plus(Millis(3_600_000)));
        let end = if is_over { NOW } else { end };
        change(&table, &key, number, |shard| {
            for id in 0..LEASES {
                *shard = holding(shard.clone(), &format!("l{id}"), end, &[("slots", 1)]);
            }
        })
        .await;
    }
    let summary = run(&table, DUE).await;
    assert_has!(summary, leases_restored: 8 * LEASES, left_over: 0, lost_races: 0);
    assert_has!(run(&table, DUE).await, buckets_seen: 0; "each is due later");
}

#[tokio::test]
async fn rate_tokens_come_back_up_to_the_share_and_slots_all() {
    let (_, table) = fresh().await;
    let mut bucket = holding(full("e-1", &limits()), "a", PAST, &[("rpm", 6), ("slots", 4)]);
    // Refilled meanwhile, and a second shard halves what this one may hold.
    bucket.limits.get_mut("rpm").unwrap().available = tokens(3);
    bucket.shard_count = 2;
    store(&table, &bucket).await;

    let summary = run(&table, NOW).await;
    let after = load(&table, &key("e-1")).await.unwrap();
    assert_eq!(
        (after.limits["rpm"].available, after.limits["rpm"].consumed),
        (tokens(5), MilliTotal::from(tokens(0))),
        "never above the share"
    );
    assert_eq!(after.limits["slots"].available, tokens(4));
    assert_eq!(
        summary.tokens_restored[&limit("rpm")],
        tokens(2),
        "what was given back, not what was held"
    );
}

#[tokio::test]
async fn tokens_in_the_answer_are_exact_decimal_numbers() {
    let (_, table) = fresh().await;
    for (entity, milli) in [("e-1", 1_001), ("e-2", 999_999_999_999_999)] {
        let mut bucket = holding(
            full(entity, &[Limit::per_day("tpd", 1_000_000_000_000).unwrap()]),
            "a",
            PAST,
            &[],
        );
        let amount = MilliTokens(milli);
        bucket.limits.get_mut("tpd").unwrap().available -= amount;
        bucket
            .leases
            .as_mut()
            .unwrap()
            .values_mut()
            .next()
            .unwrap()
            .tokens
            .insert(limit("tpd"), amount);
        store(&table, &bucket).await;
    }
    let text = serde_json::to_string(&run(&table, NOW).await).unwrap();
    // As a float it would be 1000000000001.0, and 1000000000000.9999 with another rounding.
    assert!(text.contains(r#""tokens_restored":{"tpd":1000000000001}"#), "{text}");
    let names: Vec<_> = answer(&Summary::default()).as_object().unwrap().keys().cloned().collect();
    let expected = "buckets_seen errors leases_restored left_over lost_races oldest_due_age_ms \
                    partitions_unfinished postponed shards_merged shards_repaired tokens_restored undecodable";
    assert_eq!(names.join(" "), expected);
}

#[tokio::test]
async fn an_index_behind_the_table_costs_a_read_and_no_write() {
    let (dynamo, table) = fresh().await;
    let (gone, moved) = (full("gone", &limits()), full("moved", &limits()));
    for bucket in [gone, moved] {
        store(&table, &holding(bucket, "a", PAST, &[("slots", 1)])).await;
    }
    // Between the index and the buckets: one is deleted, the other restored by its client, which
    // keeps its due until a lease that is still alive.
    let db = dynamo.clone();
    let key_of = |entity: &str| key(entity).item_key();
    let (gone, moved) = (key_of("gone"), key_of("moved"));
    dynamo.fail_reads(move |operation, request| {
        let reads = |pk: &str| operation == "BatchGetItem" && request.to_string().contains(pk);
        if reads(&gone.pk) {
            db.delete(&gone.pk, &gone.sk);
        }
        if reads(&moved.pk) {
            let mut item = db.item(&moved.pk, &moved.sk);
            item["due"] = json!({"N": LATER.0.to_string()});
            item["h"]["M"]["a"]["M"]["e"] = json!({"N": (LATER.0 + 5).to_string()});
            db.put(&item);
        }
        None
    });
    let _ = dynamo.take_operations();
    let summary = run(&table, NOW).await;
    assert_has!(summary, buckets_seen: 2, leases_restored: 0, left_over: 0);
    assert_eq!(
        dynamo.take_operations().get("UpdateItem"),
        None,
        "due is a lower bound, and not reached"
    );
}

#[tokio::test]
async fn items_that_are_not_ours_to_write_are_counted_and_left() {
    let (dynamo, table) = fresh().await;
    hold(&table, "good", PAST).await;
    for (entity, attribute, value) in [
        ("no-number", "b_rpm_tk", json!({"N": "1.5"})),
        ("text", "rf", json!({"S": "soon"})),
        ("fraction", "due", json!({"N": "17.5"})),
        ("list", "h", json!({"L": []})),
    ] {
        hold(&table, entity, PAST).await;
        let mut item = dynamo.item(&key(entity).item_key().pk, "#STATE");
        item[attribute] = value;
        dynamo.put(&item);
    }
    // Other software counts no writes.
    hold(&table, "foreign", PAST).await;
    let mut item = dynamo.item(&key("foreign").item_key().pk, "#STATE");
    item.as_object_mut().unwrap().remove("v");
    dynamo.put(&item);
    // A bucket's attributes under another sort key: a write planned from them would go to another
    // item.
    let mut item = dynamo.item(&key("good").item_key().pk, "#STATE");
    item["SK"] = json!({"S": "#OTHER"});
    dynamo.put(&item);
    let no_bucket = json!({"PK": {"S": "default/ENTITY#e"}, "SK": {"S": "#META"}, "due": {"N": "5"}, "due_shard": {"S": "DUE#03"}});
    dynamo.put(&no_bucket);
    let before = dynamo.items();

    let summary = run(&table, NOW).await;
    assert_has!(summary, buckets_seen: 8, leases_restored: 1);
    assert_has!(summary, undecodable: 7, left_over: 0);
    let good = key("good").item_key();
    let after = dynamo.items();
    for mut item in before {
        let is_good = item["PK"]["S"] == json!(good.pk) && item["SK"]["S"] == json!(good.sk);
        if !is_good {
            item["due"]["N"] = (NOW.0 + 3_600_000).to_string().into();
        }
        assert_ne!(after.contains(&item), is_good, "{item}");
    }
}

#[tokio::test]
async fn the_schedulers_event_starts_a_run_and_so_does_any_other() {
    let scheduled = include_str!("../../../../events/reconciler-schedule.json");
    for event in [scheduled, "{}", "null"] {
        let (_, table) = fresh().await;
        hold(&table, "e-1", PAST).await;
        let lines = Lines::default();
        let process = Process::start(weirgate_reconciler::function, table, &lines);
        let answer = process.invoke(event, "r-1", None).await.unwrap();
        assert_eq!(answer["leases_restored"], 1);
        assert!(answer["oldest_due_age_ms"].as_i64() > Some(0), "the clock is this machine's");
    }
}
