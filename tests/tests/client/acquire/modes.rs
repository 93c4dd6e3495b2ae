//! Limits that never deny: shadow limits report and count what they would deny, soft ones go into
//! debt.

use weirgate_tests::fleet;
use weirgate_tests::fleet::taken;

use proptest::prelude::*;
use weirgate::{Decision, Limit, LimitMode, Settlement};
use weirgate_tests::fleet::shards::{holds, split};
use weirgate_tests::fleet::{
    Fleet, ask, config, denied, granted, millis, pass, runtime, secs, slots, tokens,
};

fn rpm(rate: i64, mode: LimitMode) -> Limit {
    Limit::per_minute("rpm", rate).unwrap().in_mode(mode)
}

fn tpm(rate: i64) -> Limit {
    Limit::per_minute("tpm", rate).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_shadow_limit_says_what_it_would_deny_and_takes_nothing_of_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(60, LimitMode::Shadow), tpm(1_000)];
    assert_eq!(granted(&limiter, &limits, &[("rpm", 50), ("tpm", 10)]).await.would_deny(), None);
    let grant = granted(&limiter, &limits, &[("rpm", 20), ("tpm", 10)]).await;
    let would_deny = grant.would_deny().expect("ten are missing");
    assert_eq!(would_deny.retry_after, Some(secs(10)));
    assert_eq!(would_deny.blocking().unwrap().limit, "rpm");
    assert_eq!((grant.amount("rpm"), grant.amount("tpm")), (tokens(0), tokens(10)));
    assert_eq!(
        (fleet.tk_tc("rpm").await, fleet.tk_tc("tpm").await),
        ((10_000, 50_000), (980_000, 20_000))
    );
    // What an enforced limit denies stays denied, and the shadow one is not among its reasons.
    let denial = denied(&limiter, &limits, &[("rpm", 20), ("tpm", 2_000 / 2)]).await;
    assert!(denial.short().any(|short| short.limit == "tpm"));
    let stats = limiter.stats();
    assert_eq!((stats.granted, stats.denied, stats.shadow_denied), (2, 1, 1));
    // Holding nothing of it is no reason to fail.
    let slots = [slots(1).in_mode(LimitMode::Shadow)];
    let _held = granted(&limiter, &slots, &[("slots", 1)]).await;
    let mut grant = granted(&limiter, &slots, &[("slots", 1)]).await;
    assert_eq!(grant.renew(secs(5)).await.unwrap(), weirgate::Settlement::Applied);
}

/// Neither an unrequested limit in debt nor a shadow limit makes a request wait.
#[tokio::test(start_paused = true)]
async fn only_enforced_limits_that_are_asked_are_waited_for() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(60, LimitMode::Shadow), tpm(60), Limit::per_day("debt", 24).unwrap(), soft()];
    let mut grant =
        granted(&limiter, &limits, &[("rpm", 60), ("tpm", 60), ("debt", 24), ("soft", 90)]).await;
    let _ = grant.adjust("debt", 48).await.unwrap();
    for takes in [&[("rpm", 30), ("tpm", 1)][..], &[("tpm", 1)], &[("tpm", 1), ("soft", 9)]] {
        let denial = denied(&limiter, &limits, takes).await;
        assert_eq!(denial.retry_after, Some(secs(1)), "{takes:?}");
        let looked = takes
            .iter()
            .fold(limiter.peek("e-1", "gpt-4").limits(&limits), |peek, (limit, need)| {
                peek.need(limit, *need)
            });
        assert_eq!(looked.send().await.unwrap().retry_after, Some(secs(1)), "{takes:?}");
    }
    assert!(denied(&limiter, &limits, &[("debt", 1)]).await.retry_after > Some(secs(3600)));
}

fn soft() -> Limit {
    Limit::per_hour("soft", 60).unwrap().in_mode(LimitMode::Soft)
}

#[tokio::test(start_paused = true)]
async fn a_limiter_in_shadow_mode_denies_and_delays_no_request() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.shadow(true)).await;
    let limits = [rpm(60, LimitMode::Enforced), slots(1)];
    let held = granted(&limiter, &limits, &[("rpm", 60), ("slots", 1)]).await;
    let started = fleet.now();
    let request = ask(&limiter, &limits, &[("rpm", 1), ("slots", 1)]).wait_up_to(secs(60));
    let grant = taken(request).await;
    assert_eq!(fleet.now(), started, "a wait is no denial, and costs the caller as much");
    let short: Vec<_> =
        grant.would_deny().unwrap().short().map(|status| status.limit.clone()).collect();
    assert_eq!(short, ["rpm", "slots"]);
    assert_eq!(limiter.stats().shadow_denied, 1);
    let _ = held.release().await.unwrap();
}

proptest! {
    #![proptest_config(config(12))]

    /// The numbers of a limiter in shadow mode are those of one that denies, request by request.
    #[test]
    fn shadow_mode_would_deny_what_enforced_mode_denies(
        steps in prop::collection::vec((0..4_000_u64, 1..40_i64, 0..5_i64), 1..40),
    ) {
        runtime().block_on(async {
            let (real, shadow) = (Fleet::new().await, Fleet::new().await);
            let enforcing = real.limiter().await;
            let watching = shadow.limiter_with(|builder| builder.shadow(true)).await;
            let limits = [rpm(60, LimitMode::Enforced), Limit::per_minute("b", 20).unwrap()];
            for (pause_ms, a, b) in steps {
                pass(millis(pause_ms)).await;
                let takes: Vec<_> = [("rpm", a), ("b", b)].into_iter().filter(|(_, need)| *need > 0).collect();
                let denies = match ask(&enforcing, &limits, &takes).send().await.unwrap() {
                    Decision::Denied(denied) => Some(denied),
                    _ => None,
                };
                let grant = granted(&watching, &limits, &takes).await;
                // Of the limits that had enough, what was asked is taken: those that would not have
                // been are given back, as a caller does that heeds the response.
                let would_deny = grant.would_deny().cloned();
                if would_deny.is_some() {
                    let _ = grant.roll_back().await.unwrap();
                }
                prop_assert_eq!(would_deny.map(|it| it.retry_after), denies.map(|it| it.retry_after));
            }
            Ok(())
        })?;
    }

    /// A soft limit is never in the way, counts all of it, and refills out of its debt like any
    /// other.
    #[test]
    fn a_soft_limit_goes_into_debt_and_counts_everything(
        shards in prop::sample::select(vec![1_u32, 4]),
        steps in prop::collection::vec((0..20_000_u64, 1..300_i64, 0..30_i64, 0..3_usize), 1..25),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let mut limiters = vec![];
            for _ in 0..3 {
                limiters.push(fleet.limiter().await);
            }
            let limits = vec![rpm(120, LimitMode::Soft), tpm(60)];
            split(&limiters[0], &limits, shards).await;
            let (mut soft, mut hard) = (0, 0);
            for (pause_ms, a, b, who) in steps {
                pass(millis(pause_ms)).await;
                let takes: Vec<_> = [("rpm", a), ("tpm", b)].into_iter().filter(|(_, need)| *need > 0).collect();
                match ask(&limiters[who], &limits, &takes).send().await.unwrap() {
                    Decision::Granted(grant) => {
                        prop_assert_eq!(grant.amount("rpm"), tokens(a));
                        soft += a;
                        hard += b;
                    }
                    Decision::Denied(denied) => {
                        prop_assert!(denied.short().all(|short| short.limit == "tpm"), "{:?}", denied);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let all = fleet::shards::shards(&fleet).await;
            let consumed = |limit: &str| all.iter().map(|shard| shard.limits[limit].consumed.bounded().0).sum::<i64>();
            prop_assert_eq!((consumed("rpm"), consumed("tpm")), (soft * 1000, hard * 1000));
            // No debt is forgotten and none is made: alone, the limit has what was never taken.
            if shards == 1 {
                let bucket = &all[0];
                let flowed = fleet.now().since(fleet::START).0 * 2;
                let has = bucket.balance(&bucket.limits["rpm"], fleet.now()).0;
                prop_assert!(has <= 120_000 && has >= 120_000 - soft * 1000 && has <= 120_000 - soft * 1000 + flowed);
            }
            let _ = holds(&fleet, "tpm").await;
            Ok(())
        })?;
    }
}

/// Whatever else the request took, and also from a token: an adjustment counts nothing of what was waived.
#[tokio::test(start_paused = true)]
async fn a_limit_that_shadow_mode_waived_is_not_adjusted() {
    for is_restored in [false, true] {
        let fleet = Fleet::new().await;
        let limiter = fleet.limiter().await;
        let limits = ["rpm=600/minute", "tpm=1000/day,mode=shadow"];
        let limits = limits.map(|text| text.parse::<Limit>().unwrap());
        let take = async || granted(&limiter, &limits, &[("rpm", 1), ("tpm", 600)]).await;
        let mut first = take().await;
        assert_eq!(first.adjust("tpm", 700).await.unwrap(), Settlement::Applied);
        let mut waived = take().await;
        assert!(waived.would_deny().is_some());
        if is_restored {
            waived = limiter.restore_grant(&waived.into_token()).unwrap();
        }
        assert_eq!(waived.adjust("tpm", 700).await.unwrap(), Settlement::Applied);
        assert_eq!(waived.adjust("rpm", 2).await.unwrap(), Settlement::Applied);
        assert_eq!(fleet.tk_tc("tpm").await, (300_000, 700_000), "{is_restored}");
        assert_eq!(fleet.tk_tc("rpm").await.1, 3_000, "{is_restored}");
    }
}
