//! The end of a limiter: what dropped requests and grants took has returned by then.

use std::time::Duration;

use weirgate::{Limit, RateLimiter};
use weirgate_testkit::{Limits, Partitions};

use weirgate_tests::fleet::shards::{holds, split};
use weirgate_tests::fleet::{Fleet, ask, granted, millis, slots, tokens};

/// Latency of each request. A write is applied in its half.
const LATENCY: Duration = millis(50);

/// A process of the fleet.
async fn slow_limiter(fleet: &Fleet) -> RateLimiter {
    let limits = Limits { latency: LATENCY..=LATENCY, ..Limits::default() };
    let table = Partitions::over(fleet.dynamo.clone(), limits, 1).table().await;
    let builder = RateLimiter::builder("weirgate").table(table);
    builder.build().await.unwrap()
}

fn limits() -> [Limit; 2] {
    [Limit::per_day("tpd", 800).unwrap(), slots(80)]
}

/// A request is a read and a write, and its tokens are taken after 75 ms.
#[tokio::test(start_paused = true)]
async fn a_dropped_request_has_returned_its_tokens_when_the_limiter_ends() {
    for after in (5..100).step_by(10) {
        let fleet = Fleet::new().await;
        // The bucket exists, so that its balance shows what is missing.
        let _ = granted(&fleet.limiter().await, &limits(), &[("tpd", 0)]).await;
        let limiter = slow_limiter(&fleet).await;
        let request = ask(&limiter, &limits(), &[("tpd", 100)]).send();
        let dropped = tokio::time::timeout(millis(after), request).await;
        assert!(dropped.is_err(), "answered within {after} ms");
        limiter.shutdown().await.unwrap();
        assert_eq!(fleet.tk_tc("tpd").await, (800_000, 0), "dropped after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_several_shards_that_was_dropped_has_returned_all_parts() {
    for after in (5..300).step_by(20) {
        let fleet = Fleet::new().await;
        split(&fleet.limiter().await, &limits(), 8).await;
        let limiter = slow_limiter(&fleet).await;
        let request = ask(&limiter, &limits(), &[("tpd", 700)]).send();
        let dropped = tokio::time::timeout(millis(after), request).await;
        // One that was answered keeps its tokens.
        let left = if dropped.is_err() { 800 } else { 100 };
        limiter.shutdown().await.unwrap();
        assert_eq!(holds(&fleet, "tpd").await, tokens(left), "dropped after {after} ms");
    }
}
