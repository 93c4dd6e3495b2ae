//! One process whose clock is set by up to a day, or is wrong from the start, beside one whose clock
//! is right. DynamoDB takes signatures of any time, so only the dates of its answers correct a clock.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use weirgate::{EpochMillis, FakeClock, Limit, RateLimiter};
use weirgate_shared::{Hour, ShardIndex, refill_between};
use weirgate_tests::fleet::{
    Fleet, START, ask, config, leased, millis, pass, runtime, secs, slots,
};

const SECOND_MS: i64 = 1_000;
const DAY_MS: i64 = 86_400_000;
/// Largest request.
const MOST: i64 = 25;

/// 10 a second, 60 at once.
fn limits() -> [Limit; 2] {
    [Limit::custom("rate", 60, 10, SECOND_MS).unwrap(), slots(4)]
}

/// What was granted when, in tokens, by DynamoDB's clock.
type Granted = Arc<Mutex<Vec<(EpochMillis, i64)>>>;

/// Requests tokens one after the other until `until`, with pauses.
async fn demand(
    fleet: Arc<Fleet>,
    limiter: RateLimiter,
    granted: Granted,
    (amount, pause): (i64, u64),
    until: EpochMillis,
) {
    while fleet.now() < until {
        let limits = limits();
        let taken = ask(&limiter, &limits, &[("rate", amount)]).send().await;
        match taken.unwrap().granted() {
            Some(_) => granted.lock().unwrap().push((fleet.now(), amount)),
            None => pass(millis(20)).await,
        }
        pass(millis(pause)).await;
    }
}

/// I1: over any interval, what was granted is within the capacity and what flows in, and for each
/// step of a clock what flows in within two seconds, and a request.
fn check_rate(granted: &[(EpochMillis, i64)], steps: &[EpochMillis]) -> Result<(), TestCaseError> {
    let (limits, milli) = (limits(), 1_000);
    let rule = limits[0].rule();
    for (first, (from, _)) in granted.iter().enumerate() {
        let mut sum = 0;
        for (to, amount) in &granted[first..] {
            sum += amount * milli;
            let within = steps.iter().filter(|at| *at <= to).count();
            let due = refill_between(rule, ShardIndex::UNSPLIT, *from, to.plus(secs(2).into()));
            let entitled =
                (rule.capacity + due).0 + i64::try_from(within).unwrap() * (MOST + 20) * milli;
            prop_assert!(
                sum <= entitled,
                "I1: {sum} of {entitled} from {from:?} to {to:?}: {granted:?}"
            );
        }
    }
    Ok(())
}

/// Neither the refill, nor the hour, nor the expiry of the bucket is in the future.
async fn check_item(fleet: &Fleet) -> Result<(), TestCaseError> {
    let (bucket, now) = (fleet.bucket().await, fleet.now());
    let soon = now.plus(secs(2).into());
    prop_assert!(bucket.refilled_at <= soon, "rf {:?} at {now:?}", bucket.refilled_at);
    prop_assert!(bucket.hour <= Hour::of(soon), "hour {:?} at {now:?}", bucket.hour);
    let ttl = bucket.ttl.map(|ttl| ttl.0);
    prop_assert!(
        ttl.is_some_and(|at| (now.0 / 1_000..now.0 / 1_000 + 3 * 86_400).contains(&at)),
        "ttl {ttl:?} at {now:?}"
    );
    Ok(())
}

fn step() -> impl Strategy<Value = i64> {
    let size = prop_oneof![
        SECOND_MS..5 * SECOND_MS,
        SECOND_MS..600 * SECOND_MS,
        SECOND_MS..=DAY_MS,
        Just(DAY_MS)
    ];
    (size, any::<bool>()).prop_map(|(size, is_back)| if is_back { -size } else { size })
}

fn demands() -> impl Strategy<Value = (i64, u64)> {
    (1..=MOST, prop_oneof![Just(0), 0..100_u64, Just(3_000)])
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn i1_a_clock_that_is_set_admits_a_request_more_and_leaves_others_alone(
        start in prop_oneof![2 => Just(0), 1 => step()],
        steps in prop::collection::vec((0..3_000_u64, step()), 0..4),
        wrong in demands(),
        right in demands(),
        others_first in any::<bool>(),
    ) {
        runtime().block_on(async {
            let fleet = Arc::new(Fleet::slow(millis(5)).await.tolerant());
            let clock = FakeClock::at(START);
            clock.skew(start);
            let (one, other) = (fleet.limiter_by(&clock).await, fleet.limiter().await);
            if others_first {
                prop_assert!(ask(&other, &limits(), &[("rate", 1)]).send().await.unwrap().is_granted());
            }
            let (granted, mut at) = (Granted::default(), vec![START]);
            let until = fleet.now().plus(secs(10).into());
            let demand = |limiter: &RateLimiter, by| {
                tokio::spawn(demand(Arc::clone(&fleet), limiter.clone(), Arc::clone(&granted), by, until))
            };
            let tasks = [demand(&one, wrong), demand(&other, right)];
            let mut skew = start;
            for (pause, by) in steps {
                pass(millis(pause)).await;
                skew += by;
                clock.skew(skew);
                at.push(fleet.now());
            }
            for task in tasks {
                task.await.unwrap();
            }
            check_rate(&granted.lock().unwrap(), &at)?;
            check_item(&fleet).await?;

            // The other process gets what flows in, and no more.
            let all = Granted::default();
            let until = fleet.now().plus(secs(10).into());
            self::demand(Arc::clone(&fleet), other, Arc::clone(&all), (1, 0), until).await;
            check_rate(&all.lock().unwrap(), &[])?;
            let sum: i64 = all.lock().unwrap().iter().map(|(_, amount)| amount).sum();
            prop_assert!(sum >= 95, "I2: {sum} in 10 s");
            check_item(&fleet).await
        })?;
    }

    /// A lease ends when it should by DynamoDB's clock, and its slots return then.
    #[test]
    fn i4_a_lease_ends_in_time_though_a_clock_is_set(
        start in prop_oneof![2 => Just(0), 1 => step()],
        by in step(),
        moment in 0..20_u64,
        is_renewed in any::<bool>(),
    ) {
        runtime().block_on(async {
            let fleet = Arc::new(Fleet::slow(millis(5)).await.tolerant());
            let clock = FakeClock::at(START);
            clock.skew(start);
            let (one, other) = (fleet.limiter_by(&clock).await, fleet.limiter().await);
            let set = || {
                let clock = clock.clone();
                tokio::spawn(async move {
                    pass(millis(moment)).await;
                    clock.skew(start + by);
                })
            };
            let limits = limits();
            if !is_renewed {
                drop(set());
            }
            let mut held = leased(&one, &limits, &[("slots", 4)], secs(30)).await;
            if is_renewed {
                pass(secs(5)).await;
                drop(set());
                let renewed = held.renew(secs(30)).await;
                prop_assert_eq!(renewed.unwrap(), weirgate::Settlement::Applied);
            }
            std::mem::forget(held);
            for (after, is_granted) in [(27, false), (6, true)] {
                pass(secs(after)).await;
                let free = ask(&other, &limits, &[("slots", 4)]).send().await.unwrap();
                prop_assert_eq!(free.is_granted(), is_granted);
            }
            check_item(&fleet).await
        })?;
    }
}
