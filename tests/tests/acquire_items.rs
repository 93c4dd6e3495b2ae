//! Items that are not as this process left them: gone, spoilt, or written by other software.

mod fleet;

use fleet::{Fleet, PK, START, ask, denied, granted, leased, pass, secs, settle, tokens};
use serde_json::{Value, json};
use weirgate::{Error, FakeClock, Limit, RateLimiter};
use weirgate_shared::EpochMillis;

fn rpm(rate: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", rate).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_ttl_deleted_is_made_again() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 4)]).await;
    let before = fleet.bucket().await;
    pass(secs(60)).await;
    fleet.delete();
    fleet.writes();
    let _ = granted(&limiter, &rpm(10), &[("rpm", 1)]).await;
    assert_eq!(fleet.writes(), 2, "the one that misses it, and the one that makes it");
    let after = fleet.bucket().await;
    assert_eq!((after.limits["rpm"].tk, after.limits["rpm"].tc, after.takes), (tokens(9), tokens(1), Some(1)));
    assert!(after.v > before.v, "v rises across delete and create");
}

#[tokio::test(start_paused = true)]
async fn a_denial_from_memory_ends_when_the_bucket_is_gone() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(1), &[("rpm", 1)]).await;
    denied(&limiter, &rpm(1), &[("rpm", 1)]).await;
    fleet.delete();
    pass(secs(2)).await;
    let _ = granted(&limiter, &rpm(1), &[("rpm", 1)]).await;
}

#[tokio::test(start_paused = true)]
async fn settling_a_grant_of_a_deleted_bucket_makes_no_item() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let mut plain = granted(&limiter, &rpm(10), &[("rpm", 4)]).await;
    let lease = leased(&limiter, &rpm(10), &[("rpm", 1)], secs(9)).await;
    fleet.delete();
    assert_eq!(plain.adjust("rpm", 2).await.unwrap(), weirgate::Settlement::Ended);
    assert_eq!(plain.rollback().await.unwrap(), weirgate::Settlement::Ended);
    assert_eq!(lease.release().await.unwrap(), weirgate::Settlement::Ended);
    assert_eq!(fleet.dynamo.item(PK, "#STATE"), Value::Null);
}

/// The new item's `v` may begin below the one this process has seen, if the other clock is behind.
#[tokio::test(start_paused = true)]
async fn i7_a_bucket_made_again_by_a_process_whose_clock_is_behind_is_seen() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 10)]).await;
    fleet.delete();
    let behind = FakeClock::at(EpochMillis(START.0 - 30_000));
    // And its DynamoDB's, which does not correct it.
    let table = fleet.dynamo.clone().with_clock(behind).table().await;
    let other = RateLimiter::builder("weirgate").table(table).build().await.unwrap();
    let _ = granted(&other, &rpm(10), &[("rpm", 1)]).await;
    pass(secs(2)).await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 9)]).await;
    assert_eq!(fleet.tk_tc("rpm").await.1, 10_000);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_read_is_named_with_what_is_wrong() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 1)]).await;
    let whole = fleet.dynamo.item(PK, "#STATE");
    for (attribute, value) in [
        ("b_rpm_cp", json!({"S": "ten"})),
        ("b_rpm_rp", json!({"N": "0"})),
        ("rf", json!({"N": "1.5"})),
        ("h", json!({"L": []})),
        ("op", json!({"N": "7"})),
    ] {
        let mut spoilt = whole.clone();
        spoilt[attribute] = value;
        // So that the condition fails, and the answer is the item.
        spoilt["b_rpm_tk"] = json!({"N": "0"});
        fleet.dynamo.put(&spoilt);
        let fresh = fleet.limiter().await;
        let error = ask(&fresh, &rpm(10), &[("rpm", 1)]).send().await.expect_err(attribute);
        assert!(matches!(&error, Error::Unreadable { bucket, .. } if bucket == PK), "{error:?}");
        assert!(error.to_string().contains(attribute) && !error.is_transient(), "{error}");
        assert_eq!(fleet.dynamo.item(PK, "#STATE"), spoilt, "it is not touched");
    }
    fleet.dynamo.put(&whole);
    let _ = granted(&limiter, &rpm(10), &[("rpm", 1)]).await;
}

/// The first image of a bucket in the recorded batches of zae-limiter: no `v`, no `h`, no `op`.
fn recorded() -> Value {
    let batch = include_str!("../data/zae-bucket.json");
    serde_json::from_str(batch).expect("the image is JSON")
}

fn recorded_limits() -> [Limit; 2] {
    [Limit::per_minute("rpm", 600).unwrap(), Limit::per_minute("tpm", 1_000_000).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_bucket_that_zae_limiter_wrote_can_be_taken() {
    let fleet = Fleet::new().await;
    fleet.dynamo.put(&recorded());
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &recorded_limits(), &[("rpm", 8), ("tpm", 9_000)]).await;
    // By now it has refilled.
    assert_eq!(fleet.tk_tc("rpm").await, (592_000, 10_000));
    assert_eq!(fleet.tk_tc("tpm").await, (991_000_000, 10_000_000));

    fleet.writes();
    let _ = granted(&limiter, &recorded_limits(), &[("rpm", 592)]).await;
    assert_eq!(fleet.writes(), 1, "one write when the item is known");
    let retry_after = denied(&limiter, &recorded_limits(), &[("rpm", 1)]).await.retry_after;
    pass(retry_after.unwrap()).await;
    let _ = granted(&limiter, &recorded_limits(), &[("rpm", 1)]).await;
    let bucket = fleet.bucket().await;
    assert_eq!((bucket.v, &bucket.leases), (None, &None), "its own software would not keep them");
    let untouched = ["GSI4PK", "GSI4SK", "ttl", "cascade", "shard_count"];
    let item = fleet.dynamo.item(PK, "#STATE");
    assert!(untouched.iter().all(|name| item[name] == recorded()[name]));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_zae_limiter_wrote_can_hold_leases() {
    let fleet = Fleet::new().await;
    fleet.dynamo.put(&recorded());
    let limiter = fleet.limiter().await;
    let mut limits = recorded_limits().to_vec();
    limits.push(Limit::concurrent("slots", 2).unwrap());
    let released = leased(&limiter, &limits, &[("slots", 1), ("rpm", 1)], secs(9)).await;
    let lost = leased(&limiter, &limits, &[("slots", 1)], secs(9)).await;
    denied(&limiter, &limits, &[("slots", 1)]).await;
    let _ = released.release().await.unwrap();
    std::mem::forget(lost);
    pass(secs(9)).await;
    let again = granted(&limiter, &limits, &[("slots", 2)]).await;
    drop(again);
    settle().await;
    let bucket = fleet.bucket().await;
    assert_eq!(bucket.limits["slots"].tk, tokens(2));
    assert_eq!(bucket.leases.unwrap().len(), 0);
}
