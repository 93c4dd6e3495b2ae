//! A table on demand that is saturated as a whole: DynamoDB names the key range for every throttle.

use std::num::NonZeroU64;
use std::time::Duration;

use futures_util::future::join_all;
use weirgate::{Decision, Error, OnUnavailable, RateLimiter};
use weirgate_testkit::{Dynamo, Limits, Partitions};
use weirgate_tests::fleet::{millis, pass, rpm, secs};

const TIMEOUT: Duration = millis(200);

/// Partitions that take next to nothing, and a process on them.
async fn saturated() -> (Partitions, RateLimiter) {
    let limits =
        Limits { units_per_second: 1, burst: 1, shared: NonZeroU64::new(4), ..Limits::default() };
    let partitions = Partitions::over(Dynamo::new().await, limits, 1);
    let limiter = RateLimiter::builder("weirgate")
        .table(partitions.table().await)
        .timeout(TIMEOUT)
        .on_unavailable(OnUnavailable::Allow)
        .build()
        .await
        .unwrap();
    (partitions, limiter)
}

/// What callers were answered: by the table, by the configured answer, and with an error.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    counted: usize,
    degraded: usize,
    errors: usize,
}

/// Each of these entities acquires ten times a second.
async fn acquires(limiter: &RateLimiter, entities: &[String], seconds: u64) -> Answers {
    let mut answers = Answers::default();
    for _ in 0..seconds * 10 {
        let began = tokio::time::Instant::now();
        let all = entities.iter().map(|entity| {
            let limits = [rpm(6_000)];
            async move {
                let acquire = limiter.acquire(entity, "gpt-4").limits(&limits).take("rpm", 1);
                let answer = acquire.send().await;
                assert!(began.elapsed() <= TIMEOUT + millis(20), "{:?}", began.elapsed());
                answer
            }
        });
        for answer in join_all(all).await {
            match answer {
                Ok(Decision::Granted(grant)) if grant.degraded().is_some() => answers.degraded += 1,
                Ok(Decision::Granted(_)) => answers.counted += 1,
                Err(Error::Timeout { .. }) => answers.errors += 1,
                other => panic!("{other:?}"),
            }
        }
        tokio::time::sleep_until(began + millis(100)).await;
    }
    answers
}

#[tokio::test(start_paused = true)]
async fn a_saturated_table_gives_the_configured_answer_within_the_timeout() {
    let (partitions, limiter) = saturated().await;
    let entities: Vec<_> = (0..12).map(|entity| format!("e-{entity}")).collect();
    let answers = acquires(&limiter, &entities, 60).await;
    eprintln!("{answers:?} {:?}", limiter.stats().breaker_opened);
    // The first ones time out before enough is throttled.
    assert!(answers.errors <= 2 * entities.len(), "{answers:?}");
    assert!(answers.counted < answers.degraded, "{answers:?}");
    assert!(limiter.stats().breaker_opened > 0);

    partitions.lift();
    pass(secs(31)).await;
    acquires(&limiter, &entities, 1).await;
    let answers = acquires(&limiter, &entities, 1).await;
    assert_eq!((answers.degraded, answers.errors), (0, 0), "it is back");
}

#[tokio::test(start_paused = true)]
async fn a_hot_bucket_alone_never_makes_the_table_unavailable() {
    let (_, limiter) = saturated().await;
    let answers = acquires(&limiter, &vec!["e-1".to_owned(); 12], 60).await;
    eprintln!("{answers:?}");
    assert_eq!((answers.degraded, limiter.stats().breaker_opened), (0, 0));
    assert!(answers.errors > 0, "it is throttled");
}
