//! Buckets of several shards, as callers meet them.

use weirgate::{Class, Decision, Limit};
use weirgate_shared::Shard;
use weirgate_tests::fleet::shards::{drain, holds, per_minute, shards, split};
use weirgate_tests::fleet::{
    Fleet, ask, denied, granted, is_granted, leased, millis, pass, secs, settle, slots, tokens,
};

#[tokio::test(start_paused = true)]
async fn a_bucket_can_be_split_before_its_first_use() {
    let (fleet, [limiter]) = Fleet::of().await;
    split(&limiter, &per_minute(1000), 16).await;
    assert_eq!(holds(&fleet, "rpm").await, tokens(1000));
    assert!(shards(&fleet).await.iter().all(|shard| shard.scaling.min_shards == 16));
    split(&limiter, &per_minute(1000), 1).await;
    assert!(shards(&fleet).await.iter().all(|shard| shard.scaling.min_shards == 0));
}

#[tokio::test(start_paused = true)]
async fn shards_that_cannot_be_are_refused_with_the_reason() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = fleet.dynamo.take_requests();
    for shards in [0, 3, 65, 128] {
        let error = limiter
            .admin()
            .set_shards("e-1", "gpt-4", &per_minute(1000), shards)
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("shards must be a power of two from 1 to 64, got {shards}")),
            "{error}"
        );
    }
    assert_eq!(fleet.dynamo.take_requests(), 0, "bad input is refused before a request is sent");
    let error = limiter.admin().set_shards("e-1", "gpt-4", &per_minute(10), 16).await.unwrap_err();
    assert!(error.to_string().contains("\"rpm\" has a capacity of 10 tokens"), "{error}");
    assert_eq!(fleet.dynamo.take_requests(), 0);
    // Nor is it begun if only the bucket itself knows.
    let _ = granted(&limiter, &per_minute(10), &[("rpm", 1)]).await;
    assert!(limiter.admin().set_shards("e-1", "gpt-4", &[], 16).await.is_err());
    let shards = shards(&fleet).await;
    assert_eq!((shards.len(), shards[0].scaling.min_shards), (1, 0));
}

/// What is left of a class that is gone holds up nothing.
#[tokio::test(start_paused = true)]
async fn a_bucket_is_resharded_after_its_class_is_gone() {
    let (fleet, [limiter]) = Fleet::of().await;
    let without = per_minute(1000);
    let class = Class::new("batch", 10).unwrap();
    let with = [without[0].clone().with_classes([class]).unwrap()];
    for limits in [&with[..], &without] {
        let _ = granted(&limiter, limits, &[("rpm", 1)]).await;
        pass(secs(60)).await;
    }
    for count in [4, 1] {
        for limits in [&without[..], &[]] {
            split(&limiter, limits, count).await;
        }
    }
    assert_eq!(holds(&fleet, "rpm").await, tokens(1000));
}

/// Those of one process that come while a write is under way go to the shard it is on, or sharing
/// would end with sharding.
#[tokio::test(start_paused = true)]
async fn callers_of_one_process_share_writes_on_a_sharded_bucket_too() {
    let fleet = Fleet::slow(millis(5)).await;
    let limiter = fleet.limiter().await;
    let limits = per_minute(1_000_000);
    split(&limiter, &limits, 16).await;
    let mut callers = tokio::task::JoinSet::new();
    let _ = fleet.writes();
    for _ in 0..32 {
        let (limiter, limits) = (limiter.clone(), limits.clone());
        callers.spawn(async move {
            for _ in 0..50 {
                let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
            }
        });
    }
    callers.join_all().await;
    let writes = fleet.writes();
    assert!(writes <= 32 * 50 / 10, "{writes} writes for 1,600 acquires");
}

/// What one shard lacks, others have; and what none of them has, all together may.
#[tokio::test(start_paused = true)]
async fn a_denial_is_true_of_the_whole_bucket() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = vec![Limit::custom("rpm", 100, 1, 86_400_000).unwrap()];
    split(&limiter, &limits, 4).await;
    for (shard, left) in [(0, 3), (1, 0), (2, 3), (3, 9)] {
        drain(&fleet, shard, "rpm", tokens(left));
    }
    for (takes, left) in [(9, 6), (5, 1), (1, 0)] {
        // Another process each time: it knows nothing of the shards.
        let limiter = fleet.limiter().await;
        let _ = granted(&limiter, &limits, &[("rpm", takes)]).await;
        assert_eq!(holds(&fleet, "rpm").await.whole_tokens(), left);
    }
    let denied = denied(&limiter, &limits, &[("rpm", 1)]).await;
    assert_eq!(denied.limits[0].available.whole_tokens(), 0);
    assert_eq!(denied.limits[0].capacity, tokens(100));
    let _ = fleet.dynamo.take_requests();
    for _ in 0..10 {
        assert!(!is_granted(&limiter, &limits, &[("rpm", 1)]).await);
    }
    assert_eq!(fleet.dynamo.take_requests(), 0, "a denial is remembered");
}

/// I5, for the whole bucket: `retry_after` is exact, for any amount up to the capacity.
#[tokio::test(start_paused = true)]
async fn i5_any_request_up_to_the_capacity_is_admitted_in_its_time() {
    let limits = vec![Limit::custom("rpm", 1000, 1000, 60_000).unwrap()];
    for asks in [1, 20, 31, 32, 33, 500, 999, 1000] {
        let (fleet, [limiter]) = Fleet::of().await;
        split(&limiter, &limits, 32).await;
        let _ = granted(&limiter, &limits, &[("rpm", 1000)]).await;
        let empty_at = fleet.now();
        let denied = denied(&limiter, &limits, &[("rpm", asks)]).await;
        let after = denied.retry_after.unwrap();
        // The denial takes a moment, in which another process could leave what it has read.
        assert_eq!(fleet.now().plus(after.into()).since(empty_at).0, asks * 60, "{asks}");
        let ready = fleet.now().plus(after.into());
        pass(after - millis(1)).await;
        // It may take a moment itself, where it meets shards that are not what it knew.
        let early = ask(&limiter, &limits, &[("rpm", asks)]).send().await.unwrap();
        assert!(!early.is_granted() || fleet.now() >= ready, "{asks} too early");
        if let Some(grant) = early.granted() {
            let _ = grant.roll_back().await.unwrap();
        }
        pass(millis(1)).await;
        assert!(is_granted(&limiter, &limits, &[("rpm", asks)]).await, "{asks}");
        // Or without looking at the time at all.
        let waited =
            ask(&limiter, &limits, &[("rpm", asks)]).wait_up_to(secs(120)).send().await.unwrap();
        assert!(waited.is_granted(), "{asks}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_several_shards_gave_is_adjusted_renewed_and_given_back() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = vec![Limit::custom("tpm", 800, 1, 86_400_000).unwrap(), slots(16)];
    split(&limiter, &limits, 8).await;
    let mut grant = leased(&limiter, &limits, &[("tpm", 500), ("slots", 9)], secs(60)).await;
    assert_eq!(
        (holds(&fleet, "tpm").await, holds(&fleet, "slots").await),
        (tokens(300), tokens(7))
    );
    assert_eq!(
        shards(&fleet).await.iter().map(|shard| shard.acquires.total).sum::<i128>(),
        1,
        "one acquire"
    );
    let _ = grant.adjust("tpm", 130).await.unwrap();
    assert_eq!((grant.amount("tpm"), holds(&fleet, "tpm").await), (tokens(130), tokens(670)));
    let _ = grant.adjust("tpm", 200).await.unwrap();
    assert_eq!((grant.amount("tpm"), holds(&fleet, "tpm").await), (tokens(200), tokens(600)));
    let _ = grant.renew(secs(600)).await.unwrap();
    pass(secs(300)).await;
    let held =
        |shards: &[Shard]| shards.iter().flat_map(|shard| shard.leases.iter().flatten()).count();
    assert_eq!(held(&shards(&fleet).await), 7);
    let _ = grant.release().await.unwrap();
    assert_eq!(
        (holds(&fleet, "tpm").await.whole_tokens(), holds(&fleet, "slots").await),
        (600, tokens(16))
    );
    assert_eq!(held(&shards(&fleet).await), 0);
    let grant = granted(&limiter, &limits, &[("tpm", 500)]).await;
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(holds(&fleet, "tpm").await.whole_tokens(), 600);
    let used: weirgate::MilliTotal =
        shards(&fleet).await.iter().map(|shard| shard.limits["tpm"].consumed).sum();
    assert_eq!(used, tokens(200));
}

/// More than one part of a transaction can give back is given back first.
#[tokio::test(start_paused = true)]
async fn slots_of_a_crowd_that_crashed_are_taken_from_all_shards_at_once() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = vec![slots(80)];
    split(&limiter, &limits, 2).await;
    for _ in 0..80 {
        std::mem::forget(leased(&limiter, &limits, &[("slots", 1)], secs(5)).await);
    }
    pass(secs(5)).await;
    let _ = leased(&limiter, &limits, &[("slots", 80)], secs(5)).await;
    settle().await;
    assert_eq!(holds(&fleet, "slots").await, tokens(80));
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_stale_count_goes_on() {
    let (fleet, [operator, stale]) = Fleet::of().await;
    let limits = vec![Limit::custom("rpm", 1000, 1, 86_400_000).unwrap()];
    let mut left = 1000;
    for shards in [1, 2, 16, 4, 64, 1] {
        split(&operator, &limits, shards).await;
        // It finds out by the answers, without an error or a denial.
        for _ in 0..20 {
            let _ = granted(&stale, &limits, &[("rpm", 1)]).await;
        }
        left -= 20;
        assert_eq!(holds(&fleet, "rpm").await, tokens(left));
    }
    let _ = fleet.dynamo.take_requests();
    for _ in 0..10 {
        let _ = granted(&stale, &limits, &[("rpm", 1)]).await;
    }
    assert!(fleet.dynamo.take_requests() <= 11, "it has learnt that there is one shard again");
}

/// Its tokens are part of another shard now, and so is what it gives back.
#[tokio::test(start_paused = true)]
async fn what_a_merged_shard_gave_goes_back_to_the_one_it_is_part_of() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = vec![Limit::custom("rpm", 1000, 1, 86_400_000).unwrap()];
    split(&limiter, &limits, 16).await;
    let mut grants = vec![];
    for _ in 0..32 {
        grants.push(granted(&limiter, &limits, &[("rpm", 10)]).await);
    }
    split(&limiter, &limits, 1).await;
    let mut used = 320;
    for (at, mut grant) in grants.into_iter().enumerate() {
        if at % 2 == 0 {
            let _ = grant.roll_back().await.unwrap();
            used -= 10;
        } else {
            let _ = grant.adjust("rpm", 15).await.unwrap();
            used += 5;
        }
        assert_eq!(holds(&fleet, "rpm").await, tokens(1000 - used));
    }
}

/// A new limit reaches every shard with the next take of it.
#[tokio::test(start_paused = true)]
async fn changed_limits_reach_every_shard() {
    let (_fleet, [limiter]) = Fleet::of().await;
    split(&limiter, &per_minute(800), 8).await;
    let lower = vec![Limit::custom("rpm", 80, 1, 86_400_000).unwrap()];
    let mut granted = 0;
    loop {
        match ask(&limiter, &lower, &[("rpm", 1)]).send().await.unwrap() {
            Decision::Granted(_) => granted += 1,
            Decision::Denied(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted, 80);
    assert!(matches!(
        ask(&limiter, &lower, &[("rpm", 81)]).send().await.unwrap(),
        Decision::NeverFits(_)
    ));
}
