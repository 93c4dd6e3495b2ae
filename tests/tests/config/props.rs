//! Limits that change at all levels, while processes that have heard of it, or not, take by them.

use crate::fixtures::fleet;
use crate::fixtures::fleet::{Fleet, config, millis, pass, runtime, secs, tokens};
use crate::fixtures::stored::{entity, resource, take};
use proptest::prelude::*;
use weirgate::{Config, ConfigLevel, Decision, Error, Limit, RateLimiter};
use weirgate_shared::{RefillRule, refill_between};
use weirgate_tests::assert_has;

#[derive(Debug, Clone)]
enum Step {
    /// A process sets or deletes the limits of a level.
    Configure(usize, usize, Option<usize>),
    Take(usize, i64),
    /// All processes take at once.
    Crowd(i64),
    Pass(u64),
}

/// How long each process believes what it has read, in seconds.
const AGES: [u64; 4] = [60, 60, 7, 1];

/// Whole millitokens each millisecond, so that how often a rate changes does not matter for the
/// sum.
const RATES: [(i64, i64); 4] = [(60, 60), (120, 60), (60, 300), (240, 240)];

fn limit(rate: usize) -> Limit {
    let (amount, burst) = RATES[rate];
    Limit::per_minute("rpm", amount).unwrap().with_burst(burst).unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    let process = || 0..AGES.len();
    prop_oneof![
        3 => (process(), 0..4_usize, prop::option::weighted(0.7, 0..RATES.len()))
            .prop_map(|(process, level, rate)| Step::Configure(process, level, rate)),
        4 => (process(), 1..80_i64).prop_map(|(process, amount)| Step::Take(process, amount)),
        2 => (1..40_i64).prop_map(Step::Crowd),
        3 => prop_oneof![0..2_000_u64, 0..20_000_u64, Just(61_000)].prop_map(Step::Pass),
    ]
}

/// What a decision admits, in tokens.
fn admitted(decision: Result<Decision, Error>, amount: i64) -> i64 {
    match decision {
        Ok(decision) => amount * i64::from(decision.is_granted()),
        Err(Error::NotConfigured { .. }) => 0,
        Err(error) => panic!("{error}"),
    }
}

async fn run(
    fleet: &Fleet,
    limiters: &[RateLimiter],
    steps: Vec<Step>,
) -> (i64, [Option<usize>; 4]) {
    let levels = ConfigLevel::of(&entity("e-1"), &resource("gpt-4"));
    let (mut total, mut set) = (0, [None; 4]);
    for step in steps {
        match step {
            Step::Configure(process, at, Some(rate)) => {
                limiters[process]
                    .admin()
                    .set_config(&levels[at], &Config::of([limit(rate)]))
                    .await
                    .unwrap();
                set[at] = Some(rate);
            }
            Step::Configure(process, at, None) => {
                assert_eq!(
                    limiters[process].admin().delete_config(&levels[at]).await.unwrap(),
                    set[at].is_some()
                );
                set[at] = None;
            }
            Step::Take(process, amount) => {
                total += admitted(take(&limiters[process], amount).await, amount)
            }
            Step::Crowd(amount) => {
                let takes = limiters.iter().map(|limiter| take(limiter, amount));
                for decision in futures_util::future::join_all(takes).await {
                    total += admitted(decision, amount);
                }
            }
            Step::Pass(ms) => pass(millis(ms)).await,
        }
        if !fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
            let state = fleet.bucket().await.limits["rpm"];
            assert_has!(
                state, consumed: tokens(total);
                "what was admitted is what the table counted"
            );
        }
    }
    (total, set)
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn i1_limits_that_change_under_processes_that_have_not_heard(steps in prop::collection::vec(step(), 1..40)) {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(2)).await;
            let mut limiters = vec![];
            for age in AGES {
                limiters.push(fleet.limiter_with(|builder| builder.config_ttl(secs(age))).await);
            }
            let (total, set) = run(&fleet, &limiters, steps).await;
            // I1 against the largest rule there is.
            let most = |pick: fn(&(i64, i64)) -> i64| RATES.iter().map(pick).max().unwrap();
            let (rate, burst) = (most(|rate| rate.0), most(|rate| rate.1));
            let rule = RefillRule { capacity: tokens(burst), refill_amount: tokens(rate), refill_period_ms: 60_000 };
            let flowed = refill_between(&rule, weirgate_shared::ShardIndex::UNSPLIT, fleet::START, fleet.now());
            prop_assert!(tokens(total) <= rule.capacity + flowed, "{total} admitted");

            // After a minute every process has read the limits, and the bucket gets the last ones
            // with the next take.
            pass(secs(61)).await;
            let _ = fleet.writes();
            let loads = || limiters.iter().map(|limiter| limiter.cache_stats().loads).sum::<u64>();
            let loads_before = loads();
            let Some(winner) = set.into_iter().flatten().next() else {
                for limiter in &limiters {
                    let is_missing = matches!(take(limiter, 1).await, Err(Error::NotConfigured { .. }));
                    prop_assert!(is_missing);
                }
                return Ok(());
            };
            for limiter in &limiters {
                prop_assert!(take(limiter, 1).await.unwrap().is_granted());
                let bucket = fleet.bucket().await;
                prop_assert_eq!(bucket.limits["rpm"].rule, *limit(winner).rule());
            }
            let processes = u64::try_from(limiters.len()).unwrap();
            // One write each, and one that meets a bucket others have written to since.
            let writes = fleet.writes();
            prop_assert!(writes <= 2 * processes, "{writes} writes of {processes} processes");
            prop_assert!(loads() - loads_before <= processes);
            Ok(())
        })?;
    }
}
