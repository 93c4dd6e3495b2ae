//! Limits that callers bring reach the bucket with their takes.

use weirgate::Limit;
use weirgate_tests::fleet::{
    Fleet, by_name, denied, granted, millis, pass, secs, slots, tokens, tpm,
};

fn rpm(rate: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", rate).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_reaches_the_bucket_with_the_take_and_refills_it() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(&other, &rpm(10), &[("rpm", 10)]).await;
    denied(&limiter, &rpm(10), &[("rpm", 1)]).await;

    // 10 a minute is one each 6 s.
    pass(secs(6)).await;
    fleet.writes();
    let _ = granted(&limiter, &rpm(60), &[("rpm", 1)]).await;
    assert_eq!(fleet.writes(), 1, "along with the take");
    let state = fleet.bucket().await.limits["rpm"];
    assert_eq!((state.rule, state.consumed), (*rpm(60)[0].rule(), tokens(11).into()));
    pass(secs(60)).await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 60)]).await;
    denied(&limiter, &rpm(60), &[("rpm", 1)]).await;
}

/// Otherwise the retry-after would speak of a rate that the bucket does not have, and of a capacity
/// it never gets.
#[tokio::test(start_paused = true)]
async fn i5_a_raised_limit_reaches_a_bucket_without_enough_tokens() {
    for need in [1, 40] {
        let (fleet, [limiter, other]) = Fleet::of().await;
        let _ = granted(&other, &rpm(10), &[("rpm", 10)]).await;
        let retry_after = denied(&limiter, &rpm(60), &[("rpm", need)]).await.retry_after.unwrap();
        // 60 a minute is one a second, from the millisecond after the change on.
        assert_eq!(retry_after, secs(need.unsigned_abs()) + millis(1));
        pass(retry_after).await;
        let _ = granted(&limiter, &rpm(60), &[("rpm", need)]).await;
        assert_eq!(fleet.tk_tc("rpm").await.1, (10 + need) * 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_new_is_added_full() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(&other, &rpm(10), &[("rpm", 10)]).await;
    let both = [rpm(10)[0].clone(), tpm(600)];
    let denied = denied(&limiter, &both, &[("rpm", 1), ("tpm", 1)]).await;
    assert_eq!(by_name(&denied)["tpm"].available, tokens(600));
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0), "a denial brings it, and takes nothing");
    pass(secs(6)).await;
    let _ = granted(&limiter, &both, &[("rpm", 1), ("tpm", 100)]).await;
    assert_eq!(fleet.tk_tc("tpm").await, (500_000, 100_000));
    assert_eq!(fleet.tk_tc("rpm").await, (0, 11_000));
}

#[tokio::test(start_paused = true)]
async fn slots_above_a_lowered_number_stay_held_until_they_are_released() {
    let (fleet, [limiter]) = Fleet::of().await;
    let slots = |count| [slots(count)];
    let three = granted(&limiter, &slots(5), &[("slots", 3)]).await;
    let one = granted(&limiter, &slots(5), &[("slots", 1)]).await;
    let denial = denied(&limiter, &slots(2), &[("slots", 1)]).await;
    assert_eq!(denial.limits[0].available, tokens(-2));
    let _ = three.release().await.unwrap();
    pass(secs(1)).await;
    let last = granted(&limiter, &slots(2), &[("slots", 1)]).await;
    denied(&limiter, &slots(2), &[("slots", 1)]).await;
    let _ = (one.release().await.unwrap(), last.release().await.unwrap());
    assert_eq!(fleet.tk_tc("slots").await.0, 2_000);
}
