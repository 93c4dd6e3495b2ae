//! What is only reported changes no answer: any mixture of enforced requests with requests and limits
//! in shadow mode is answered as the enforced ones alone.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;
use weirgate::http::{Policies, PolicyNames, Problem};
use weirgate::testing::TestTable;
use weirgate::{Acquire, Decision, Limit, LimitMode, OnUnavailable, RateLimiter};

use weirgate_tests::fleet::{config, runtime};

/// One of several requests in a decision.
#[derive(Debug, Clone)]
struct Part {
    entity: u8,
    is_shadow: bool,
    amount: i64,
    /// Taken of a limit in shadow mode of the same bucket.
    trial: Option<i64>,
}

/// A decision, and the time before it.
#[derive(Debug, Clone)]
struct Step {
    pause_ms: u64,
    wait_ms: u64,
    parts: Vec<Part>,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (0..3_u8, any::<bool>(), 0..14_i64, proptest::option::of(0..9_i64));
    let part = part.prop_map(|(entity, is_shadow, amount, trial)| Part {
        entity,
        is_shadow,
        amount,
        trial,
    });
    proptest::collection::vec(part, 1..5)
        .prop_filter("one is enforced", |parts| parts.iter().any(|part| !part.is_shadow))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_000_u64, prop_oneof![Just(0_u64), 0..4_000_u64], parts());
    let step = step.prop_map(|(pause_ms, wait_ms, parts)| Step { pause_ms, wait_ms, parts });
    proptest::collection::vec(step, 1..6)
}

/// Of a bucket: ten a second, and a trial of two a day, whose retry-after is hours.
fn limits(has_trial: bool) -> Vec<Limit> {
    let mut limits = vec![Limit::per_second("rps", 10).unwrap()];
    if has_trial {
        let trial = Limit::per_day("trial", 2).unwrap();
        limits.push(trial.in_mode(LimitMode::Shadow));
    }
    limits
}

fn acquire<'l>(limiter: &'l RateLimiter, part: &Part, has_shadow: bool) -> Acquire<'l> {
    let of = if part.is_shadow { "trial" } else { "e" };
    let trial = part.trial.filter(|_| has_shadow);
    let acquire = limiter.acquire(&format!("{of}-{}", part.entity), "api");
    let mut acquire = acquire.limits(&limits(has_shadow)).take("rps", part.amount);
    if let Some(amount) = trial {
        acquire = acquire.take("trial", amount);
    }
    if part.is_shadow { acquire.shadow() } else { acquire }
}

/// What a client is told of a decision, and when.
async fn told(limiter: &RateLimiter, step: &Step, has_shadow: bool) -> (u16, String, u128) {
    let parts = step.parts.iter().filter(|part| has_shadow || !part.is_shadow);
    let parts: Vec<_> = parts.collect();
    let requests = parts.iter().map(|part| acquire(limiter, part, has_shadow));
    let all = limiter.acquire_all(requests).wait_up_to(Duration::from_millis(step.wait_ms));
    let asked = Instant::now();
    let decision = all.send().await.unwrap();
    let took = asked.elapsed().as_millis();
    let names = PolicyNames::default().own("e-0", "api");
    match decision {
        Decision::Granted(grants) => {
            let limits: Vec<_> = grants.iter().flat_map(|grant| grant.limits()).collect();
            let policies = Policies::granted(&limits, &names).with_x_rate_limit(true);
            (200, format!("{:?}", policies.fields()), took)
        }
        Decision::Denied(denied) => {
            let policies = Policies::denied(&denied, &names).with_x_rate_limit(true);
            let problem = Problem::denied(&denied, &names).json();
            (429, format!("{:?} {problem} {:?}", policies.fields(), denied.retry_after), took)
        }
        Decision::NeverFits(never) => (413, Problem::never_fits(&never, &names).json(), took),
        Decision::Disabled(disabled) => (403, Problem::disabled(&disabled).json(), took),
    }
}

/// What clients are told of each step, on a table of its own.
fn answers(
    steps: &[Step],
    outage: Option<(usize, OnUnavailable)>,
    has_shadow: bool,
) -> Vec<(u16, String, u128)> {
    runtime().block_on(async {
        let table = TestTable::new();
        let on_unavailable = outage.map_or(OnUnavailable::Error, |(_, decision)| decision);
        let builder = table.builder().on_unavailable(on_unavailable);
        let limiter = builder.build().await.unwrap();
        let mut answers = vec![];
        for (at, step) in steps.iter().enumerate() {
            table.set_unavailable(outage.is_some_and(|(from, _)| at >= from));
            tokio::time::sleep(Duration::from_millis(step.pause_ms)).await;
            let answer = told(&limiter, step, has_shadow).await;
            answers.push(answer);
        }
        answers
    })
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn a_mixture_with_shadow_mode_is_answered_as_the_enforced_requests_alone(
        steps in steps(),
        outage in proptest::option::of((0..6_usize, prop_oneof![
            Just(OnUnavailable::Allow),
            Just(OnUnavailable::Deny),
        ])),
    ) {
        let (mixed, alone) = (answers(&steps, outage, true), answers(&steps, outage, false));
        for (at, (mixed, alone)) in mixed.into_iter().zip(alone).enumerate() {
            prop_assert_eq!(mixed.0, alone.0, "step {}", at);
            // Retries and waits end at a random time of a moment, on which the balances depend.
            let is_out = outage.is_some_and(|(from, _)| at >= from);
            if is_out || mixed.2 > 0 || alone.2 > 0 {
                prop_assert!(is_out || mixed.2.abs_diff(alone.2) <= 500, "{mixed:?} for {alone:?}");
                break;
            }
            prop_assert_eq!(mixed.1, alone.1, "step {}", at);
        }
    }
}

/// On the bucket of an enforced request too, one in shadow mode denies it nothing.
#[tokio::test(start_paused = true)]
async fn a_request_in_shadow_mode_on_the_same_bucket_denies_nothing() {
    // What is taken before, of the enforced request, and of the one in shadow mode.
    for (before, own, trial) in [(0, 6, 6), (0, 10, 1), (0, 1, 11), (5, 3, 4), (5, 5, 5), (9, 1, 1)]
    {
        for is_first in [true, false] {
            let limiter = TestTable::new().limiter().await;
            let ask =
                |amount| limiter.acquire("e-0", "api").limits(&limits(false)).take("rps", amount);
            assert!(ask(before).send().await.unwrap().is_granted());
            let mut both = vec![ask(own), ask(trial).shadow()];
            if is_first {
                both.reverse();
            }
            let decision = limiter.acquire_all(both).send().await.unwrap();
            assert!(decision.is_granted(), "{before} {own} {trial} {is_first}: {decision:?}");
            let above = limiter.acquire_all([ask(11), ask(1).shadow()]).send().await.unwrap();
            assert!(matches!(above, Decision::NeverFits(_)), "its own amount");
        }
    }
}

/// What enforced requests of one bucket take, and those in shadow mode, which may be any amount.
fn calls() -> impl Strategy<Value = Vec<(bool, bool, i64, u64)>> {
    let amount = prop_oneof![0..14_i64, 300..500_i64];
    let call = (any::<bool>(), any::<bool>(), amount, 0..1_500_u64);
    proptest::collection::vec(call, 1..8)
}

proptest! {
    #![proptest_config(config(48))]

    /// With and without the table: whatever was asked in shadow mode, of the bucket of enforced
    /// requests or of another, the bucket is full when it has refilled from empty.
    #[test]
    fn requests_in_shadow_mode_leave_no_debt(
        calls in calls(), is_out in any::<bool>(), is_whole in any::<bool>(),
    ) {
        runtime().block_on(async {
            let table = TestTable::new();
            let local = OnUnavailable::Local { percent: 100 };
            let limiter = table.builder().on_unavailable(local).build().await.unwrap();
            let builder = table.builder().on_unavailable(local).shadow(is_whole);
            let trial = builder.build().await.unwrap();
            let ask = |limiter, amount| {
                let acquire: Acquire<'_> = RateLimiter::acquire(limiter, "e-0", "api");
                acquire.limits(&limits(true)).take("rps", amount).take("trial", amount)
            };
            table.set_unavailable(is_out);
            for (is_shadow, is_all, amount, pause_ms) in calls {
                let one = ask(&limiter, amount);
                let decision = match (is_shadow, is_all) {
                    (false, _) => {
                        let _ = one.send().await.unwrap();
                        continue;
                    }
                    (true, false) => one.shadow().send().await.unwrap().is_granted(),
                    (true, true) if is_whole => {
                        ask(&trial, amount).send().await.unwrap().is_granted()
                    }
                    (true, true) => {
                        let both = limiter.acquire_all([one.shadow(), ask(&limiter, 0)]);
                        both.send().await.unwrap().is_granted()
                    }
                };
                assert!(decision, "nothing denies a trial");
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let all = ask(&limiter, 10).send().await.unwrap();
            assert!(all.is_granted(), "{all:?}");
        });
    }
}
