//! Requests for as much as there is, between a minimum and a maximum.

use proptest::prelude::*;
use weirgate::{Decision, Limit, LimitMode, RateLimiter};

use crate::settle::restored::sums;
use weirgate_tests::fleet::{Fleet, config, leased, pass, rpm, runtime, secs, slots, tokens};
use weirgate_tests::stored::{child, configure, of_entity, set_entity};

fn limits() -> [Limit; 2] {
    [rpm(60), slots(8)]
}

async fn up_to(limiter: &RateLimiter, limit: &str, least: i64, most: i64) -> Decision {
    let limits = limits();
    let request = limiter.acquire("e-1", "gpt-4").limits(&limits);
    request.take_up_to(limit, least, most).send().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn as_much_as_there_is_is_taken_with_one_write() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut given = vec![];
    for _ in 0..3 {
        let grant = up_to(&limiter, "rpm", 5, 25).await.granted().unwrap();
        given.push(grant.amount("rpm").whole_tokens());
    }
    assert_eq!((given, fleet.writes()), (vec![25, 25, 10], 3));
    pass(secs(4)).await;
    let Decision::Denied(denied) = up_to(&limiter, "rpm", 5, 25).await else {
        panic!("4 of 5 are there")
    };
    assert_eq!(denied.retry_after, Some(secs(1)), "for the minimum");
    assert_eq!(denied.blocking().unwrap().requested, tokens(5));
    pass(secs(1)).await;
    let grant = up_to(&limiter, "rpm", 5, 25).await.granted().unwrap();
    assert_eq!(grant.amount("rpm"), tokens(5));
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(fleet.tk_tc("rpm").await, (5_000, 60_000));
    // Nothing at all is enough, unless it is in debt.
    let all = up_to(&limiter, "rpm", 0, 60).await.granted().unwrap();
    assert_eq!(all.amount("rpm"), tokens(5));
    let none = up_to(&limiter, "rpm", 0, 60).await.granted().unwrap();
    assert_eq!(none.amount("rpm"), tokens(0));
}

/// I1: a bucket of the chain that has less bounds what all give, unless it only reports.
#[tokio::test(start_paused = true)]
async fn i1_no_bucket_of_a_chain_gives_more_of_a_range_than_another_one_that_enforces_it() {
    let modes = [LimitMode::Enforced, LimitMode::Shadow, LimitMode::Soft];
    let modes = modes.iter().flat_map(|kid| modes.map(|team| (*kid, team)));
    let lefts = [(10, 10), (10, 4), (4, 10)];
    for ((kid, team), left) in modes.flat_map(|modes| lefts.map(|left| (modes, left))) {
        for (is_leased, is_one_of_two) in [(false, false), (true, false), (false, true)] {
            let name = format!("{kid:?}, {team:?}, {left:?}, {is_leased}, {is_one_of_two}");
            let (fleet, [limiter]) = Fleet::of().await;
            set_entity(&limiter, &child("kid", "team")).await;
            for (of, mode, left) in [("kid", kid, left.0), ("team", team, left.1)] {
                let limit = Limit::custom("rpm", left, 1, 365 * 86_400_000).unwrap();
                configure(&limiter, &of_entity(of), vec![limit.in_mode(mode)]).await;
            }
            let mut ask = limiter.acquire("kid", "gpt-4").take_up_to("rpm", 2, 8);
            if is_leased {
                ask = ask.lease(secs(600));
            }
            let grant = match is_one_of_two {
                false => ask.send().await.unwrap().granted().unwrap(),
                true => {
                    let all = limiter.acquire_all([ask]).send().await.unwrap();
                    all.granted().unwrap().into_iter().next().unwrap()
                }
            };
            let enforced = [(kid, left.0), (team, left.1)].into_iter();
            let enforced = enforced.filter(|(mode, _)| *mode == LimitMode::Enforced);
            let most = enforced.map(|(_, left)| left.min(8)).min();
            if let Some(most) = most {
                assert_eq!(grant.amount("rpm"), tokens(most), "{name}");
            }
            let amount = grant.amount("rpm").0;
            let used = |of: &str| {
                let sums = sums(&fleet);
                let mut sums = sums.iter();
                let of = format!("#{of}#");
                *sums.find(|(key, _)| key.contains(&of) && key.ends_with("rpm_tc")).unwrap().1
            };
            for (of, mode) in [("kid", kid), ("team", team)] {
                let is_enforced = mode == LimitMode::Enforced;
                assert!(used(of) <= amount, "{name}: {of}");
                assert!(!is_enforced || used(of) == amount, "{name}: {of}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i4_a_lease_holds_as_much_as_was_given() {
    let (fleet, [limiter]) = Fleet::of().await;
    let held = leased(&limiter, &limits(), &[("slots", 3)], secs(60)).await;
    let rest = up_to(&limiter, "slots", 1, 8).await.granted().unwrap();
    assert_eq!(rest.amount("slots"), tokens(5));
    let leases = limiter.admin().leases("e-1", "gpt-4").await.unwrap().items;
    let mut slots: Vec<_> = leases.iter().map(|lease| lease.tokens["slots"]).collect();
    slots.sort_unstable();
    assert_eq!(slots, [tokens(3), tokens(5)]);
    assert!(!up_to(&limiter, "slots", 1, 8).await.is_granted());
    let _ = rest.release().await.unwrap();
    assert_eq!(fleet.tk_tc("slots").await.0, 5_000);
    let _ = held.release().await.unwrap();
    assert_eq!(fleet.tk_tc("slots").await.0, 8_000);
}

#[tokio::test(start_paused = true)]
async fn a_range_that_cannot_be_is_refused() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = limits();
    let _ = fleet.dynamo.take_requests();
    for ((least, most), named) in
        [((5, 4), "swap them"), ((-1, 4), "0 to 10^12"), ((0, i64::MAX), "0 to 10^12")]
    {
        let request = limiter.acquire("e-1", "gpt-4").limits(&limits);
        let error = request.take_up_to("rpm", least, most).send().await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("\"rpm\""), "{error}");
    }
    assert_eq!(fleet.dynamo.take_requests(), 0);
    let never = up_to(&limiter, "rpm", 61, 100).await;
    assert!(matches!(never, Decision::NeverFits(_)), "{never:?}");
}

proptest! {
    #![proptest_config(config(24))]

    /// Requests that share a write: each gets its minimum or a denial, the minimums come first, and
    /// together they never get more than there is.
    #[test]
    fn i1_partial_grants_that_share_a_write_get_what_there_is(
        ranges in prop::collection::vec((1..30_i64, 0..40_i64), 1..12),
        processes in 1..3_usize,
    ) {
        runtime().block_on(async {
            let fleet = Fleet::new().await;
            let mut limiters = vec![];
            for _ in 0..processes {
                limiters.push(fleet.limiter().await);
            }
            let requests = ranges.iter().enumerate().map(|(at, (least, more))| {
                let limiter = limiters[at % processes].clone();
                let (least, most) = (*least, least + more);
                tokio::spawn(async move { (least, most, up_to(&limiter, "rpm", least, most).await) })
            });
            let requests: Vec<_> = requests.collect();
            let (mut given, mut smallest_denied) = (0, i64::MAX);
            for request in requests {
                let (least, most, decision) = request.await.unwrap();
                match decision {
                    Decision::Granted(grant) => {
                        let amount = grant.amount("rpm").whole_tokens();
                        assert!((least..=most).contains(&amount), "{amount} of {least} to {most}");
                        given += amount;
                    }
                    Decision::Denied(_) => smallest_denied = smallest_denied.min(least),
                    other => panic!("{other:?}"),
                }
            }
            let (left, consumed) = fleet.tk_tc("rpm").await;
            assert_eq!(consumed, given * 1_000);
            assert!(given <= 60 && left < 60_000, "{given}");
            // What is left is less than any denied request needs.
            assert!(left / 1_000 < smallest_denied, "{left} left, {smallest_denied} denied");
        });
    }
}
