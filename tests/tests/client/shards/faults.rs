//! Shards that are missing, too hot, or in the middle of a transaction.

use weirgate::Limit;
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::{key, per_minute, shards, split};
use weirgate_tests::fleet::{Fleet, ask, denied, granted, millis, pass, secs};

#[tokio::test(start_paused = true)]
async fn a_manually_deleted_shard_is_gone_and_delays_no_request() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = vec![Limit::custom("rpm", 800, 1, 86_400_000).unwrap()];
    split(&limiter, &limits, 8).await;
    for _ in 0..40 {
        let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    }
    for gone in [5, 0] {
        fleet.dynamo.delete(&key(gone).item_key().pk, "#STATE");
        for _ in 0..40 {
            let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
            pass(millis(100)).await;
        }
        assert!(
            shards(&fleet).await.iter().all(|shard| shard.key.shard != gone),
            "a process that knows other shards creates none"
        );
    }
    let there: i64 =
        shards(&fleet).await.iter().map(|shard| shard.limits["rpm"].available.whole_tokens()).sum();
    let _ = granted(&limiter, &limits, &[("rpm", there)]).await;
    let denied = denied(&limiter, &limits, &[("rpm", 1)]).await;
    assert!(denied.retry_after.is_some());
    // When all shards are deleted, the bucket begins again.
    for shard in 0..8 {
        fleet.dynamo.delete(&key(shard).item_key().pk, "#STATE");
    }
    pass(secs(2)).await;
    let _ = granted(&limiter, &limits, &[("rpm", 800)]).await;
    assert_eq!(shards(&fleet).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_caller_asks_for_one_split_of_its_shard_a_minute() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = per_minute(1000);
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    fleet.fail(&[Fault::Throttle { key_range: false }]);
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    assert!(fleet.bucket().await.scaling.hot_at.is_none(), "the account is no reason to split");
    fleet.fail(&[Fault::Throttle { key_range: true }]);
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    assert!(fleet.bucket().await.scaling.hot_at.is_none(), "nor is a single crest");
    pass(secs(6)).await;
    fleet.fail(&[Fault::Throttle { key_range: true }; 2]);
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    let asked = fleet.bucket().await.scaling.hot_at;
    assert!(asked.is_some());
    // Again while DynamoDB throttles, once the request has ended by itself.
    for (after, is_new) in [(secs(50), false), (secs(11), true)] {
        pass(after).await;
        fleet.fail(&[Fault::Throttle { key_range: true }; 2]);
        let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
        assert_eq!(fleet.bucket().await.scaling.hot_at > asked, is_new);
    }
    // Split by others between the throttle and the next write.
    let (other, stale) = (fleet.limiter().await, fleet.limiter().await);
    let _ = granted(&stale, &limits, &[("rpm", 1)]).await;
    let mut split_first = Some(other);
    let limits_there = limits.clone();
    fleet.fail(&[Fault::Throttle { key_range: true }; 2]);
    let splitting = async {
        if let Some(other) = split_first.take() {
            split(&other, &limits_there, 2).await;
        }
    };
    let asking = ask(&stale, &limits, &[("rpm", 1)]).send();
    let ((), asked) = tokio::join!(splitting, asking);
    assert!(asked.unwrap().is_granted());
    assert!(
        shards(&fleet).await.iter().all(|shard| shard.scaling.hot_at.is_none()),
        "it is not that shard any more"
    );
}

/// Processes that have views of other shards avoid a throttled shard for a while.
#[tokio::test(start_paused = true)]
async fn a_throttled_caller_goes_to_another_shard() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = per_minute(100_000);
    split(&limiter, &limits, 4).await;
    fleet.dynamo.fail_when(|request| {
        let is_hot = request["Key"]["PK"]["S"].as_str().unwrap().ends_with("#2");
        is_hot.then_some(Fault::Throttle { key_range: true })
    });
    for _ in 0..100 {
        let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    }
    let refused = limiter.stats().refused;
    assert!((1..=6).contains(&refused), "{refused}");
}

/// A manually written item can claim any number of shards; that many are read.
#[tokio::test(start_paused = true)]
async fn an_item_that_speaks_of_billions_of_shards_is_not_believed() {
    let fleet = Fleet::new().await;
    let limits = per_minute(100);
    let _ = granted(&fleet.limiter().await, &limits, &[("rpm", 1)]).await;
    let pk = key(0).item_key().pk;
    let mut item = fleet.dynamo.item(&pk, "#STATE");
    item["shard_count"] = serde_json::json!({"N": u32::MAX.to_string()});
    fleet.dynamo.put(&item);

    let limiter = fleet.limiter().await;
    for _ in 0..3 {
        let denied = denied(&limiter, &limits, &[("rpm", 50)]).await;
        assert_eq!(denied.limits.len(), 1);
    }
    let requests = fleet.dynamo.take_requests();
    assert!(requests < 50, "{requests} requests");
}
