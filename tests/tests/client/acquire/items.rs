//! Items that are not as this process left them: gone, spoilt, or written by other software.

use serde_json::{Value, json};
use weirgate::{Error, FakeClock, Limit, RateLimiter};
use weirgate_shared::EpochMillis;
use weirgate_tests::fleet::{Fleet, PK, START, ask, granted, leased, pass, secs, tokens};

fn rpm(rate: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", rate).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_ttl_deleted_is_made_again() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 4)]).await;
    let before = fleet.bucket().await;
    pass(secs(60)).await;
    fleet.delete();
    fleet.writes();
    let _ = granted(&limiter, &rpm(10), &[("rpm", 1)]).await;
    assert_eq!(fleet.writes(), 2, "the one that misses it, and the one that makes it");
    let after = fleet.bucket().await;
    assert_eq!(
        (after.limits["rpm"].available, after.limits["rpm"].consumed, after.acquires.total),
        (tokens(9), tokens(1).into(), 1)
    );
    assert!(after.write_seq > before.write_seq, "v rises across delete and create");
}

#[tokio::test(start_paused = true)]
async fn settling_a_grant_of_a_deleted_bucket_makes_no_item() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut plain = granted(&limiter, &rpm(10), &[("rpm", 4)]).await;
    let lease = leased(&limiter, &rpm(10), &[("rpm", 1)], secs(9)).await;
    fleet.delete();
    assert_eq!(plain.adjust("rpm", 2).await.unwrap(), weirgate::Settlement::LeaseGone);
    assert_eq!(plain.roll_back().await.unwrap(), weirgate::Settlement::LeaseGone);
    assert_eq!(lease.release().await.unwrap(), weirgate::Settlement::LeaseGone);
    assert_eq!(fleet.dynamo.item(PK, "#STATE"), Value::Null);
}

/// The new item's `v` may begin below the one this process has seen, if the other clock is behind.
#[tokio::test(start_paused = true)]
async fn i7_a_bucket_made_again_by_a_process_whose_clock_is_behind_is_seen() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 10)]).await;
    fleet.delete();
    let behind = FakeClock::at(EpochMillis(START.0 - 30_000));
    // And its DynamoDB's, which does not correct it.
    let table = fleet.dynamo.clone().with_clock(behind).table().await;
    let other = RateLimiter::builder("weirgate").table(table).build().await.unwrap();
    let _ = granted(&other, &rpm(10), &[("rpm", 1)]).await;
    pass(secs(7)).await;
    let _ = granted(&limiter, &rpm(10), &[("rpm", 9)]).await;
    assert_eq!(fleet.tk_tc("rpm").await.1, 10_000);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_read_is_named_with_what_is_wrong() {
    let (fleet, [limiter]) = Fleet::of().await;
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

/// A bucket of zae-limiter: it counts no writes.
#[tokio::test(start_paused = true)]
async fn a_bucket_of_other_software_is_refused_with_the_remedy() {
    let fleet = Fleet::new().await;
    let theirs: Value =
        serde_json::from_str(include_str!("../../../data/zae-bucket.json")).unwrap();
    fleet.dynamo.put(&theirs);
    let limiter = fleet.limiter().await;
    let error = ask(&limiter, &rpm(600), &[("rpm", 8)]).send().await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreadable { bucket, error } if bucket == PK && error.attribute == "v"),
        "{error:?}"
    );
    assert!(error.to_string().contains("attribute v is missing"), "{error}");
    assert!(
        error.to_string().ends_with("correct or delete the item") && !error.is_transient(),
        "{error}"
    );
    assert_eq!(fleet.dynamo.item(PK, "#STATE"), theirs, "it is not touched");
    fleet.delete();
    let _ = granted(&limiter, &rpm(600), &[("rpm", 8)]).await;
}
