//! What an application's own tests do with `weirgate::testing`.

use weirgate::testing::{START, TestTable, limiter};
use weirgate::{Clock, ConfigLevel, EpochMillis, Limit, OnUnavailable, RateLimiter};
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::configure;

use weirgate_tests::fleet::secs;

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 6).unwrap()]
}

async fn is_granted(limiter: &RateLimiter, tokens: i64) -> bool {
    let limits = rpm();
    let acquire = limiter.acquire("user-1", "api").limits(&limits);
    acquire.take("rpm", tokens).send().await.unwrap().is_granted()
}

/// A wait moves the time itself, and one that began earlier ends while the test moves it.
#[tokio::test(start_paused = true)]
async fn waits_follow_the_clock() {
    let (limiter, clock) = limiter().await;
    assert!(is_granted(&limiter, 6).await);
    let wait = |limiter: RateLimiter| async move {
        let limits = rpm();
        let acquire = limiter.acquire("user-1", "api").limits(&limits);
        let acquire = acquire.take("rpm", 1).wait_up_to(secs(30));
        acquire.send().await.unwrap().is_granted()
    };
    assert!(wait(limiter.clone()).await);
    assert_eq!(clock.now(), EpochMillis(START.0 + 10_000));
    let waiting = tokio::spawn(wait(limiter));
    clock.advance(secs(9)).await;
    assert!(!waiting.is_finished());
    clock.advance(secs(2)).await;
    assert!(waiting.is_finished() && waiting.await.unwrap());
}

/// Two limiters are two processes: one finds the other's limits and tokens in the table.
#[tokio::test(start_paused = true)]
async fn limiters_of_one_table_share_limits_and_tokens() {
    let table = TestTable::starting_at(EpochMillis(1_800_000_000_000));
    let (one, other) = (table.limiter().await, table.limiter().await);
    configure(&one, &ConfigLevel::System, rpm()).await;
    let take = |limiter: RateLimiter, tokens| async move {
        let acquire = limiter.acquire("user-1", "api").take("rpm", tokens);
        acquire.send().await.unwrap().is_granted()
    };
    assert!(take(one.clone(), 4).await);
    assert!(!take(other.clone(), 3).await);
    assert!(take(other, 2).await);
    let balances = one.peek("user-1", "api").send().await.unwrap();
    assert_eq!(balances.limit("rpm").unwrap().available.whole_tokens(), 0);
    assert_eq!(table.clock().now(), EpochMillis(1_800_000_000_000));
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_when_the_test_says_so() {
    let table = TestTable::new();
    let local = OnUnavailable::Local { percent: 50 };
    let limiter = table.builder().on_unavailable(local).build().await.unwrap();
    assert!(is_granted(&limiter, 1).await);
    table.set_unavailable(true);
    let limits = rpm();
    let acquire = || limiter.acquire("user-2", "api").limits(&limits).take("rpm", 3);
    let grant = taken(acquire()).await;
    assert!(grant.degraded().is_some(), "half of the limit is local");
    let denied = acquire().send().await.unwrap().denied().unwrap();
    assert!(denied.degraded.is_some());
    let error = acquire().on_unavailable(OnUnavailable::Error).send().await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("made the table unavailable"), "{error}");
    assert!(error.is_transient() && !error.is_unknown(), "{error}");
    table.set_unavailable(false);
    table.clock().advance(secs(60)).await;
    let grant = taken(acquire()).await;
    assert!(grant.degraded().is_none());
}

#[tokio::test]
#[should_panic(expected = "write #[tokio::test(start_paused = true)]")]
async fn time_that_is_not_paused_is_refused() {
    let _ = limiter().await;
}

#[tokio::test(start_paused = true)]
async fn tables_of_one_test_share_nothing_but_the_time() {
    let (one, _) = limiter().await;
    let (other, clock) = limiter().await;
    assert!(is_granted(&one, 6).await);
    assert!(is_granted(&other, 6).await, "it has another table");
    clock.advance(secs(60)).await;
    assert!(is_granted(&one, 6).await && is_granted(&other, 6).await);
}
