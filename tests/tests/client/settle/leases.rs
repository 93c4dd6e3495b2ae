//! Durable leases: what they hold comes back once, by whichever way comes first.

use weirgate::{Decision, EpochMillis, Limit, Settlement};
use weirgate_shared::Millis;
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::taken;
use weirgate_tests::fleet::{Fleet, ask, denied, granted, leased, pass, secs, slots, tokens};
use weirgate_tests::stored::{child, configure, of_entity, set_entity};

fn limits() -> [Limit; 2] {
    [Limit::per_hour("rph", 100).unwrap(), slots(4)]
}

async fn count_leases(fleet: &Fleet) -> usize {
    fleet.bucket().await.leases.unwrap().len()
}

fn at(seconds: i64) -> EpochMillis {
    fleet::START.plus(Millis(seconds * 1000))
}

#[tokio::test(start_paused = true)]
async fn a_release_gives_back_slots_and_no_rate_tokens() {
    let (fleet, [limiter]) = Fleet::of().await;
    let grant = leased(&limiter, &limits(), &[("rph", 10), ("slots", 2)], secs(30)).await;
    assert_eq!(
        (fleet.tk_tc("rph").await, fleet.tk_tc("slots").await),
        ((90_000, 10_000), (2_000, 2_000))
    );
    let held = fleet.bucket().await.leases.unwrap();
    let lease = &held[grant.lease_id().unwrap()];
    assert_eq!(
        (lease.expires_at, &*lease.owner, grant.expires_at()),
        (at(30), "test", Some(at(30)))
    );
    assert_eq!((lease.tokens["rph"], lease.tokens["slots"]), (tokens(10), tokens(2)));

    assert_eq!(grant.release().await.unwrap(), Settlement::Applied);
    assert_eq!(
        (fleet.tk_tc("rph").await, fleet.tk_tc("slots").await),
        ((90_000, 10_000), (4_000, 2_000))
    );
    assert_eq!(count_leases(&fleet).await, 0);
}

/// The same name is a rate of the child.
#[tokio::test(start_paused = true)]
async fn a_lease_that_only_the_parent_has_is_shown_and_renewed() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let rate = Limit::per_hour("slots", 100).unwrap();
    configure(&limiter, &of_entity("e-1"), [rate]).await;
    configure(&limiter, &of_entity("org"), [slots(4)]).await;
    set_entity(&limiter, &child("e-1", "org")).await;
    let mut grant = taken(limiter.acquire("e-1", "gpt-4").take("slots", 1)).await;
    let until = grant.expires_at().unwrap();
    assert!(grant.lease_id().is_some());
    assert_eq!(grant.renew(secs(600)).await.unwrap(), Settlement::Applied);
    assert!(grant.expires_at().unwrap() > until);
}

#[tokio::test(start_paused = true)]
async fn an_adjustment_goes_into_debt_and_gives_back() {
    let (fleet, [limiter]) = Fleet::of().await;
    for lease in [false, true] {
        let ask = ask(&limiter, &limits(), &[("rph", 10)]);
        let ask = if lease { ask.lease(secs(30)) } else { ask };
        let mut grant = taken(ask).await;
        fleet.writes();
        assert_eq!(grant.adjust("rph", 10).await.unwrap(), Settlement::Applied);
        assert_eq!(fleet.writes(), 0, "a right estimate costs nothing");
        assert_eq!(grant.adjust("rph", 130).await.unwrap(), Settlement::Applied);
        assert_eq!(
            (grant.amount("rph"), fleet.tk_tc("rph").await),
            (tokens(130), (-30_000, 130_000))
        );
        // 100 an hour is one each 36 s; 31 are missing. A lease that expires unsettled gives them
        // back before.
        let retry_after = if lease { secs(30) } else { secs(31 * 36) };
        assert_eq!(denied(&limiter, &limits(), &[("rph", 1)]).await.retry_after, Some(retry_after));
        assert_eq!(grant.adjust("rph", 7).await.unwrap(), Settlement::Applied);
        assert_eq!(grant.adjust("rph", 0).await.unwrap(), Settlement::Applied);
        assert_eq!((grant.amount("rph"), fleet.tk_tc("rph").await), (tokens(0), (100_000, 0)));
        let _ = grant.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_lasts_longer_and_never_shorter() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = leased(&limiter, &limits(), &[("slots", 4)], secs(30)).await;
    pass(secs(20)).await;
    assert_eq!(grant.renew(secs(30)).await.unwrap(), Settlement::Applied);
    assert_eq!(grant.expires_at(), Some(at(50)));
    pass(secs(20)).await;
    denied(&limiter, &limits(), &[("slots", 1)]).await;
    // `due` is a lower bound: a lease that ended before it would be found late.
    assert_eq!(grant.renew(secs(1)).await.unwrap(), Settlement::Applied);
    let bucket = fleet.bucket().await;
    assert_eq!(bucket.leases.unwrap()[grant.lease_id().unwrap()].expires_at, at(50));
    assert!(bucket.due_at.unwrap() <= at(50));
    pass(secs(10)).await;
    let _ = granted(&limiter, &limits(), &[("slots", 1)]).await;
    assert_eq!(grant.renew(secs(30)).await.unwrap(), Settlement::LeaseGone);
}

#[tokio::test(start_paused = true)]
async fn i4_an_expired_lease_is_returned_once_by_the_next_take() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let crashed = leased(&other, &limits(), &[("rph", 60), ("slots", 4)], secs(30)).await;
    let denial = denied(&limiter, &limits(), &[("slots", 1)]).await;
    assert_eq!(denial.retry_after, Some(secs(30)), "when the lease expires");
    pass(secs(30)).await;
    fleet.writes();
    let mine = granted(&limiter, &limits(), &[("rph", 90), ("slots", 3)]).await;
    assert_eq!(fleet.writes(), 1, "along with the take");
    assert_eq!(fleet.tk_tc("rph").await.1, 90_000, "rate tokens were not used");
    assert_eq!(fleet.tk_tc("slots").await, (1_000, 7_000), "a slot counts when it is taken, once");
    // Its holder comes back too late.
    let before = fleet.bucket().await;
    assert_eq!(crashed.release().await.unwrap(), Settlement::LeaseGone);
    assert_eq!(fleet.bucket().await, before);
    let _ = mine.release().await.unwrap();
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}

#[tokio::test(start_paused = true)]
async fn i4_nothing_can_be_settled_after_the_lease_has_ended() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let mut ended = leased(&other, &limits(), &[("rph", 50), ("slots", 4)], secs(30)).await;
    pass(secs(30)).await;
    let _mine = granted(&limiter, &limits(), &[("slots", 1), ("rph", 51)]).await;
    let before = fleet.bucket().await;
    for tokens in [1, 99] {
        assert_eq!(ended.adjust("rph", tokens).await.unwrap(), Settlement::LeaseGone);
        assert_eq!(ended.adjust("slots", tokens).await.unwrap(), Settlement::LeaseGone);
    }
    assert_eq!(ended.renew(secs(60)).await.unwrap(), Settlement::LeaseGone);
    assert_eq!((ended.amount("rph"), ended.expires_at()), (tokens(50), Some(at(30))));
    assert_eq!(ended.roll_back().await.unwrap(), Settlement::LeaseGone);
    assert_eq!(fleet.bucket().await, before);
}

#[tokio::test(start_paused = true)]
async fn due_stays_a_lower_bound_and_steady_leases_do_not_move_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    let many = [slots(100)];
    let mut grants = vec![];
    for (lasts, due) in [(60, 60), (90, 60), (30, 30), (45, 30), (10, 10), (3600, 10)] {
        grants.push(leased(&limiter, &many, &[("slots", 1)], secs(lasts)).await);
        let bucket = fleet.bucket().await;
        assert_eq!(bucket.due_at, Some(at(due)), "after a lease of {lasts} s");
        assert_eq!(
            fleet.dynamo.item(fleet::PK, "#STATE")["due_shard"]["S"],
            bucket.key.due_shard()
        );
    }
    // Another process that has seen none of them.
    grants.push(leased(&fleet.limiter().await, &many, &[("slots", 1)], secs(5)).await);
    assert_eq!(fleet.bucket().await.due_at, Some(at(5)));
    for grant in grants {
        let _ = grant.release().await.unwrap();
    }
    assert_eq!(fleet.bucket().await.due_at, Some(at(5)), "a bound need not be tight");
}

/// I2: a request beside another one, whose write reclaims eight of them, is not denied the rest.
#[tokio::test(start_paused = true)]
async fn i2_a_request_gets_the_slots_of_more_expired_leases_than_a_write_frees() {
    let fleet = Fleet::slow(fleet::millis(2)).await;
    let limiter = fleet.limiter().await;
    let slots = [slots(40)];
    for _ in 0..35 {
        std::mem::forget(leased(&limiter, &slots, &[("slots", 1)], secs(5)).await);
    }
    pass(secs(6)).await;
    let asked = [1, 39].map(|need| ask(&limiter, &slots, &[("slots", need)]).lease(secs(30)));
    let answers = futures_util::future::join_all(asked.map(|ask| ask.send())).await;
    let grants: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()).collect();
    assert!(grants.iter().all(Decision::is_granted), "{grants:?}");
}

/// A repeated take that is applied shows that no earlier one was, if the lease of an earlier one
/// would still be there.
#[tokio::test(start_paused = true)]
async fn a_lease_proves_a_lost_take_only_until_it_may_have_expired() {
    for (lasts, unconfirmed) in [(60, 0), (1, 5_000)] {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &limits(), &[("rph", 1)]).await;
        fleet.trouble(vec![Some(Fault::LoseRequest)], Some("rph"));
        let _grant = leased(&limiter, &limits(), &[("rph", 5)], secs(lasts)).await;
        assert_eq!(limiter.stats().unconfirmed_millitokens, unconfirmed, "{lasts} s");
    }
}
