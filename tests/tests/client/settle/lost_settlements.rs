//! Settlements whose request or answer is lost, repeated, refused: what goes back goes back once.

use serde_json::json;
use weirgate::{Error, Grant, Limit, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::taken;
use weirgate_tests::fleet::{
    Fleet, alone_and_in_pairs, ask, granted, is_unknown, leased, pass, secs, slots,
};

fn limits() -> [Limit; 2] {
    [Limit::per_day("rpd", 1000).unwrap(), slots(20)]
}

/// What is done with a grant of 10 tokens, and 2 slots if it has a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Release,
    Rollback,
    Adjust(i64),
    AdjustSlots(i64),
    Renew,
}

impl What {
    async fn run(self, mut grant: Grant) -> Result<Settlement, Error> {
        match self {
            Self::Release => grant.release().await,
            Self::Rollback => grant.roll_back().await,
            Self::Adjust(tokens) => {
                let done = grant.adjust("rpd", tokens).await;
                std::mem::forget(grant);
                done
            }
            Self::AdjustSlots(slots) => {
                let done = grant.adjust("slots", slots).await;
                std::mem::forget(grant);
                done
            }
            Self::Renew => {
                let done = grant.renew(secs(3600)).await;
                std::mem::forget(grant);
                done
            }
        }
    }

    /// Net consumption, free slots, and leases, once it has happened.
    const fn after(self, has_lease: bool) -> (i64, i64, usize) {
        let (free, leases) = if has_lease { (18_000, 1) } else { (20_000, 0) };
        match self {
            Self::Release => (10_000, 20_000, 0),
            Self::Rollback => (0, 20_000, 0),
            Self::Adjust(tokens) => (tokens * 1000, free, leases),
            Self::AdjustSlots(slots) => (10_000, 20_000 - slots * 1000, leases),
            Self::Renew => (10_000, free, leases),
        }
    }
}

async fn settle_in(trouble: &[Fault], what: What, has_lease: bool, other: bool) {
    let case = format!("{trouble:?} {what:?} lease: {has_lease} other: {other}");
    let (fleet, [limiter]) = Fleet::of().await;
    let takes: &[_] = if has_lease { &[("rpd", 10), ("slots", 2)] } else { &[("rpd", 10)] };
    let grant = granted(&limiter, &limits(), takes).await;
    let before = (10_000, if has_lease { 18_000 } else { 20_000 }, usize::from(has_lease));
    let after = what.after(has_lease);
    fleet.trouble(trouble.iter().copied().map(Some).collect(), other.then_some("rpd"));
    let answer = what.run(grant).await;
    fleet.dynamo.fail_when(|_| None);

    let (bucket, foreign) = (fleet.bucket().await, 1000 * fleet::foreign_takes(&fleet));
    let (rate, slots) = (bucket.limits["rpd"], bucket.limits["slots"]);
    assert_eq!(
        rate.available.0 + rate.consumed.bounded().0,
        1_000_000,
        "{case}: I1, no token is made or lost"
    );
    let now = (
        rate.consumed.bounded().0 - foreign,
        slots.available.0,
        bucket.leases.as_ref().unwrap().len(),
    );
    let stats = limiter.stats();
    match &answer {
        Ok(Settlement::Applied) => assert_eq!(now, after, "{case}: it counts, once"),
        Ok(Settlement::LeaseGone) => panic!("{case}: the lease was there"),
        Err(error) if error.is_unknown() => {
            assert!(trouble.iter().copied().any(is_unknown), "{case}: {error}");
            assert!(
                now == before || now == after,
                "{case}: {now:?}, all or nothing, and once at most"
            );
        }
        Err(error) => {
            assert!(trouble.contains(&Fault::Forbidden), "{case}: {error}");
            assert_eq!(now, before, "{case}: {error}");
        }
    }
    if has_lease && !trouble.contains(&Fault::Forbidden) {
        assert!(answer.is_ok(), "{case}: the lease tells, {answer:?}");
        assert_eq!(stats.unconfirmed_millitokens, 0, "{case}");
    }
    let given_back = (before.0 - after.0).max(0);
    assert!(
        stats.unconfirmed_millitokens <= given_back.unsigned_abs(),
        "{case}: {} in doubt",
        stats.unconfirmed_millitokens
    );
}

async fn settle_in_every_trouble(what: What, has_lease: bool) {
    for trouble in alone_and_in_pairs() {
        for other in [false, true] {
            settle_in(&trouble, what, has_lease, other).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i4_a_release_in_trouble_gives_back_once() {
    settle_in_every_trouble(What::Release, true).await;
}

#[tokio::test(start_paused = true)]
async fn i4_a_rollback_in_trouble_gives_back_once() {
    settle_in_every_trouble(What::Rollback, true).await;
    settle_in_every_trouble(What::Rollback, false).await;
}

#[tokio::test(start_paused = true)]
async fn i7_an_adjustment_in_trouble_counts_once() {
    for tokens in [3, 700] {
        settle_in_every_trouble(What::Adjust(tokens), true).await;
        settle_in_every_trouble(What::Adjust(tokens), false).await;
    }
    for slots in [1, 5] {
        settle_in_every_trouble(What::AdjustSlots(slots), true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn i7_a_renewal_in_trouble_keeps_the_lease() {
    settle_in_every_trouble(What::Renew, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_stays_refused_ends_in_an_error() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(fleet::millis(900))).await;
    let grant = taken(ask(&limiter, &limits(), &[("slots", 20)]).lease(secs(30))).await;
    fleet.dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let error = grant.release().await.expect_err("it is throttled");
    assert!(
        error.is_transient() && !error.is_unknown() && error.to_string().contains("throttled"),
        "{error}"
    );
    fleet.dynamo.fail_when(|_| None);
    fleet::pass(secs(30)).await;
    let _ = granted(&limiter, &limits(), &[("slots", 20)]).await;
}

#[tokio::test(start_paused = true)]
async fn i4_a_release_in_doubt_of_a_lease_that_may_have_expired_is_unknown() {
    let (fleet, [limiter]) = Fleet::of().await;
    let grant = leased(&limiter, &limits(), &[("rpd", 10)], secs(5)).await;
    pass(secs(6)).await;
    let (dynamo, mut is_first) = (fleet.dynamo.clone(), true);
    fleet.dynamo.fail_when(move |_| {
        let is_lost = std::mem::take(&mut is_first);
        if is_lost {
            // In the meantime another process finds the lease expired, and returns its tokens.
            let mut item = dynamo.item(fleet::PK, "#STATE");
            item["h"] = json!({"M": {}});
            item["b_rpd_tk"] = json!({"N": "1000000"});
            item["b_rpd_tc"] = json!({"N": "0"});
            item["op"] = json!({"S": "0ther"});
            dynamo.put(&item);
        }
        is_lost.then_some(Fault::LoseRequest)
    });
    let released = grant.release().await;
    assert!(released.as_ref().is_err_and(Error::is_unknown), "{released:?}, and nothing was used");
}
