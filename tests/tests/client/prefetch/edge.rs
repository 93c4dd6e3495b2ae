//! Prefetched tokens when few are left: which requests are denied, for how long, and what is
//! settled afterwards.

use proptest::prelude::*;
use tokio::time::Instant;
use weirgate::{CircuitBreakerConfig, Decision, Limit, Prefetch, RateLimiter, Settlement};
use weirgate_shared::{LimitState, MilliTokens, ShardIndex, refill_between};
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::shards::{holds, per_minute, split};
use weirgate_tests::fleet::{
    Fleet, ask, config, denied, granted, millis, pass, rpm, runtime, secs, tokens,
};

async fn ahead(fleet: &Fleet, prefetch: Prefetch) -> RateLimiter {
    fleet.limiter_with(|builder| builder.prefetch("gpt-4", prefetch)).await
}

/// Asks for so many times one token, at once.
async fn warm(limiter: &RateLimiter, limits: &[Limit], times: u32) {
    for _ in 0..times {
        let _ = granted(limiter, limits, &[(limits[0].name().as_str(), 1)]).await;
    }
}

/// Asks for one token at a time until so many are outstanding; how many it got.
async fn stock(fleet: &Fleet, limiter: &RateLimiter, limits: &[Limit], least: i64) -> i64 {
    let mut got = 0;
    loop {
        warm(limiter, limits, 1).await;
        // A block is fetched in the background.
        pass(millis(1)).await;
        got += 1;
        if used(fleet).await >= tokens(got + least) {
            return got;
        }
    }
}

/// What the table counts as used.
async fn used(fleet: &Fleet) -> MilliTokens {
    fleet.bucket().await.limits["rpm"].consumed.bounded()
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_the_one_of_the_table() {
    let fleet = Fleet::new().await;
    let (plain, limiter) = (fleet.limiter().await, ahead(&fleet, Prefetch::default()).await);
    let limits = per_minute(600);
    warm(&limiter, &limits, 600).await;
    let theirs = denied(&limiter, &limits, &[("rpm", 7)]).await;
    assert_eq!(theirs, denied(&plain, &limits, &[("rpm", 7)]).await);
    assert_eq!(theirs.retry_after, Some(millis(700)));
    let writes = limiter.stats().writes;
    denied(&limiter, &limits, &[("rpm", 7)]).await;
    assert_eq!(limiter.stats().writes, writes, "and is remembered");
    pass(millis(700)).await;
    let _ = granted(&limiter, &limits, &[("rpm", 7)]).await;
    assert!(matches!(
        ask(&limiter, &limits, &[("rpm", 601)]).send().await.unwrap(),
        Decision::NeverFits(_)
    ));
}

/// The table and the client together have what is asked, and neither has it alone.
#[tokio::test(start_paused = true)]
async fn what_the_table_lacks_comes_from_what_was_taken_ahead() {
    let fleet = Fleet::new().await;
    let limits = [Limit::per_day("rpm", 200).unwrap()];
    let limiter = ahead(&fleet, Prefetch::default().max_age(secs(60))).await;
    let spent = stock(&fleet, &limiter, &limits, 5).await;
    let all = 200 - spent;
    let before = used(&fleet).await;
    denied(&limiter, &limits, &[("rpm", all + 1)]).await;
    assert_eq!(used(&fleet).await, before, "nothing was taken for it");
    let grant = granted(&limiter, &limits, &[("rpm", all - 1)]).await;
    assert_eq!(grant.amount("rpm"), tokens(all - 1));
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    assert_eq!((used(&fleet).await, limiter.stats().denied), (tokens(200), 1));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    limiter.shutdown().await.unwrap();
    assert_eq!(used(&fleet).await, tokens(spent + 1));
}

#[tokio::test(start_paused = true)]
async fn less_than_estimated_can_be_spent_again_and_more_comes_from_the_block() {
    let fleet = Fleet::new().await;
    let limits = per_minute(60_000);
    let limiter = ahead(&fleet, Prefetch::default()).await;
    let spent = stock(&fleet, &limiter, &limits, 40).await;
    let (writes, table) = (limiter.stats().writes, used(&fleet).await);
    let mut grant = granted(&limiter, &limits, &[("rpm", 5)]).await;
    for tokens in [2, 9, 0, 3] {
        assert_eq!(grant.adjust("rpm", tokens).await.unwrap(), Settlement::Applied);
        assert_eq!(grant.amount("rpm"), fleet::tokens(tokens));
    }
    let other = granted(&limiter, &limits, &[("rpm", 5)]).await;
    assert_eq!(other.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(
        (limiter.stats().writes, used(&fleet).await),
        (writes, table),
        "none of it needs a write"
    );
    let _ = limiter.shutdown().await;
    assert_eq!(used(&fleet).await, tokens(spent + 3));
    // It was taken under the pool's own terms; now no pool is there to take it back.
    assert_eq!(grant.adjust("rpm", 1).await.unwrap(), Settlement::Applied);
    assert_eq!(used(&fleet).await, tokens(spent + 1));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(used(&fleet).await, tokens(spent));
}

#[tokio::test(start_paused = true)]
async fn more_than_was_taken_ahead_goes_into_debt_at_the_table() {
    let fleet = Fleet::new().await;
    let limits = per_minute(6_000);
    let limiter = ahead(&fleet, Prefetch::default()).await;
    warm(&limiter, &limits, 100).await;
    let mut grant = granted(&limiter, &limits, &[("rpm", 5)]).await;
    assert_eq!(grant.adjust("rpm", 8_000).await.unwrap(), Settlement::Applied);
    let (balance, _) = fleet.tk_tc("rpm").await;
    assert!(balance < 0, "{balance}");
    assert_eq!(grant.adjust("rpm", 6).await.unwrap(), Settlement::Applied);
    assert_eq!(grant.amount("rpm"), tokens(6));
    limiter.shutdown().await.unwrap();
    assert_eq!(used(&fleet).await, tokens(106));
}

/// What is older than it may be kept is not for others, nor what would be more than may be
/// outstanding.
#[tokio::test(start_paused = true)]
async fn what_comes_back_late_goes_to_the_table() {
    let fleet = Fleet::new().await;
    let limits = per_minute(60_000);
    let limiter = ahead(&fleet, Prefetch::default()).await;
    warm(&limiter, &limits, 50).await;
    let grant = granted(&limiter, &limits, &[("rpm", 10)]).await;
    pass(secs(3)).await;
    assert_eq!(used(&fleet).await, tokens(60), "what was left is back");
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(used(&fleet).await, tokens(50), "at once");
}

#[tokio::test(start_paused = true)]
async fn blocks_come_from_any_shard_and_go_back_to_it() {
    let fleet = Fleet::new().await;
    let limits = per_minute(60_000);
    let limiter = ahead(&fleet, Prefetch::default()).await;
    split(&limiter, &limits, 8).await;
    let before = holds(&fleet, "rpm").await;
    let mut spent = 0;
    for at in 0..4_000 {
        let grant = granted(&limiter, &limits, &[("rpm", 2)]).await;
        match at % 50 {
            0 => drop(grant.roll_back().await.unwrap()),
            _ => spent += 2,
        }
        if at % 10 == 0 {
            pass(millis(10)).await;
        }
    }
    let stats = limiter.stats();
    assert!(stats.prefetch_hits > 3_900 && stats.writes < 60, "{stats:?}");
    limiter.shutdown().await.unwrap();
    let shards = fleet::shards::shards(&fleet).await;
    let consumed: weirgate::MilliTotal =
        shards.iter().map(|shard| shard.limits["rpm"].consumed).sum();
    assert_eq!(consumed, tokens(spent));
    assert_eq!(
        shards.iter().map(|shard| shard.acquires.total).sum::<i128>(),
        4_000,
        "each acquire counts once"
    );
    assert!(shards.iter().filter(|shard| shard.acquires.total > 0).count() > 2, "{shards:?}");
    assert!(holds(&fleet, "rpm").await <= before);
}

#[tokio::test(start_paused = true)]
async fn half_of_what_is_there_is_left_to_others() {
    let fleet = Fleet::new().await;
    let limits = [Limit::per_day("rpm", 100).unwrap()];
    let greedy =
        ahead(&fleet, Prefetch::default().max_outstanding_percent(100).max_age(secs(60))).await;
    warm(&greedy, &limits, 1).await;
    let mut left = tokens(99);
    for _ in 0..60 {
        warm(&greedy, &limits, 1).await;
        pass(millis(1)).await;
        let before = std::mem::replace(&mut left, tokens(100) - used(&fleet).await);
        assert!(left >= (before - tokens(1)) / 2, "{before} were there, {left} are left");
    }
    assert!(greedy.stats().prefetch_blocks > 3, "{:?}", greedy.stats());
    let _ = granted(&fleet.limiter().await, &limits, &[("rpm", left.whole_tokens())]).await;
}

/// The next block arrives before the last one is used up.
#[tokio::test(start_paused = true)]
async fn a_steady_load_waits_for_no_block() {
    let fleet = Fleet::slow(millis(30)).await;
    let limits = per_minute(600_000);
    let limiter = ahead(&fleet, Prefetch::default()).await;
    let mut waited = 0;
    for at in 0..8_000 {
        let asked = tokio::time::Instant::now();
        let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
        waited += u32::from(at >= 3_000 && !asked.elapsed().is_zero());
        pass(millis(1)).await;
    }
    let blocks = limiter.stats().prefetch_blocks;
    assert!(waited == 0 && blocks >= 8, "{waited} waited, {blocks} blocks");
}

/// Waiting for a block that never comes is part of the time that a decision may take.
#[tokio::test(start_paused = true)]
async fn a_request_that_waited_for_a_block_in_vain_is_answered_in_its_time() {
    let fleet = Fleet::new().await;
    let limits = per_minute(600_000);
    let builder = fleet.builder().await.timeout(secs(2)).circuit_breaker(CircuitBreakerConfig {
        failure_threshold: 0,
        ..CircuitBreakerConfig::default()
    });
    let limiter = builder.prefetch("gpt-4", Prefetch::default()).build().await.unwrap();
    warm(&limiter, &limits, 100).await;
    fleet.dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let spent = async |limiter: &RateLimiter| {
        let asked = tokio::time::Instant::now();
        loop {
            if let Err(error) = ask(limiter, &limits, &[("rpm", 1)]).send().await {
                return (error, asked.elapsed());
            }
        }
    };
    let (error, took) = spent(&limiter).await;
    assert!(error.is_transient() && error.to_string().contains("no decision"), "{error}");
    assert!(took >= secs(2) && took < millis(2_900), "{took:?}");
    // Now no block is tried for a while: the first request after the trouble is served at once.
    fleet.dynamo.fail_when(|_| None);
    let blocks = limiter.stats().prefetch_blocks;
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    assert_eq!(limiter.stats().prefetch_blocks, blocks);
    pass(secs(1)).await;
    warm(&limiter, &limits, 10).await;
    assert!(limiter.stats().prefetch_blocks > blocks, "and then they are again");
    limiter.shutdown().await.unwrap();
    let granted = i64::try_from(limiter.stats().granted).unwrap();
    assert_eq!(
        fleet.bucket().await.acquires.total,
        i128::from(granted),
        "every acquire counts, once"
    );
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Tokens of each limit, and whether to wait out a denial.
    Take(i64, i64, bool),
    Many(u32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..60_i64, 0..30_i64, any::<bool>()).prop_map(|(rpm, slow, waits)| Step::Take(rpm, slow, waits)),
        3 => (1..20_u32).prop_map(Step::Many),
        3 => prop_oneof![0..300_u64, 0..4_000_u64].prop_map(Step::Pass),
    ]
}

/// A bucket without prefetch.
struct Model {
    state: LimitState,
    rf: weirgate::EpochMillis,
}

impl Model {
    fn of(limit: &Limit) -> Self {
        let state = LimitState::new(limit.rule().capacity, *limit.rule());
        Self { state, rf: fleet::START }
    }

    fn at(&mut self, now: weirgate::EpochMillis) -> MilliTokens {
        let flowed = refill_between(&self.state.rule, ShardIndex::UNSPLIT, self.rf, now);
        self.state.available = (self.state.available + flowed).min(self.state.rule.capacity);
        self.rf = now;
        self.state.available
    }
}

proptest! {
    #![proptest_config(config(64))]

    /// I2 and I5: one client that takes ahead is never denied what a bucket that it had for itself
    /// would give, and is granted when it has waited.
    #[test]
    fn i2_i5_no_request_is_denied_because_of_prefetched_tokens(
        steps in prop::collection::vec(step(), 1..40),
        percent in prop::sample::select(vec![5_u32, 10, 50, 100]),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let limiter = ahead(&fleet, Prefetch::default().max_outstanding_percent(percent)).await;
            let limits = [rpm(240), Limit::per_minute("slow", 60).unwrap()];
            let mut models = [Model::of(&limits[0]), Model::of(&limits[1])];
            let (mut used, mut grants) = ([0, 0], 0);
            for step in steps {
                let (takes, times, waits) = match step {
                    Step::Pass(span) => {
                        pass(millis(span)).await;
                        continue;
                    }
                    Step::Many(times) => ([1, 0], times, false),
                    Step::Take(rpm, slow, waits) => ([rpm, slow], 1, waits),
                };
                let all = [("rpm", takes[0]), ("slow", takes[1])];
                let asked = if takes[1] == 0 { &all[..1] } else { &all[..] };
                for _ in 0..times {
                    let mut decision = ask(&limiter, &limits, asked).send().await.unwrap();
                    if let (Decision::Denied(denied), true) = (&decision, waits) {
                        pass(denied.retry_after.unwrap()).await;
                        decision = ask(&limiter, &limits, asked).send().await.unwrap();
                        prop_assert!(decision.is_granted(), "I5: {decision:?}");
                    }
                    let now = fleet.now();
                    let is_there = models.iter_mut().zip(takes).all(|(model, take)| model.at(now) >= tokens(take));
                    prop_assert!(decision.is_granted() || !is_there, "I2: {decision:?}");
                    if decision.is_granted() {
                        grants += 1;
                        for ((model, take), used) in models.iter_mut().zip(takes).zip(&mut used) {
                            // What is outstanding lets a full bucket gain more than the model does.
                            model.state.available -= tokens(take);
                            *used += take;
                        }
                    }
                }
            }
            limiter.shutdown().await.unwrap();
            if grants > 0 {
                let bucket = fleet.bucket().await;
                prop_assert_eq!([bucket.limits["rpm"].consumed, bucket.limits["slow"].consumed], used.map(tokens));
                prop_assert_eq!(bucket.acquires.total, grants);
            }
            Ok(())
        })?;
    }
}

/// The tokens count as consumed then, and so do the acquires that no write has counted.
#[tokio::test(start_paused = true)]
async fn i9_a_shutdown_ends_whatever_refuses_its_writes() {
    for fault in [
        Fault::Throttle { key_range: false },
        Fault::ServerError,
        Fault::Forbidden,
        Fault::LoseRequest,
    ] {
        for count in [1, 4] {
            let fleet = Fleet::new().await;
            let limits = per_minute(60_000);
            let limiter = ahead(&fleet, Prefetch::default()).await;
            stock(&fleet, &limiter, &limits, 40).await;
            split(&limiter, &limits, count).await;
            warm(&limiter, &limits, 20).await;
            fleet.fail_writes(fault);
            let began = Instant::now();
            assert!(limiter.shutdown().await.is_err(), "{fault:?}, {count}");
            // Its timeout, and one attempt more.
            assert!(began.elapsed() <= secs(10), "{fault:?}, {count}: {:?}", began.elapsed());
            let _ = limiter.shutdown().await;
            assert!(began.elapsed() <= secs(20), "{fault:?}, {count}: {:?}", began.elapsed());
        }
    }
}
