//! The gauge of the circuit breaker, through an outage.

use weirgate::{BreakerState, CircuitBreakerConfig, RateLimiter};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, millis, pass, rpm, runtime, secs};
use weirgate_tests::recorder::Recorded;

const GAUGE: &str = "weirgate_breaker_state{}";

async fn limiter(fleet: &Fleet) -> RateLimiter {
    let breaker = CircuitBreakerConfig { failure_threshold: 2, ..CircuitBreakerConfig::default() };
    fleet.limiter_with(|builder| builder.timeout(millis(500)).circuit_breaker(breaker)).await
}

async fn acquire(limiter: &RateLimiter) -> bool {
    let limits = [rpm(600)];
    ask(limiter, &limits, &[("rpm", 1)]).send().await.is_ok()
}

#[test]
fn the_gauge_follows_the_breaker_and_ends_with_the_limiter() {
    let recorded = Recorded::default();
    metrics::with_local_recorder(&recorded, || {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(10)).await;
            let limiter = limiter(&fleet).await;
            let check = |state: BreakerState, value: f64, what: &str| {
                assert_eq!(limiter.stats().breaker, state, "{what}");
                assert_eq!(state.value(), value, "{what}");
                assert_eq!(recorded.gauge(GAUGE), value, "{what}");
            };
            let there = recorded.series();
            assert!(
                there.contains(&(GAUGE.to_owned(), "gauge")),
                "an alarm needs the series before the first outage: {there:?}"
            );
            assert!(acquire(&limiter).await);
            check(BreakerState::Closed, 0.0, "at first");

            fleet.dynamo.fail_when(|_| Some(Fault::LoseRequest));
            while limiter.is_available() {
                assert!(!acquire(&limiter).await);
            }
            check(BreakerState::Open, 1.0, "after failures");
            assert_eq!(limiter.stats().breaker_opened, 1);

            pass(secs(2)).await;
            check(BreakerState::Open, 1.0, "until a request probes");
            {
                let probe = acquire(&limiter);
                tokio::pin!(probe);
                assert!(
                    tokio::time::timeout(millis(1), &mut probe).await.is_err(),
                    "the answer takes longer"
                );
                check(BreakerState::HalfOpen, 0.5, "while it probes");
            }
            check(BreakerState::Open, 1.0, "after a probe that was dropped");

            fleet.dynamo.fail_when(|_| None);
            pass(secs(60)).await;
            assert!(acquire(&limiter).await);
            check(BreakerState::Closed, 0.0, "after the outage");
        });
    });
}

#[test]
fn the_gauge_is_the_sum_of_the_limiters_that_are_left() {
    let recorded = Recorded::default();
    metrics::with_local_recorder(&recorded, || {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let (one, other) = (limiter(&fleet).await, limiter(&fleet).await);
            fleet.dynamo.fail_reads(|_, _| Some(Fault::LoseRequest));
            for limiter in [&one, &other] {
                while limiter.is_available() {
                    assert!(!acquire(limiter).await);
                }
            }
            assert_eq!(recorded.gauge(GAUGE), 2.0);
            drop(one);
            pass(secs(10)).await;
            assert_eq!(recorded.gauge(GAUGE), 1.0);
            drop(other);
            pass(secs(10)).await;
            assert_eq!(recorded.gauge(GAUGE), 0.0);
        });
    });
}
