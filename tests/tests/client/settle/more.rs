//! More of a limit within a grant, and a part of it given back.

use weirgate::{Decision, Error, Grant, Limit, OnUnavailable, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::stored::set_entity;

use weirgate_tests::fleet::{Fleet, ask, granted, leased, pass, secs, slots, tokens, tpm};
use weirgate_tests::stored::{child, configured, rpm};

fn limits() -> [Limit; 3] {
    [rpm(60), tpm(600), slots(4)]
}

async fn more(grant: &mut Grant, limit: &str, tokens: i64) -> Decision<()> {
    grant.take_more(limit, tokens).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn more_is_taken_with_one_write_or_denied_and_is_the_same_acquire() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = granted(&limiter, &limits(), &[("rpm", 1), ("tpm", 400)]).await;
    fleet.writes();
    assert!(more(&mut grant, "tpm", 150).await.is_granted());
    assert_eq!((fleet.writes(), grant.amount("tpm")), (1, tokens(550)));
    assert_eq!(fleet.tk_tc("tpm").await, (50_000, 550_000));
    assert_eq!(fleet.bucket().await.acquires.total, 1, "one acquire");
    let Decision::Denied(denied) = more(&mut grant, "tpm", 60).await else {
        panic!("50 are left");
    };
    assert_eq!(denied.retry_after, Some(secs(1)));
    assert_eq!(fleet.tk_tc("tpm").await, (50_000, 550_000));
    let Decision::NeverFits(never) = more(&mut grant, "tpm", 601).await else {
        panic!("601 of 600");
    };
    assert_eq!(never.capacity, tokens(600));
    // The total is adjusted, and returned, as one.
    assert_eq!(grant.adjust("tpm", 500).await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpm").await, (100_000, 500_000));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0));
    assert_eq!(fleet.bucket().await.acquires.total, 1);
}

#[tokio::test(start_paused = true)]
async fn more_under_a_lease_is_held_and_returned_with_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = leased(&limiter, &limits(), &[("slots", 1), ("tpm", 100)], secs(30)).await;
    pass(secs(10)).await;
    assert!(more(&mut grant, "slots", 2).await.is_granted());
    assert!(more(&mut grant, "tpm", 50).await.is_granted());
    let until = grant.expires_at();
    let leases = limiter.admin().leases("e-1", "gpt-4").await.unwrap().items;
    assert!(
        leases.iter().all(|lease| Some(lease.expires_at) == until),
        "{leases:?}"
    );
    assert_eq!(grant.renew(secs(60)).await.unwrap(), Settlement::Applied);
    assert!(!more(&mut grant, "slots", 2).await.is_granted());
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(1));
    assert_eq!(grant.release().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(4));
    assert_eq!(
        limiter.admin().leases("e-1", "gpt-4").await.unwrap().items,
        []
    );
    // A holder that dies.
    let mut grant = leased(&limiter, &limits(), &[("slots", 1)], secs(30)).await;
    assert!(more(&mut grant, "slots", 3).await.is_granted());
    std::mem::forget(grant);
    pass(secs(31)).await;
    let _ = granted(&limiter, &limits(), &[("slots", 4)]).await;
}

#[tokio::test(start_paused = true)]
async fn more_is_taken_from_every_bucket_of_the_grant_or_from_none() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &weirgate::ConfigLevel::System, [rpm(10)]).await;
    set_entity(&limiter, &child("e-1", "team")).await;
    let take = |entity: &str, amount| limiter.acquire(entity, "gpt-4").take("rpm", amount).send();
    let mut grant = take("e-1", 1).await.unwrap().granted().unwrap();
    let _other = take("team", 6).await.unwrap();
    assert!(more(&mut grant, "rpm", 2).await.is_granted());
    assert!(
        !more(&mut grant, "rpm", 2).await.is_granted(),
        "the team has 1"
    );
    pass(secs(1)).await;
    let left = limiter.peek("e-1", "gpt-4").send().await.unwrap();
    let left: Vec<_> = left
        .limits
        .iter()
        .map(|limit| limit.available.whole_tokens())
        .collect();
    assert_eq!(left, [7, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_or_given_back_is_refused_with_the_remedy() {
    let (fleet, [limiter]) = Fleet::of().await;
    let says = |error: Error, text: &str| {
        assert!(
            matches!(&error, Error::Invalid(said) if said.contains(text)),
            "{error}"
        );
    };
    let mut grant = granted(&limiter, &limits(), &[("rpm", 3)]).await;
    says(
        grant.take_more("cpm", 1).await.unwrap_err(),
        "limit \"cpm\" is not among",
    );
    says(
        grant.take_more("slots", 1).await.unwrap_err(),
        "the grant has no lease",
    );
    says(grant.take_more("rpm", -1).await.unwrap_err(), "0 to 10^12");
    // The item keeps a limit that this request did not bring.
    let mut fewer = granted(&limiter, &limits()[..1], &[("rpm", 1)]).await;
    says(
        fewer.take_more("tpm", 1).await.unwrap_err(),
        "limit \"tpm\" is not among the limits of this acquire",
    );
    let _ = fewer.roll_back().await.unwrap();
    says(
        grant.give_back("rpm", 4).await.unwrap_err(),
        "grant holds 3 of \"rpm\", 4 were to be given back",
    );
    assert_eq!(
        grant.give_back("rpm", 2).await.unwrap(),
        Settlement::Applied
    );
    assert_eq!(
        (grant.amount("rpm"), fleet.tk_tc("rpm").await),
        (tokens(1), (59_000, 1_000))
    );
    let mut late = leased(&limiter, &limits(), &[("rpm", 1), ("slots", 2)], secs(5)).await;
    assert_eq!(
        late.give_back("slots", 1).await.unwrap(),
        Settlement::Applied
    );
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(3));
    pass(secs(5)).await;
    says(
        late.take_more("rpm", 1).await.unwrap_err(),
        "the lease of this grant has expired",
    );
    let away = fleet
        .limiter_with(|builder| builder.on_unavailable(OnUnavailable::Allow))
        .await;
    fleet.dynamo.fail_reads(|_, _| Some(Fault::ServerError));
    let mut degraded = granted(&away, &limits(), &[("rpm", 1)]).await;
    says(
        degraded.take_more("rpm", 1).await.unwrap_err(),
        "made without the table",
    );
}

/// A request whose response is lost takes once, as an acquire does.
#[tokio::test(start_paused = true)]
async fn i7_more_is_taken_once_whatever_becomes_of_the_response() {
    for fault in [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::ServerErrorApplied,
    ] {
        let (fleet, [limiter]) = Fleet::of().await;
        let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
        fleet.fail(&[fault]);
        assert!(more(&mut grant, "tpm", 50).await.is_granted());
        assert_eq!(fleet.tk_tc("tpm").await.1, 150_000, "{fault:?}");
        fleet.fail(&[]);
        // A call that is dropped returns what it took.
        let fleet = Fleet::slow(secs(1)).await;
        let limiter = fleet.limiter().await;
        let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
        let half = std::time::Duration::from_millis(500);
        let dropped = tokio::time::timeout(half, grant.take_more("tpm", 50)).await;
        assert!(dropped.is_err());
        pass(secs(10)).await;
        assert_eq!(fleet.tk_tc("tpm").await.1, 100_000);
        let _ = ask(&limiter, &limits(), &[("tpm", 1)])
            .send()
            .await
            .unwrap();
    }
}

/// The decision for outages is for acquires: only the table takes more of a grant.
#[tokio::test(start_paused = true)]
async fn i1_more_is_not_granted_without_the_table_whatever_is_stored() {
    let local = OnUnavailable::Local { percent: 10 };
    for stored in [OnUnavailable::Allow, OnUnavailable::Deny, local] {
        for is_shadow in [false, true] {
            let (fleet, [operator]) = Fleet::of().await;
            let store = operator.admin().store_on_unavailable(Some(stored));
            store.send().await.unwrap();
            let build = |builder: weirgate::Builder| {
                let timeout = std::time::Duration::from_millis(200);
                builder.shadow(is_shadow).timeout(timeout)
            };
            let limiter = fleet.limiter_with(build).await;
            let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
            fleet.fail_writes(Fault::ServerError);
            fleet.fail_reads(Fault::ServerError);
            let acquire = ask(&limiter, &limits(), &[("tpm", 1)]).send().await;
            assert!(acquire.is_ok(), "the stored decision is in force");
            for _ in 0..2 {
                let more = grant.take_more("tpm", 50).await;
                let error = more.expect_err("nothing was taken");
                assert!(error.is_transient(), "{stored:?}: {error}");
                assert_eq!(grant.amount("tpm"), tokens(100));
            }
        }
    }
}
