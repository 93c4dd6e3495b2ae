//! Requests that bypass the limits: admitted whatever the balances are, debited nowhere, and counted.

use proptest::prelude::*;
use weirgate::{
    Acquire, ConfigLevel, Error, Grant, Granularity, Limit, OnUnavailable, Prefetch, RateLimiter,
    Settlement, UsageScope,
};
use weirgate_shared::BucketKey;
use weirgate_testkit::Fault;
use weirgate_testkit::leased::load;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::set_entity;

use weirgate_tests::fleet::shards::{holds, shards, split, troubles};
use weirgate_tests::fleet::{
    Fleet, START, ask, config, denied, granted, leased, millis, pass, runtime, secs, slots, tokens,
    tpm,
};
use weirgate_tests::stored::{child, configure, entity, resource, rpm};

fn limits() -> [Limit; 3] {
    [rpm(60), tpm(600), slots(4)]
}

fn bypass<'a>(limiter: &'a RateLimiter, limits: &[Limit], takes: &[(&str, i64)]) -> Acquire<'a> {
    ask(limiter, limits, takes).bypass()
}

async fn bypassed(limiter: &RateLimiter, limits: &[Limit], takes: &[(&str, i64)]) -> Grant {
    let decision = bypass(limiter, limits, takes).send().await.unwrap();
    decision.granted().expect("nothing denies it")
}

/// Acquires that the bucket has counted.
async fn acquires(fleet: &Fleet) -> i128 {
    fleet.bucket().await.acquires.total
}

/// Consumption of `rpm` and acquires, as a report of the hour has them.
async fn reported(limiter: &RateLimiter) -> (i128, i128) {
    let scope = UsageScope::Bucket(entity("e-1"), resource("gpt-4"));
    let hour = START..START.plus(secs(3_600).into());
    let report = limiter.admin().usage_report(scope, Granularity::Hourly, hour);
    let usage = report.unwrap().total().await.unwrap().usage;
    (usage.tokens["rpm"].0, usage.acquires)
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_bucket_admits_debits_nothing_and_counts() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    // Until every process counts for the hour that has begun.
    pass(secs(10)).await;
    let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
    let _ = denied(&limiter, &limits(), &[("rpm", 1)]).await;
    fleet.writes();
    // A process with a view and a cached denial, and one without; also above the capacity.
    for (limiter, amount) in [(&limiter, 5), (&other, 7), (&limiter, 100)] {
        let grant = bypassed(limiter, &limits(), &[("rpm", amount)]).await;
        assert_eq!(grant.amount("rpm"), tokens(amount));
        assert_eq!((grant.degraded(), grant.would_deny()), (None, None));
        assert_eq!(fleet.writes(), 1);
    }
    assert_eq!(fleet.tk_tc("rpm").await, (0, 172_000));
    assert_eq!(acquires(&fleet).await, 4);
    assert_eq!(reported(&other).await, (172_000, 4));
    let _ = denied(&limiter, &limits(), &[("rpm", 1)]).await;
    pass(secs(1)).await;
    let _ = granted(&limiter, &limits(), &[("rpm", 1)]).await;
}

/// Also where the write brings changed limits, one of which turns from slots in use into a rate.
#[tokio::test(start_paused = true)]
async fn a_bypass_brings_limits_as_any_other_request() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = leased(&limiter, &limits(), &[("rpm", 60), ("slots", 4)], secs(60)).await;
    let held = leased(&limiter, &limits(), &[("slots", 4)], secs(60)).await;
    let changed = [rpm(120), slots(20), limits()[1].clone()];
    pass(secs(31)).await;
    let began = fleet.now();
    let grant = bypassed(&limiter, &changed, &[("rpm", 3), ("slots", 1)]).await;
    assert_eq!((grant.degraded(), fleet.now()), (None, began), "at once");
    assert_eq!(fleet.tk_tc("rpm").await, (31_000, 63_000));
    assert_eq!(fleet.bucket().await.limits["rpm"].rule.capacity, tokens(120));
    assert_eq!(fleet.tk_tc("slots").await.1, 9_000);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_grant_changes_only_what_is_counted() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
    let mut grant = bypassed(&limiter, &limits(), &[("rpm", 5)]).await;
    for (step, counted) in [("less", 62_000), ("more", 80_000), ("another", 80_000)] {
        let settled = match step {
            "less" => grant.adjust("rpm", 2).await,
            "more" => grant.adjust("rpm", 20).await,
            _ => grant.adjust("tpm", 30).await,
        };
        assert_eq!(settled.unwrap(), Settlement::Applied, "{step}");
        assert_eq!(fleet.tk_tc("rpm").await, (0, counted), "{step}");
    }
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 30_000));
    assert!(grant.take_more("rpm", 100).await.unwrap().is_granted());
    assert_eq!(grant.give_back("rpm", 10).await.unwrap(), Settlement::Applied);
    assert_eq!(grant.amount("rpm"), tokens(110));
    assert_eq!(fleet.tk_tc("rpm").await, (0, 170_000));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("rpm").await, (0, 60_000));
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0));
    // A release ends nothing, so it costs nothing.
    let grant = bypassed(&limiter, &limits(), &[("rpm", 5)]).await;
    fleet.writes();
    let _ = grant.release().await.unwrap();
    assert_eq!((fleet.writes(), fleet.tk_tc("rpm").await), (0, (0, 65_000)));
}

#[tokio::test(start_paused = true)]
async fn slots_are_counted_and_not_held() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _held = leased(&limiter, &limits(), &[("slots", 4)], secs(60)).await;
    let mut grant = bypassed(&limiter, &limits(), &[("rpm", 1), ("slots", 2)]).await;
    assert_eq!((grant.lease_id(), grant.amount("slots")), (None, tokens(2)));
    assert_eq!(fleet.tk_tc("slots").await, (0, 6_000));
    assert_eq!(limiter.admin().leases("e-1", "gpt-4").await.unwrap().items.len(), 1);
    let _ = grant.adjust("slots", 3).await.unwrap();
    let _ = grant.roll_back().await.unwrap();
    // As of any grant, slots stay counted, and rates do not.
    assert_eq!(fleet.tk_tc("slots").await, (0, 7_000));
    assert_eq!(fleet.tk_tc("rpm").await, (60_000, 0));
    fleet.writes();
    let refused = || bypass(&limiter, &limits(), &[("slots", 1)]);
    for (refused, remedy) in [
        (refused().lease(secs(30)), "leave out the lease"),
        (refused().into_debt(), "leave out into_debt"),
    ] {
        let refused = refused.send().await;
        assert!(matches!(&refused, Err(Error::Invalid(text)) if text.contains(remedy)), "{remedy}");
    }
    assert_eq!(fleet.writes(), 0);
}

/// Nothing is counted twice, or less than was admitted, except where a counter says so.
#[tokio::test(start_paused = true)]
async fn i3_i7_a_lost_answer_counts_once() {
    // Nothing refills during the retries.
    let limits = [Limit::per_day("rpm", 60).unwrap()];
    for faults in troubles() {
        for is_new in [false, true] {
            let case = format!("{faults:?}, new: {is_new}");
            let (fleet, [limiter]) = Fleet::of().await;
            let before = if is_new { 0 } else { 60 };
            if !is_new {
                let _ = granted(&limiter, &limits, &[("rpm", before)]).await;
            }
            fleet.fail(&faults);
            let grant = bypassed(&limiter, &limits, &[("rpm", 5)]).await;
            assert_eq!(grant.degraded(), None, "{case}");
            let counted = fleet.tk_tc("rpm").await;
            assert_eq!(counted, (60_000 - before * 1_000, before * 1_000 + 5_000), "{case}");
            // Of a lost creation, only the item's own id tells that it was not made twice.
            let doubt = limiter.stats().unconfirmed_millitokens;
            assert!(is_new || doubt == 0, "{case}: {doubt}");
        }
    }
    // Another process writes before the retry, so the item does not tell.
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits, &[("rpm", 50)]).await;
    fleet.trouble(vec![Some(Fault::LoseAnswer)], Some("rpm"));
    let _ = bypassed(&limiter, &limits, &[("rpm", 5)]).await;
    let (tk, tc) = fleet.tk_tc("rpm").await;
    assert_eq!((tk, tc), (9_000, 51_000 + 2 * 5_000));
    assert_eq!(limiter.stats().unconfirmed_millitokens, 5_000);
}

#[tokio::test(start_paused = true)]
async fn i7_what_a_lost_return_leaves_counted_is_said() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
    let grant = bypassed(&limiter, &limits(), &[("rpm", 5)]).await;
    fleet.fail(&[Fault::LoseRequest]);
    assert!(grant.roll_back().await.unwrap_err().is_unknown());
    assert_eq!(fleet.tk_tc("rpm").await, (0, 65_000));
    assert_eq!(limiter.stats().unconfirmed_millitokens, 5_000);
}

#[tokio::test(start_paused = true)]
async fn prefetched_tokens_are_left_alone() {
    let fleet = Fleet::new().await;
    let limiter =
        fleet.limiter_with(|builder| builder.prefetch("gpt-4", Prefetch::default())).await;
    let limits = [rpm(60_000)];
    for _ in 0..50 {
        let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
        pass(millis(10)).await;
    }
    let (stats, taken) = (limiter.stats(), fleet.tk_tc("rpm").await.1);
    assert!(stats.prefetch_hits > 0 && taken > 50_000, "{stats:?}");
    fleet.writes();
    let mut grant = bypassed(&limiter, &limits, &[("rpm", 5)]).await;
    let _ = grant.adjust("rpm", 8).await.unwrap();
    assert_eq!(fleet.writes(), 2, "neither is from the pool");
    assert_eq!(limiter.stats().prefetch_hits, stats.prefetch_hits);
    limiter.shutdown().await.unwrap();
    assert_eq!(fleet.tk_tc("rpm").await.1, 58_000);
    assert_eq!(acquires(&fleet).await, 51);
}

/// The table only counts, so nothing that it fails to answer in time denies. `on_unavailable` is for
/// requests that the table decides.
#[tokio::test(start_paused = true)]
async fn a_bypass_that_cannot_be_counted_in_time_is_granted_and_degraded() {
    let policies = [
        OnUnavailable::Error,
        OnUnavailable::Deny,
        OnUnavailable::Allow,
        OnUnavailable::Local { percent: 50 },
    ];
    let faults = [
        Fault::LoseRequest,
        Fault::ServerError,
        Fault::Throttle { key_range: false },
        Fault::Throttle { key_range: true },
        Fault::Conflict,
    ];
    for (policy, fault) in policies.iter().flat_map(|policy| faults.map(|fault| (*policy, fault))) {
        let case = format!("{policy:?} {fault:?}");
        let fleet = Fleet::new().await;
        let limiter =
            fleet.limiter_with(|builder| builder.timeout(millis(200)).on_unavailable(policy)).await;
        let _ = granted(&limiter, &limits(), &[("rpm", 60)]).await;
        fleet.dynamo.fail_when(move |_| Some(fault));
        // Until the circuit breaker is open, and then too.
        for _ in 0..12 {
            let mut grant = bypassed(&limiter, &limits(), &[("rpm", 5)]).await;
            assert!(grant.degraded().is_some(), "{case}");
            assert_eq!(grant.adjust("rpm", 6).await.unwrap(), Settlement::Applied, "{case}");
            assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied, "{case}");
        }
        fleet.dynamo.fail_when(|_| None);
        pass(secs(60)).await;
        assert_eq!(fleet.tk_tc("rpm").await, (60_000, 60_000), "{case}");
        let grant = bypassed(&limiter, &limits(), &[("rpm", 5)]).await;
        assert_eq!(grant.degraded(), None, "{case}");
    }
    // What will never be counted is an error.
    let (fleet, [limiter]) = Fleet::of().await;
    fleet.dynamo.fail_when(|_| Some(Fault::Forbidden));
    let error = bypass(&limiter, &limits(), &[("rpm", 5)]).send().await;
    assert!(error.is_err_and(|error| !error.is_transient()));
}

/// In an outage that begins before the limits are read, too.
#[tokio::test(start_paused = true)]
async fn a_bypass_needs_no_limits_that_cannot_be_read() {
    let (fleet, [limiter]) = Fleet::of().await;
    fleet.dynamo.fail_reads(|_, _| Some(Fault::LoseRequest));
    let request = limiter.acquire("e-1", "gpt-4").take("rpm", 5);
    assert!(request.clone().send().await.is_err());
    let grant = taken(request.bypass()).await;
    assert!(grant.degraded().is_some());
}

/// Balance and consumption of `rpm` of an entity on `gpt-4`.
async fn of(fleet: &Fleet, name: &str) -> (i64, i64) {
    let key = BucketKey::parse(&format!("default/BUCKET#{name}#gpt-4#0")).unwrap();
    let bucket = load(&fleet.dynamo.table().await, &key).await.unwrap();
    let state = bucket.limits["rpm"];
    (bucket.balance(&state, fleet.now()).0, state.consumed.bounded().0)
}

#[tokio::test(start_paused = true)]
async fn parents_are_bypassed_too() {
    let (fleet, [limiter]) = Fleet::of().await;
    for (name, rate) in [("e-1", 10), ("team", 5)] {
        let level = ConfigLevel::Entity(entity(name));
        configure(&limiter, &level, [rpm(rate)]).await;
    }
    set_entity(&limiter, &child("e-1", "team")).await;
    let take = || limiter.acquire("e-1", "gpt-4").take("rpm", 5);
    assert!(take().send().await.unwrap().is_granted());
    assert!(!take().send().await.unwrap().is_granted(), "the team is exhausted");
    let grant = taken(take().bypass()).await;
    assert_eq!(of(&fleet, "e-1").await, (5_000, 10_000));
    assert_eq!(of(&fleet, "team").await, (0, 10_000));
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(of(&fleet, "e-1").await, (5_000, 5_000));
    assert_eq!(of(&fleet, "team").await, (0, 5_000));
}

/// A request of several counts nothing if another one is denied.
#[tokio::test(start_paused = true)]
async fn some_of_several_requests_may_bypass() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(60)];
    let both = async |ordinary: i64, free: i64| {
        let take = |name, amount| {
            let request = limiter.acquire(name, "gpt-4").limits(&limits);
            request.take("rpm", amount)
        };
        let requests = [take("e-1", ordinary), take("e-2", free).bypass()];
        let all = limiter.acquire_all(requests);
        all.send().await.unwrap().granted()
    };
    // Creates both buckets, then meets them.
    let _ = both(20, 30).await.expect("there is enough");
    let grants = both(40, 70).await.expect("there is enough");
    assert_eq!(of(&fleet, "e-1").await, (0, 60_000));
    assert_eq!(of(&fleet, "e-2").await, (60_000, 100_000));
    assert!(both(1, 70).await.is_none());
    assert_eq!(of(&fleet, "e-2").await, (60_000, 100_000));
    let _ = grants.roll_back().await.unwrap();
    assert_eq!(of(&fleet, "e-1").await, (40_000, 20_000));
    assert_eq!(of(&fleet, "e-2").await, (60_000, 30_000));
}

#[tokio::test(start_paused = true)]
async fn one_shard_counts_what_bypasses_all() {
    let (fleet, [limiter, cold]) = Fleet::of().await;
    let limits = [Limit::per_day("rpm", 60).unwrap()];
    split(&limiter, &limits, 8).await;
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    for limiter in [&limiter, &cold] {
        // Above any share, and while a denial is cached.
        let _ = denied(limiter, &limits, &[("rpm", 1)]).await;
        // Until the denial's stamp is written.
        pass(secs(1)).await;
        fleet.writes();
        let _ = bypassed(limiter, &limits, &[("rpm", 59)]).await;
        assert_eq!(fleet.writes(), 1);
    }
    assert_eq!(holds(&fleet, "rpm").await.whole_tokens(), 0);
    let shards = shards(&fleet).await;
    let counted: i64 = shards.iter().map(|shard| shard.limits["rpm"].consumed.bounded().0).sum();
    assert_eq!(counted, 178_000);
}

proptest! {
    #![proptest_config(config(16))]

    /// Ordinary requests get what they would get alone, and all that is granted is counted.
    #[test]
    fn i1_i3_bypasses_take_nothing_from_others(
        asks in prop::collection::vec((1..40_i64, any::<bool>(), 0..2_usize, 0..2_000_u64), 1..16),
        fault in prop::option::of(prop_oneof![Just(Fault::LoseRequest), Just(Fault::LoseAnswer), Just(Fault::Conflict)]),
    ) {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(3)).await;
            let processes = [fleet.limiter().await, fleet.limiter().await];
            let limits = [Limit::per_day("rpm", 60).unwrap()];
            fleet.dynamo.fail_next([None, fault]);
            let requests = asks.iter().map(|(amount, is_free, process, wait)| {
                let (limiter, limits) = (processes[*process].clone(), limits.clone());
                let (amount, is_free, wait) = (*amount, *is_free, *wait);
                tokio::spawn(async move {
                    pass(millis(wait)).await;
                    let request = ask(&limiter, &limits, &[("rpm", amount)]);
                    let request = if is_free { request.bypass() } else { request };
                    let decision = request.send().await.unwrap();
                    (amount, is_free, decision.granted().is_some())
                })
            });
            let (mut taken, mut free, mut least_denied) = (0, 0, i64::MAX);
            for request in requests.collect::<Vec<_>>() {
                match request.await.unwrap() {
                    (amount, true, is_granted) => {
                        assert!(is_granted, "nothing denies {amount}");
                        free += amount;
                    }
                    (amount, false, true) => taken += amount,
                    (amount, false, false) => least_denied = least_denied.min(amount),
                }
            }
            let unconfirmed: u64 = processes.iter().map(|process| process.stats().unconfirmed_millitokens).sum();
            let unconfirmed = i64::try_from(unconfirmed).unwrap();
            let (left, counted) = fleet.tk_tc("rpm").await;
            // A day's 60 tokens refill by a millitoken or two, and each cut may leave room for one.
            let most = 60_000 - taken * 1_000 + 2;
            let least = most - 2 - unconfirmed - i64::try_from(asks.len()).unwrap();
            assert!((least..=most).contains(&left), "{left} of {least} to {most}");
            let granted = (taken + free) * 1_000;
            assert!((granted..=granted + unconfirmed).contains(&counted), "{counted} of {granted}");
            assert!(left < least_denied.saturating_mul(1_000), "{left} left, {least_denied} denied");
        });
    }
}
