//! An adjustment whose response is lost, or whose future is dropped, and what follows it:
//! everything counts once.

use weirgate::{Limit, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, granted, leased, pass, secs, slots};

fn limits() -> [Limit; 2] {
    [Limit::per_day("tpd", 1_000).unwrap(), slots(4)]
}

/// I1: without a lease the adjustment is not repeated, and what it may have given back does not go
/// back again.
#[tokio::test(start_paused = true)]
async fn i1_a_rollback_after_an_adjustment_in_doubt_gives_nothing_back_twice() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let (fleet, [limiter]) = Fleet::of().await;
        let mut grant = granted(&limiter, &limits(), &[("tpd", 500)]).await;
        fleet.fail(&[fault]);
        // The item shows what was applied.
        match grant.adjust("tpd", 200).await {
            Ok(_) => assert_eq!(fault, Fault::LoseAnswer),
            Err(error) => assert!(error.is_unknown() && fault == Fault::LoseRequest),
        }
        assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
        let (tk, tc) = fleet.tk_tc("tpd").await;
        assert!(tk <= 1_000_000 && tc >= 0, "{fault:?}: {tk} there, {tc} used");
        assert_eq!(tk + tc, 1_000_000, "{fault:?}");
    }
}

/// I4: a lease that expired and was reclaimed while its renewal was in doubt is gone, whatever the
/// doubt.
#[tokio::test(start_paused = true)]
async fn i4_a_renewal_in_doubt_is_not_done_once_the_lease_is_gone() {
    let (fleet, [holder, other]) = Fleet::of().await;
    let mut grant = leased(&holder, &limits(), &[("slots", 4)], secs(10)).await;
    pass(secs(11)).await;
    let dynamo = fleet.dynamo.clone();
    let mut sent = 0;
    dynamo.fail_when(move |_| {
        sent += 1;
        (sent == 1).then_some(Fault::LoseRequest)
    });
    let renewed = tokio::spawn(async move { grant.renew(secs(60)).await.unwrap() });
    // The renewal is sent and lost. Before it is retried, a process without free slots takes the
    // leased ones.
    tokio::task::yield_now().await;
    let taken = granted(&other, &limits(), &[("slots", 4)]).await;
    assert_eq!(renewed.await.unwrap(), Settlement::LeaseGone);
    assert_eq!(taken.release().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}
