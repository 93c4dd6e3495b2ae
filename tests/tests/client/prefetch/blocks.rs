//! Prefetched tokens: what they cost, how many are outstanding, and when they go back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use weirgate_tests::fleet;

use tokio::task::JoinSet;
use weirgate::{Limit, Prefetch, RateLimiter};
use weirgate_store::CapacityMeter;
use weirgate_tests::fleet::{Fleet, ask, granted, millis, pass, rpm, secs, slots, tokens};
use weirgate_tests::scaling::facts::PREFETCHED_MILLI;

/// A limit that is never reached, of which 10 % are more than a second's worth.
fn far() -> Vec<Limit> {
    vec![rpm(600_000)]
}

async fn ahead(fleet: &Fleet) -> RateLimiter {
    fleet.limiter_with(|builder| builder.prefetch("gpt-4", Prefetch::default())).await
}

async fn metered(fleet: &Fleet, latency_ms: u64) -> (RateLimiter, CapacityMeter) {
    let (table, meter) = fleet.dynamo.clone().with_latency(millis(latency_ms)).metered().await;
    let builder = RateLimiter::builder("weirgate").table(table);
    (builder.prefetch("gpt-4", Prefetch::default()).build().await.unwrap(), meter)
}

/// Asks for a token every `every`, for so many seconds, whether the one before was answered or not;
/// how many were granted.
async fn load(limiter: &RateLimiter, limits: &[Limit], every: Duration, seconds: u64) -> i64 {
    let limits: Arc<[Limit]> = limits.into();
    let mut tasks = JoinSet::new();
    for _ in 0..Duration::from_secs(seconds).as_micros() / every.as_micros() {
        let (limiter, limits) = (limiter.clone(), Arc::clone(&limits));
        tasks.spawn(async move {
            let request = limiter
                .acquire("e-1", "gpt-4")
                .shared_limits(&limits)
                .take(limits[0].name().as_str(), 1);
            i64::from(request.send().await.unwrap().is_granted())
        });
        pass(every).await;
    }
    tasks.join_all().await.into_iter().sum()
}

/// What the table says of the limit: consumed millitokens, and acquires.
async fn counted(fleet: &Fleet, limit: &str) -> (i64, i64) {
    let bucket = fleet.bucket().await;
    (bucket.limits[limit].consumed.bounded().0, i64::try_from(bucket.acquires.total).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_prefetched_acquire_costs_a_fiftieth_of_a_write_unit() {
    // 10 % of the second one are a tenth of a second's load: its blocks are as large as they may
    // be.
    for limits in [far(), vec![Limit::per_second("rps", 2_000).unwrap()]] {
        let fleet = Fleet::new().await;
        let (limiter, meter) = metered(&fleet, 5).await;
        let acquires = load(&limiter, &limits, millis(1), 20).await;
        limiter.shutdown().await.unwrap();
        assert_eq!(acquires, 20_000, "all are granted");
        let units = meter.take().total;
        println!("{} write units, {:.5} each", units, units / 20_000.0);
        let most = f64::from(u32::try_from(PREFETCHED_MILLI).unwrap());
        assert!(units * 1_000.0 <= most * 20_000.0, "{units}");
        assert_eq!(counted(&fleet, limits[0].name().as_str()).await, (20_000_000, 20_000));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_ahead_of_a_load_that_would_not_use_it() {
    let fleet = Fleet::new().await;
    let limiter = ahead(&fleet).await;
    for _ in 0..19 {
        let _ = granted(&limiter, &far(), &[("rpm", 1)]).await;
        pass(secs(3)).await;
    }
    assert_eq!((limiter.stats().writes, limiter.stats().prefetch_blocks), (19, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_share_is_outstanding_at_any_time() {
    let limits =
        [Limit::per_second("rps", 3_000).unwrap(), Limit::per_second("tps", 20_000).unwrap()];
    for percent in [5, 10, 40] {
        let fleet = Fleet::new().await;
        let prefetch = Prefetch::default().max_outstanding_percent(percent);
        let limiter = fleet.limiter_with(|builder| builder.prefetch("gpt-4", prefetch)).await;
        let (mut used, mut most_seen) = (0, 0);
        for at in 0..1_000 {
            if let Some(grant) =
                ask(&limiter, &limits, &[("rps", 1), ("tps", 7)]).send().await.unwrap().granted()
            {
                used += 1;
                // Some are rolled back: what goes back to the client is outstanding again.
                if at % 10 == 3 {
                    pass(millis(1)).await;
                    let _ = grant.roll_back().await.unwrap();
                    used -= 1;
                }
            }
            let bucket = fleet.bucket().await;
            let rest = bucket.limits["rps"].consumed - tokens(used);
            let most = tokens(30 * i64::from(percent));
            assert!(rest <= most, "{rest} outstanding, {most} may be");
            assert!(
                bucket.limits["tps"].consumed - tokens(7 * used)
                    <= tokens(200 * i64::from(percent))
            );
            most_seen = most_seen.max(rest.0);
            pass(Duration::from_micros(700)).await;
        }
        assert!(most_seen > 0 && limiter.stats().prefetch_hits > 300, "it was in use");
    }
}

#[tokio::test(start_paused = true)]
async fn unused_tokens_go_back_and_every_acquire_is_counted() {
    let fleet = Fleet::new().await;
    let limiter = ahead(&fleet).await;
    let used = load(&limiter, &far(), millis(1), 5).await;
    assert!(counted(&fleet, "rpm").await.0 > used * 1000, "some were prefetched");
    let writes = limiter.stats().writes;
    pass(millis(900)).await;
    assert!(counted(&fleet, "rpm").await.0 > used * 1000, "they are kept for a while");
    pass(millis(1_200)).await;
    assert_eq!(counted(&fleet, "rpm").await, (used * 1000, used));
    let stats = limiter.stats();
    assert!(
        stats.prefetch_returned_millitokens > 0 && stats.prefetch_forfeited_millitokens == 0,
        "{stats:?}"
    );
    pass(secs(600)).await;
    assert!(limiter.stats().writes <= writes + 2, "and that is all that is written");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_returns_all_tokens_once_and_later_requests_use_the_table() {
    // Blocks are under way all the time.
    let fleet = Fleet::slow(millis(40)).await;
    let limiter = ahead(&fleet).await;
    let limits = [Limit::per_second("rps", 2_000).unwrap()];
    let (used, shut_down) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for at in 0..3_000 {
        let (limiter, limits, used) = (limiter.clone(), limits.clone(), used.clone());
        tasks.spawn(async move {
            pass(millis(at)).await;
            let grant = granted(&limiter, &limits, &[("rps", 1)]).await;
            // Some are given back, before and after.
            match at % 7 {
                0 => drop(grant.roll_back().await.unwrap()),
                _ => drop(used.fetch_add(1, Ordering::Relaxed)),
            }
        });
    }
    for _ in 0..3 {
        let (limiter, shut_down) = (limiter.clone(), shut_down.clone());
        tasks.spawn(async move {
            pass(millis(2_000)).await;
            limiter.shutdown().await.unwrap();
            shut_down.fetch_add(1, Ordering::Relaxed);
        });
    }
    pass(millis(2_500)).await;
    assert_eq!(shut_down.load(Ordering::Relaxed), 3, "all calls of it end");
    let ahead =
        |limiter: &RateLimiter| (limiter.stats().prefetch_hits, limiter.stats().prefetch_blocks);
    let before = ahead(&limiter);
    tasks.join_all().await;
    assert_eq!(ahead(&limiter), before, "none afterwards");
    limiter.shutdown().await.unwrap();
    assert_eq!(counted(&fleet, "rps").await, (used.load(Ordering::Relaxed) * 1000, 3_000));
    let other =
        limiter.acquire("e-2", "gpt-4").limits(&limits).take("rps", 1).send().await.unwrap();
    assert!(other.is_granted() && limiter.stats().prefetch_blocks > 5);
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_under_other_limits_goes_back() {
    let fleet = Fleet::new().await;
    let limiter = ahead(&fleet).await;
    let lower = vec![rpm(60_000)];
    let mut used = load(&limiter, &far(), millis(1), 3).await;
    used += load(&limiter, &lower, millis(1), 1).await;
    let stats = limiter.stats();
    assert!(stats.prefetch_returned_millitokens > 0, "{stats:?}");
    used += load(&limiter, &lower, millis(1), 4).await;
    assert!(
        limiter.stats().prefetch_hits > stats.prefetch_hits + 3_500,
        "and more is taken under the new ones"
    );
    let bucket = fleet.bucket().await;
    assert_eq!(bucket.limits["rpm"].rule, *lower[0].rule());
    assert!(bucket.limits["rpm"].consumed - tokens(used) <= tokens(6_000));
    limiter.shutdown().await.unwrap();
    assert_eq!(counted(&fleet, "rpm").await, (used * 1000, used));
}

#[tokio::test(start_paused = true)]
async fn leases_slots_soft_and_shadow_limits_go_to_the_table_as_always() {
    let fleet = Fleet::new().await;
    let limiter = ahead(&fleet).await;
    let limits = [
        rpm(600_000),
        slots(1_000),
        Limit::per_minute("soft", 600_000).unwrap().in_mode(weirgate::LimitMode::Soft),
        Limit::per_minute("shadow", 600_000).unwrap().in_mode(weirgate::LimitMode::Shadow),
    ];
    for takes in [&[("slots", 1)], &[("soft", 1)], &[("shadow", 1)]] {
        for _ in 0..20 {
            let _grant = granted(&limiter, &limits, takes).await;
        }
    }
    for _ in 0..20 {
        let _lease = fleet::leased(&limiter, &limits, &[("rpm", 1)], secs(1)).await;
    }
    assert_eq!(limiter.stats().prefetch_blocks, 0);
    let silent = fleet
        .limiter_with(|builder| builder.prefetch("gpt-4", Prefetch::default()).shadow(true))
        .await;
    load(&silent, &far(), millis(1), 1).await;
    let elsewhere =
        fleet.limiter_with(|builder| builder.prefetch("gpt-5", Prefetch::default())).await;
    load(&elsewhere, &far(), millis(1), 1).await;
    assert_eq!((silent.stats().prefetch_blocks, elsewhere.stats().prefetch_blocks), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn numbers_out_of_range_are_refused_with_their_resource_and_value() {
    let fleet = Fleet::new().await;
    let refused = async |resource: &str, prefetch: Prefetch| {
        let built = fleet.builder().await.prefetch(resource, prefetch).build().await;
        built.expect_err("it is out of range").to_string()
    };
    let prefetch = Prefetch::default();
    for (wrong, says) in [
        (prefetch.max_outstanding_percent(0), "max_outstanding_percent must be 1 to 100, got 0"),
        (
            prefetch.max_outstanding_percent(101),
            "max_outstanding_percent must be 1 to 100, got 101",
        ),
        (prefetch.max_age(millis(99)), "99ms"),
        (prefetch.max_age(secs(61)), "1m1s"),
    ] {
        let error = refused("gpt-4", wrong).await;
        assert!(error.contains(says) && error.contains("\"gpt-4\""), "{error}");
    }
    assert!(refused("4#", prefetch).await.contains("4#"));
    let twice = fleet
        .builder()
        .await
        .prefetch("gpt-4", prefetch)
        .prefetch("gpt-4", prefetch.max_outstanding_percent(5));
    assert!(twice.build().await.unwrap_err().to_string().contains("twice"));
    for right in [
        prefetch.max_outstanding_percent(1),
        prefetch.max_outstanding_percent(100),
        prefetch.max_age(millis(100)),
        prefetch.max_age(secs(60)),
    ] {
        assert!(fleet.builder().await.prefetch("gpt-4", right).build().await.is_ok());
    }
}
