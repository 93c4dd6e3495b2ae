//! What a process does first on a bucket: it reads, and writes once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::Instant;
use weirgate::{ConfigLevel, Error, Limit, RateLimiter};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{
    Fleet, ask, denied, granted, millis, pass, rpm, secs, shards, tokens, tpm,
};
use weirgate_tests::stored::{configured, take};

fn two() -> [Limit; 2] {
    [rpm(6_000), tpm(100_000)]
}

/// Requests since the last call, by operation.
fn operations(fleet: &Fleet) -> Vec<(String, u64)> {
    fleet.dynamo.take_operations().into_iter().collect()
}

fn reads_and_writes(reads: u64, writes: u64) -> Vec<(String, u64)> {
    [("BatchGetItem", reads), ("UpdateItem", writes)]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// Takes by the limits of the table, or of the call.
async fn acquire(limiter: &RateLimiter, by_config: bool) {
    if by_config {
        assert!(take(limiter, 1).await.unwrap().is_granted());
    } else {
        let _ = granted(limiter, &two(), &[("rpm", 1), ("tpm", 10)]).await;
    }
}

/// Of a bucket that another process takes from every 100 ms.
#[tokio::test(start_paused = true)]
async fn the_first_acquire_of_a_process_is_a_read_and_one_write() {
    // Half a unit for the bucket, and half for the switches of the namespace. Limits from the table are in the
    // same read: four levels, the entity, and the version of the schema.
    for (by_config, read) in [(false, 2.0 * 0.5), (true, 8.0 * 0.5)] {
        let fleet = Fleet::slow(millis(5)).await;
        let other = match by_config {
            true => configured(&fleet, &ConfigLevel::System, two()).await,
            false => fleet.limiter().await,
        };
        for _ in 0..100 {
            acquire(&other, by_config).await;
            pass(millis(100)).await;
        }
        for _ in 0..5 {
            let (limiter, meter) = fleet.metered().await;
            let (_, began) = (operations(&fleet), Instant::now());
            acquire(&limiter, by_config).await;
            let units = meter.take();
            assert_eq!((units.total, units.requests, units.read), (1.0, 1, read), "{units:?}");
            assert_eq!(operations(&fleet), reads_and_writes(1, 1));
            assert_eq!(began.elapsed(), millis(10), "two round trips");
            pass(millis(100)).await;
        }
    }
}

/// No write fails, and the limits of the call cost no further read. The item has an entry in two
/// indexes.
#[tokio::test(start_paused = true)]
async fn a_new_bucket_is_a_read_and_the_write_that_makes_it() {
    for (by_config, read) in [(false, 2.0 * 0.5), (true, 8.0 * 0.5)] {
        let fleet = Fleet::new().await;
        if by_config {
            let _ = configured(&fleet, &ConfigLevel::System, two()).await;
        }
        let (limiter, meter) = fleet.metered().await;
        let _ = operations(&fleet);
        acquire(&limiter, by_config).await;
        let units = meter.take();
        assert_eq!((units.requests, units.table, units.read), (1, 1.0, read), "{units:?}");
        let indexes: Vec<_> = units.indexes.iter().filter(|(_, units)| **units > 0.0).collect();
        assert_eq!(indexes, [(&"GSI2".to_owned(), &1.0), (&"GSI3".to_owned(), &1.0)]);
        assert_eq!(units.total, 3.0, "{units:?}");
        assert_eq!(operations(&fleet), reads_and_writes(1, 1));
    }
}

/// One round trip more, and no herd on the first shard.
#[tokio::test(start_paused = true)]
async fn the_first_acquire_on_64_shards_is_two_reads_and_one_write_anywhere() {
    let fleet = Fleet::slow(millis(5)).await;
    let limits = shards::per_minute(64_000);
    shards::split(&fleet.limiter().await, &limits, 64).await;
    let admin = configured(&fleet, &ConfigLevel::System, limits.clone()).await;
    drop(admin);
    for by_config in [false, true] {
        let before = takes(&fleet).await;
        for _ in 0..40 {
            let (limiter, meter) = fleet.metered().await;
            let (_, began) = (operations(&fleet), Instant::now());
            let decision = if by_config {
                take(&limiter, 1).await
            } else {
                ask(&limiter, &limits, &[("rpm", 1)]).send().await
            };
            assert!(decision.unwrap().is_granted());
            let units = meter.take();
            assert_eq!((units.total, units.requests), (1.0, 1), "{units:?}");
            // Of the first shard, along with the switches and the limits, and of the one that was
            // drawn, unless that is the first.
            let most = if by_config { 8.0 * 0.5 + 0.5 } else { 2.0 * 0.5 + 0.5 };
            assert!(units.read == most || units.read == most - 0.5, "{units:?}");
            assert!([reads_and_writes(2, 1), reads_and_writes(1, 1)].contains(&operations(&fleet)));
            assert!(began.elapsed() <= millis(15), "three round trips");
        }
        let after = takes(&fleet).await;
        let most = after.iter().map(|(shard, takes)| takes - before[shard]).max();
        assert!(most <= Some(8), "of 40 on 64 shards one got {most:?}");
    }
}

/// Granted acquires of each shard.
async fn takes(fleet: &Fleet) -> BTreeMap<u32, i128> {
    shards::shards(fleet)
        .await
        .into_iter()
        .map(|shard| (shard.key.shard, shard.acquires.total))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn callers_that_come_at_once_share_the_reads_and_the_write() {
    let fleet = Fleet::slow(millis(5)).await;
    let limits = shards::per_minute(64_000);
    let _ = granted(&fleet.limiter().await, &limits, &[("rpm", 1)]).await;
    for shards in [1, 64] {
        shards::split(&fleet.limiter().await, &limits, shards).await;
        let (limiter, meter) = fleet.metered().await;
        let _ = operations(&fleet);
        let asks = (0..32).map(|_| ask(&limiter, &limits, &[("rpm", 1)]).send());
        // Some come while the read is under way.
        let late = (0..8_u64).map(|ms| async move {
            pass(millis(ms)).await;
        });
        let late = join_all(late.map(async |wait| {
            wait.await;
            ask(&limiter, &limits, &[("rpm", 1)]).send().await
        }));
        let (answers, late) = tokio::join!(join_all(asks), late);
        assert!(answers.into_iter().chain(late).all(|answer| answer.unwrap().is_granted()));
        let units = meter.take();
        assert!(units.total <= 3.0 && units.read <= 1.5, "{shards} shards: {units:?}");
    }
}

/// A read may be of a moment ago: the write finds out.
#[tokio::test(start_paused = true)]
async fn i1_what_was_read_may_have_changed_by_the_time_of_the_write() {
    let limits = shards::per_minute(100);
    type Change = fn(&Fleet);
    let changes: [(&str, Change, Option<i64>); 4] = [
        ("deleted", |fleet| fleet.delete(), Some(50_000)),
        ("emptied", |fleet| shards::drain(fleet, 0, "rpm", tokens(0)), None),
        ("almost emptied", |fleet| shards::drain(fleet, 0, "rpm", tokens(50)), Some(0)),
        ("filled", |fleet| shards::drain(fleet, 0, "rpm", tokens(100)), Some(50_000)),
    ];
    for (name, change, left) in changes {
        let fleet = Arc::new(Fleet::new().await);
        let _ = granted(&fleet.limiter().await, &limits, &[("rpm", 20)]).await;
        let (seen, writes) = (Arc::clone(&fleet), AtomicU64::new(0));
        fleet.dynamo.fail_when(move |_| {
            if writes.fetch_add(1, Ordering::Relaxed) == 0 {
                change(&seen);
            }
            None
        });
        let limiter = fleet.limiter().await;
        match left {
            Some(left) => {
                let _ = granted(&limiter, &limits, &[("rpm", 50)]).await;
                assert_eq!(fleet.tk_tc("rpm").await.0, left, "{name}");
            }
            None => assert_eq!(
                denied(&limiter, &limits, &[("rpm", 50)]).await.retry_after,
                Some(secs(30)),
                "{name}"
            ),
        }
    }
}

/// Keys that are kept back, or a read that is refused as a whole: it is asked again as long as the
/// caller has time.
#[tokio::test(start_paused = true)]
async fn throttled_first_reads_are_repeated_and_open_no_breaker() {
    let fleet = Fleet::new().await;
    let _ = configured(&fleet, &ConfigLevel::System, two()).await;
    let until = Instant::now() + secs(3);
    fleet.dynamo.fail_reads(move |_, _| {
        (Instant::now() < until).then_some(Fault::Throttle { key_range: true })
    });
    let limiter = fleet.limiter().await;
    let (limits, names) = (two(), (0..20).map(|at| format!("e-{at}")).collect::<Vec<_>>());
    let asks = names.iter().map(|name| limiter.acquire(name, "gpt-4").take("rpm", 1).send());
    let given = names
        .iter()
        .map(|name| limiter.acquire(name, "gpt-5").limits(&limits).take("rpm", 1).send());
    let (asks, given) = tokio::join!(join_all(asks), join_all(given));
    for decision in asks.into_iter().chain(given) {
        assert!(decision.unwrap().is_granted());
    }
    assert_eq!(limiter.stats().breaker_opened, 0);
    let limiter = fleet.limiter_with(|builder| builder.timeout(secs(2))).await;
    fleet.dynamo.fail_reads(|_, _| Some(Fault::Throttle { key_range: true }));
    let began = Instant::now();
    let error = take(&limiter, 1).await.unwrap_err();
    assert!(matches!(error, Error::Store(_)) && error.is_transient(), "{error}");
    assert!(began.elapsed() <= secs(2) && began.elapsed() >= secs(1), "{:?}", began.elapsed());
    let error = ask(&limiter, &two(), &[("rpm", 1)]).send().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!(limiter.stats().breaker_opened, 0);
}

/// Only what may be old is read as it was a moment ago.
#[tokio::test(start_paused = true)]
async fn a_process_that_has_changed_limits_reads_them_as_they_are() {
    let fleet = Fleet::new().await;
    let consistent = Arc::new(std::sync::Mutex::new(vec![]));
    let admin = configured(&fleet, &ConfigLevel::System, two()).await;
    let seen = Arc::clone(&consistent);
    fleet.dynamo.fail_reads(move |operation, request: &Value| {
        if operation == "BatchGetItem" {
            seen.lock()
                .unwrap()
                .push(request["RequestItems"]["weirgate"]["ConsistentRead"] == true);
        }
        None
    });
    let _ = take(&fleet.limiter().await, 1).await.unwrap();
    let _ = take(&admin, 1).await.unwrap();
    assert_eq!(std::mem::take(&mut *consistent.lock().unwrap()), [false, true]);
}

/// A frozen function goes on: its clock and the table's have moved, the time of its runtime has
/// not.
#[tokio::test(start_paused = true)]
async fn after_a_freeze_a_take_of_what_was_there_costs_no_more_than_before() {
    let fleet = Fleet::slow(millis(5)).await;
    let limits = [Limit::per_day("rpd", 86_400).unwrap()];
    let (limiter, meter) = fleet.metered().await;
    // Until every process counts for the hour that has begun.
    pass(secs(10)).await;
    let _ = granted(&limiter, &limits, &[("rpd", 10_000)]).await;
    for frozen_ms in [2_000, 60_000, 1_800_000] {
        let _ = granted(&fleet.limiter().await, &limits, &[("rpd", 1_000)]).await;
        fleet.clock.skew(frozen_ms);
        let (_, _, began) = (meter.take(), operations(&fleet), Instant::now());
        let _ = granted(&limiter, &limits, &[("rpd", 1)]).await;
        // The switches of the namespace, beside the write.
        let reads = u64::from(frozen_ms >= 60_000);
        let sent = operations(&fleet);
        assert_eq!(sent, reads_and_writes(reads, 1), "{frozen_ms}");
        assert_eq!(began.elapsed(), millis(5), "one round trip");
    }
    // What is not there any more is denied by what the write was answered.
    let _ = granted(&fleet.limiter().await, &limits, &[("rpd", 74_000)]).await;
    fleet.clock.skew(1_802_000);
    let _ = operations(&fleet);
    let _ = denied(&limiter, &limits, &[("rpd", 50_000)]).await;
    assert_eq!(operations(&fleet), reads_and_writes(0, 1));
}
