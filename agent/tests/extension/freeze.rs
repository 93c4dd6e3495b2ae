//! Freezes: of the process, and of its clock.

use std::time::Duration;

use serde_json::json;
use weirgate::{EpochMillis, FakeClock, Limit, MilliTokens, Prefetch, RateLimiter};
use weirgate_agent::decide::{BucketRequest, Decider, Request, Take};
use weirgate_testkit::Dynamo;

use crate::lambda::{Lambda, acquire, database};

#[test]
fn frozen_between_any_two_requests_it_takes_and_returns_each_slot_once() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let lambda = Lambda::start(&variables).ready();
    let freeze = || {
        lambda.freeze();
        lambda.thaw();
    };
    for round in 0..20 {
        freeze();
        let (status, granted) = lambda.post("/v1/acquire", &acquire(1 + round % 5));
        assert_eq!(status, 200, "{granted}");
        freeze();
        assert_eq!(lambda.slots(), f64::from(20 - (1 + round % 5)));
        freeze();
        let end = if round % 2 == 0 {
            "release"
        } else {
            "roll_back"
        };
        let settle = json!({"grant": granted["grant"], "end": end});
        let (status, settled) = lambda.post("/v1/settle", &settle);
        assert_eq!(
            (status, &settled["settlement"]),
            (200, &json!("settled")),
            "{settled}"
        );
    }
    assert_eq!(lambda.slots(), 20.0);
}

#[test]
fn a_request_that_waits_during_a_freeze_is_answered_after_it() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let lambda = Lambda::start(&variables).ready();
    lambda.freeze();
    // Sent to a frozen process: the system keeps it.
    let waiting = lambda.post_in_background(&acquire(2));
    lambda.thaw();
    let (status, granted) = waiting.join().unwrap().expect("an answer");
    assert_eq!(status, 200, "{granted}");
    assert_eq!(lambda.slots(), 18.0);
}

/// A request of the decider, as HTTP makes it.
fn request(tokens: i64) -> Request {
    Request::of(BucketRequest {
        entity: "e".to_owned(),
        resource: "r".to_owned(),
        takes: vec![(
            "rpm".to_owned(),
            Take::Exactly(MilliTokens::from_tokens(tokens)),
        )],
        limits: Some([Limit::per_minute("rpm", 600).unwrap()].into()),
        ..BucketRequest::default()
    })
}

/// A decider whose process freezes when `clock` is skewed: its timers and its monotonic clock stand
/// still, the wall clock and DynamoDB's go on.
async fn decider(clock: &FakeClock, prefetch: Option<Prefetch>) -> (Decider, Dynamo) {
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let table = dynamo.table_by(clock.clone()).await;
    let mut limiter = RateLimiter::builder("weirgate").table(table);
    if let Some(prefetch) = prefetch {
        limiter = limiter.prefetch("r", prefetch);
    }
    (Decider::new(limiter.build().await.unwrap(), 10), dynamo)
}

#[tokio::test(start_paused = true)]
async fn after_a_freeze_a_take_is_one_write_that_succeeds() {
    let clock = FakeClock::at(EpochMillis(1_795_219_200_000));
    let (decider, dynamo) = decider(&clock, None).await;
    assert!(decider.acquire(&request(1)).await.unwrap().is_granted());
    for frozen_ms in [2_000, 60_000, 3_600_000] {
        clock.skew(frozen_ms);
        let _ = dynamo.take_operations();
        assert!(decider.acquire(&request(1)).await.unwrap().is_granted());
        let operations = dynamo.take_operations();
        assert_eq!(operations.get("UpdateItem"), Some(&1), "{operations:?}");
        // What was known before is read again, the bucket of a request with limits among it.
        assert!(operations.get("BatchGetItem") >= Some(&1), "{operations:?}");
    }
    assert_eq!(decider.limiter.stats().lost_races, 0);
}

#[tokio::test(start_paused = true)]
async fn a_denial_and_prefetched_tokens_do_not_outlive_a_freeze() {
    let clock = FakeClock::at(EpochMillis(1_795_219_200_000));
    let keep = Prefetch::default()
        .max_outstanding_percent(50)
        .max_age(Duration::from_secs(60));
    let (decider, _dynamo) = decider(&clock, Some(keep)).await;
    while decider
        .limiter
        .prefetched()
        .values()
        .all(|amount| amount.0 < 5_000)
    {
        assert!(decider.acquire(&request(1)).await.unwrap().is_granted());
    }
    clock.skew(120_000);
    let hits = decider.limiter.stats().prefetch_hits;
    assert!(decider.acquire(&request(1)).await.unwrap().is_granted());
    assert_eq!(
        decider.limiter.stats().prefetch_hits,
        hits,
        "old tokens are not spent"
    );

    while decider.acquire(&request(1)).await.unwrap().is_granted() {}
    // By the start, so another two minutes.
    clock.skew(240_000);
    let after = decider.acquire(&request(100)).await.unwrap();
    assert!(after.is_granted(), "the denial is old: {after:?}");
}
