//! What is refused before anything is sent, and what the table refuses: each says what is wrong and
//! what it takes.

use std::time::Duration;
use weirgate_tests::fleet;
use weirgate_tests::stored::set_config;

use weirgate::{
    Acquire, Config, ConfigLevel, Decision, Error, Limit, LimitError, MilliTokens, RateLimiter,
};
use weirgate_shared::{BUCKET_SK, MAX_BUCKET_LIMITS, MAX_LIMITS};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, granted, millis, rpm, secs, slots};

fn limits() -> [Limit; 2] {
    [rpm(60), slots(4)]
}

/// A request that must not be sent, and what its error must name.
async fn refuse(fleet: &Fleet, request: Acquire<'_>, named: &[&str]) {
    let _ = fleet.dynamo.take_requests();
    let error = request.send().await.expect_err("nothing to decide");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(!error.is_transient() && !error.is_unknown());
    let text = error.to_string();
    assert!(named.iter().all(|part| text.contains(part)), "{text:?} must name {named:?}");
    assert_eq!(fleet.dynamo.take_requests(), 0, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_is_refused_with_its_rule_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    let ask = |entity: &str, resource: &str| {
        limiter.acquire(entity, resource).limits(&limits()).take("rpm", 1)
    };
    for bad in ["", "a#b", "a b", "-a", "é", &"e".repeat(257)] {
        refuse(&fleet, ask(bad, "gpt-4"), &["entity", bad, "1 to 256 of A-Z"]).await;
    }
    for bad in ["", "4gpt", "a#b", "/api", &"r".repeat(65)] {
        refuse(&fleet, ask("e-1", bad), &["resource", bad, "1 to 64 of A-Z"]).await;
    }
    for bad in ["", "r#m", "wcu", "ttl", "4rpm", "q0"] {
        let error = Limit::per_minute(bad, 5).expect_err("no limit has this name");
        assert!(
            matches!(&error, LimitError::Name(name) if name.kind == "limit" && name.value == bad),
            "{error}"
        );
        assert!(error.to_string().contains("1 to 64 of A-Z"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_amount_is_refused_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    for tokens in [-1, i64::MIN, 1_000_000_000_001, i64::MAX] {
        let named = ["\"rpm\"", &tokens.to_string(), "0 to 10^12"];
        refuse(&fleet, ask(&limiter, &limits(), &[("rpm", tokens)]), &named).await;
    }
    for milli in [-1, i64::MIN, 1_000_000_000_000_001, i64::MAX] {
        let request = ask(&limiter, &limits(), &[]).take_milli("rpm", MilliTokens(milli));
        refuse(&fleet, request, &["\"rpm\"", &MilliTokens(milli).to_string(), "0 to 10^12"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_that_do_not_fit_together_are_refused_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    refuse(&fleet, ask(&limiter, &limits(), &[]), &["empty request", "at least one limit"]).await;
    refuse(&fleet, ask(&limiter, &[], &[("rpm", 1)]), &["\"rpm\"", "not among the limits"]).await;
    refuse(&fleet, ask(&limiter, &limits(), &[("tpm", 1)]), &["\"tpm\"", "rpm", "slots"]).await;
    refuse(
        &fleet,
        ask(&limiter, &limits(), &[("rpm", 1), ("rpm", 2)]),
        &["\"rpm\"", "taken twice", "the sum"],
    )
    .await;
    let twice = [limits()[0].clone(), rpm(30)];
    refuse(&fleet, ask(&limiter, &twice, &[("rpm", 1)]), &["\"rpm\"", "in the list twice"]).await;
}

fn many(prefix: &str, number: usize) -> Vec<Limit> {
    (0..number).map(|at| Limit::per_minute(&format!("{prefix}{at}"), 60).unwrap()).collect()
}

/// A bucket of more limits is one that no function can read, split or credit.
#[tokio::test(start_paused = true)]
async fn more_limits_than_a_write_can_bear_are_refused_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(&limiter, &many("a", MAX_LIMITS), &[("a0", 1)]).await;
    let named = ["got 21", "20 limits at most", "use fewer"];
    refuse(&fleet, ask(&limiter, &many("a", MAX_LIMITS + 1), &[("a0", 1)]), &named).await;
    let error = limiter
        .admin()
        .set_shards("e-1", "gpt-4", &many("a", MAX_LIMITS + 1), 2)
        .await
        .unwrap_err()
        .to_string();
    assert!(named.iter().all(|part| error.contains(part)), "{error}");
}

/// A bucket keeps the limits it was given, so what comes later must find room beside them.
#[tokio::test(start_paused = true)]
async fn a_bucket_gets_no_more_limits_than_can_be_read_again() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(&limiter, &many("a", MAX_LIMITS), &[("a0", 1)]).await;
    let _ = granted(&other, &many("b", MAX_LIMITS), &[("b0", 1)]).await;
    let full = fleet.bucket().await;
    assert_eq!(full.limits.len(), MAX_BUCKET_LIMITS);
    for limiter in [&limiter, &other] {
        // As by a process that has seen nothing, and by one that has.
        let error = ask(limiter, &many("c", 1), &[("c0", 1)]).send().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(fleet::PK) && text.contains("41 limits, the maximum is 40"),
            "{text}"
        );
    }
    assert_eq!(fleet.bucket().await, full);
    let _ = granted(&limiter, &many("b", MAX_LIMITS), &[("b0", 1)]).await;
    // As the error says, which a process that was refused finds out by itself.
    fleet.dynamo.delete(fleet::PK, BUCKET_SK);
    for limiter in [&limiter, &other] {
        let _ = ask(limiter, &many("c", 1), &[("c0", 1)]).send().await;
        let _ = granted(limiter, &many("c", 1), &[("c0", 1)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_no_time_or_of_more_than_a_day_is_refused() {
    let (fleet, [limiter]) = Fleet::of().await;
    for (lasts, shown) in
        [(Duration::ZERO, "got 0"), (secs(2 * 86_400), "got 2d"), (Duration::MAX, "got ")]
    {
        let request = ask(&limiter, &limits(), &[("slots", 1)]).lease(lasts);
        refuse(&fleet, request, &["lease", shown, "1ms to 1d"]).await;
    }
    let mut grant = granted(&limiter, &limits(), &[("slots", 1)]).await;
    fleet.writes();
    for lasts in [Duration::ZERO, secs(86_401)] {
        assert!(
            matches!(grant.renew(lasts).await, Err(Error::Invalid(text)) if text.contains("1ms to 1d"))
        );
    }
    for (limit, tokens, named) in
        [("slots", -1, "0 to 10^12"), ("slots", i64::MAX, "10^12"), ("cpm", 1, "not among")]
    {
        let error = grant.adjust(limit, tokens).await.expect_err("nothing to adjust");
        assert!(error.to_string().contains(named) && error.to_string().contains(limit), "{error}");
    }
    let mut no_lease = granted(&limiter, &limits(), &[("rpm", 1)]).await;
    assert_eq!(fleet.writes(), 1);
    assert!(
        matches!(no_lease.renew(secs(9)).await, Err(Error::Invalid(text)) if text.contains("with a lease"))
    );
    assert_eq!(fleet.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limiter_with_a_bad_name_is_not_built() {
    let build = async |table: &str, namespace: &str, owner: &str| {
        let builder = RateLimiter::builder(table).namespace(namespace).owner(owner);
        builder.build().await.map(drop).map_err(|error| error.to_string())
    };
    for bad in ["", "ab", "a table", "tab#le", "tä-ble", "some/table", &"t".repeat(256)] {
        let error = build(bad, "default", "me").await.expect_err(bad);
        assert!(
            error.contains("table") && error.contains(bad) && error.contains("3 to 255"),
            "{error}"
        );
    }
    for bad in ["", "a/b", "a#b", "_a", &"n".repeat(33)] {
        let error = build("weirgate", bad, "me").await.expect_err(bad);
        assert!(
            error.contains("namespace") && error.contains(bad) && error.contains("1 to 32"),
            "{error}"
        );
    }
    let error = build("weirgate", "default", &"o".repeat(65)).await.expect_err("65 are too many");
    assert!(error.contains("owner") && error.contains("64"), "{error}");
    let arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/weirgate";
    assert_eq!(build(arn, "default", "me").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_table_that_stays_throttled_ends_in_a_timeout_that_says_so() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(millis(700))).await;
    fleet.dynamo.fail_when(|_| Some(Fault::Throttle { key_range: false }));
    let error = ask(&limiter, &limits(), &[("rpm", 1)]).send().await.expect_err("it is throttled");
    assert!(matches!(&error, Error::Timeout { bucket, .. } if bucket == fleet::PK), "{error:?}");
    assert!(error.is_transient() && !error.is_unknown(), "nothing was taken for certain");
    assert!(
        error.to_string().contains("700ms") && error.to_string().contains("throttled"),
        "{error}"
    );
    assert!(fleet.writes() > 1, "it was tried again");
    fleet.dynamo.fail_when(|_| None);
    assert!(matches!(
        ask(&limiter, &limits(), &[("rpm", 1)]).send().await,
        Ok(Decision::Granted(_))
    ));
    assert_eq!(limiter.stats().unconfirmed_millitokens, 0);
    assert_eq!(fleet.tk_tc("rpm").await, (59_000, 1_000));
}

/// Every write that is planned on a bucket's item. The item refuses each, and does not change.
#[tokio::test(start_paused = true)]
async fn a_write_that_its_item_always_refuses_ends_in_an_error() {
    const ACTS: u8 = 13;
    for act in 0..ACTS {
        let fleet = Fleet::new().await;
        let limiter = fleet.builder().await.build().await.unwrap();
        let (limits, other) = (limits(), [rpm(90)]);
        let level = ConfigLevel::Resource("gpt-4".try_into().unwrap());
        let config = Config::of(other.clone());
        set_config(&limiter, &level, &config).await;
        let ask = |takes: &[(&str, i64)]| ask(&limiter, &limits, takes);
        let lease = || ask(&[("rpm", 1), ("slots", 1)]).lease(secs(60)).send();
        let mut grant = match act {
            0 => None,
            _ => lease().await.unwrap().granted(),
        };
        let mut writes = 0;
        fleet.dynamo.fail_when(move |_| {
            writes += 1;
            // Without a bound, the call would never end.
            Some(if writes > 100 { Fault::Forbidden } else { Fault::Refuse })
        });
        let _ = fleet.dynamo.take_requests();
        let edit = || limiter.admin().edit_balances("e-1", "gpt-4");
        let ended = match act {
            // The first creates the bucket; all others find it.
            0 | 1 => ask(&[("rpm", 1)]).send().await.map(drop),
            2 => lease().await.map(drop),
            3 => ask(&[("rpm", 1)]).bypass().send().await.map(drop),
            4 => fleet::ask(&limiter, &other, &[("rpm", 1)]).send().await.map(drop),
            5 => grant.take().unwrap().release().await.map(drop),
            6 => grant.as_mut().unwrap().adjust("rpm", 3).await.map(drop),
            7 => grant.as_mut().unwrap().renew(secs(90)).await.map(drop),
            8 => limiter
                .refund("e-1", "gpt-4")
                .limits(&limits)
                .give_back("rpm", 1)
                .send()
                .await
                .map(drop),
            9 => edit().top_up("rpm", 1).send().await.map(drop),
            10 => limiter.admin().apply_limits("e-1", "gpt-4").send().await.map(drop),
            // More than the bucket holds before it has the new limits.
            11 => fleet::ask(&limiter, &other, &[("rpm", 80)]).send().await.map(drop),
            _ => limiter.admin().set_shards("e-1", "gpt-4", &limits, 2).await.map(drop),
        };
        let error = ended.expect_err("it is refused");
        let (text, requests) = (error.to_string(), fleet.dynamo.take_requests());
        let says = ["e-1", "gpt-4", "refus", "correct or delete"];
        assert!(says.iter().all(|part| text.contains(part)), "act {act}: {text}");
        assert!(requests < 20, "act {act}: {requests} requests");
        assert!(!error.is_transient() && !error.is_unknown(), "act {act}: {text}");
        // The next call tries again, and the bucket takes its write.
        fleet.dynamo.fail_when(|_| None);
        assert!(ask(&[("rpm", 1)]).send().await.unwrap().is_granted(), "act {act}");
    }
}
