//! Callers without an async runtime.

use std::time::Duration;
use weirgate_tests::fleet::slots;

use weirgate::blocking::Wait;
use weirgate::{Limit, RateLimiter};
use weirgate_testkit::Dynamo;

fn limiter() -> RateLimiter {
    let table = async { Dynamo::new().await.table().await }.wait();
    RateLimiter::builder("weirgate").table(table).build().wait().unwrap()
}

#[test]
fn threads_share_a_limiter_and_its_writes() {
    let limiter = limiter();
    let limits = [Limit::per_day("rpd", 1_000).unwrap()];
    let take =
        || limiter.acquire("e-1", "gpt-4").limits(&limits).take("rpd", 1).send().wait().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| assert!(take().is_granted())));
        }
    });
    assert_eq!(limiter.stats().granted, 400);
    let left = limiter.peek("e-1", "gpt-4").limits(&limits).send().wait().unwrap();
    assert!(left.limit("rpd").unwrap().available < weirgate::MilliTokens::from_tokens(610));
}

#[test]
fn a_grant_that_is_dropped_far_from_any_runtime_gives_its_slots_back() {
    let limiter = limiter();
    let slots = [slots(1)];
    let ask = || {
        limiter
            .acquire("e-1", "gpt-4")
            .limits(&slots)
            .take("slots", 1)
            .lease(Duration::from_secs(3600))
    };
    for _ in 0..3 {
        let grant = ask()
            .wait_up_to(Duration::from_secs(60))
            .send()
            .wait()
            .unwrap()
            .granted()
            .expect("it came back");
        assert!(!ask().send().wait().unwrap().is_granted(), "it is held");
        std::thread::spawn(move || drop(grant)).join().unwrap();
    }
}

#[tokio::test]
#[should_panic(expected = "only when running on the multi-threaded runtime")]
async fn a_thread_of_a_current_thread_runtime_is_not_blocked() {
    std::future::ready(()).wait();
}
