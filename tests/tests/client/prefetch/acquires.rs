//! Acquires are counted once if they were granted, and not at all if not.

use weirgate::{Limit, Prefetch, RateLimiter};

use weirgate_tests::fleet::shards::{shards, split};
use weirgate_tests::fleet::{Fleet, granted, millis, pass, settle};

fn far() -> [Limit; 1] {
    [Limit::per_day("tpm", 100_000_000).unwrap()]
}

async fn ahead(fleet: &Fleet) -> RateLimiter {
    let builder = fleet.builder().await;
    let builder = builder.prefetch("gpt-4", Prefetch::default());
    builder.build().await.unwrap()
}

/// Acquires a token at a time until one came from the pool; how many there were.
async fn warm_up(limiter: &RateLimiter) -> i64 {
    let mut acquires = 0;
    while limiter.stats().prefetch_hits == 0 {
        let _ = granted(limiter, &far(), &[("tpm", 1)]).await;
        acquires += 1;
        pass(millis(1)).await;
    }
    acquires
}

/// Acquires that the table has counted, once everything is returned.
async fn counted(fleet: &Fleet, limiter: &RateLimiter) -> i64 {
    limiter.shutdown().await.unwrap();
    settle().await;
    let shards = shards(fleet).await;
    i64::try_from(shards.iter().map(|shard| shard.acquires.total).sum::<i128>()).unwrap()
}

/// Two buckets in one request, of which the second one denies: the first one gives its tokens back.
#[tokio::test(start_paused = true)]
async fn a_request_that_another_bucket_denies_is_no_acquire() {
    let one = [Limit::per_day("tpm", 1).unwrap()];
    for number_of_shards in [1, 4] {
        for is_ahead in [false, true] {
            let fleet = Fleet::new().await;
            let limiter = if is_ahead { ahead(&fleet).await } else { fleet.limiter().await };
            let mut limits = far();
            if number_of_shards > 1 {
                limits = [Limit::per_day("tpm", 100).unwrap()];
                split(&limiter, &limits, number_of_shards).await;
            }
            let (mut acquires, mut amount) = (0, 40);
            if is_ahead && number_of_shards == 1 {
                (acquires, amount) = (warm_up(&limiter).await, 1);
            }
            let other = fleet.limiter().await;
            for at in 0..5 {
                // Exhausted by another process, which this one does not know yet.
                let resource = format!("other-{at}");
                let exhaust = other.acquire("e-1", &resource).limits(&one);
                let _ = exhaust.take("tpm", 1).send().await.unwrap();
                // More than a fourth of the capacity, so that several shards give it.
                let first = limiter.acquire("e-1", "gpt-4").limits(&limits);
                let second = limiter.acquire("e-1", &resource).limits(&one);
                let both = [first.take("tpm", amount), second.take("tpm", 1)];
                let decision = limiter.acquire_all(both).send().await.unwrap();
                assert!(!decision.is_granted());
                pass(millis(1)).await;
            }
            let label = format!("{number_of_shards} shards, prefetch {is_ahead}");
            assert_eq!(counted(&fleet, &limiter).await, acquires, "{label}");
        }
    }
}
