//! What one tenant writes keeps no other tenant's records from being copied, credited and split,
//! with the batch they are in.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirgate_tests::aggregator;

use fastrand::Rng;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate_aggregator::execute::{ENOUGH, Throttles};
use weirgate_aggregator::{Handled, Invocation, LogBudget, handle_next};
use weirgate_shared::write::{MAX_CARRIED_LIMITS, MAX_LIVES};
use weirgate_shared::{BucketKey, MAX_BUCKET_LIMITS, Millis};
use weirgate_store::Table;
use weirgate_testkit::{Dynamo, Fault, Lines};
use weirgate_tests::aggregator::usage::snapshots;
use weirgate_tests::aggregator::{
    HOUR, bucket, config, deliver, deliver_text, event, later, marked, records, sequence_number,
    take_in,
};

const KEY_RANGE: Fault = Fault::Throttle { key_range: true };

/// Takes in one hour and in the next one, so that each entity's hour is copied finally.
async fn used(table: &Table, namespace: &str, entities: usize) {
    for hours in [0, 1] {
        for entity in 0..entities {
            let key = BucketKey::parse(&format!("{namespace}/BUCKET#e-{entity}#gpt-4#0")).unwrap();
            take_in(table, &key, 1_500, hours).await;
        }
    }
}

fn pk(request: &Value) -> &str {
    request["Key"]["PK"]["S"].as_str().unwrap_or_default()
}

fn copied(dynamo: &Dynamo, pk: &str) -> Value {
    dynamo.item(pk, "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z")["tpm#0"]["N"].clone()
}

/// Whether a line is about writes that the log had no room for.
fn is_of_left_out(line: &str) -> bool {
    line.contains("the log has no room for them")
}

/// How many writes of a namespace that line counts.
fn left_out_of(line: &str, namespace: &str) -> usize {
    let line: Value = serde_json::from_str(line).unwrap();
    let counts = line["what"].as_str().unwrap().split(", ");
    let of = counts.filter_map(|count| count.split_once(" of namespace "));
    let mut of = of.filter(|(_, of)| *of == namespace);
    of.next().map_or(0, |(count, _)| count.parse().unwrap())
}

/// Copies of old records that stay throttled, or whose snapshot cannot be read, at any places of a
/// batch: of each shard's hour the numbers are in the snapshot or in the log, and of others in the
/// snapshot at once.
#[tokio::test(start_paused = true)]
async fn refused_copies_are_in_the_log_and_delay_no_other_record() {
    for seed in 0..3 {
        let mut random = Rng::with_seed(seed);
        let dynamo = Dynamo::new().await;
        let remote = dynamo.clone().with_latency(Duration::from_millis(250));
        let table = remote.table().await;
        // Of each bucket, two records, in their order, and whether the tenant is one that is refused.
        let tenants = [("evil", random.usize(20..80)), ("worse", random.usize(..10)), ("good", 3)];
        let buckets =
            tenants.iter().flat_map(|(tenant, count)| (0..*count).map(move |at| (*tenant, at)));
        let buckets: Vec<_> = buckets.collect();
        let mut order = [buckets.clone(), buckets.clone()].concat();
        random.shuffle(&mut order);
        let mut begun = HashSet::new();
        for bucket in order {
            let (tenant, at) = bucket;
            let key = BucketKey::parse(&format!("{tenant}/BUCKET#e-{at}#gpt-4#0")).unwrap();
            take_in(&table, &key, 1_500, i64::from(!begun.insert(bucket))).await;
        }
        let records = records(&dynamo);
        let mut refused_ones = HashMap::new();
        for (tenant, at) in buckets.iter().filter(|(tenant, _)| *tenant != "good") {
            let pk = format!("{tenant}/ENTITY#e-{at}");
            match random.u8(..8) {
                0 => continue,
                1 => {
                    let sk = "#USAGE#gpt-4#hourly#2026-11-20T18:00:00Z";
                    let damaged = json!({"N": "1"});
                    dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": sk}, "tpm#0": {"S": "x"}, "q0": damaged}));
                }
                2 => drop(refused_ones.insert(pk, Fault::Conflict)),
                _ => drop(refused_ones.insert(pk, KEY_RANGE)),
            }
        }
        dynamo.fail_when(move |write| refused_ones.get(pk(write)).copied());
        let lines = Lines::default();
        let writer = lines.clone();
        let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
        let (throttles, old) = (Throttles::default(), Millis(3_600_000 + 30_000));
        let (mut invocations, mut from, mut refused) = (0, 0, 0);
        loop {
            let started = Instant::now();
            let invocation =
                Invocation { now: HOUR.plus(old), deadline: started + Duration::from_secs(60) };
            let (text, config) = (event(&records[from..]), config());
            let handled =
                handle_next(&text, &table, &config, &throttles, invocation, LogBudget::default());
            let handled = handled.await.unwrap();
            // Two seconds for all of them together, and what three tries of each take.
            let took = started.elapsed();
            assert!(took < Duration::from_secs(15), "seed {seed}: {took:?}");
            for at in 0..3 {
                assert_eq!(copied(&dynamo, &format!("good/ENTITY#e-{at}")), "1.5", "seed {seed}");
            }
            invocations += 1;
            refused += handled.summary.refused;
            let failures = handled.response.unwrap().batch_item_failures;
            let Some(first) = failures.first() else {
                break;
            };
            let is_first =
                |record: &Value| Some(sequence_number(record)) == first.item_identifier.as_deref();
            from = records.iter().position(is_first).unwrap();
            // The log has room for some 80 copies of a tenant in each invocation, and throttled ones wait for it.
            assert!(invocations < ENOUGH + 10, "seed {seed}: it ends");
        }
        let heard = lines.of("refused write");
        let (left_out, heard): (Vec<_>, Vec<_>) =
            heard.into_iter().partition(|line| is_of_left_out(line));
        let left_out: usize = left_out.iter().map(|line| left_out_of(line, "evil")).sum();
        assert_eq!(
            heard.len() + left_out,
            refused,
            "seed {seed}: each with its numbers, or counted"
        );
        for (tenant, at) in buckets {
            let pk = format!("{tenant}/ENTITY#e-{at}");
            let of = format!("final copy to {pk} ");
            let said = heard.iter().filter(|line| line.contains(&of));
            let said = said.filter(|line| line.contains("rpm 1, tpm 1.5, 1 acquires"));
            let is_copied = copied(&dynamo, &pk) == "1.5";
            assert_eq!(said.count() > 0, !is_copied, "seed {seed}: {pk}");
        }
    }
}

/// Refused for what their snapshots contain, in the first records of a batch of Lambda's size.
#[tokio::test(start_paused = true)]
async fn i8_any_number_of_refused_copies_holds_no_other_tenants_record() {
    const MANY: usize = 1_000;
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let day = "#USAGE#gpt-4#daily#2026-11-20T00:00:00Z";
    for (tenant, count) in [("evil", MANY), ("worse", 1), ("good", 1)] {
        for at in 0..count {
            let key = BucketKey::parse(&format!("{tenant}/BUCKET#e-{at}#gpt-4#0")).unwrap();
            take_in(&table, &key, 1_500, 0).await;
            let pk = format!("{tenant}/ENTITY#e-{at}");
            if tenant != "good" {
                dynamo.put(&json!({"PK": {"S": pk}, "SK": {"S": day}, "tpm#0": {"S": "x"}, "q0": {"N": "1"}}));
            }
        }
    }
    let mut records = records(&dynamo);
    records.retain(|record| record["dynamodb"]["Keys"]["SK"]["S"] == "#STATE");
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let (mut from, mut refused) = (0, 0);
    for _ in 0..2 {
        let handled = deliver(&table, &records[from..records.len().min(from + MANY)]).await;
        refused += handled.summary.refused;
        let failures = handled.response.unwrap().batch_item_failures;
        let first = failures.first().map(|first| first.item_identifier.clone());
        let is_first = |record| first == Some(Some(sequence_number(record).to_owned()));
        let next = records.iter().position(is_first);
        from = next.unwrap_or(records.len().min(from + MANY));
    }
    assert_eq!(from, records.len());
    assert_eq!(dynamo.item("good/ENTITY#e-0", day)["tpm#0"]["N"], "1.5");
    assert_eq!(refused, MANY + 1);
    let heard = lines.of("refused write");
    let (left_out, heard): (Vec<_>, Vec<_>) = heard.iter().partition(|line| is_of_left_out(line));
    let [left_out] = &*left_out else { panic!("{left_out:?}") };
    let of = |namespace| left_out_of(left_out, namespace);
    assert_eq!((of("evil"), of("worse")), (refused - heard.len(), 0));
    assert!(heard.iter().any(|line| line.contains("worse/ENTITY#e-0")));
    assert!(heard.len() > 20, "{}", heard.len());
}

/// A number of DynamoDB has 38 digits, and what such numbers differ by has one more.
#[tokio::test(start_paused = true)]
async fn a_copy_is_refused_for_no_count_of_a_bucket() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "evil", 1).await;
    let mut record = records(&dynamo).remove(0);
    let image = record["dynamodb"]["NewImage"].as_object_mut().unwrap();
    let most = "9".repeat(38);
    for (name, value) in image.iter_mut() {
        if name == "takes" || name.ends_with("_tc") {
            *value = json!({"N": most});
        } else if ["th", "td"].contains(&name.as_str()) || name.ends_with("_bd") {
            *value = json!({"N": format!("-{most}")});
        }
    }
    let summary = deliver(&table, &[record]).await.summary;
    assert_eq!((summary.failed, summary.refused, summary.copied), (0, 0, 1), "{summary:?}");
    let day = "#USAGE#gpt-4#daily#2026-11-20T00:00:00Z";
    assert_eq!(dynamo.item("evil/ENTITY#e-0", day)["#0"]["N"], most);
}

/// Delivers records that are old to a process that has these throttles.
async fn deliver_old(table: &Table, records: &[Value], throttles: &Throttles) -> Handled {
    let invocation =
        Invocation { now: later(34), deadline: Instant::now() + Duration::from_secs(60) };
    let (text, config, budget) = (event(records), config(), LogBudget::default());
    let handled = handle_next(&text, table, &config, throttles, invocation, budget);
    handled.await.unwrap()
}

/// I8: also if only the hours or only the days of a shard stay throttled.
#[tokio::test(start_paused = true)]
async fn i8_a_window_that_stays_throttled_holds_the_records_for_ten_invocations() {
    for window in ["hourly", "daily"] {
        for fault in [KEY_RANGE, Fault::Conflict] {
            let dynamo = Dynamo::new().await;
            let table = dynamo.table().await;
            for hours in [0, 24] {
                take_in(&table, &bucket("a", 0), 1_500, hours).await;
            }
            let (records, throttles) = (records(&dynamo), Throttles::default());
            dynamo.fail_when(move |write| {
                let sk = write["Key"]["SK"]["S"].as_str().unwrap_or_default();
                sk.contains(window).then_some(fault)
            });
            for invocation in 1..=ENOUGH {
                let summary = deliver_old(&table, &records, &throttles).await.summary;
                let outcome = (summary.failed > 0, summary.refused > 0);
                let is_last = invocation == ENOUGH;
                assert_eq!(outcome, (!is_last, is_last), "{window} {fault:?}: {invocation}");
            }
        }
    }
}

/// After a pause of the stream all records are old, and nothing is wrong with their snapshots.
#[tokio::test(start_paused = true)]
async fn i3_an_old_record_comes_again_while_its_snapshot_is_throttled() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "slow", 1).await;
    let records = records(&dynamo);
    let slow_until = Instant::now() + Duration::from_secs(7);
    dynamo.fail_when(move |_| (Instant::now() < slow_until).then_some(KEY_RANGE));
    let throttles = Throttles::default();
    let mut failed = 0;
    loop {
        let summary = deliver_old(&table, &records, &throttles).await.summary;
        assert_eq!(summary.refused, 0, "{summary:?}");
        if summary.failed == 0 {
            break;
        }
        failed += 1;
    }
    assert!(failed > 1, "{failed}");
    assert_eq!(copied(&dynamo, "slow/ENTITY#e-0"), "1.5");
}

/// A shard that was throttled now and then, for days, or of which a copy was made, starts again from
/// none.
#[tokio::test(start_paused = true)]
async fn i3_throttles_that_do_not_follow_each_other_refuse_nothing() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "slow", 1).await;
    let records = records(&dynamo);
    let throttles = Throttles::default();
    let deliver = async || {
        let handled = deliver_old(&table, &records, &throttles).await;
        handled.summary.refused
    };
    dynamo.fail_when(|_| Some(KEY_RANGE));
    for _ in 0..2 * ENOUGH {
        assert_eq!(deliver().await, 0);
        tokio::time::sleep(Duration::from_secs(301)).await;
    }
    for round in 0..2 {
        for _ in 1..ENOUGH {
            assert_eq!(deliver().await, 0, "{round}");
        }
        for _ in 0..2 {
            assert_eq!(deliver().await, 2, "{round}: of the hour, and of the day");
        }
        dynamo.fail_when(|_| None);
        assert_eq!(deliver().await, 0, "{round}");
        dynamo.fail_when(|_| Some(KEY_RANGE));
    }
}

/// I3: usage that the log alone has is not counted.
#[tokio::test(start_paused = true)]
async fn i3_a_young_record_comes_again_while_its_snapshot_is_throttled() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "slow", 1).await;
    used(&table, "good", 1).await;
    let records = records(&dynamo);
    let slow_until = Instant::now() + Duration::from_secs(3);
    dynamo.fail_when(move |write| {
        let is_slow = pk(write).starts_with("slow/") && Instant::now() < slow_until;
        is_slow.then_some(KEY_RANGE)
    });
    let handled = deliver(&table, &records).await;
    assert_eq!(handled.summary.refused, 0);
    let failures = handled.response.unwrap().batch_item_failures;
    assert_eq!(failures.len(), 1);
    assert_eq!(copied(&dynamo, "good/ENTITY#e-0"), "1.5");
    let handled = deliver(&table, &records).await;
    assert_eq!((handled.summary.refused, handled.summary.failed), (0, 0));
    assert_eq!(copied(&dynamo, "slow/ENTITY#e-0"), "1.5");
}

/// The table as a whole is throttled, or the batch has no time left: that says nothing of the item.
#[tokio::test(start_paused = true)]
async fn a_copy_that_the_whole_table_throttles_comes_again() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "good", 1).await;
    dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let handled = deliver(&table, &records(&dynamo)).await;
    assert_eq!((handled.summary.refused, handled.summary.failed), (0, 1), "{:?}", handled.summary);
    assert_eq!(handled.response.unwrap().batch_item_failures.len(), 1);
}

/// F8: callers find what flowed in by themselves, and a shard that stays hot asks again with the
/// next batch.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_cannot_be_written_fails_no_batch() {
    for (fault, refused) in [
        (KEY_RANGE, 0),
        (Fault::Throttle { key_range: false }, 0),
        (Fault::Conflict, 0),
        (Fault::ServerError, 0),
        (Fault::Rejected, 0),
        (Fault::Forbidden, 1),
    ] {
        let (dynamo, table, mut records) = marked().await;
        for hours in [1, 2] {
            take_in(&table, &bucket("b", 0), 450_000_000_000, hours).await;
        }
        records.extend(aggregator::records(&dynamo));
        dynamo.fail_when(move |write| pk(write).contains("/BUCKET#").then_some(fault));
        dynamo.fail_transactions(move |_| Some(fault));
        let handled = deliver_text(&table, &event(&records), later(3)).await;
        let summary = &handled.summary;
        assert_eq!(
            (summary.splits, summary.refilled, summary.refused, summary.failed),
            (0, 0, 2 * refused, 0),
            "{summary:?}"
        );
        assert_eq!(
            (summary.splits_put_off, summary.refills_put_off),
            (1 - refused, 1 - refused),
            "{fault:?}: {summary:?}"
        );
        assert_eq!(handled.response.unwrap(), Default::default(), "{fault:?}");
        assert_eq!(
            dynamo.item("default/ENTITY#b", "#USAGE#gpt-4#hourly#2026-11-20T19:00:00Z")["tpm#0"]["N"],
            "450000000"
        );
    }
}

/// Between namespaces writes alternate.
#[tokio::test(start_paused = true)]
async fn a_tenants_many_writes_come_after_the_first_ones_of_all_others() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "evil", 300).await;
    used(&table, "good", 2).await;
    let records = records(&dynamo);
    let order = Arc::new(Mutex::new(vec![]));
    let seen = order.clone();
    dynamo.fail_when(move |write| {
        seen.lock().unwrap().push(pk(write).to_owned());
        None
    });
    deliver(&table, &records).await.response.unwrap();
    let order = order.lock().unwrap();
    let last = order.iter().rposition(|pk| pk.starts_with("good/")).expect("it is copied");
    assert!(order.len() >= 600 && last < 30, "{last} of {}", order.len());
}

/// An image of a bucket with these limits, at which its usage is copied, and which begins with
/// `birth`.
fn image(record: &Value, v: i64, birth: i64, limits: impl Iterator<Item = String>) -> Value {
    let mut record = record.clone();
    let image = record["dynamodb"]["NewImage"].as_object_mut().unwrap();
    image.retain(|name, _| !name.starts_with("b_"));
    for limit in limits {
        for field in ["tk", "tc", "cp", "ra", "rp", "bh", "bd"] {
            image.insert(format!("b_{limit}_{field}"), json!({"N": "9000"}));
        }
    }
    image["v"] = json!({"N": v.to_string()});
    image["birth"] = json!({"N": birth.to_string()});
    record["eventName"] = json!("INSERT");
    record
}

#[tokio::test(start_paused = true)]
async fn other_limits_and_lives_with_each_image_fill_no_snapshot() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "evil", 1).await;
    let record = records(&dynamo).remove(0);
    let first = HOUR.0 * 1000 / 4096 * 4096 + 4096;
    let name = |round: i64, limit: usize| format!("l{round}-{limit}{}", "x".repeat(50));
    // Other limits with each image, of one life and of other ones; then other lives alone.
    let cases: [(i64, bool, usize); 3] = [(30, false, 38), (30, true, 38), (1_100, true, 1)];
    let mut v = first;
    for (rounds, is_reborn, limits) in cases {
        for round in 0..rounds {
            v += 4096;
            let birth = if is_reborn { v } else { first };
            let of = if limits == 1 { 0 } else { round };
            let handled = deliver(
                &table,
                &[image(&record, v, birth, (0..limits).map(|limit| name(of, limit)))],
            )
            .await;
            assert_eq!(
                (handled.summary.failed, handled.summary.undecodable),
                (0, 0),
                "{:?}",
                handled.summary
            );
            assert_eq!(handled.response.unwrap(), Default::default());
        }
        for snapshot in snapshots(&dynamo).values() {
            assert!(
                snapshot
                    .shards
                    .values()
                    .all(|shard| shard.usage.tokens.len() <= 2 * MAX_BUCKET_LIMITS)
            );
            assert!(snapshot.carry.tokens.len() <= MAX_CARRIED_LIMITS);
            assert!(snapshot.carried.values().map(|lives| lives.len()).sum::<usize>() <= MAX_LIVES);
        }
    }
    let bytes = dynamo.items().iter().map(|item| item.to_string().len()).max().unwrap();
    // Sixteen lives without a final copy have their limits, too.
    assert!(bytes < 60_000, "{bytes} bytes of JSON");
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_be_read_fill_no_log() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    used(&table, "evil", 1).await;
    let mut bad = records(&dynamo).remove(0);
    bad["dynamodb"]["NewImage"]["b_tpm_tc"] = json!({"S": "\u{1}".repeat(2_000)});
    bad["dynamodb"]["NewImage"]["note"] = json!({"S": "x".repeat(2_000)});
    used(&table, "other", 1).await;
    let mut other = records(&dynamo).remove(0);
    other["dynamodb"]["NewImage"]["rf"] = json!({"S": "soon"});
    let mut batch = vec![bad; 2_000];
    batch.push(other.clone());
    for budget in [LogBudget::default(), LogBudget::unlimited()] {
        let lines = Lines::default();
        let writer = lines.clone();
        let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
        let invocation =
            Invocation { now: HOUR, deadline: Instant::now() + Duration::from_secs(60) };
        let (text, config) = (event(&batch), config());
        let throttles = Throttles::default();
        let handled = handle_next(&text, &table, &config, &throttles, invocation, budget);
        assert_eq!(handled.await.unwrap().summary.undecodable, 2_001);
        assert!(lines.text().len() <= 1_000_000, "{}", lines.text().len());
        let heard = lines.of("undecodable record");
        let last: Value = serde_json::from_str(heard.last().expect("lines")).unwrap();
        assert_eq!(
            last["record"],
            other.to_string(),
            "another tenant's record is in the log, whole"
        );
        assert!(heard.len() > 5 && heard.len() < 100, "{} lines", heard.len());
    }
}
