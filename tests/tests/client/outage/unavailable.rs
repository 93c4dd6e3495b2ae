//! What callers are answered while DynamoDB is unavailable, and while the circuit breaker is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weirgate_tests::fleet;

use proptest::prelude::*;
use weirgate::{
    CircuitBreakerConfig, Decision, Denied, Error, Grant, Limit, OnUnavailable, RateLimiter,
    Settlement,
};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{
    Fleet, ask, config, granted, millis, pass, rpm, runtime, secs, slots, tokens,
};

fn limits() -> [Limit; 2] {
    [rpm(600), slots(10)]
}

const NEVER: CircuitBreakerConfig = CircuitBreakerConfig {
    failure_threshold: 0,
    open_for: Duration::from_secs(1),
    max_open_for: Duration::from_secs(30),
};

/// A circuit breaker that opens after so many failures.
const fn after(failures: u32) -> CircuitBreakerConfig {
    CircuitBreakerConfig { failure_threshold: failures, ..NEVER }
}

async fn limiter(
    fleet: &Fleet,
    on_unavailable: OnUnavailable,
    breaker: CircuitBreakerConfig,
) -> RateLimiter {
    fleet
        .limiter_with(|builder| {
            builder.timeout(millis(200)).on_unavailable(on_unavailable).circuit_breaker(breaker)
        })
        .await
}

/// A process that decides by a part of the limits as soon as one request fails.
pub(super) async fn locally(fleet: &Fleet, percent: u8) -> RateLimiter {
    limiter(fleet, OnUnavailable::Local { percent }, after(1)).await
}

/// Every write meets `fault` from now on; how many arrived.
pub(super) fn outage(fleet: &Fleet, fault: Fault) -> Arc<AtomicU64> {
    let arrived = Arc::<AtomicU64>::default();
    let count = Arc::clone(&arrived);
    fleet.dynamo.fail_when(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Some(fault)
    });
    arrived
}

fn over(fleet: &Fleet) {
    fleet.dynamo.fail_when(|_| None);
}

async fn take(limiter: &RateLimiter, rpm: i64) -> Result<Grant, Denied> {
    match ask(limiter, &limits(), &[("rpm", rpm)]).send().await.unwrap() {
        Decision::Granted(grant) => Ok(grant),
        Decision::Denied(denied) => Err(denied),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_the_one_that_was_asked_for_and_says_why() {
    for fault in [Fault::LoseRequest, Fault::ServerError, Fault::Throttle { key_range: false }] {
        let fleet = Fleet::new().await;
        let (fail, deny) = (
            limiter(&fleet, OnUnavailable::Error, NEVER).await,
            limiter(&fleet, OnUnavailable::Deny, NEVER).await,
        );
        let allow = limiter(&fleet, OnUnavailable::Allow, NEVER).await;
        outage(&fleet, fault);

        let error = ask(&fail, &limits(), &[("rpm", 1)]).send().await.expect_err("no decision");
        assert!(error.is_transient(), "{error}");
        let denied = take(&deny, 1).await.expect_err("denied");
        assert!(denied.degraded.as_ref().unwrap().reason.contains("within 200ms"), "{denied}");
        assert_eq!(denied.retry_after, Some(secs(1)), "as long as the circuit breaker stays open");
        assert!(denied.to_string().starts_with("the table is unavailable"), "{denied}");
        let mut grant = take(&allow, 1).await.expect("allowed");
        assert!(grant.degraded().unwrap().reason.contains("within 200ms"));
        // A caller need not know: what it does with a grant goes on, and changes nothing.
        assert_eq!(grant.adjust("rpm", 5).await.unwrap(), Settlement::Applied);
        assert_eq!(grant.renew(secs(5)).await.unwrap(), Settlement::Applied);
        assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
        assert_eq!(
            (fail.stats().degraded, deny.stats().degraded, allow.stats().degraded),
            (0, 1, 1)
        );

        // Each call can say otherwise.
        let call = ask(&fail, &limits(), &[("rpm", 1)]).on_unavailable(OnUnavailable::Allow);
        assert!(call.send().await.unwrap().granted().unwrap().degraded().is_some());
        let call = ask(&allow, &limits(), &[("rpm", 1)])
            .on_unavailable(OnUnavailable::Error)
            .timeout(millis(70));
        assert!(call.send().await.expect_err("no decision").to_string().contains("70ms"));

        over(&fleet);
        assert!(take(&allow, 1).await.unwrap().degraded().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_the_caller_never_fails_open() {
    let fleet = Fleet::new().await;
    let allow = limiter(&fleet, OnUnavailable::Allow, after(1)).await;
    outage(&fleet, Fault::Forbidden);
    for _ in 0..3 {
        let error = ask(&allow, &limits(), &[("rpm", 1)]).send().await.expect_err("forbidden");
        assert!(error.to_string().contains("not permitted"), "{error}");
    }
    assert_eq!(allow.stats().breaker_opened, 0, "it is there, and says so");
    let table = weirgate_testkit::Dynamo::empty().table().await;
    let builder =
        RateLimiter::builder("weirgate").table(table).on_unavailable(OnUnavailable::Allow);
    let error = ask(&builder.build().await.unwrap(), &limits(), &[("rpm", 1)])
        .send()
        .await
        .expect_err("no table");
    assert!(error.to_string().contains("no such table"), "{error}");
    let error = ask(&allow, &limits(), &[("rpm", -1)]).send().await.expect_err("nothing is asked");
    assert!(matches!(error, Error::Invalid(_)));
    for percent in [0, 101] {
        let local = OnUnavailable::Local { percent };
        for error in [
            fleet
                .builder()
                .await
                .on_unavailable(local)
                .build()
                .await
                .map(drop)
                .expect_err("no part"),
            ask(&allow, &limits(), &[("rpm", 1)])
                .on_unavailable(local)
                .send()
                .await
                .map(drop)
                .expect_err("no part"),
        ] {
            assert!(error.to_string().contains(&format!("got {percent}")), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_bucket_has_its_part_and_its_slots_come_back() {
    let fleet = Fleet::new().await;
    let local = locally(&fleet, 25).await;
    outage(&fleet, Fault::LoseRequest);
    assert_eq!(take(&local, 150).await.unwrap().amount("rpm"), tokens(150));
    let denied = take(&local, 1).await.expect_err("it has a quarter");
    assert!(denied.degraded.is_some());
    assert_eq!(denied.blocking().unwrap().capacity, tokens(150));
    let began = fleet.now();
    pass(denied.retry_after.unwrap()).await;
    assert!(fleet.now().since(began).0 <= 400, "150 a minute come back");
    let mut grant = take(&local, 1).await.unwrap();
    let _ = grant.adjust("rpm", 0).await.unwrap();
    let _ = take(&local, 1).await.expect("an adjustment gives back").roll_back().await.unwrap();
    assert!(take(&local, 1).await.is_ok(), "and so does a rollback");

    let slots = || ask(&local, &limits(), &[("slots", 2)]).send();
    let first = slots().await.unwrap().granted().expect("two of two");
    assert!(!slots().await.unwrap().is_granted());
    let _ = first.release().await.unwrap();
    drop(slots().await.unwrap().granted().expect("released"));
    assert!(slots().await.unwrap().is_granted(), "dropped");
}

#[tokio::test(start_paused = true)]
async fn it_is_left_alone_after_failures_in_a_row_and_then_asked_by_one() {
    let fleet = Fleet::slow(millis(10)).await;
    let breaker =
        CircuitBreakerConfig { failure_threshold: 3, open_for: secs(1), max_open_for: secs(3) };
    let limiter = limiter(&fleet, OnUnavailable::Error, breaker).await;
    let _ = granted(&limiter, &limits(), &[("rpm", 1)]).await;
    let arrived = outage(&fleet, Fault::LoseRequest);
    let _ = ask(&limiter, &limits(), &[("rpm", 1)]).send().await.expect_err("away");
    pass(millis(100)).await;
    // Ten ask at once, and none of them DynamoDB.
    let sent = arrived.swap(0, Ordering::Relaxed);
    assert!(sent >= 3, "{sent}");
    let crowd = async || {
        let all = (0..10).map(|_| async {
            ask(&limiter, &limits(), &[("rpm", 1)]).timeout(millis(5)).send().await
        });
        futures_util::future::join_all(all).await
    };
    for error in crowd().await {
        let error = error.expect_err("the circuit breaker is open");
        assert!(
            matches!(&error, Error::Unavailable { retry_after, .. } if *retry_after <= secs(1)),
            "{error}"
        );
        assert!(error.to_string().contains("no answer"), "{error}");
    }
    assert_eq!(arrived.load(Ordering::Relaxed), 0);
    // One tries after each pause, which doubles up to the longest.
    for pause in [1, 2, 3, 3] {
        pass(secs(pause) - millis(300)).await;
        assert!(crowd().await.iter().all(|error| matches!(error, Err(Error::Unavailable { .. }))));
        assert_eq!(arrived.swap(0, Ordering::Relaxed), 0, "{pause} s are not over");
        pass(millis(301)).await;
        let asked = crowd()
            .await
            .into_iter()
            .filter(|error| !matches!(error, Err(Error::Unavailable { .. })))
            .count();
        // The request may still be on its way when its caller has given up.
        pass(millis(20)).await;
        assert_eq!((asked, arrived.swap(0, Ordering::Relaxed)), (1, 1), "after {pause} s");
    }
    over(&fleet);
    pass(millis(3_300)).await;
    assert!(take(&limiter, 1).await.is_ok());
    assert!(
        crowd().await.iter().all(|error| !matches!(error, Err(Error::Unavailable { .. }))),
        "it is back"
    );
    assert_eq!(limiter.stats().breaker_opened, 5);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_too_hot_leaves_the_others_alone() {
    let fleet = Fleet::new().await;
    let limiter = limiter(&fleet, OnUnavailable::Error, after(2)).await;
    let arrived = outage(&fleet, Fault::Throttle { key_range: true });
    let error = ask(&limiter, &limits(), &[("rpm", 1)]).send().await.expect_err("too hot");
    assert!(
        arrived.load(Ordering::Relaxed) > 2 && matches!(error, Error::Timeout { .. }),
        "{error}"
    );
    over(&fleet);
    // Writes to a throttled shard keep a gap, by now of 200 ms, which chance makes half as long
    // again.
    pass(millis(300)).await;
    assert!(take(&limiter, 1).await.is_ok());
    assert_eq!(limiter.stats().breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn several_buckets_are_answered_together() {
    let fleet = Fleet::new().await;
    let local = locally(&fleet, 50).await;
    outage(&fleet, Fault::LoseRequest);
    let both = |a, b| {
        let one = |entity, need| local.acquire(entity, "gpt-4").limits(&limits()).take("rpm", need);
        local.acquire_all([one("a", a), one("b", b)]).send()
    };
    let grants = both(300, 200).await.unwrap().granted().expect("half of each");
    assert!(grants.iter().all(|grant| grant.degraded().is_some()));
    assert_eq!((grants[0].amount("rpm"), grants[1].amount("rpm")), (tokens(300), tokens(200)));
    let Decision::Denied(denied) = both(1, 1).await.unwrap() else { panic!("a is empty") };
    assert_eq!(denied.blocking().unwrap().entity.as_str(), "a");
    pass(millis(200)).await;
    assert!(both(1, 101).await.unwrap().is_granted(), "a denial took nothing of b");
}

/// The time for a decision is kept also where the answer takes longer, on every way a request can
/// take.
#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_answered_in_its_time() {
    let fleet = Fleet::slow(secs(60)).await;
    let local = || async { limiter(&fleet, OnUnavailable::Local { percent: 50 }, NEVER).await };
    let limiter = local().await;
    let began = fleet.now();
    let one = |entity| limiter.acquire(entity, "gpt-4").limits(&limits()).take("rpm", 1);
    let all = limiter.acquire_all([one("a"), one("b")]);
    let grants = all.send().await.unwrap().granted().unwrap();
    assert!(grants.iter().all(|grant| grant.degraded().is_some()));
    assert!(fleet.now().since(began).0 <= 300, "{:?}", fleet.now().since(began));
    let limiter = local().await;
    let began = fleet.now();
    assert!(take(&limiter, 1).await.unwrap().degraded().is_some());
    // Limits that cannot be read: nothing is known to divide.
    let unread = limiter.acquire("e-1", "other").take("rpm", 1);
    assert!(unread.clone().send().await.expect_err("no limits").is_transient());
    assert!(unread.on_unavailable(OnUnavailable::Allow).send().await.unwrap().is_granted());
    assert!(limiter.peek("e-1", "gpt-4").limits(&limits()).send().await.is_err());
    assert!(fleet.now().since(began).0 <= 1_200, "{:?}", fleet.now().since(began));
}

/// Where many processes start at the same time, the source of credentials is throttled, and new
/// ones are not known everywhere.
#[tokio::test(start_paused = true)]
async fn credentials_that_are_not_valid_yet_are_waited_for_and_open_no_breaker() {
    let fleet = Fleet::new().await;
    let patient = fleet.limiter_with(|builder| builder.circuit_breaker(after(1))).await;
    let _ = granted(&patient, &limits(), &[("rpm", 1)]).await;
    fleet.fail(&[Fault::StaleCredentials; 4]);
    assert!(granted(&patient, &limits(), &[("rpm", 1)]).await.degraded().is_none());
    outage(&fleet, Fault::StaleCredentials);
    let error = ask(&patient, &limits(), &[("rpm", 1)])
        .timeout(millis(200))
        .send()
        .await
        .expect_err("no decision");
    assert!(error.is_transient() && error.to_string().contains("credentials"), "{error}");
    let allowed = ask(&patient, &limits(), &[("rpm", 1)])
        .timeout(millis(200))
        .on_unavailable(OnUnavailable::Allow)
        .send()
        .await;
    assert!(allowed.unwrap().granted().unwrap().degraded().is_some());
    assert_eq!(patient.stats().breaker_opened, 0);
    over(&fleet);
    assert!(granted(&patient, &limits(), &[("rpm", 1)]).await.degraded().is_none());
}

/// An operator's change reaches a local bucket, and two requests of one bucket do not get more than
/// it has.
#[tokio::test(start_paused = true)]
async fn a_local_bucket_refills_through_a_freeze_and_a_clock_set_back() {
    let fleet = Fleet::new().await;
    let local = locally(&fleet, 25).await;
    outage(&fleet, Fault::LoseRequest);
    assert!(take(&local, 150).await.is_ok() && take(&local, 1).await.is_err(), "a quarter of 600");
    fleet.clock.skew(60_000);
    assert!(
        take(&local, 150).await.is_ok() && take(&local, 1).await.is_err(),
        "a minute's refill, frozen"
    );
    fleet.clock.skew(-3_600_000);
    assert!(take(&local, 1).await.is_err(), "no clock that was set back refills");
    pass(millis(60_000)).await;
    assert!(take(&local, 150).await.is_ok() && take(&local, 1).await.is_err(), "a minute's refill");
}

/// However many keys are asked for: a bucket that is dropped would be full again.
#[tokio::test(start_paused = true)]
async fn i1_a_local_bucket_is_kept_until_it_is_full() {
    let fleet = Fleet::new().await;
    let local = locally(&fleet, 10).await;
    outage(&fleet, Fault::LoseRequest);
    let hot = async |limit, amount| {
        let ask = ask(&local, &limits(), &[(limit, amount)]).send();
        ask.await.unwrap().granted()
    };
    let of = |entity: &str| local.acquire(entity, "gpt-4").limits(&limits()).take("rpm", 1);
    let mut streamed = of("streamed").send().await.unwrap().granted().unwrap();
    pass(secs(1)).await;
    let _all = hot("rpm", 60).await.expect("a tenth of 600");
    let held = hot("slots", 1).await.expect("a tenth of 10");
    let mut denials = vec![];
    for other in 0..10_001 {
        let decision = of(&format!("other-{other}")).send().await.unwrap();
        if let Decision::Denied(denied) = decision {
            denials.push(denied);
        }
    }
    assert_eq!(denials.len(), 3, "there is room for 9,998");
    assert!(denials[0].degraded.is_some());
    assert_eq!(denials[0].retry_after, Some(secs(1)));
    assert!(hot("rpm", 1).await.is_none() && hot("slots", 1).await.is_none());
    // What nothing denies needs no bucket.
    assert!(of("late").shadow().send().await.unwrap().is_granted());
    // The others have refilled by then.
    pass(denials[0].retry_after.unwrap()).await;
    assert!(of("late").send().await.unwrap().is_granted());
    assert!(hot("rpm", 3).await.is_none() && hot("slots", 1).await.is_none());
    let _ = held.release().await.unwrap();
    assert!(hot("slots", 1).await.is_some());
    // It was full, and has a grant that can still go into debt.
    let _ = streamed.adjust("rpm", 100).await.unwrap();
    assert!(!of("streamed").send().await.unwrap().is_granted());
}

proptest! {
    #![proptest_config(config(64))]

    /// While DynamoDB is away, a process admits its part of the rate and burst, and no more.
    #[test]
    fn i1_a_local_bucket_admits_its_part_and_no_more(
        percent in 1..=100_u8,
        steps in prop::collection::vec((0..3_000_u64, 1..80_i64), 1..60),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let local = limiter(&fleet, OnUnavailable::Local { percent }, CircuitBreakerConfig { failure_threshold: 1, max_open_for: secs(1 << 20), open_for: secs(1 << 20) }).await;
            outage(&fleet, Fault::LoseRequest);
            // Independent arithmetic, in 1/60000 millitokens: the millitokens of a minute flow in
            // each millisecond.
            let (part, most) = (i64::from(percent) * 6_000, (i64::from(percent) * 6_000).max(1_000));
            let mut level = most * 60_000;
            let mut last = fleet::START.0;
            for (pause_ms, need) in steps {
                pass(millis(pause_ms)).await;
                let is_admitted = take(&local, need).await.is_ok();
                // The first one had to find out.
                let now = fleet.now().0;
                level = (level + (now - last) * part).min(most * 60_000);
                last = now;
                let spare = level / 60_000 - need * 1_000;
                prop_assert!(is_admitted || spare <= 1, "denied with {} to spare", spare);
                prop_assert!(!is_admitted || spare >= -1, "admitted {} above its part", -spare);
                if is_admitted {
                    level -= need * 1_000 * 60_000;
                }
            }
            Ok(())
        })?;
    }
}
