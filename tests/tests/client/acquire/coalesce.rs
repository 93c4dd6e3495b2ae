//! Requests to one bucket in one process share its writes, and each gets its own response.

use std::time::Duration;

use weirgate::{Decision, Limit};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{
    Fleet, ask, by_name, granted, millis, pass, secs, settle, slots, tokens, tpm,
};
use weirgate_tests::scaling::facts::SHARED_MILLI;

fn rpm(rate: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", rate).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn thirty_two_callers_take_a_tenth_of_a_write_unit_each() {
    let fleet = Fleet::slow(millis(2)).await;
    let (limiter, meter) = fleet.metered().await;
    let limits: std::sync::Arc<[Limit]> =
        [Limit::per_second("rps", 1_000_000).unwrap(), tpm(1_000_000_000)].into();
    let acquire = async |times: usize| {
        for _ in 0..times {
            let ask = limiter
                .acquire("e-1", "gpt-4")
                .shared_limits(&limits)
                .take("rps", 1)
                .take("tpm", 20);
            assert!(ask.send().await.unwrap().is_granted());
        }
    };
    acquire(1).await;
    let _ = meter.take();
    futures(32, |_| acquire(50)).await;
    let units = meter.take();
    assert!(units.total <= 0.1 * 1600.0, "{units:?}");
    assert!(
        units.total * 1_000.0 <= f64::from(u32::try_from(SHARED_MILLI).unwrap()) * 1600.0,
        "all waiting requests share the next write: {units:?}"
    );
    let bucket = fleet.bucket().await;
    assert_eq!((bucket.acquires.total, bucket.limits["rps"].consumed), (1601, tokens(1601).into()));
    assert_eq!(bucket.limits["tpm"].consumed, tokens(20 * 1601));
}

async fn futures<T>(count: usize, future: impl Fn(usize) -> T)
where
    T: Future,
{
    futures_util::future::join_all((0..count).map(future)).await;
}

#[tokio::test(start_paused = true)]
async fn an_uncontended_acquire_waits_only_for_the_response() {
    let fleet = Fleet::slow(millis(2)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(600), &[("rpm", 600)]).await;
    // Being denied is no sign of competition.
    for _ in 0..20 {
        let Decision::Denied(denied) =
            ask(&limiter, &rpm(600), &[("rpm", 1)]).send().await.unwrap()
        else {
            panic!("there is nothing")
        };
        pass(denied.retry_after.unwrap()).await;
        let began = fleet.now();
        let _ = granted(&limiter, &rpm(600), &[("rpm", 1)]).await;
        assert_eq!(Duration::from(fleet.now().since(began)), millis(2), "one round trip");
    }
    assert_eq!(limiter.stats().lost_races, 0);
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_and_a_smaller_one_behind_may_pass() {
    let fleet = Fleet::slow(millis(2)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 50)]).await;
    fleet.writes();
    let (limits, limiter) = (rpm(60), &limiter);
    // 10 are there.
    let asks = [1, 4, 7, 3, 2, 2].map(|tokens| ask(limiter, &limits, &[("rpm", tokens)]).send());
    let answers = futures_util::future::join_all(asks).await;
    let granted: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().unwrap().is_granted()).collect();
    assert_eq!(granted, [true, true, false, true, true, false]);
    assert_eq!(fleet.writes(), 1);
    assert_eq!(fleet.tk_tc("rpm").await.1, 60_000);
    // Nothing is left. 7 need 7 s from then, 2 need 2 s.
    for (answer, wait) in [(&answers[2], 7), (&answers[5], 2)] {
        let Ok(Decision::Denied(denied)) = answer else { panic!("{answer:?}") };
        let wait = secs(wait);
        let retry_after = denied.retry_after.unwrap();
        assert!(retry_after <= wait && retry_after > wait - millis(10), "{retry_after:?}");
        assert_eq!(denied.retry_after, by_name(denied)["rpm"].retry_after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_cancelled_in_line_takes_nothing() {
    let fleet = Fleet::slow(millis(5)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 1)]).await;
    let limits = rpm(60);
    let impatient = tokio::time::timeout(millis(2), ask(&limiter, &limits, &[("rpm", 7)]).send());
    let (first, second, third) = tokio::join!(
        ask(&limiter, &limits, &[("rpm", 1)]).send(),
        impatient,
        ask(&limiter, &limits, &[("rpm", 2)]).send(),
    );
    assert!(first.unwrap().is_granted() && second.is_err() && third.unwrap().is_granted());
    settle().await;
    assert_eq!(fleet.tk_tc("rpm").await.1, 4_000);
}

/// I1, I3: a request into debt bypasses the condition that another one of the same limit needs, so
/// they cannot share a write.
#[tokio::test(start_paused = true)]
async fn i1_i3_requests_into_debt_and_others_do_not_share_a_write() {
    for (balance, fits) in [(59, true), (0, false)] {
        let fleet = Fleet::slow(millis(5)).await;
        let limiter = fleet.limiter().await;
        let limits = rpm(60);
        let _ = granted(&limiter, &limits, &[("rpm", 60 - balance)]).await;
        let (_, debt, other) = tokio::join!(
            ask(&limiter, &limits, &[("rpm", 0)]).send(),
            ask(&limiter, &limits, &[("rpm", 100)]).into_debt().send(),
            ask(&limiter, &limits, &[("rpm", 1)]).send(),
        );
        assert!(debt.unwrap().is_granted());
        // It shares the write of the first one, which is before the debt.
        assert_eq!(other.unwrap().is_granted(), fits);
        let (one, debt) = tokio::join!(
            ask(&limiter, &limits, &[("rpm", 0)]).into_debt().send(),
            ask(&limiter, &limits, &[("rpm", 100)]).into_debt().send(),
        );
        assert!(one.unwrap().is_granted() && debt.unwrap().is_granted());
        let (left, used) = fleet.tk_tc("rpm").await;
        let taken = 60 - balance + 200 + i64::from(fits);
        assert_eq!(used, taken * 1_000);
        assert!((0..100).contains(&(left - (60 - taken) * 1_000)), "{left} left");
    }
}

/// A wait that is told counts from the denial, not from the write whose response showed it.
#[tokio::test(start_paused = true)]
async fn what_did_not_fit_beside_a_batch_is_denied_with_the_time_from_now() {
    let fleet = Fleet::slow(millis(200)).await;
    let limiter = fleet.limiter().await;
    let limits = rpm(60);
    let _ = granted(&limiter, &limits, &[("rpm", 50)]).await;
    let (_, _, third) = tokio::join!(
        ask(&limiter, &limits, &[("rpm", 1)]).send(),
        ask(&limiter, &limits, &[("rpm", 9)]).send(),
        ask(&limiter, &limits, &[("rpm", 5)]).send(),
    );
    let Decision::Denied(denied) = third.unwrap() else {
        panic!("the others take all");
    };
    pass(denied.retry_after.unwrap()).await;
    let _ = granted(&limiter, &limits, &[("rpm", 5)]).await;
    assert!(fleet.tk_tc("rpm").await.0 < 300, "a token was there before the retry-after");
}

#[tokio::test(start_paused = true)]
async fn i7_the_tokens_of_a_caller_cancelled_in_flight_go_back() {
    let fleet = Fleet::slow(millis(5)).await;
    let limiter = fleet.limiter().await;
    let limits = [rpm(60)[0].clone(), slots(4)];
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    // Among other waiters, which keep theirs.
    let impatient =
        tokio::time::timeout(millis(3), ask(&limiter, &limits, &[("rpm", 7), ("slots", 1)]).send());
    let (first, second, third) = tokio::join!(
        ask(&limiter, &limits, &[("rpm", 1)]).send(),
        impatient,
        ask(&limiter, &limits, &[("rpm", 2), ("slots", 2)]).send(),
    );
    let third = third.unwrap().granted().unwrap();
    assert!(first.unwrap().is_granted() && second.is_err());
    settle().await;
    assert_eq!((fleet.tk_tc("rpm").await.1, fleet.tk_tc("slots").await.0), (4_000, 2_000));
    assert_eq!(
        fleet.bucket().await.leases.unwrap().keys().next().unwrap().as_str(),
        third.lease_id().unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_to_everyone_in_the_write_and_the_next_are_served() {
    let fleet = Fleet::slow(millis(2)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &rpm(600), &[("rpm", 1)]).await;
    fleet.fail(&[Fault::Forbidden]);
    let limits = rpm(600);
    let asks = (0..5).map(|_| ask(&limiter, &limits, &[("rpm", 1)]).send());
    let answers = futures_util::future::join_all(asks).await;
    assert!(answers.iter().all(Result::is_err));
    let _ = granted(&limiter, &rpm(600), &[("rpm", 1)]).await;
    assert_eq!(fleet.tk_tc("rpm").await.1, 2_000);
}

fn per_day() -> [Limit; 1] {
    [Limit::per_day("rpd", 600).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_holds_up_no_other() {
    for after in [0, 1, 2, 3, 100] {
        let fleet = Fleet::slow(millis(2)).await;
        let limiter = fleet.limiter().await;
        let _ = granted(&limiter, &per_day(), &[("rpd", 0)]).await;
        let limits = per_day();
        let mut first = Box::pin(ask(&limiter, &limits, &[("rpd", 1)]).send());
        assert!(futures_util::poll!(&mut first).is_pending());
        pass(millis(after)).await;
        let began = fleet.now();
        let _ = granted(&limiter, &per_day(), &[("rpd", 2)]).await;
        let waited = Duration::from(fleet.now().since(began));
        assert!(waited <= millis(4), "{waited:?} after {after} ms");
        assert!(first.await.unwrap().is_granted());
        assert_eq!(fleet.tk_tc("rpd").await, (597_000, 3_000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_does_not_hold_up_the_end() {
    let fleet = Fleet::slow(millis(2)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &per_day(), &[("rpd", 0)]).await;
    let limits = per_day();
    let mut first = Box::pin(ask(&limiter, &limits, &[("rpd", 1)]).send());
    assert!(futures_util::poll!(&mut first).is_pending());
    let began = fleet.now();
    limiter.shutdown().await.unwrap();
    let waited = Duration::from(fleet.now().since(began));
    assert!(waited <= millis(4), "{waited:?}");
    assert!(first.await.unwrap().is_granted());
}
