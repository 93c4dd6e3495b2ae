//! Limiters on a table on Redis, by the interface of applications alone.

use std::sync::Arc;
use std::time::Duration;

use weirgate::{
    Config, ConfigLevel, Error, ErrorKind, Limit, OnUnavailable, RateLimiter, Resource,
};
use weirgate_testkit::RedisServer;
use weirgate_tests::fleet::{granted, is_granted, slots};

async fn limiter(server: &RedisServer) -> RateLimiter {
    let built = RateLimiter::builder(server.url()).build().await;
    built.expect("the server fits")
}

/// Refills a token in more time than a test takes.
fn scarce() -> [Limit; 2] {
    [Limit::per_day("rpd", 40).expect("a limit"), slots(4)]
}

#[tokio::test]
async fn a_bucket_has_one_shard() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let split = limiter.admin().set_shards("e-1", "gpt-4", &scarce(), 2).await;
    let error = split.expect_err("it is refused").to_string();
    assert!(error.contains("shards must be 1 in a table in Redis"), "{error}");
}

/// No functions of Redis are older than both, so nothing has to say so.
#[tokio::test]
async fn quotas_and_classes_are_there_from_the_first_request() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let quota = Limit::session("tpm", 5, Duration::from_secs(18_000)).expect("a limit");
    let level = ConfigLevel::Resource(Resource::new("gpt-4").expect("a name"));
    let config = Config::of([quota.clone()]);
    let stored = limiter.admin().set_config(&level, &config).await;
    stored.expect("it is stored");
    assert!(is_granted(&limiter, std::slice::from_ref(&quota), &[("tpm", 5)]).await);
    assert!(!is_granted(&limiter, &[quota], &[("tpm", 1)]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiters_side_by_side_never_take_more_than_the_limit() {
    let server = RedisServer::start();
    let limits = Arc::new(scarce());
    let mut callers = vec![];
    for _ in 0..3 {
        let limiter = Arc::new(limiter(&server).await);
        for _ in 0..8 {
            let (limiter, limits) = (Arc::clone(&limiter), Arc::clone(&limits));
            callers.push(tokio::spawn(async move {
                let mut grants = 0;
                for _ in 0..10 {
                    grants += u32::from(is_granted(&limiter, &*limits, &[("rpd", 1)]).await);
                }
                grants
            }));
        }
    }
    let mut grants = 0;
    for caller in callers {
        grants += caller.await.expect("it ends");
    }
    assert_eq!(grants, 40);
}

/// Reads go on, and do not show that writes do.
#[tokio::test]
async fn a_server_that_is_full_opens_the_breaker_and_takes_a_release() {
    let server = RedisServer::start();
    let built = RateLimiter::builder(server.url()).timeout(Duration::from_millis(500));
    let limiter = built.build().await.expect("the server fits");
    let limits = scarce();
    let leased = limiter.acquire("e-1", "gpt-4").limits(&limits);
    let leased = leased.take("slots", 1).lease(Duration::from_secs(60));
    let leased = leased.send().await.expect("it is decided").granted();
    let other = limiter.acquire("e-2", "gpt-4").limits(&limits);
    let other = other.take("slots", 1).lease(Duration::from_secs(60));
    let other = other.send().await.expect("it is decided").granted();
    let config = Config::of(limits.clone());
    let set = limiter.admin().set_config(&ConfigLevel::System, &config);
    set.await.expect("there is room");
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    super::command(&server, &full).await.expect("it is there");
    let released = leased.expect("it fits").release().await;
    let _ = released.expect("it frees memory");
    // Its audit event is written before.
    let admin = limiter.admin();
    let other = other.expect("it fits");
    let id = other.lease_id().expect("slots have a lease");
    for refused in [
        admin.release_lease("e-2", "gpt-4", id).await.map(drop),
        admin.delete_config(&ConfigLevel::System).await.map(drop),
    ] {
        let error = refused.expect_err("it is full");
        assert!(error.to_string().contains("OOM"), "{error}");
    }
    let mut answers = vec![];
    for number in 0..12 {
        let entity = format!("new-{number}");
        let asked = limiter.acquire(&entity, "gpt-4").limits(&limits);
        let error = asked.take("rpd", 1).send().await.expect_err("it is full");
        answers.push(error);
    }
    let is_open = |error: &Error| matches!(error, Error::Unavailable { .. });
    assert!(answers.iter().any(is_open), "{answers:?}");
    for error in answers {
        let text = format!("{error} {error:?}");
        for other in ["DynamoDB", "region", "role"] {
            assert!(!text.contains(other), "{text}");
        }
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_at_the_start_and_one_that_is_away_is_not() {
    let server = RedisServer::with(&["--maxmemory-policy", "volatile-lru"]);
    let built = RateLimiter::builder(server.url()).build().await;
    let error = built.expect_err("it is refused");
    let is_refusal = matches!(&error, Error::Store(error) if error.kind == ErrorKind::Rejected);
    assert!(is_refusal && error.to_string().contains("volatile-lru"), "{error}");
    let away = format!("redis://127.0.0.1:{}/", weirgate_testkit::server::free_port());
    let limiter = RateLimiter::builder(away).build().await.expect("it is built");
    let asked = limiter.acquire("e-1", "gpt-4").limits(&scarce()).take("rpd", 1);
    let asked = asked.send_now().await;
    assert!(asked.expect_err("it is away").is_transient());
}

/// Its settings and users are others' to change, or those of its successor.
#[tokio::test]
async fn a_server_that_was_accepted_is_unavailable_once_it_is_not_fit_any_more() {
    for change in [
        &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"][..],
        &["ACL", "SETUSER", "some", "resetpass", ">other"],
        &["ACL", "DELUSER", "some"],
    ] {
        let server = RedisServer::start();
        let there = async |words: &[&str]| {
            let done = super::command(&server, words).await;
            done.expect("it is there")
        };
        let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all"];
        there(&user).await;
        let url = server.url().replace("//", "//some:pass@");
        let built = RateLimiter::builder(url).on_unavailable(OnUnavailable::Allow);
        let limiter = built.build().await.expect("the server fits");
        let limits = scarce();
        drop(granted(&limiter, &limits, &[("rpd", 1)]).await);
        there(change).await;
        there(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        for _ in 0..3 {
            let acquire = limiter.acquire("e-1", "gpt-4").limits(&limits);
            let decision = acquire.take("rpd", 1).send_now().await;
            let decision = decision.unwrap_or_else(|error| panic!("{change:?}: {error}"));
            let grant = decision.granted().expect("the caller allows it");
            assert!(grant.degraded().is_some(), "{change:?}");
        }
    }
}
