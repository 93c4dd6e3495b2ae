//! Looking at balances: nothing is taken, and nothing is read that is known.

use std::time::Duration;

use proptest::prelude::*;
use weirgate::{Balances, Error, Limit, LimitMode, RateLimiter};
use weirgate_tests::fleet::shards::{per_minute, split};
use weirgate_tests::fleet::{
    Fleet, ask, config, granted, is_granted, millis, pass, runtime, secs, slots, tokens,
};

async fn peek(limiter: &RateLimiter, limits: &[Limit], need: i64, max_age: Duration) -> Balances {
    limiter
        .peek("e-1", "gpt-4")
        .limits(limits)
        .need("rpm", need)
        .cached(max_age)
        .send()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_not_there_is_full_and_is_not_made() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [per_minute(60)[0].clone(), slots(4)];
    let balances = limiter.peek("e-1", "gpt-4").limits(&limits).send().await.unwrap();
    assert_eq!(balances.limit("rpm").unwrap().available, tokens(60));
    assert_eq!(balances.limit("slots").unwrap().available, tokens(4));
    assert_eq!(balances.retry_after, Some(Duration::ZERO));
    assert!(fleet.dynamo.items().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_look_costs_one_read_and_a_cached_one_none() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = per_minute(60);
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    let reads = || fleet.dynamo.take_operations().into_iter().collect::<Vec<_>>();
    let _ = reads();
    for _ in 0..2 {
        assert_eq!(peek(&limiter, &limits, 1, Duration::ZERO).await.retry_after, Some(secs(1)));
        assert_eq!(reads(), [("BatchGetItem".to_owned(), 1)]);
    }
    pass(millis(50)).await;
    assert_eq!(peek(&limiter, &limits, 1, millis(50)).await.retry_after, Some(millis(950)));
    assert_eq!(reads(), []);
    pass(millis(1)).await;
    assert_eq!(peek(&limiter, &limits, 1, millis(50)).await.retry_after, Some(millis(949)));
    assert_eq!(reads(), [("BatchGetItem".to_owned(), 1)]);
    // What an acquire shows is as good.
    assert!(!is_granted(&limiter, &limits, &[("rpm", 2)]).await);
    assert_eq!(
        peek(&limiter, &limits, 1, millis(50)).await.limits[0].available,
        tokens(0) + weirgate::MilliTokens(51)
    );
    assert!(!reads().iter().any(|(operation, _)| operation == "BatchGetItem"));
}

#[tokio::test(start_paused = true)]
async fn what_never_comes_has_no_time() {
    let (_fleet, [limiter]) = Fleet::of().await;
    assert_eq!(peek(&limiter, &per_minute(60), 61, Duration::ZERO).await.retry_after, None);
    let error = limiter.peek("e-1", "gpt-4").limits(&per_minute(60)).need("rpm", -1).send().await;
    assert!(matches!(error, Err(Error::Invalid(text)) if text.contains("rpm")));
}

proptest! {
    #![proptest_config(config(24))]

    /// I5: what a look says is what an acquire then meets: admitted at its time, and not a
    /// millisecond before.
    #[test]
    fn i5_a_look_tells_when_an_acquire_is_admitted(
        shards in prop::sample::select(vec![1_u32, 2, 8]),
        taken in 1..=160_i64,
        need in 1..=160_i64,
        idle_ms in 0..5_000_u64,
    ) {
        runtime().block_on(async {
            let (fleet, [limiter, other]) = Fleet::of().await;
            let limits = per_minute(160);
            split(&limiter, &limits, shards).await;
            let _ = granted(&limiter, &limits, &[("rpm", taken)]).await;
            pass(millis(idle_ms)).await;
            let before = fleet.dynamo.items();
            let wait = peek(&other, &limits, need, Duration::ZERO).await.retry_after.expect("a rate comes back");
            prop_assert_eq!(fleet.dynamo.items(), before, "nothing is taken");
            if !wait.is_zero() {
                let ready = fleet.now().plus(wait.into());
                pass(wait - millis(1)).await;
                let early = ask(&fleet.limiter().await, &limits, &[("rpm", need)]).send().await.unwrap();
                // A denial on many shards takes a moment, and the time may come meanwhile.
                prop_assert!(!early.is_granted() || fleet.now() >= ready);
                if let Some(grant) = early.granted() {
                    let _ = grant.roll_back().await.unwrap();
                }
                pass(millis(1)).await;
            }
            prop_assert!(is_granted(&fleet.limiter().await, &limits, &[("rpm", need)]).await);
            Ok(())
        })?;
    }
}

/// A peek waits for what an acquire would wait for.
#[tokio::test(start_paused = true)]
async fn a_shadow_limit_has_no_part_in_the_wait() {
    let (fleet, [limiter]) = Fleet::of().await;
    let trial = Limit::per_day("trial", 1).unwrap();
    let limits = [per_minute(60)[0].clone(), trial.in_mode(LimitMode::Shadow)];
    let _ = granted(&limiter, &limits, &[("trial", 1), ("rpm", 60)]).await;
    // Never, and late.
    for need in [1, 2] {
        let peek = |rpm| {
            let peek = limiter.peek("e-1", "gpt-4").limits(&limits);
            peek.need("trial", need).need("rpm", rpm).send()
        };
        let balances = peek(0).await.unwrap();
        assert_eq!(balances.retry_after, Some(Duration::ZERO));
        assert!(balances.limit("trial").unwrap().is_short());
        assert_eq!(peek(1).await.unwrap().retry_after, Some(secs(1)));
    }
    // Of a limiter in shadow mode, no limit denies.
    let shadow = fleet.limiter_with(|builder| builder.shadow(true)).await;
    let balances = peek(&shadow, &limits, 60, Duration::ZERO).await;
    assert_eq!(balances.retry_after, Some(Duration::ZERO));
}
