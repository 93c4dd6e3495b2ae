//! Processes that freeze: the wall clock and DynamoDB's dates advance, the monotonic clock, timers
//! and tasks stand still. Nothing is used longer than its age allows.

use proptest::prelude::*;
use weirgate::{
    CircuitBreakerConfig, Config, ConfigLevel, ConfigStatus, Decision, Error, Limit, Prefetch,
    RateLimiter,
};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{
    Fleet, ask, config, denied, granted, millis, pass, runtime, secs, slots, tokens,
};
use weirgate_tests::stored::set_config;
use weirgate_tests::stored::{configured, rpm, take};

const DAY_MS: i64 = 86_400_000;

/// From a second to a day.
fn freezes() -> impl Strategy<Value = i64> {
    prop_oneof![1_000..5_000_i64, 5_000..300_000_i64, 300_000..=DAY_MS]
}

/// All processes of the fleet freeze for so long; the table does not.
fn freeze(fleet: &Fleet, skew_ms: &mut i64, ms: i64) {
    *skew_ms += ms;
    fleet.clock.skew(*skew_ms);
}

fn disabled() -> Config {
    Config { status: ConfigStatus::Disabled, ..Config::default() }
}

proptest! {
    #![proptest_config(config(16))]

    /// Whatever the pieces of the time since the limits were read: run, frozen, or with a clock
    /// that was set back.
    #[test]
    fn limits_are_never_older_than_a_minute(
        pieces in prop::collection::vec((0..20_000_u64, prop_oneof![Just(0), freezes()], prop::bool::weighted(0.2)), 1..12),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let admin = configured(&fleet, &ConfigLevel::System, [rpm(600_000)]).await;
            let limiter = fleet.limiter_by(&fleet.clock).await;
            let mut skew = 0;
            assert!(take(&limiter, 1).await.unwrap().is_granted());
            set_config(&admin, &ConfigLevel::System, &disabled()).await;
            let mut age_ms = 0;
            for (run_ms, frozen_ms, is_set_back) in pieces {
                pass(millis(run_ms)).await;
                freeze(&fleet, &mut skew, frozen_ms);
                age_ms += i64::try_from(run_ms).unwrap() + frozen_ms;
                let decision = take(&limiter, 1).await.unwrap();
                // Of freezes shorter than the clocks' agreement nothing is known, and none is.
                let is_old = age_ms >= 60_000 + 5;
                prop_assert!(!is_old || matches!(decision, Decision::Disabled(_)), "{age_ms} ms: {decision:?}");
                if is_old {
                    return Ok(());
                }
                if is_set_back {
                    freeze(&fleet, &mut skew, -2_000);
                    let _ = take(&limiter, 1).await.unwrap();
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_token_taken_ahead_is_spent_later_than_it_is_kept(
        frozen_ms in freezes(), keep_ms in 100..60_000_u64, is_set_back in any::<bool>(),
    ) {
        runtime().block_on(async {
            let (fleet, far) = (Fleet::new().await, [rpm(600_000)]);
            let prefetch = Prefetch::default().max_age(millis(keep_ms));
            let limiter = fleet.limiter_with(|builder| builder.prefetch("gpt-4", prefetch)).await;
            for _ in 0..200 {
                let _ = granted(&limiter, &far, &[("rpm", 1)]).await;
                pass(millis(1)).await;
            }
            let hits = limiter.stats().prefetch_hits;
            prop_assert!(hits > 20, "{hits}: it is in use");
            let mut skew = 0;
            if is_set_back {
                freeze(&fleet, &mut skew, -5_000);
                let _ = limiter.peek("e-1", "gpt-4").limits(&far).send().await.unwrap();
            }
            let before = limiter.stats();
            freeze(&fleet, &mut skew, frozen_ms);
            let is_old = frozen_ms > i64::try_from(keep_ms).unwrap();
            let _ = granted(&limiter, &far, &[("rpm", 1)]).await;
            let after = limiter.stats();
            if is_old {
                // Served by the table, or by a block that was fetched for it.
                let is_new = after.prefetch_blocks > before.prefetch_blocks;
                prop_assert!(is_new || after.prefetch_hits == before.prefetch_hits, "{after:?}");
                prop_assert_eq!(after.prefetch_forfeited_millitokens, 0);
                // At once, without the keeper's timer.
                pass(millis(50)).await;
                let back = limiter.stats().prefetch_returned_millitokens - before.prefetch_returned_millitokens;
                prop_assert!(back > 0, "what was kept too long goes back");
            }
            limiter.shutdown().await.unwrap();
            prop_assert_eq!(fleet.bucket().await.limits["rpm"].consumed, tokens(201));
            Ok(())
        })?;
    }

    #[test]
    fn a_freeze_keeps_no_breaker_open_longer_than_its_pause(frozen_ms in freezes()) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let pause = secs(30);
            let breaker = CircuitBreakerConfig { failure_threshold: 1, open_for: pause, max_open_for: pause };
            let limiter = fleet.limiter_with(|builder| builder.timeout(millis(200)).circuit_breaker(breaker)).await;
            fleet.dynamo.fail_when(|_| Some(Fault::ServerError));
            let rpm = [rpm(600)];
            let _ = ask(&limiter, &rpm, &[("rpm", 1)]).send().await.expect_err("away");
            fleet.dynamo.fail_when(|_| None);
            fleet.clock.skew(frozen_ms);
            let answer = ask(&limiter, &rpm, &[("rpm", 1)]).send().await;
            if frozen_ms >= 30_000 {
                prop_assert!(answer.unwrap().is_granted());
            } else if frozen_ms < 29_000 {
                prop_assert!(matches!(answer, Err(Error::Unavailable { .. })), "{frozen_ms} ms: {answer:?}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_denial_is_not_remembered_through_a_freeze(frozen_ms in 30_000..=DAY_MS) {
        runtime().block_on(async {
            let (fleet, few) = (Fleet::new().await, [Limit::custom("few", 10, 1, 365 * 86_400_000).unwrap()]);
            let (limiter, other) = (fleet.limiter().await, fleet.limiter().await);
            let taken = granted(&other, &few, &[("few", 10)]).await;
            let _ = denied(&limiter, &few, &[("few", 1)]).await;
            let _ = taken.roll_back().await.unwrap();
            pass(millis(1)).await;
            let local = limiter.stats().local_denied;
            let _ = denied(&limiter, &few, &[("few", 1)]).await;
            prop_assert_eq!(limiter.stats().local_denied, local + 1, "it is remembered while nothing freezes");
            fleet.clock.skew(frozen_ms);
            let _ = granted(&limiter, &few, &[("few", 10)]).await;
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(config(16))]

    /// A rested bucket, one that is not full again, and one of several limits with slots.
    #[test]
    fn what_was_seen_before_a_freeze_and_is_still_so_costs_one_write(
        frozen in prop::collection::vec(prop_oneof![1_000..3_000_i64, 3_000..290_000_i64, 290_000..3_000_000_i64], 1..5),
        first in 1..=600_i64, leased in any::<bool>(),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(5)).await;
            let limits = [rpm(600), Limit::per_day("rpd", 100_000).unwrap(), slots(2)];
            let limiter = fleet.limiter_by(&fleet.clock).await;
            let _ = granted(&limiter, &limits, &[("rpm", first)]).await;
            let mut skew = 0;
            for ms in frozen {
                freeze(&fleet, &mut skew, ms);
                let hour = fleet.bucket().await.hour;
                let _ = fleet.dynamo.take_operations();
                let request = ask(&limiter, &limits, &[("rpm", 1), ("rpd", 1)]);
                let request = if leased { request.take("slots", 1).lease(secs(9_000)) } else { request };
                let decision = request.send().await.unwrap();
                prop_assert_eq!(limiter.stats().unconfirmed_millitokens, 0);
                let sent = fleet.dynamo.take_operations();
                if let Decision::Granted(grant) = decision {
                    // An hour that begins within minutes of the clock's jump is begun by a write
                    // that knows the bucket.
                    let is_new_hour = fleet.bucket().await.hour != hour;
                    // Switches are read once a minute, beside the write.
                    let reads = sent.get("BatchGetItem").copied().unwrap_or_default();
                    // What is not covered needs a time that an answer has confirmed.
                    let needs_time = ms > 1_000;
                    let may_read = ms >= 2_000 || skew >= 55_000;
                    let is_one_write = sent["UpdateItem"] == 1 && reads <= u64::from(may_read) + u64::from(needs_time);
                    prop_assert!(is_new_hour || is_one_write, "{ms} ms: {sent:?}");
                    let _ = grant.release().await.unwrap();
                }
            }
            Ok(())
        })?;
    }
}

/// A take that the balance covers as it was seen needs no refill, so no read either: also after a freeze
/// that may have been a clock set ahead.
#[tokio::test(start_paused = true)]
async fn what_the_balance_covers_is_taken_without_a_read_after_a_freeze() {
    let fleet = Fleet::slow(millis(5)).await;
    let limits = [Limit::per_day("rpd", 100_000).unwrap()];
    let limiter = fleet.limiter_by(&fleet.clock).await;
    // The hour has begun for every process.
    pass(secs(5)).await;
    let _ = granted(&limiter, &limits, &[("rpd", 90_000)]).await;
    freeze(&fleet, &mut 0, 10_000);
    let _ = fleet.dynamo.take_operations();
    let _ = granted(&limiter, &limits, &[("rpd", 1_000)]).await;
    assert_eq!(fleet.dynamo.take_operations(), [("UpdateItem".to_owned(), 1)].into());
}

/// A balance that was seen before a freeze is not shown after it.
#[tokio::test(start_paused = true)]
async fn a_look_from_memory_is_no_older_than_it_may_be() {
    let (fleet, few) =
        (Fleet::new().await, [Limit::custom("few", 10, 1, 365 * 86_400_000).unwrap()]);
    let (limiter, other) = (fleet.limiter().await, fleet.limiter().await);
    let left = async |limiter: &RateLimiter| {
        let look =
            limiter.peek("e-1", "gpt-4").limits(&few).cached(millis(50)).send().await.unwrap();
        look.limit("few").unwrap().available
    };
    assert_eq!(left(&limiter).await, tokens(10));
    let _ = granted(&limiter, &few, &[("few", 1)]).await;
    assert_eq!(left(&limiter).await, tokens(9));
    let _ = granted(&other, &few, &[("few", 4)]).await;
    assert_eq!(left(&limiter).await, tokens(9), "from memory");
    fleet.clock.skew(1_000);
    assert_eq!(left(&limiter).await, tokens(5));
}

/// The connection was dead, so the first request is lost, and what became of it is not known until
/// the next answer.
#[tokio::test(start_paused = true)]
async fn a_take_that_is_lost_after_a_freeze_leaves_no_token_in_doubt() {
    for frozen_ms in [2_000, 60_000, 3_600_000, DAY_MS] {
        let fleet = Fleet::slow(millis(5)).await;
        let limiter = fleet.limiter().await;
        let _ = granted(&limiter, &[rpm(600)], &[("rpm", 100)]).await;
        fleet.clock.skew(frozen_ms);
        fleet.fail(&[Fault::LoseRequest]);
        let _ = granted(&limiter, &[rpm(600)], &[("rpm", 1)]).await;
        let stats = limiter.stats();
        assert_eq!((stats.unconfirmed, stats.unconfirmed_millitokens), (1, 0), "{frozen_ms} ms");
        assert_eq!(fleet.bucket().await.limits["rpm"].consumed, tokens(101));
    }
}
