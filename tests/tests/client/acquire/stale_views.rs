//! A take is exact also where others have written since this process saw the bucket.

use weirgate::Limit;
use weirgate_tests::fleet;
use weirgate_tests::fleet::{Fleet, ask, granted, pass, secs, tokens};

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 100).unwrap()]
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
        assert_eq!(fleet::denied(&limiter, &rpm(), &[("rpm", 5)]).await.retry_after, Some(secs(3)));
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
