//! Amounts that are known only afterwards: a limit that is taken with 0, or not at all, and
//! adjusted later.

use weirgate::{Error, Limit, Settlement};
use weirgate_tests::fleet::shards::split;

use weirgate_tests::fleet::{
    Fleet, denied, granted, leased, millis, pass, rpm, secs, slots, tokens, tpm,
};

fn limits() -> [Limit; 3] {
    [rpm(60), tpm(600), slots(4)]
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_was_not_taken_is_adjusted_to_what_was_used() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = granted(&limiter, &limits(), &[("rpm", 1)]).await;
    fleet.writes();
    assert_eq!(grant.adjust("tpm", 250).await.unwrap(), Settlement::Applied);
    assert_eq!((fleet.writes(), grant.amount("tpm")), (1, tokens(250)));
    assert_eq!(fleet.tk_tc("tpm").await, (350_000, 250_000));
    let _ = grant.adjust("tpm", 100).await.unwrap();
    assert_eq!(fleet.tk_tc("tpm").await, (500_000, 100_000));
    // Into debt.
    let _ = grant.adjust("tpm", 700).await.unwrap();
    assert_eq!(fleet.tk_tc("tpm").await, (-100_000, 700_000));
    let error = grant.adjust("cpm", 1).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("\"cpm\"") && text.contains("take it with the acquire")),
        "{error}"
    );
    // Nothing would return a slot without a lease.
    let error = grant.adjust("slots", 1).await.unwrap_err();
    assert!(error.to_string().contains("has no lease"), "{error}");
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0));
    assert_eq!(fleet.tk_tc("rpm").await, (60_000, 0));
}

/// The lease holds it from then on, so it returns if the holder dies.
#[tokio::test(start_paused = true)]
async fn i4_what_a_lease_was_adjusted_to_returns_with_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    for is_expired in [false, true] {
        let mut grant = leased(&limiter, &limits(), &[("slots", 1)], secs(30)).await;
        let _ = grant.adjust("tpm", 250).await.unwrap();
        let _ = grant.adjust("slots", 2).await.unwrap();
        let lease = &limiter.admin().leases("e-1", "gpt-4").await.unwrap().items[0];
        assert_eq!((lease.tokens["tpm"], lease.tokens["slots"]), (tokens(250), tokens(2)));
        if is_expired {
            std::mem::forget(grant);
            pass(secs(31)).await;
            // The take returns what has expired.
            let all = granted(&limiter, &limits(), &[("slots", 4), ("tpm", 600)]).await;
            let _ = all.roll_back().await.unwrap();
        } else {
            assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
        }
        assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0), "{is_expired}");
        assert_eq!(fleet.tk_tc("slots").await.0, 4_000, "{is_expired}");
    }
}

/// A lost response leaves open whether the lease has the limit already.
#[tokio::test(start_paused = true)]
async fn i7_a_first_adjustment_whose_response_is_lost_counts_once() {
    use weirgate_testkit::Fault;
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::ServerErrorApplied] {
        let (fleet, [limiter]) = Fleet::of().await;
        let mut grant = leased(&limiter, &limits(), &[("rpm", 1)], secs(60)).await;
        fleet.fail(&[fault]);
        assert_eq!(grant.adjust("tpm", 250).await.unwrap(), Settlement::Applied);
        assert_eq!(fleet.tk_tc("tpm").await.1, 250_000, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_take_of_nothing_requires_that_the_limit_is_not_in_debt() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let mut grant = granted(&limiter, &limits(), &[("rpm", 1), ("tpm", 0)]).await;
    assert_eq!((grant.amount("tpm"), fleet.tk_tc("tpm").await), (tokens(0), (600_000, 0)));
    fleet.writes();
    let _ = granted(&limiter, &limits(), &[("rpm", 1), ("tpm", 0)]).await;
    assert_eq!(fleet.writes(), 1);
    let _ = grant.adjust("tpm", 620).await.unwrap();
    for limiter in [&limiter, &other] {
        let short = denied(limiter, &limits(), &[("rpm", 1), ("tpm", 0)]).await;
        let blocking = short.blocking().expect("it is in debt");
        assert_eq!(
            (blocking.limit.as_str(), blocking.available, blocking.is_requested),
            ("tpm", tokens(-20), true)
        );
        // 10 tokens a second.
        assert_eq!(short.retry_after, Some(secs(2)));
        // Nothing is wrong with the others.
        let _ = granted(limiter, &limits(), &[("rpm", 1)]).await;
    }
    pass(secs(2)).await;
    let _ = granted(&other, &limits(), &[("rpm", 1), ("tpm", 0)]).await;
}

/// Of four shards, one suffices that is not in debt, whichever is asked.
#[tokio::test(start_paused = true)]
async fn a_take_of_nothing_finds_the_shard_that_is_not_in_debt() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(6_000), Limit::per_hour("tpm", 40).unwrap()];
    split(&limiter, &limits, 4).await;
    let mut grants = vec![];
    for _ in 0..3 {
        let mut grant = granted(&limiter, &limits, &[("tpm", 10)]).await;
        let _ = grant.adjust("tpm", 15).await.unwrap();
        grants.push(grant);
    }
    for _ in 0..20 {
        let _ = granted(&limiter, &limits, &[("rpm", 1), ("tpm", 0)]).await;
    }
    let mut last = granted(&limiter, &limits, &[("tpm", 10)]).await;
    let _ = last.adjust("tpm", 11).await.unwrap();
    let short = denied(&fleet.limiter().await, &limits, &[("rpm", 1), ("tpm", 0)]).await;
    assert_eq!(short.blocking().unwrap().available, tokens(-1), "the smallest debt");
    // A shard of four gets a token in six minutes.
    let wait = short.retry_after.unwrap();
    assert!((secs(350)..=secs(360)).contains(&wait), "{wait:?}");
    pass(wait + millis(1)).await;
    let _ = granted(&fleet.limiter().await, &limits, &[("rpm", 1), ("tpm", 0)]).await;
}

/// One shard has the tokens and is in debt of the other limit, the other is the other way round.
#[tokio::test(start_paused = true)]
async fn a_take_of_nothing_uses_a_shard_that_gives_nothing_else() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [Limit::per_hour("rpm", 20).unwrap(), Limit::per_hour("tpm", 40).unwrap()];
    split(&limiter, &limits, 2).await;
    for shard in 0..2 {
        let pk = format!("default/BUCKET#e-1#gpt-4#{shard}");
        let mut item = fleet.dynamo.item(&pk, "#STATE");
        let (attribute, balance) = [("b_rpm_tk", "0"), ("b_tpm_tk", "-5000")][shard];
        item[attribute] = serde_json::json!({"N": balance});
        fleet.dynamo.put(&item);
    }
    let reader = fleet.limiter().await;
    let grant = granted(&reader, &limits, &[("rpm", 1), ("tpm", 0)]).await;
    assert_eq!((grant.amount("rpm"), grant.amount("tpm")), (tokens(1), tokens(0)));
}
