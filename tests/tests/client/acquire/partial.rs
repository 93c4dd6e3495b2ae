//! Requests for as much as there is, between a minimum and a maximum.

use proptest::prelude::*;
use weirgate::{Decision, Limit, RateLimiter};

use weirgate_tests::fleet::{Fleet, config, leased, pass, rpm, runtime, secs, slots, tokens};

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
    for ((least, most), named) in [
        ((5, 4), "swap them"),
        ((-1, 4), "0 to 10^12"),
        ((0, i64::MAX), "0 to 10^12"),
    ] {
        let request = limiter.acquire("e-1", "gpt-4").limits(&limits);
        let error = request.take_up_to("rpm", least, most).send().await;
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(named) && error.contains("\"rpm\""),
            "{error}"
        );
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
