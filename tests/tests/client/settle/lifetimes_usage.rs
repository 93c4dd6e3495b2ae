//! Buckets that DynamoDB's time to live deletes: their ends reach the aggregator, and usage stays
//! exact.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};
use weirgate::{EpochMillis, Limit, RateLimiter, Window};
use weirgate_store::Table;
use weirgate_testkit::batches;
use weirgate_tests::aggregator::{deliver_text, event};
use weirgate_tests::fleet::shards::shards;
use weirgate_tests::fleet::{Fleet, PK, granted, pass, rpm, secs, tokens};

const HOUR: u64 = 3_600;

fn limits() -> [Limit; 1] {
    [rpm(60)]
}

/// What the stream brings of the last minutes.
fn records(fleet: &Fleet) -> Vec<Value> {
    batches::stream(&fleet.dynamo, fleet.now())
}

/// DynamoDB deletes the bucket, once its `ttl` is over. Returns the record, as the service signs
/// it.
fn ended(fleet: &Fleet, ttl: i64) -> Value {
    assert!(ttl * 1_000 < fleet.now().0, "it is over");
    fleet.dynamo.delete(PK, "#STATE");
    let mut records = records(fleet);
    assert_eq!((records.len(), &records[0]["eventName"]), (1, &json!("REMOVE")));
    records[0]["userIdentity"] =
        json!({"type": "Service", "principalId": "dynamodb.amazonaws.com"});
    records.remove(0)
}

async fn deliver(fleet: &Fleet, table: &Table, records: &[Value]) {
    let handled = deliver_text(table, &event(records), fleet.now()).await;
    let summary = &handled.summary;
    assert_eq!((summary.undecodable, summary.failed, summary.refused), (0, 0, 0), "{summary:?}");
    assert!(handled.response.unwrap().batch_item_failures.is_empty());
}

/// Tokens and acquires in the hour of `at`, and whether they are final.
async fn hour(limiter: &RateLimiter, at: EpochMillis) -> (i128, i128, bool) {
    let read = limiter.usage("e-1", "gpt-4", Window::Hourly, at).await.unwrap();
    let used = read.usage.tokens.get("rpm").copied().unwrap_or_default();
    assert_eq!(used.0 % 1_000, 0);
    (used.whole_tokens(), read.usage.acquires, read.is_final())
}

/// Each life takes 60, and the second one begins in an hour of its own, days later.
#[tokio::test(start_paused = true)]
async fn i3_usage_is_exact_when_a_bucket_ends_and_is_made_again() {
    // Each record alone; the end and the next life in one batch; all of it late, in one batch; the
    // end twice.
    for (cuts, is_repeated) in
        [(vec![1, 1, 1], false), (vec![1, 2], false), (vec![3], false), (vec![1, 1, 1], true)]
    {
        let fleet = Fleet::new().await;
        let table = fleet.dynamo.table().await;
        let limiter = fleet.limiter().await;
        pass(secs(60)).await;
        let first = fleet.now();
        let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
        let mut all = records(&fleet);
        let ttl = fleet.bucket().await.ttl.expect("limits with a call are no bucket's own").0;
        pass(secs(40 * HOUR)).await;
        all.push(ended(&fleet, ttl));
        pass(secs(HOUR)).await;
        let again = fleet.now();
        // It is full, by the process that knew it, and by the table.
        let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
        assert_eq!(fleet.bucket().await.limits["rpm"].available, tokens(0));
        all.extend(records(&fleet));
        assert_eq!(all.len(), 3);
        let mut from = 0;
        for cut in cuts.iter().copied() {
            deliver(&fleet, &table, &all[from..from + cut]).await;
            if is_repeated {
                deliver(&fleet, &table, &all[..from + cut]).await;
            }
            from += cut;
        }
        assert_used(&limiter, &[(first, 60), (again, 60)]).await;
        // The next hour ends that one; what has ended meanwhile adds nothing.
        pass(secs(HOUR)).await;
        let third = fleet.now();
        let _ = granted(&limiter, &limits(), &[("rpm", 7)]).await;
        deliver(&fleet, &table, &records(&fleet)).await;
        let all = [(first, 60), (again, 60), (third, 7)];
        assert_used(&limiter, &all).await;
        pass(secs(48 * HOUR)).await;
        for (at, used) in all {
            assert_eq!(hour(&limiter, at).await, (used, 1, true), "{cuts:?}");
        }
    }
}

/// Requires one acquire of so many tokens in each of these hours.
async fn assert_used(limiter: &RateLimiter, hours: &[(EpochMillis, i128)]) {
    for (at, used) in hours {
        let (found, acquires, _) = hour(limiter, *at).await;
        assert_eq!((found, acquires), (*used, 1), "{at:?}");
    }
}

/// The stream is behind by most of the day for which it keeps its records.
#[tokio::test(start_paused = true)]
async fn i3_no_window_is_final_without_what_a_late_stream_brings() {
    for is_made_again in [false, true] {
        let fleet = Fleet::new().await;
        let (table, limiter) = (fleet.dynamo.table().await, fleet.limiter().await);
        pass(secs(60)).await;
        let first = fleet.now();
        let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
        let ttl = fleet.bucket().await.ttl.expect("it has no limits of its own").0;
        pass(secs(23 * HOUR)).await;
        deliver(&fleet, &table, &records(&fleet)).await;
        pass(secs(17 * HOUR)).await;
        drop(records(&fleet));
        let mut late = vec![ended(&fleet, ttl)];
        if is_made_again {
            pass(secs(HOUR)).await;
            let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
            late.extend(records(&fleet));
        }
        for _ in 0..22 {
            pass(secs(HOUR)).await;
            let (used, acquires, is_final) = hour(&limiter, first).await;
            assert!(!is_final || (used, acquires) == (60, 1), "{used} are final");
        }
        deliver(&fleet, &table, &late).await;
        assert_eq!(hour(&limiter, first).await, (60, 1, true));
    }
}

/// Merged shards stay for weeks, and a new life of shard 0 does not show that there were any.
#[tokio::test(start_paused = true)]
async fn i3_windows_with_merged_shards_are_final_within_two_days() {
    let limits = [rpm(6_000)];
    for seed in 0..16 {
        let (fleet, mut random) = (Fleet::new().await, Rng::with_seed(seed));
        let (table, mut limiter) = (fleet.dynamo.table().await, fleet.limiter().await);
        pass(secs(60)).await;
        let (mut used, mut undelivered) = (BTreeMap::<EpochMillis, (i128, i128)>::new(), 0);
        for _ in 0..random.usize(4..24) {
            match random.u8(..10) {
                0..4 => {
                    let shards = 1 << random.u32(..4);
                    let done = limiter.admin().set_shards("e-1", "gpt-4", &limits, shards);
                    assert_eq!(done.await.unwrap(), shards);
                }
                4..7 => {
                    let _ = granted(&limiter, &limits, &[("rpm", 5)]).await;
                    let hour = used.entry(Window::Hourly.start(fleet.now())).or_default();
                    *hour = (hour.0 + 5, hour.1 + 1);
                }
                7..9 => {
                    let hours = random.u64(1..9);
                    // The stream keeps its records for a day.
                    if undelivered + hours >= 24 || random.bool() {
                        deliver(&fleet, &table, &records(&fleet)).await;
                        undelivered = 0;
                    }
                    pass(secs(hours * HOUR)).await;
                    undelivered += hours;
                }
                _ => {
                    for shard in shards(&fleet).await {
                        fleet.dynamo.delete(&shard.key.item_key().pk, "#STATE");
                    }
                    pass(secs(1)).await;
                    limiter = fleet.limiter().await;
                }
            }
        }
        deliver(&fleet, &table, &records(&fleet)).await;
        pass(secs(49 * HOUR)).await;
        for (at, (tokens, acquires)) in used {
            let expected = (tokens, acquires, true);
            assert_eq!(hour(&limiter, at).await, expected, "seed {seed}: {at:?}");
        }
    }
}
