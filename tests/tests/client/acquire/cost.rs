//! What an operation costs: in write units the database reports.

use std::time::Duration;
use weirgate_tests::fleet;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::stored;
use weirgate_tests::stored::configure;
use weirgate_tests::stored::set_entity;

use weirgate::Limit;
use weirgate_store::ConsumedUnits;
use weirgate_tests::fleet::{Fleet, denied, granted, leased, millis, pass, rpm, secs, slots, tpm};
use weirgate_tests::scaling::facts;

fn two() -> [Limit; 2] {
    [rpm(600), tpm(100_000)]
}

/// So many write units of the table, in as many requests, and none of an index.
fn only_table(units: &ConsumedUnits, table: f64, requests: u64) {
    assert_eq!((units.table, units.total, units.requests), (table, table, requests), "{units:?}");
    assert!(units.indexes.values().all(|index| *index == 0.0), "{units:?}");
}

#[tokio::test(start_paused = true)]
async fn parent_and_child_are_two_write_units_and_no_read() {
    let (fleet, limiter, meter) = Fleet::measured().await;
    configure(&limiter, &weirgate::ConfigLevel::System, two()).await;
    set_entity(&limiter, &stored::child("e-1", "team")).await;
    let ask = async || {
        limiter.acquire("e-1", "gpt-4").take("rpm", 1).take("tpm", 100).send().await.unwrap()
    };
    assert!(ask().await.is_granted());
    let _ = (meter.take(), fleet.dynamo.take_operations());
    for _ in 0..10 {
        assert!(ask().await.is_granted());
        only_table(&meter.take(), 2.0, 2);
        assert_eq!(fleet.dynamo.take_operations(), [("UpdateItem".to_owned(), 2)].into());
        pass(millis(700)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_a_read_unit_and_none_when_repeated() {
    let fleet = Fleet::new().await;
    let _ = granted(&fleet.limiter().await, &two(), &[("rpm", 600)]).await;
    let (limiter, meter) = fleet.metered().await;
    denied(&limiter, &two(), &[("rpm", 10)]).await;
    let units = meter.take();
    only_table(&units, 0.0, 0);
    // Half for the bucket, and half for the switches of the namespace, once a minute.
    assert_eq!(units.read, 1.0);
    assert_eq!(milli(units.read - 0.5), facts::DENIAL_READ_MILLI);
    for _ in 0..100 {
        pass(millis(9)).await;
        denied(&limiter, &two(), &[("rpm", 10)]).await;
    }
    only_table(&meter.take(), 0.0, 0);
}

/// `docs/guide/cost-by-volume.md` counts in thousandths.
fn milli(units: f64) -> u64 {
    (0..).find(|milli: &u32| f64::from(*milli) >= units * 1_000.0).map(u64::from).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_estimate_is_one_write_unit_and_its_adjustment_another() {
    let (_fleet, limiter, meter) = Fleet::measured().await;
    let _ = granted(&limiter, &two(), &[("rpm", 1)]).await;
    for used in [1_213, 1_900] {
        let _ = meter.take();
        let mut grant = granted(&limiter, &two(), &[("rpm", 1), ("tpm", 1_500)]).await;
        let _ = grant.adjust("tpm", used).await.unwrap();
        let units = meter.take();
        only_table(&units, 2.0, 2);
        assert_eq!(milli(units.total), facts::ESTIMATED_MILLI);
        let _ = grant.adjust("tpm", used).await.unwrap();
        only_table(&meter.take(), 0.0, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_durable_lease_is_one_write_unit_and_its_release_another() {
    let (_fleet, limiter, meter) = Fleet::measured().await;
    let limits = [two()[0].clone(), slots(4)];
    let _first = leased(&limiter, &limits, &[("rpm", 1), ("slots", 1)], secs(60)).await;
    let _ = meter.take();
    for _ in 0..5 {
        let grant = leased(&limiter, &limits, &[("rpm", 1), ("slots", 1)], secs(60)).await;
        let taken = meter.take();
        only_table(&taken, 1.0, 1);
        let _ = grant.release().await.unwrap();
        let released = meter.take();
        only_table(&released, 1.0, 1);
        assert_eq!(milli(taken.total + released.total), facts::SLOT_MILLI);
        pass(millis(900)).await;
    }
}

/// So many write units of the table, and of `DueIndex`.
fn with_due(units: &ConsumedUnits, table: f64, due: f64) {
    let index = units.indexes.get("DueIndex").copied().unwrap_or_default();
    assert_eq!((units.table, index, units.total), (table, due, table + due), "{units:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lone_lease_and_its_release_are_two_write_units_each() {
    let (fleet, limiter, meter) = Fleet::measured().await;
    let limits = [two()[0].clone(), slots(4)];
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    for _ in 0..3 {
        pass(secs(90)).await;
        let _ = meter.take();
        let grant = leased(&limiter, &limits, &[("slots", 1)], secs(60)).await;
        with_due(&meter.take(), 1.0, 1.0);
        let _ = grant.release().await.unwrap();
        with_due(&meter.take(), 1.0, 1.0);
        assert_eq!(fleet.bucket().await.due_at, None, "nothing is due");
    }
    // To move `due` with each lease would cost more than a look of the reconciler once a minute.
    for lease in 0..20 {
        let grant = leased(&limiter, &limits, &[("slots", 1)], secs(60)).await;
        with_due(&meter.take(), 1.0, if lease == 0 { 1.0 } else { 0.0 });
        let _ = grant.release().await.unwrap();
        with_due(&meter.take(), 1.0, 0.0);
        pass(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_alone_any_more_leaves_due_for_the_other() {
    let (fleet, one, meter) = Fleet::measured().await;
    let other = fleet.limiter().await;
    let slots = [slots(4)];
    let first = leased(&one, &slots, &[("slots", 1)], secs(60)).await;
    let second = leased(&other, &slots, &[("slots", 1)], secs(90)).await;
    let _ = meter.take();
    let _ = first.release().await.unwrap();
    assert_eq!(meter.take().requests, 2, "it learns of the other by one write that fails");
    let bucket = fleet.bucket().await;
    assert!(
        bucket.due_at.is_some_and(|due| due <= fleet.now().plus(weirgate_shared::Millis(90_000)))
    );
    let _ = second.release().await.unwrap();
    assert_eq!(fleet.bucket().await.limits["slots"].available, fleet::tokens(4));
}

/// Limits that are set later hold within a second: four levels, the entity and its bucket are read again.
#[tokio::test(start_paused = true)]
async fn missing_limits_are_six_read_units_a_second_for_each_process() {
    let (fleet, limiter, meter) = Fleet::measured().await;
    stored::configured(&fleet, &stored::of_resource("other"), two()).await;
    let ask = async || {
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        acquire.send().await.unwrap_err()
    };
    let _ = (ask().await, meter.take());
    for _ in 0..100 {
        pass(millis(100)).await;
        let _ = ask().await;
    }
    let units = meter.take();
    assert_eq!((units.read, units.total), (60.0, 0.0), "{units:?}");
}

/// A process reads each shard that it meets for the first time.
#[tokio::test(start_paused = true)]
async fn an_acquire_on_any_number_of_shards_is_one_write_unit() {
    for shards in [1, 2, 16] {
        let fleet = Fleet::new().await;
        let limits = [rpm(600_000), tpm(100_000_000)];
        let operator = fleet.limiter().await;
        let _ = granted(&operator, &limits, &[("rpm", 1), ("tpm", 100)]).await;
        split(&operator, &limits, shards).await;
        let (limiter, meter) = fleet.metered().await;
        let _ = granted(&limiter, &limits, &[("rpm", 1), ("tpm", 100)]).await;
        let _ = (meter.take(), fleet.dynamo.take_operations());
        let mut read = 0.0;
        for _ in 0..12 * shards {
            let _ = granted(&limiter, &limits, &[("rpm", 1), ("tpm", 100)]).await;
            let units = meter.take();
            only_table(&units, 1.0, 1);
            read += units.read;
            pass(millis(70)).await;
        }
        assert!(read <= f64::from(shards - 1) / 2.0, "{shards} shards: {read} read units");
        println!("{shards} shards: {read} read units");
        let _ = fleet.dynamo.take_operations();
        for _ in 0..20 {
            let _ = granted(&limiter, &limits, &[("rpm", 1), ("tpm", 100)]).await;
            only_table(&meter.take(), 1.0, 1);
            pass(millis(70)).await;
        }
        assert_eq!(
            fleet.dynamo.take_operations(),
            [("UpdateItem".to_owned(), 20)].into(),
            "{shards} shards"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_item_of_two_limits_stays_below_a_kilobyte() {
    let (fleet, [limiter]) = Fleet::of().await;
    let names = ["requests-per-minute", "tokens-per-minute"];
    let limits = names.map(|name| Limit::per_minute(name, 1_000_000_000_000).unwrap());
    let (entity, resource) =
        ("organisation:user@example.com:0123456789", "api/v1/chat/completions");
    let takes = async |lease: Duration| {
        let ask = limiter.acquire(entity, resource).limits(&limits).lease(lease);
        ask.take(names[0], 1).take(names[1], 1_000_000).send().await.unwrap().granted().unwrap()
    };
    let _lease = takes(secs(60)).await;
    let key = weirgate_shared::BucketKey::parse(&format!("default/BUCKET#{entity}#{resource}#0"))
        .unwrap();
    let bucket = weirgate_testkit::leased::load(&fleet.dynamo.table().await, &key).await.unwrap();
    assert!(bucket.size_bytes <= 1024, "{} bytes", bucket.size_bytes);
    assert_eq!(bucket.write_units(), 1);
}
