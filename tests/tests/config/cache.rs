//! What was read of limits is used for a while, also where the table does not answer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirgate_tests::assert_has;
use weirgate_tests::stored::set_entity;

use crate::fixtures::fleet::{Fleet, millis, pass, secs, tokens, tpm};
use crate::fixtures::stored::{
    child, configure, configured, entity, of_entity, of_plan, of_resource, on, rpm, set_plan, take,
    take_of,
};
use fastrand::Rng;
use futures_util::future::join_all;
use weirgate::{CacheStats, ConfigLevel, Decision, Error, Limit, RateLimiter};
use weirgate_testkit::Fault;

/// Reads of configurations since the last call.
fn reads(fleet: &Fleet) -> u64 {
    fleet.dynamo.take_operations().get("BatchGetItem").copied().unwrap_or_default()
}

/// Counts the reads that ask for limits from now on.
fn limits_reads(fleet: &Fleet) -> Arc<AtomicU64> {
    let reads = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&reads);
    fleet.dynamo.fail_reads(move |operation, request| {
        let is_limits = operation == "BatchGetItem" && request.to_string().contains("#CONFIG");
        seen.fetch_add(u64::from(is_limits), Ordering::Relaxed);
        None
    });
    reads
}

/// How many items each read asks for from now on.
fn sizes(fleet: &Fleet) -> Arc<Mutex<Vec<usize>>> {
    let sizes = Arc::new(Mutex::new(vec![]));
    let seen = Arc::clone(&sizes);
    fleet.dynamo.fail_reads(move |operation, request| {
        if operation == "BatchGetItem" {
            seen.lock()
                .unwrap()
                .push(request["RequestItems"]["weirgate"]["Keys"].as_array().unwrap().len());
        }
        None
    });
    sizes
}

async fn acquire(limiter: &RateLimiter, entity: &str, resource: &str) -> Result<Decision, Error> {
    take_of(limiter, [entity, resource], "rpm", 1).await
}

#[tokio::test(start_paused = true)]
async fn limits_are_read_once_a_minute_and_in_one_request() {
    let fleet = Fleet::new().await;
    configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    let limiter = fleet.limiter().await;
    let _ = reads(&fleet);
    for minute in 0..3 {
        for _ in 0..60 {
            assert!(take(&limiter, 1).await.unwrap().is_granted());
            pass(secs(1)).await;
        }
        assert_eq!(reads(&fleet), 1, "minute {minute}");
    }
    let stats =
        CacheStats { hits: 3 * 59, misses: 3, loads: 3, entries: 5, ..CacheStats::default() };
    assert_eq!(limiter.cache_stats(), stats);
}

/// For a second, so that limits hold as soon as they are set, whatever level and call needs them.
#[tokio::test(start_paused = true)]
async fn what_is_not_configured_is_read_again_after_a_second_and_not_before() {
    let resource = of_resource("gpt-4");
    let nothing: Option<(&ConfigLevel, Limit)> = None;
    let other = Some((&ConfigLevel::System, tpm(600)));
    for (before, level, is_peek) in [
        (&nothing, &ConfigLevel::System, false),
        (&nothing, &resource, false),
        (&nothing, &on("e-1", "gpt-4"), true),
        (&other, &resource, false),
        (&other, &on("e-1", "gpt-4"), true),
    ] {
        let (fleet, [limiter, admin]) = Fleet::of().await;
        if let Some((level, limit)) = before {
            configure(&admin, level, [limit.clone()]).await;
        }
        let is_known = async || match is_peek {
            false => take(&limiter, 1).await.map(|_| ()),
            true => {
                let peek = limiter.peek("e-1", "gpt-4").need("rpm", 1);
                peek.send().await.map(|_| ())
            }
        };
        let what = format!("{before:?}, {level}, {is_peek}");
        let reads = limits_reads(&fleet);
        for _ in 0..50 {
            assert!(is_known().await.is_err(), "{what}");
            pass(millis(100)).await;
        }
        assert_eq!(reads.swap(0, Ordering::Relaxed), 5, "{what}");
        configure(&admin, level, [rpm(600)]).await;
        let _ = reads.swap(0, Ordering::Relaxed);
        pass(secs(1)).await;
        is_known().await.expect(&what);
        assert_eq!(reads.swap(0, Ordering::Relaxed), 1, "{what}");
        for _ in 0..50 {
            is_known().await.expect(&what);
            pass(millis(100)).await;
        }
        assert_eq!(reads.swap(0, Ordering::Relaxed), 0, "{what}");
    }
}

/// A table that does not answer is asked as often as one that does.
#[tokio::test(start_paused = true)]
async fn what_is_not_configured_is_read_once_a_second_in_an_outage_too() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = take(&limiter, 1).await.unwrap_err();
    fleet.fail_reads(Fault::Throttle { key_range: false });
    let stale = limiter.cache_stats().stale;
    for _ in 0..50 {
        pass(millis(100)).await;
        let error = take(&limiter, 1).await.unwrap_err();
        assert!(matches!(error, Error::NotConfigured { .. }), "{error}");
    }
    let failed = limiter.cache_stats().stale - stale;
    assert!((4..=5).contains(&failed), "{failed}");
}

/// Levels are remembered on their own: an entity's second resource does not read the system's
/// limits again.
#[tokio::test(start_paused = true)]
async fn only_what_is_not_known_is_read() {
    let fleet = Fleet::new().await;
    configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    let (limiter, sizes) = (fleet.limiter().await, sizes(&fleet));
    for (entity, resource) in
        [("e-1", "gpt-4"), ("e-1", "gpt-5"), ("e-2", "gpt-5"), ("e-2", "gpt-4")]
    {
        assert!(acquire(&limiter, entity, resource).await.unwrap().is_granted());
        pass(secs(10)).await;
    }
    // Four levels, the entity, the switches and the schema's version; then its own two; its own two and the
    // entity; its own one. Each with its bucket.
    assert_eq!(std::mem::take(&mut *sizes.lock().unwrap()), [7 + 1, 2 + 1, 3 + 1, 1 + 1]);
    pass(secs(20)).await;
    // What is a minute old: read with the first.
    let _ = acquire(&limiter, "e-2", "gpt-4").await.unwrap();
    assert_eq!(*sizes.lock().unwrap(), [3], "the resource, the system and the switches");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_a_failed_read() {
    let fleet = Fleet::slow(millis(20)).await;
    let limiter = fleet.limiter().await;
    fleet.fail_reads(Fault::LoseRequest);
    for answer in join_all((0..50).map(|_| take(&limiter, 1))).await {
        let error = answer.unwrap_err();
        assert!(matches!(&error, Error::Store(_)) && error.is_transient(), "{error}");
    }
    let sent = reads(&fleet);
    // Of the limits and of the switches, with the SDK's repetitions.
    assert!((1..=8).contains(&sent), "{sent} reads");
    fleet.fail_reads(None);
    assert!(
        matches!(take(&limiter, 1).await, Err(Error::NotConfigured { .. })),
        "a failure is not remembered"
    );
}

/// Limits that were good a minute ago are better than no decision.
#[tokio::test(start_paused = true)]
async fn limits_that_cannot_be_read_again_stay_in_force() {
    let fleet = Fleet::new().await;
    let admin = configured(&fleet, &ConfigLevel::System, [rpm(60)]).await;
    let limiter = fleet.limiter().await;
    let _ = take(&limiter, 1).await.unwrap();
    configure(&admin, &ConfigLevel::System, [rpm(30)]).await;
    pass(secs(60)).await;
    fleet.fail_reads(Fault::Throttle { key_range: false });
    for _ in 0..10 {
        assert!(take(&limiter, 1).await.unwrap().is_granted());
    }
    assert_has!(limiter.cache_stats(), stale: 1; "it is not tried again with every acquire");
    pass(secs(1)).await;
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(limiter.cache_stats().stale, 2);
    fleet.fail_reads(None);
    assert_eq!(fleet.bucket().await.limits["rpm"].rule.capacity, tokens(60));
    pass(secs(1)).await;
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(fleet.bucket().await.limits["rpm"].rule.capacity, tokens(30));
    // Of a neighbour nothing is known.
    fleet.fail_reads(Fault::Throttle { key_range: false });
    assert!(matches!(acquire(&limiter, "e-2", "gpt-4").await, Err(Error::Store(_))));
}

/// Where reads always take longer than a request waits for limits that it knows.
#[tokio::test(start_paused = true)]
async fn limits_that_are_read_too_late_are_those_of_the_next_request() {
    for is_frozen in [false, true] {
        let fleet = Fleet::slow(millis(30)).await;
        let admin = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
        let limiter = fleet.limiter().await;
        let _ = take(&limiter, 1).await.unwrap();
        configure(&admin, &ConfigLevel::System, [rpm(300)]).await;
        let capacity = async || {
            let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
            let decision = acquire.timeout(millis(100)).send().await.unwrap();
            let grant = decision.granted().unwrap();
            assert_eq!(grant.degraded(), None);
            fleet.bucket().await.limits["rpm"].rule.capacity
        };
        let loads = limiter.cache_stats().loads;
        let known = match is_frozen {
            // Too old to do without a read.
            true => {
                fleet.clock.skew(121_000);
                300
            }
            false => {
                pass(secs(61)).await;
                600
            }
        };
        assert_eq!(capacity().await, tokens(known), "frozen: {is_frozen}");
        for _ in 0..58 {
            pass(secs(1)).await;
            assert_eq!(capacity().await, tokens(300), "frozen: {is_frozen}");
        }
        // Of the limits, and of the switches.
        let loads = limiter.cache_stats().loads - loads;
        assert!(loads <= 2, "frozen: {is_frozen}: {loads}");
        assert_eq!(limiter.stats().breaker_opened, 0);
    }
}

/// What an operator adds, so that a request can be granted that could not.
#[derive(Debug, Clone, Copy)]
enum Added {
    Capacity,
    Configuration,
    Limit,
    Class,
}

/// Whether the limits that are known are due, or still valid; where a read takes longer than a request
/// waits for limits that it knows.
#[tokio::test(start_paused = true)]
async fn a_permanent_answer_rests_on_no_limits_that_were_not_read() {
    use Added::{Capacity, Class, Configuration, Limit};
    for (added, (seconds, is_of_several)) in
        [Capacity, Configuration, Limit, Class].into_iter().flat_map(|added| {
            let of = [5, 61].map(|seconds| [(seconds, false), (seconds, true)]);
            of.into_iter().flatten().map(move |of| (added, of))
        })
    {
        let what = format!("{added:?}, after {seconds} s, of several: {is_of_several}");
        let fleet = Fleet::slow(millis(40)).await;
        let (admin, limiter) = (fleet.limiter().await, fleet.limiter().await);
        let set = async |limits: Vec<weirgate::Limit>| {
            configure(&admin, &ConfigLevel::System, limits).await;
        };
        if !matches!(added, Configuration) {
            set(vec![rpm(10)]).await;
        }
        let is_known = take(&limiter, 1).await.is_ok();
        assert_eq!(is_known, !matches!(added, Configuration));
        let batch = weirgate::Class::new("batch", 50).unwrap();
        set(match added {
            Capacity | Configuration => vec![rpm(100)],
            Limit => vec![rpm(10), tpm(100)],
            Class => vec![rpm(10).with_classes([batch]).unwrap()],
        })
        .await;
        pass(secs(seconds)).await;
        let request = limiter.acquire("e-1", "gpt-4").timeout(millis(150));
        let request = match added {
            Capacity | Configuration => request.take("rpm", 50),
            Limit => request.take("tpm", 1),
            Class => request.take("rpm", 1).class("batch"),
        };
        let decision = match is_of_several {
            false => request.send().await.map(|decision| decision.map(drop)),
            true => {
                let all = limiter.acquire_all([request]).send();
                all.await.map(|decision| decision.map(drop))
            }
        };
        let decision = decision.expect(&what);
        let is_as_expected = match added {
            // It has what it had before.
            Capacity => matches!(&decision, Decision::Denied(_)),
            Configuration | Limit | Class => decision.is_granted(),
        };
        assert!(is_as_expected, "{what}: {decision:?}");
    }
}

/// Also for requests that wait while another one reads.
#[tokio::test(start_paused = true)]
async fn what_this_limiter_has_changed_is_not_used_though_its_reads_hang() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(60)]).await;
    let take = || {
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        acquire.timeout(secs(2)).send()
    };
    assert!(take().await.unwrap().is_granted());
    pass(secs(61)).await;
    fleet.dynamo.stall_when(|operation, request| {
        operation == "BatchGetItem" && request.to_string().contains("#CONFIG")
    });
    let changing = async {
        pass(millis(100)).await;
        fleet.dynamo.stall_when(|_, _| false);
        configure(&limiter, &of_resource("gpt-4"), [rpm(30)]).await;
    };
    let requests = join_all((0..3).map(|_| take()));
    let (answers, ()) = tokio::join!(requests, changing);
    for answer in answers {
        assert!(answer.unwrap().is_granted());
    }
    assert_eq!(fleet.bucket().await.limits["rpm"].rule.capacity, tokens(30));
}

/// They say nothing about DynamoDB, which answers after they have gone.
#[tokio::test(start_paused = true)]
async fn requests_with_less_time_than_a_read_takes_open_no_breaker() {
    let fleet = Fleet::slow(millis(20)).await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    assert!(take(&limiter, 1).await.unwrap().is_granted());
    let of = |at: usize, timeout| {
        let acquire = limiter.acquire(&format!("e-{at}"), "gpt-4").take("rpm", 1);
        acquire.timeout(timeout)
    };
    for round in 0..3 {
        let answers = join_all((10..30).map(|at| of(at, millis(5)).send())).await;
        // Their reads go on, so later requests know the limits.
        assert!(round > 0 || answers.iter().all(Result::is_err));
        // Several that are read together, too.
        let limits = [rpm(600)];
        let several = (30..40).map(|at| of(at, millis(5)).limits(&limits));
        assert!(limiter.acquire_all(several).send().await.is_err());
    }
    assert_eq!(limiter.stats().breaker_opened, 0);
    assert!(of(10, secs(5)).send().await.unwrap().is_granted());
}

#[tokio::test(start_paused = true)]
async fn what_this_limiter_changes_holds_for_it_at_once() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(60)]).await;
    let (own, of_resource) = (on("e-1", "gpt-4"), of_resource("gpt-4"));
    let capacity = async || {
        let _ = take(&limiter, 1).await.unwrap();
        fleet.bucket().await.limits["rpm"].rule.capacity
    };
    assert_eq!(capacity().await, tokens(60));
    for (level, rate, expected) in [
        (&of_resource, Some(50), 50),
        (&own, Some(40), 40),
        (&ConfigLevel::System, Some(70), 40),
        (&own, None, 50),
        (&of_resource, None, 70),
    ] {
        match rate {
            Some(rate) => configure(&limiter, level, [rpm(rate)]).await,
            None => assert!(limiter.admin().delete_config(level).await.unwrap()),
        }
        assert_eq!(capacity().await, tokens(expected), "{level}: {rate:?}");
    }
    // What is known to be wrong is not used, whatever happens.
    configure(&limiter, &own, [rpm(1)]).await;
    let fail = || fleet.fail_reads(Fault::LoseRequest);
    fail();
    assert!(take(&limiter, 1).await.is_err());
    fleet.fail_reads(None);
    let _ = take(&limiter, 1).await.unwrap();
    set_entity(&limiter, &child("e-1", "team")).await;
    fail();
    assert!(take(&limiter, 1).await.is_err(), "its limits are known, its parent is not");
}

/// Each process learns of a change from the first bucket it uses, not only after a minute.
#[tokio::test(start_paused = true)]
async fn a_bucket_with_newer_limits_has_them_read_again() {
    let fleet = Fleet::new().await;
    let admin = configured(&fleet, &ConfigLevel::System, [rpm(60)]).await;
    let limiter = fleet.limiter().await;
    let _ = take(&limiter, 1).await.unwrap();
    pass(secs(5)).await;
    configure(&admin, &ConfigLevel::System, [rpm(30)]).await;
    let _ = take(&admin, 1).await.unwrap();
    let _ = reads(&fleet);
    let _ = take(&limiter, 1).await.unwrap();
    assert_eq!(reads(&fleet), 0);
    assert_eq!(fleet.bucket().await.limits["rpm"].rule.capacity, tokens(30), "not undone");
    let _ = reads(&fleet);
    assert!(matches!(take(&limiter, 31).await.unwrap(), Decision::NeverFits(_)));
    assert_eq!(reads(&fleet), 1);
    for _ in 0..20 {
        let _ = take(&limiter, 1).await.unwrap();
        pass(millis(100)).await;
    }
    assert_eq!(reads(&fleet), 0);
}

/// Manually deleted items lower the version; then no acquire may read each time.
#[tokio::test(start_paused = true)]
async fn a_bucket_that_stays_newer_is_a_read_a_second_at_most() {
    let fleet = Fleet::new().await;
    let admin = configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    configure(&admin, &ConfigLevel::System, [rpm(500)]).await;
    let _ = take(&admin, 1).await.unwrap();
    fleet.dynamo.delete("default/SYSTEM#", "#CONFIG");
    configured(&fleet, &ConfigLevel::System, [rpm(400)]).await;
    let limiter = fleet.limiter().await;
    let _ = take(&limiter, 1).await.unwrap();
    let _ = reads(&fleet);
    for _ in 0..50 {
        let _ = take(&limiter, 1).await.unwrap();
        pass(millis(100)).await;
    }
    let sent = reads(&fleet);
    assert!((1..=5).contains(&sent), "{sent} reads in 5 s");
}

#[tokio::test(start_paused = true)]
async fn how_long_limits_are_good_is_the_builders() {
    let fleet = Fleet::new().await;
    configured(&fleet, &ConfigLevel::System, [rpm(600)]).await;
    for (ttl, expected) in [(secs(5), 6), (secs(3_600), 1), (Duration::ZERO, 30)] {
        let limiter = fleet.limiter_with(|builder| builder.config_ttl(ttl)).await;
        let _ = reads(&fleet);
        for _ in 0..30 {
            let _ = take(&limiter, 1).await.unwrap();
            pass(secs(1)).await;
        }
        assert_eq!(reads(&fleet), expected, "{ttl:?}");
    }
    let error = fleet.builder().await.config_ttl(Duration::MAX).build().await.unwrap_err();
    assert!(error.to_string().contains("config_ttl"), "{error}");
}

/// One change of what the process that makes it does not serve.
async fn change_another(limiter: &RateLimiter, random: &mut Rng) {
    let (admin, id) = (limiter.admin(), format!("c-{}", random.u8(..40)));
    let level = match random.u8(..4) {
        0 => of_entity(&id),
        1 => on(&id, "gpt-4"),
        2 => of_resource(&id),
        _ => of_plan(&id),
    };
    match random.u8(..8) {
        0..3 => admin.set_entity(&child(&id, "crew")).await.unwrap(),
        3 => drop(admin.delete_entity(&entity(&id)).await.unwrap()),
        4 => drop(set_plan(limiter, &id, "pro").await.unwrap()),
        5 => drop(admin.delete_config(&level).await),
        _ => configure(limiter, &level, [rpm(random.i64(1..1_000))]).await,
    }
}

/// Its changes keep nothing from being cached but what they change, whatever they change and however
/// often.
#[tokio::test(start_paused = true)]
async fn a_process_that_always_changes_other_items_caches_limits_and_switches() {
    for seed in 0..4 {
        let mut random = Rng::with_seed(seed);
        let fleet = Fleet::slow(millis(random.u64(1..20))).await;
        let level = [ConfigLevel::System, of_plan("pro"), of_resource("gpt-4"), on("e-1", "gpt-4")];
        let level = random.choice(level).unwrap();
        let limiter = configured(&fleet, &of_plan("pro"), [rpm(60_000)]).await;
        configure(&limiter, &level, [rpm(60_000)]).await;
        set_entity(&limiter, &child("e-1", "team")).await;
        set_plan(&limiter, "e-1", "pro").await.unwrap();
        let (limiter, switches_reads) = (&limiter, Arc::new(AtomicU64::new(0)));
        let seen = Arc::clone(&switches_reads);
        fleet.dynamo.fail_reads(move |_, request| {
            let is_of_switches = request.to_string().contains("#SWITCHES");
            seen.fetch_add(u64::from(is_of_switches), Ordering::Relaxed);
            None
        });
        let loads = limiter.cache_stats().loads;
        let is_over = AtomicBool::new(false);
        let changes = (0..random.u64(2..9)).map(|process| {
            let (mut random, is_over) = (Rng::with_seed(process), &is_over);
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    change_another(limiter, &mut random).await;
                }
            }
        });
        let (gap, calls) = (random.u64(1..30), random.usize(10..50));
        let serving = async {
            for _ in 0..calls {
                assert!(take(limiter, 1).await.unwrap().is_granted());
                pass(millis(gap)).await;
            }
            is_over.store(true, Ordering::Relaxed);
        };
        tokio::join!(join_all(changes), serving);
        let loads = limiter.cache_stats().loads - loads;
        let switches_reads = switches_reads.load(Ordering::Relaxed);
        let found = format!("seed {seed}: {loads} and {switches_reads} of {calls}");
        assert!((1..=3).contains(&loads) && (1..=3).contains(&switches_reads), "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_old_limits_are_applied_as_those_configured_now() {
    for is_damaged in [false, true] {
        let (fleet, [admin, limiter]) = Fleet::of().await;
        configure(&admin, &ConfigLevel::System, [rpm(10)]).await;
        assert!(take(&limiter, 1).await.unwrap().is_granted());
        configure(&admin, &ConfigLevel::System, [rpm(100)]).await;
        if is_damaged {
            let mut item = fleet.dynamo.item("default/SYSTEM#", "#CONFIG");
            item["limits"] = serde_json::json!({"N": "1"});
            fleet.dynamo.put(&item);
        } else {
            fail_reads_of_limits(&fleet, 0);
        }
        let applied = limiter.admin().apply_limits("e-1", "gpt-4").send().await;
        assert!(applied.is_err(), "damaged: {is_damaged}: {applied:?}");
    }
}

/// Cached items of different ages can show one that the table never had.
#[tokio::test(start_paused = true)]
async fn no_cycle_of_parents_is_found_in_items_that_were_not_read() {
    let (fleet, [admin, limiter]) = Fleet::of().await;
    configure(&admin, &ConfigLevel::System, [rpm(10)]).await;
    set_entity(&admin, &child("e-1", "team")).await;
    for id in ["team", "e-1"] {
        assert!(acquire(&limiter, id, "gpt-4").await.unwrap().is_granted());
        pass(secs(30)).await;
    }
    assert!(admin.admin().delete_entity(&entity("e-1")).await.is_ok());
    set_entity(&admin, &child("team", "e-1")).await;
    fail_reads_of_limits(&fleet, 1);
    let error = acquire(&limiter, "team", "gpt-4").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    fleet.fail_reads(None);
    assert!(acquire(&limiter, "team", "gpt-4").await.unwrap().is_granted());
}

/// Reads that ask for limits fail after so many.
fn fail_reads_of_limits(fleet: &Fleet, after: u64) {
    let seen = AtomicU64::new(0);
    fleet.dynamo.fail_reads(move |_, request| {
        let is_of_limits = request.to_string().contains("#CONFIG");
        let fails = is_of_limits && seen.fetch_add(1, Ordering::Relaxed) >= after;
        fails.then_some(Fault::ServerError)
    });
}
