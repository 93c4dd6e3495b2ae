//! Splits that meet others, faults and what a hand left behind: made once or put off, and nothing
//! waits for them.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirgate_tests::{assert_has, slow};

use crate::fixtures::aggregator::usage::assert_exact;
use crate::fixtures::aggregator::{
    HOUR, bucket, config, counts, deliver, deliver_by, deliver_text, deliver_until_done, event,
    held, limits, marked, name, new_id, records, shards, take, take_hot, take_hot_in, take_in,
};
use fastrand::Rng;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirgate_aggregator::Config;
use weirgate_shared::write::{LimitDelta, Roll, Settle};
use weirgate_shared::{BucketKey, EpochMillis, Hour, MilliTokens};
use weirgate_store::{ReturnValues, Table};
use weirgate_testkit::leased::{load, store};
use weirgate_testkit::{Dynamo, Fault, Limits, Lines, Partitions};

/// The same as [`marked`], with the record that marks the shard apart. The day knows the shard, so
/// nothing is copied before the split.
async fn known_and_marked() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table, records) = marked().await;
    assert_eq!(deliver(&table, &records[..1]).await.summary.copied, 1);
    (dynamo, table, records)
}

/// The same as [`marked`], and the first take of the next hour, which asks for a split again.
async fn marked_and_rolled() -> (Dynamo, Table, Vec<Value>) {
    let (dynamo, table, marked) = marked().await;
    take_hot_in(&table, &bucket("a", 0), 1).await;
    let records = [marked, records(&dynamo)].concat();
    (dynamo, table, records)
}

/// Whether it is one of a split's writes: to the shard, which then holds or held an escrow, or to
/// its new half.
fn is_of_a_split(body: &Value) -> bool {
    let names = body["ExpressionAttributeNames"].as_object();
    let is_escrow = names.is_some_and(|names| names.values().any(|name| name == "escrow"));
    is_escrow || body["Key"]["PK"]["S"] == "default/BUCKET#a#gpt-4#1"
}

#[tokio::test(start_paused = true)]
async fn i7_a_split_whose_answer_is_lost_happens_once() {
    let faults = [
        Fault::LoseAnswer,
        Fault::ServerErrorApplied,
        Fault::Repeat,
        Fault::LoseRequest,
        Fault::Conflict,
        Fault::Throttle { key_range: true },
    ];
    for (fault, write) in faults.into_iter().flat_map(|fault| [0, 1, 2].map(|write| (fault, write)))
    {
        let (dynamo, table, records) = known_and_marked().await;
        let before = held(&table).await;
        dynamo.fail_next(std::iter::repeat_n(None, write).chain([Some(fault)]));
        let handled = deliver(&table, &records[1..]).await;
        // Of an end whose answer is lost it is not known which process has made it.
        let is_lost = write == 2
            && matches!(fault, Fault::LoseAnswer | Fault::ServerErrorApplied | Fault::Repeat);
        let told = (handled.summary.splits, handled.summary.splits_lost);
        assert!(
            told == (1, 0) || is_lost && told == (0, 1),
            "{fault:?} of write {write}: {told:?}"
        );
        assert_eq!(counts(&table).await, [(0, 2), (1, 2)], "{fault:?} of write {write}");
        assert_eq!(held(&table).await, before, "{fault:?} of write {write}");
        assert!(
            shards(&table).await.iter().all(|shard| shard.escrow.is_none()),
            "{fault:?} of write {write}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_split_that_cannot_be_made_now_is_made_by_the_next_batch() {
    let faults = [
        Fault::Throttle { key_range: true },
        Fault::Throttle { key_range: false },
        Fault::Conflict,
        Fault::Rejected,
        Fault::LoseRequest,
    ];
    for (fault, write) in faults.into_iter().flat_map(|fault| [0, 1, 2].map(|write| (fault, write)))
    {
        let (dynamo, table, batch) = marked_and_rolled().await;
        let before = held(&table).await;
        let mut left = write;
        dynamo.fail_when(move |body| {
            let is_failed = is_of_a_split(body) && left == 0;
            left -= usize::from(is_of_a_split(body) && left > 0);
            is_failed.then_some(fault)
        });
        let handled = deliver(&table, &batch).await;
        assert_has!(handled.summary, splits_put_off: 1, failed: 0; "{fault:?} of write {write}");
        assert_eq!(handled.response.unwrap(), Default::default(), "{fault:?} of write {write}");
        assert_eq!(handled.summary.copied, 2, "of the hour and the day");
        dynamo.fail_when(|_| None);
        take_in(&table, &bucket("a", 0), 10, 1).await;
        let next = records(&dynamo);
        assert_eq!(deliver(&table, &next).await.summary.splits, 1, "{fault:?} of write {write}");
        assert_eq!(counts(&table).await, [(0, 2), (1, 2)], "{fault:?} of write {write}");
        let after: Vec<_> = held(&table).await;
        assert!(
            after.iter().zip(&before).all(|(after, before)| after <= before),
            "{after:?} of {before:?}"
        );
        assert!(
            shards(&table).await.iter().all(|shard| shard.escrow.is_none()),
            "{fault:?} of write {write}"
        );
        assert_exact(&dynamo, &[batch, next].concat());
    }
}

/// What a batch has of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Has {
    /// A split that fails.
    Busy,
    /// A split that nothing is in the way of.
    Hot,
    /// Copies alone.
    Rolled,
}

/// A tenant's hot partitions take none of its splits. The whole batch waits for them once, they are
/// not asked more often than one patience allows, and other tenants' splits are made.
#[tokio::test(start_paused = true)]
async fn copies_of_others_come_before_all_splits_which_share_one_patience() {
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let (busy, hot, rolled) = (random.usize(1..60), random.usize(..4), random.usize(..8));
        let config = Config { write_concurrency: random.usize(2..12), ..config() };
        let (dynamo, latency) = (Dynamo::new().await, Duration::from_millis(random.u64(1..10)));
        let table = dynamo.table().await;
        let buckets = [(Has::Busy, busy), (Has::Hot, hot), (Has::Rolled, rolled)];
        let buckets =
            buckets.into_iter().flat_map(|(has, count)| (0..count).map(move |at| (has, at)));
        let buckets: Vec<_> = buckets.collect();
        // Each has a first record, and then another one.
        let mut order = [buckets.clone(), buckets].concat();
        random.shuffle(&mut order);
        let mut begun = HashSet::new();
        for (has, at) in order {
            let namespace = match has {
                Has::Busy => "busy".to_owned(),
                Has::Hot | Has::Rolled => format!("{has:?}-{at}"),
            };
            let key = format!("{namespace}/BUCKET#e-{at}#gpt-4#0");
            let key = BucketKey::parse(&key).unwrap();
            match (begun.insert(key.clone()), has) {
                (true, _) => take(&table, &key, 10).await,
                (false, Has::Rolled) => take_in(&table, &key, 10, 1).await,
                (false, _) => take_hot(&table, &key).await,
            }
        }
        let batch = records(&dynamo);
        let requests = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&requests);
        dynamo.fail_when(move |body| {
            let [pk, sk] = ["PK", "SK"].map(|name| body["Key"][name]["S"].as_str().unwrap());
            let (is_split, is_busy) = (sk == "#STATE", pk.starts_with("busy/"));
            seen.lock().unwrap().push((is_split && is_busy, is_split, Instant::now()));
            let key_range = random.bool();
            (is_split && is_busy).then_some(Fault::Throttle { key_range })
        });
        let slow = dynamo.clone().with_latency(latency).table().await;
        let left = Duration::from_secs(60);
        let handled = deliver_by(&slow, &event(&batch), &config, HOUR, left).await;
        let (summary, ended) = (handled.summary, Instant::now());
        let at = format!("seed {seed}: {busy} busy, {hot} hot, {rolled} rolled: {summary:?}");
        let requests = requests.lock().unwrap();
        let first = requests.iter().position(|(_, is_split, _)| *is_split).unwrap();
        let (copies, splits) = requests.split_at(first);
        assert!(splits.iter().all(|(_, is_split, _)| *is_split), "{at}: copies first");
        let all_copies = busy + hot + 2 * rolled;
        assert_eq!((copies.len(), summary.copied), (all_copies, all_copies), "{at}");
        let waited = ended - splits[0].2;
        assert!(waited <= Duration::from_millis(2_020), "{at}: {waited:?}");
        // Each of the concurrent ones asks once in a latency and a pause of at least 5 ms.
        let failed = splits.iter().filter(|(is_busy, ..)| *is_busy).count();
        let pause = 5 + usize::try_from(latency.as_millis()).unwrap();
        let most = config.write_concurrency * (2_000 / pause + 1);
        assert!(failed <= most, "{at}: {failed} of {most}");
        assert_has!(summary, splits_put_off: busy, splits: hot, failed: 0; "{at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_split_that_no_time_is_left_for_holds_up_nothing() {
    let (dynamo, _, records) = marked_and_rolled().await;
    let slow_table = slow(&dynamo, 250).await;
    let left = Duration::from_millis(1_500);
    let handled = deliver_by(&slow_table, &event(&records), &config(), HOUR, left).await;
    assert_has!(handled.summary, copied: 2, splits: 1; "copies first");
    // The copies take all there is.
    let (dynamo, _, records) = marked_and_rolled().await;
    let slow_table = slow(&dynamo, 400).await;
    let two = Config { write_concurrency: 2, ..config() };
    let left = Duration::from_millis(1_000);
    let handled = deliver_by(&slow_table, &event(&records), &two, HOUR, left).await;
    assert_has!(handled.summary, copied: 2, splits_put_off: 1);
    assert_eq!(handled.response.unwrap(), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_split_that_is_not_permitted_is_refused_and_says_so() {
    let (dynamo, table, records) = marked_and_rolled().await;
    dynamo.fail_when(|body| is_of_a_split(body).then_some(Fault::Forbidden));
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let handled = deliver(&table, &records).await;
    assert_has!(handled.summary, refused: 1, failed: 0, splits_put_off: 0);
    assert_eq!(handled.response.unwrap(), Default::default());
    let [line] = &*lines.of("refused write") else { panic!("one line") };
    assert!(line.contains("split of") && line.contains("not permitted"), "{line}");
    dynamo.fail_when(|_| None);
    deliver_until_done(&table, &records).await;
    assert_eq!(counts(&table).await, [(0, 2), (1, 2)], "with the next batch");
    assert_exact(&dynamo, &records);
}

#[tokio::test(start_paused = true)]
async fn a_half_that_is_there_already_keeps_what_it_has_and_both_are_named() {
    let (dynamo, table, batch) = marked().await;
    let mut left = load(&table, &bucket("a", 0)).await.unwrap();
    (left.key, left.shard_count) = (bucket("a", 1), 2);
    store(&table, &left).await;
    drop(dynamo.stream());
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let handled = deliver(&table, &batch).await;
    assert_has!(handled.summary, splits: 1, splits_lost: 0, failed: 0);
    assert_eq!(counts(&table).await, [(0, 2), (1, 2)]);
    let halves = shards(&table).await;
    assert_eq!(&halves[1].limits, &left.limits);
    assert_eq!(halves[1].write_seq, left.write_seq);
    assert_eq!(halves[0].escrow, None);
    let text = lines.text();
    let line: Value =
        serde_json::from_str(text.lines().find(|line| line.contains("ERROR")).unwrap()).unwrap();
    assert_eq!(&line["shard"], &json!("default/BUCKET#a#gpt-4#0"));
    assert_eq!(&line["half"], &json!("default/BUCKET#a#gpt-4#1"));
}

/// No transaction is in the way of the writes, and no write in the way of the split: writes that
/// change no balance to the first shard of bucket `a`, at an even pace, also while they
/// are throttled.
fn writes(table: &Table, per_second: u32) -> JoinSet<()> {
    let (began, table, mut all) = (Instant::now(), table.clone(), JoinSet::new());
    all.spawn(async move {
        let mut running = JoinSet::new();
        for at in 0_u32.. {
            sleep_until(began + Duration::from_secs(1) * at / per_second).await;
            let table = table.clone();
            running.spawn(async move {
                let key = bucket("a", 0);
                let none = LimitDelta {
                    available: MilliTokens::ZERO,
                    consumed: MilliTokens(1),
                    ..LimitDelta::default()
                };
                let (amounts, roll) =
                    (BTreeMap::from([(name("tpm"), none)]), Roll::to(Hour::of(HOUR)));
                let write = Settle {
                    key: &key,
                    write_id: new_id(),
                    lease: None,
                    amounts,
                    acquires: 0,
                    roll,
                };
                let _ = table.update(&write.full(None), ReturnValues::None).await;
            });
            while running.try_join_next().is_some() {}
        }
    });
    all
}

#[tokio::test(start_paused = true)]
async fn a_busy_shard_is_split_in_the_first_batch_that_asks_for_it() {
    for (per_second, seed) in [(500, 0), (1_000, 1)] {
        let dynamo = Dynamo::new().await;
        let takes =
            Limits { conflict_window: Duration::from_millis(10), burst: 100, ..Limits::default() };
        let partitions = Partitions::over(dynamo.clone(), takes, seed);
        let table = partitions.table().await;
        take(&table, &bucket("a", 0), 1_500).await;
        let _writes = writes(&table, per_second);
        sleep(Duration::from_millis(500)).await;
        take_hot(&dynamo.table().await, &bucket("a", 0)).await;
        let now = EpochMillis(HOUR.0 + 500);
        let handled = deliver_text(&table, &event(&records(&dynamo)), now).await;
        assert_eq!(
            handled.response.unwrap(),
            Default::default(),
            "{per_second}/s, seed {seed}: nothing has failed"
        );
        assert_has!(
            handled.summary, splits: 1;
            "{per_second}/s, seed {seed}: {:?}", handled.summary
        );
        let there = dynamo.table().await;
        assert_eq!(counts(&there).await, [(0, 2), (1, 2)], "{per_second}/s, seed {seed}");
        // What was taken has flowed in again by then.
        let full: Vec<_> = limits().iter().map(|limit| limit.rule().capacity).collect();
        assert_eq!(held(&there).await, full, "{per_second}/s, seed {seed}");
        assert_eq!(partitions.counts().conflicts, 0);
    }
}
