//! A take is exact also where others have written since this process saw the bucket.

use weirgate::{Limit, RateLimiter};
use weirgate_tests::fleet;
use weirgate_tests::fleet::{Fleet, ask, granted, pass, secs, tokens};

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 100).unwrap()]
}

/// A bucket of 100 a minute that `limiter` has seen with 10 left, and that holds 100 again since.
async fn given_back_since(fleet: &Fleet, limiter: &RateLimiter) {
    let other = fleet.limiter().await;
    let grant = granted(&other, &rpm(), &[("rpm", 80)]).await;
    let _ = granted(limiter, &rpm(), &[("rpm", 10)]).await;
    let _ = grant.roll_back().await.unwrap();
    let rest = ask(&other, &rpm(), &[("rpm", 10)])
        .send()
        .await
        .unwrap()
        .granted()
        .unwrap();
    let _ = rest.roll_back().await.unwrap();
    assert_eq!(fleet.tk_tc("rpm").await, (90_000, 10_000));
    // 50 flow in, of which only 10 fit.
    pass(secs(30)).await;
}

/// What a take that cuts the balance of 100 tokens leaves free, where others write too.
const ROOM: i64 = 781;

#[tokio::test(start_paused = true)]
async fn i1_a_take_from_what_was_left_does_not_keep_what_has_flowed_over_since() {
    let (fleet, [limiter]) = Fleet::of().await;
    given_back_since(&fleet, &limiter).await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 1)]).await;
    assert_eq!(fleet.tk_tc("rpm").await.0, 99_000 - ROOM);
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_against_the_credit_does_not_keep_what_has_flowed_over_since() {
    let (fleet, [limiter]) = Fleet::of().await;
    given_back_since(&fleet, &limiter).await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 20)]).await;
    assert_eq!(
        fleet.tk_tc("rpm").await.0,
        80_000,
        "room would be too little for another 20"
    );
}

#[tokio::test(start_paused = true)]
async fn i1_a_take_from_a_bucket_that_seemed_full_does_not_fill_it() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 20)]).await;
    let _ = granted(&other, &rpm(), &[("rpm", 60)]).await;
    pass(secs(30)).await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 5)]).await;
    assert_eq!(fleet.tk_tc("rpm").await.0, 65_000);
}

/// The burst of an idle bucket is its capacity, not that and the refill since.
#[tokio::test(start_paused = true)]
async fn i1_a_bucket_left_alone_is_emptied_once_at_one_instant() {
    for first_contact in [false, true] {
        let fleet = Fleet::new().await;
        let mut limiter = fleet.limiter().await;
        let _ = granted(&limiter, &rpm(), &[("rpm", 1)]).await;
        pass(secs(600)).await;
        if first_contact {
            limiter = fleet.limiter().await;
        }
        for _ in 0..4 {
            let _ = granted(&limiter, &rpm(), &[("rpm", 25)]).await;
        }
        assert_eq!(
            fleet::denied(&limiter, &rpm(), &[("rpm", 5)])
                .await
                .retry_after,
            Some(secs(3))
        );
        assert_eq!(fleet.tk_tc("rpm").await, (0, 101_000));
    }
}

/// What is stored stays below the capacity too, so that a raised limit does not bring back what had
/// flowed over.
#[tokio::test(start_paused = true)]
async fn i1_what_is_given_back_is_cut_where_it_is_stored() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let grant = granted(&limiter, &rpm(), &[("rpm", 40)]).await;
    pass(secs(60)).await;
    let _ = granted(&other, &rpm(), &[("rpm", 1)]).await;
    let _ = grant.roll_back().await.unwrap();
    assert!(fleet.bucket().await.limits["rpm"].available <= tokens(100));

    let grant = granted(&limiter, &rpm(), &[("rpm", 40)]).await;
    let lower = [Limit::per_minute("rpm", 4).unwrap()];
    let _ = granted(&other, &lower, &[("rpm", 1)]).await;
    let _ = grant.roll_back().await.unwrap();
    assert!(fleet.bucket().await.limits["rpm"].available <= tokens(4));
}

/// The second would otherwise take by the rules of the first.
#[tokio::test(start_paused = true)]
async fn requests_with_other_limits_have_a_write_of_their_own() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 1)]).await;
    fleet.writes();
    let (large, small) = (rpm(), [Limit::per_minute("rpm", 20).unwrap()]);
    let (first, second) = tokio::join!(
        ask(&limiter, &large, &[("rpm", 10)]).send(),
        ask(&limiter, &small, &[("rpm", 15)]).send(),
    );
    assert!(first.unwrap().is_granted() && second.unwrap().is_granted());
    assert_eq!(fleet.writes(), 2);
    assert_eq!(fleet.bucket().await.limits["rpm"].rule, *small[0].rule());
    assert_eq!(fleet.tk_tc("rpm").await, (5_000, 26_000));
}
