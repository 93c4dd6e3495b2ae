//! A grant around a piece of work: released on success, rolled back on failure, whatever the work
//! does.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use weirgate::{Error, Grant, Limit, ScopeError};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, granted, millis, pass, secs, settle, slots};

fn limits() -> [Limit; 2] {
    [Limit::per_hour("rph", 100).unwrap(), slots(4)]
}

const TAKES: [(&str, i64); 2] = [("rph", 10), ("slots", 1)];

#[tokio::test(start_paused = true)]
async fn success_releases_and_the_adjustment_counts() {
    let (fleet, [limiter]) = Fleet::of().await;
    let scope = ask(&limiter, &limits(), &TAKES).scope(async |grant| {
        assert_eq!(fleet.tk_tc("slots").await.0, 3_000, "held while the work is done");
        let _ = grant.adjust("rph", 4).await?;
        Ok::<_, Error>("done")
    });
    assert_eq!(scope.await.unwrap(), "done");
    assert_eq!((fleet.tk_tc("rph").await, fleet.tk_tc("slots").await.0), ((96_000, 4_000), 4_000));
}

#[tokio::test(start_paused = true)]
async fn an_error_rolls_back_what_was_adjusted_too() {
    let (fleet, [limiter]) = Fleet::of().await;
    for adjusted in [4, 10, 30] {
        let scope = ask(&limiter, &limits(), &TAKES).scope(async |grant| {
            let _ = grant.adjust("rph", adjusted).await.unwrap();
            Err::<(), _>("the vendor is down")
        });
        let error = scope.await.unwrap_err();
        assert!(matches!(error, ScopeError::Work("the vendor is down")), "{error:?}");
        assert_eq!((fleet.tk_tc("rph").await, fleet.tk_tc("slots").await.0), ((100_000, 0), 4_000));
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_or_is_dropped_shows_that_the_work_was_done() {
    // Which call on the grant fails, and what is used of 10 in the end.
    for (call, used) in [
        ("adjust", 10_000),
        ("a wrong adjust", 10_000),
        ("a dropped adjust", 4_000),
        ("give_back", 10_000),
        ("take_more", 10_000),
        ("take_more_of", 10_000),
        ("nothing", 0),
        ("renew", 10_000),
        ("vendor_said", 10_000),
    ] {
        let fleet = Fleet::slow(millis(5)).await;
        let limiter = fleet.limiter().await;
        let scope = ask(&limiter, &limits(), &TAKES).scope(async |grant| {
            match call {
                "a wrong adjust" | "a dropped adjust" | "nothing" => {}
                _ => fleet.fail(&[Fault::Forbidden]),
            }
            let failed = match call {
                "a wrong adjust" => grant.adjust("rph", -1).await.map(drop),
                "a dropped adjust" => {
                    let adjusted = tokio::time::timeout(millis(1), grant.adjust("rph", 4)).await;
                    assert!(adjusted.is_err(), "it was quick");
                    return Err("dropped".to_owned());
                }
                "adjust" => grant.adjust("rph", 4).await.map(drop),
                "give_back" => grant.give_back("rph", 4).await.map(drop),
                "take_more" => grant.take_more("rph", 4).await.map(drop),
                "take_more_of" => {
                    let grants = std::slice::from_mut(grant);
                    Grant::take_more_of(grants, &[(0, "rph", 4)]).await.map(drop)
                }
                "nothing" => {
                    let said = || grant.vendor_said(429, [("retry-after", "1")]);
                    let (one, other) = tokio::join!(said(), said());
                    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
                    return Err("the vendor is down".to_owned());
                }
                "renew" => grant.renew(secs(90)).await.map(drop),
                _ => grant.vendor_said(429, [("retry-after", "1")]).await.map(drop),
            };
            Err::<(), _>(failed.expect_err(call).to_string())
        });
        let error = scope.await.unwrap_err();
        assert!(matches!(error, ScopeError::Work(_)), "{call}: {error:?}");
        settle().await;
        assert_eq!(fleet.tk_tc("rph").await.1, used, "{call}");
        assert_eq!(fleet.tk_tc("slots").await.0, 4_000, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_goes_on_and_the_tokens_are_back() {
    let (fleet, [limiter]) = Fleet::of().await;
    let scope = ask(&limiter, &limits(), &TAKES).scope(async |_| -> Result<(), Error> {
        pass(millis(5)).await;
        std::panic::panic_any(17_u8)
    });
    let panic = AssertUnwindSafe(scope).catch_unwind().await.expect_err("the panic goes on");
    assert_eq!(panic.downcast_ref::<u8>(), Some(&17), "with its own payload");
    assert_eq!((fleet.tk_tc("rph").await, fleet.tk_tc("slots").await.0), ((100_000, 0), 4_000));
    let _ = granted(&limiter, &limits(), &TAKES).await.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_is_not_begun_without_its_tokens() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rph", 95)]).await;
    let never_begun =
        async |_: &mut weirgate::Grant| -> Result<(), Error> { panic!("the work was begun") };
    let denied = ask(&limiter, &limits(), &TAKES).scope(never_begun).await.unwrap_err();
    let ScopeError::Denied(why) = &denied else { panic!("{denied:?}") };
    assert_eq!(why.retry_after, Some(secs(5 * 36)));
    assert!(denied.to_string().contains("rph has 5 of 10 requested"), "{denied}");
    let never = ask(&limiter, &limits(), &[("rph", 101)]).scope(never_begun).await.unwrap_err();
    assert!(matches!(never, ScopeError::NeverFits(_)), "{never:?}");
    let invalid = ask(&limiter, &limits(), &[("tpm", 1)]).scope(never_begun).await.unwrap_err();
    assert!(matches!(invalid, ScopeError::Limiter(Error::Invalid(_))), "{invalid:?}");
    assert!(std::error::Error::source(&invalid).is_some());
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_scope_gives_back_its_slots() {
    let fleet = Fleet::slow(millis(5)).await;
    let limiter = fleet.limiter().await;
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    // While the tokens are taken, while the work is done, while they are given back.
    for (patience_ms, rph_used) in [(2, 0), (50, 10_000), (107, 10_000)] {
        let before = fleet.tk_tc("rph").await.1;
        let scope = ask(&limiter, &limits(), &TAKES).scope(async |_| {
            pass(millis(100)).await;
            Ok::<_, Error>(())
        });
        assert!(tokio::time::timeout(millis(patience_ms), scope).await.is_err());
        settle().await;
        let used = fleet.tk_tc("rph").await.1 - before;
        assert_eq!(
            (used, fleet.tk_tc("slots").await.0),
            (rph_used, 4_000),
            "cancelled after {patience_ms} ms"
        );
        assert_eq!(fleet.bucket().await.leases.unwrap().len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_works_own_result_stands_when_its_tokens_cannot_be_settled() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
    let answer = ask(&limiter, &limits(), &TAKES).scope(async |_| {
        fleet.fail(&[Fault::Forbidden]);
        Ok::<_, Error>("done")
    });
    assert_eq!(answer.await.unwrap(), "done");
    assert_eq!(fleet.tk_tc("slots").await.0, 3_000, "left to the lease's expiry");
    pass(secs(60)).await;
    let _ = granted(&limiter, &limits(), &[("slots", 4)]).await;
}
