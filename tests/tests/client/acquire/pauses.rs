//! Pauses: what one process hears of the vendor, all of them do.

use std::time::Duration;
use weirgate_tests::fleet::taken;

use futures_util::future::join_all;
use tokio::time::Instant;
use weirgate::{
    ConfigLevel, Decision, Denied, FakeClock, Grant, Limit, LimitMode, LiveLeases, OnUnavailable,
    OperationOutcome, Prefetch, RateLimiter, VendorCount, VendorReport,
};
use weirgate_shared::write;
use weirgate_store::ReturnValues;
use weirgate_testkit::Fault;
use weirgate_testkit::leased::load;
use weirgate_tests::fleet::shards::{key, per_minute, shards, split};
use weirgate_tests::fleet::{Fleet, START, millis, pass, secs, slots};
use weirgate_tests::recorder::Recorded;
use weirgate_tests::sharded::new_id;
use weirgate_tests::stored::{configure, entity, resource};

async fn decide(limiter: &RateLimiter) -> Decision {
    let ask = limiter.acquire("e-1", "gpt-4").limits(&per_minute(60_000));
    ask.take("rpm", 1).send().await.unwrap()
}

async fn take(limiter: &RateLimiter) -> Grant {
    decide(limiter).await.granted().expect("granted")
}

async fn use_one(limiter: &RateLimiter) {
    let _ = take(limiter).await.release().await.unwrap();
}

async fn denied(limiter: &RateLimiter) -> Denied {
    match decide(limiter).await {
        Decision::Denied(denied) => denied,
        other => panic!("{other:?} is no denial"),
    }
}

fn later(fleet: &Fleet, end: weirgate::EpochMillis) -> Duration {
    end.since(fleet.now()).into()
}

fn too_many(after: u64) -> VendorReport {
    VendorReport::new(429).with_retry_after(secs(after))
}

/// Writes that paused a shard.
async fn pauses(fleet: &Fleet) -> usize {
    let all = shards(fleet).await;
    all.iter().filter(|shard| shard.paused_until(fleet.now()).is_some()).count()
}

#[tokio::test(start_paused = true)]
async fn sixty_processes_stop_for_one_answer_and_go_on_at_its_end() {
    for count in [1_usize, 4] {
        let fleet = Fleet::new().await;
        let limiters: Vec<_> = join_all((0..60).map(|_| fleet.limiter())).await;
        split(&limiters[0], &per_minute(60_000), u32::try_from(count).unwrap()).await;
        let grants = join_all(limiters.iter().map(take)).await;
        fleet.writes();
        // Ten of them hear it at once.
        let said = grants[..10].iter().map(|grant| grant.vendor_said(429, [("retry-after", "10")]));
        let ends: Vec<_> =
            join_all(said).await.into_iter().map(|end| end.unwrap().unwrap()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        assert_eq!(pauses(&fleet).await, count);
        let end = later(&fleet, ends[0]);
        assert!((secs(10)..=millis(10_500)).contains(&end), "{end:?}");
        let by_write: Vec<_> =
            shards(&fleet).await.iter().map(|shard| shard.pause.unwrap().until).collect();
        drop(grants);
        // None is granted before the first end, and all are after the last one.
        let first = by_write.iter().min().copied().unwrap();
        for _ in 0..5 {
            let all = join_all(limiters.iter().map(denied)).await;
            for denied in &all {
                assert!(denied.is_paused(), "{denied}");
                assert!(denied.to_string().ends_with("rpm is paused"), "{denied}");
            }
            pass(later(&fleet, first) / 3).await;
        }
        pass(later(&fleet, first) - millis(1)).await;
        assert!(denied(&limiters[59]).await.is_paused());
        pass(later(&fleet, ends[0])).await;
        join_all(limiters.iter().map(take)).await;
    }
}

/// A report writes once for each shard, however many hear it at once, and again if it lasts longer.
#[tokio::test(start_paused = true)]
async fn a_storm_of_reports_is_one_applied_write_for_each_shard() {
    for count in [1_u32, 8] {
        let (fleet, [limiter, other]) = Fleet::of().await;
        split(&limiter, &per_minute(60_000), count).await;
        use_one(&other).await;
        let v = async || shards(&fleet).await.iter().map(|shard| shard.write_seq).sum::<i64>();
        let before = v().await;
        let report = too_many(10);
        let reports =
            (0..100).map(|at| [&limiter, &other][at % 2].report_vendor("e-1", "gpt-4", &report));
        for end in join_all(reports).await {
            assert!(end.unwrap().is_some());
        }
        assert_eq!(v().await - before, i64::from(count));
        let longer = too_many(11);
        limiter.report_vendor("e-1", "gpt-4", &longer).await.unwrap();
        other.report_vendor("e-1", "gpt-4", &too_many(3)).await.unwrap();
        assert_eq!(v().await - before, 2 * i64::from(count));
        let end = limiter.report_vendor("e-1", "gpt-4", &VendorReport::new(429)).await.unwrap();
        assert!(later(&fleet, end.unwrap()) >= secs(11));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_denies_nothing_or_a_bucket_without_an_item_writes_nothing() {
    let (fleet, [limiter]) = Fleet::of().await;
    let nothing = limiter.report_vendor("e-1", "gpt-4", &too_many(10)).await.unwrap();
    assert_eq!(nothing, None);
    assert!(fleet.dynamo.item(weirgate_tests::fleet::PK, "#STATE").is_null());
    let grant = take(&limiter).await;
    fleet.writes();
    for status in [200, 400, 500, 502] {
        let end = grant.vendor_said(status, [("retry-after", "10")]).await.unwrap();
        assert_eq!(end, None, "{status}");
    }
    assert_eq!(fleet.writes(), 0);
    let bad = limiter.report_vendor("e#1", "gpt-4", &too_many(10)).await.unwrap_err();
    assert!(bad.to_string().contains("e#1"), "{bad}");
    // A purge leaves a tombstone.
    let id = weirgate::EntityId::new("e-1").unwrap();
    limiter.admin().erase_entity(&id, LiveLeases::Discard).await.unwrap();
    assert_eq!(limiter.report_vendor("e-1", "gpt-4", &too_many(10)).await.unwrap(), None);
}

/// A denial is cached while it is fresh, so a paused process costs nothing; it waits if it is asked to.
#[tokio::test(start_paused = true)]
async fn a_pause_is_waited_for_and_cached_and_told_by_a_peek() {
    for count in [1, 4] {
        let (fleet, [limiter, other]) = Fleet::of().await;
        split(&limiter, &per_minute(60_000), count).await;
        let grant = take(&limiter).await;
        let end = grant.vendor_said(503, [("retry-after-ms", "20000")]).await.unwrap().unwrap();
        assert!(denied(&other).await.is_paused());
        fleet.dynamo.take_requests();
        for _ in 0..50 {
            assert!(denied(&other).await.is_paused());
            assert!(denied(&limiter).await.is_paused());
        }
        assert_eq!(fleet.dynamo.take_requests(), 0);
        let peeked = other.peek("e-1", "gpt-4").limits(&per_minute(60_000)).send().await.unwrap();
        let status = peeked.limit("rpm").unwrap();
        assert!(
            status.paused_for.unwrap() <= later(&fleet, end) && !status.is_short(),
            "{status:?}"
        );
        let ask = other.acquire("e-1", "gpt-4").limits(&per_minute(60_000)).take("rpm", 1);
        let waited = ask.clone().wait_up_to(secs(10)).send().await.unwrap();
        assert!(matches!(waited, Decision::Denied(denied) if denied.is_paused()));
        assert_eq!(fleet.now(), START, "a wait in vain does not begin");
        let grant = taken(ask.wait_up_to(secs(30))).await;
        let over = fleet.now().0 - end.0;
        assert!((-1_000..=1_000).contains(&over), "{count} shards: {over} ms after the end");
        drop(grant);
    }
}

/// What a pause does not hold back: settlements, usage that has happened, and what bypasses the limits.
#[tokio::test(start_paused = true)]
async fn settlements_and_bypasses_go_through() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [Limit::per_minute("rpm", 60).unwrap(), Limit::concurrent("slots", 2).unwrap()];
    let ask = || limiter.acquire("e-1", "gpt-4").limits(&limits);
    let mut grant = taken(ask().take("rpm", 1).take("slots", 1)).await;
    let second = taken(ask().take("slots", 1)).await;
    grant.vendor_said(529, [("retry-after", "60")]).await.unwrap().unwrap();
    assert!(!ask().take("rpm", 1).send().await.unwrap().is_granted());
    assert!(!grant.take_more("rpm", 1).await.unwrap().is_granted());
    let _ = grant.adjust("rpm", 5).await.unwrap();
    let _ = grant.renew(secs(60)).await.unwrap();
    let _ = grant.release().await.unwrap();
    let _ = second.roll_back().await.unwrap();
    let bucket = fleet.bucket().await;
    assert_eq!(bucket.limits["slots"].available.whole_tokens(), 2);
    assert_eq!(bucket.limits["rpm"].consumed.bounded().whole_tokens(), 5);
    assert!(ask().take("rpm", 1).bypass().send().await.unwrap().is_granted());
    assert!(ask().take("rpm", 1).into_debt().send().await.unwrap().is_granted());
    let shadow = taken(ask().take("rpm", 1).shadow()).await;
    assert!(shadow.would_deny().unwrap().is_paused());
}

/// What a process has fetched ahead is not handed out either.
#[tokio::test(start_paused = true)]
async fn prefetched_tokens_are_kept_in_a_pause() {
    let fleet = Fleet::new().await;
    let limiter =
        fleet.limiter_with(|builder| builder.prefetch("gpt-4", Prefetch::default())).await;
    for _ in 0..50 {
        use_one(&limiter).await;
        pass(millis(10)).await;
    }
    assert!(limiter.stats().prefetch_outstanding_millitokens > 0);
    limiter.report_vendor("e-1", "gpt-4", &too_many(2)).await.unwrap().unwrap();
    for _ in 0..50 {
        assert!(denied(&limiter).await.is_paused());
        pass(millis(10)).await;
    }
    pass(secs(2)).await;
    use_one(&limiter).await;
    limiter.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_top_of_a_chain_is_paused_and_a_pause_holds_without_dynamodb() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.on_unavailable(OnUnavailable::Allow)).await;
    let admin = limiter.admin();
    admin.set_entity(&weirgate::Entity::new("top".try_into().unwrap())).await.unwrap();
    for name in ["a", "b"] {
        let child = weirgate::Entity::new(name.try_into().unwrap())
            .child_of("top".try_into().unwrap(), true);
        admin.set_entity(&child).await.unwrap();
    }
    let ask = async |entity: &str| {
        let ask = limiter.acquire(entity, "gpt-4").limits(&per_minute(60)).cascading();
        ask.take("rpm", 1).send().await.unwrap()
    };
    let grant = ask("a").await.granted().unwrap();
    let _other = ask("b").await.granted().unwrap();
    grant.vendor_said(429, [("retry-after", "30")]).await.unwrap().unwrap();
    let Decision::Denied(other) = ask("b").await else { panic!("the other child goes on") };
    let blocking = other.blocking().unwrap();
    assert_eq!((blocking.entity.as_str(), other.is_paused()), ("top", true));
    fleet.fail_writes(Fault::ServerError);
    fleet.fail_reads(Fault::ServerError);
    pass(secs(20)).await;
    let Decision::Denied(degraded) = ask("b").await else { panic!("granted in the pause") };
    assert!(degraded.is_paused(), "{degraded}");
    pass(secs(12)).await;
    assert!(ask("b").await.is_granted(), "unavailable, and allowed");
}

/// It tells the bucket that it was let pass by, also after a way through a token.
#[tokio::test(start_paused = true)]
async fn a_call_in_shadow_mode_pauses_the_bucket_that_would_have_denied_it() {
    for (is_chain, is_restored) in [(false, false), (false, true), (true, false), (true, true)] {
        let fleet = Fleet::new().await;
        let limiter = fleet.limiter().await;
        let admin = limiter.admin();
        let top = || "top".try_into().unwrap();
        admin.set_entity(&weirgate::Entity::new(top())).await.unwrap();
        let child = weirgate::Entity::new("a".try_into().unwrap()).child_of(top(), true);
        admin.set_entity(&child).await.unwrap();
        let entity = if is_chain { "a" } else { "top" };
        let limits = per_minute(2);
        let ask = |entity| limiter.acquire(entity, "gpt-4").limits(&limits);
        let _all = taken(ask("top").take("rpm", 2)).await;
        let mut grant = taken(ask(entity).cascading().take("rpm", 1).shadow()).await;
        assert!(grant.would_deny().is_some());
        if is_restored {
            let token = grant.into_token();
            let other = fleet.limiter_with(|builder| builder.namespace("other")).await;
            let refused = other.restore_grant(&token).unwrap_err().to_string();
            assert!(refused.contains("is of namespace \"default\", this limiter's is \"other\""));
            grant = limiter.restore_grant(&token).unwrap();
        }
        let end = grant.vendor_said(429, [("retry-after", "600")]).await.unwrap();
        assert!(later(&fleet, end.expect("a pause")) >= secs(600), "{is_chain} {is_restored}");
        pass(secs(300)).await;
        let Decision::Denied(denied) = ask("top").take("rpm", 1).send().await.unwrap() else {
            panic!("it has refilled, and is paused")
        };
        assert!(denied.is_paused(), "{denied}");
        let alone = ask("a").take("rpm", 1).send().await.unwrap();
        assert!(alone.is_granted(), "the child is not paused");
    }
}

/// A token from before another settlement leaves the buckets without a lease, and still tells the last one.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_lease_has_other_amounts_pauses_the_top_of_its_chain() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let admin = limiter.admin();
    admin.set_entity(&weirgate::Entity::new(entity("top"))).await.unwrap();
    let child = weirgate::Entity::new(entity("a")).child_of(entity("top"), true);
    admin.set_entity(&child).await.unwrap();
    let rate = per_minute(60)[0].clone();
    for (name, limits) in [("a", vec![rate.clone(), slots(4)]), ("top", vec![rate])] {
        let level = ConfigLevel::EntityResource(entity(name), resource("gpt-4"));
        configure(&limiter, &level, limits).await;
    }
    let ask = |name| limiter.acquire(name, "gpt-4");
    let token = taken(ask("a").cascading().take("slots", 1).take("rpm", 1)).await.into_token();
    let _ = limiter.restore_grant(&token).unwrap().adjust("rpm", 2).await.unwrap();
    let mut outdated = limiter.restore_grant(&token).unwrap();
    assert_eq!(outdated.parts(), 2);
    let _ = outdated.adjust("rpm", 3).await.unwrap();
    assert_eq!(outdated.parts(), 1, "the rate is left as it is");
    let grant = limiter.restore_grant(&outdated.into_token()).unwrap();
    grant.vendor_said(429, [("retry-after", "30")]).await.unwrap().unwrap();
    let Decision::Denied(denied) = ask("top").take("rpm", 1).send().await.unwrap() else {
        panic!("the top is not paused")
    };
    assert!(denied.is_paused(), "{denied}");
    assert!(ask("a").take("slots", 1).send().await.unwrap().is_granted(), "the child is paused");
}

/// Nothing denies what is only counted, whether the call says so or the limit.
#[tokio::test(start_paused = true)]
async fn without_dynamodb_only_enforced_limits_deny() {
    let settings = [
        OnUnavailable::Error,
        OnUnavailable::Deny,
        OnUnavailable::Allow,
        OnUnavailable::Local { percent: 100 },
    ];
    let modes = [
        (LimitMode::Enforced, true),
        (LimitMode::Shadow, false),
        (LimitMode::Soft, false),
        (LimitMode::Enforced, false),
    ];
    for (on_unavailable, is_paused) in settings.iter().flat_map(|all| [(*all, false), (*all, true)])
    {
        for (mode, is_shadow_call) in modes {
            let denies = mode == LimitMode::Enforced && !is_shadow_call;
            let case =
                format!("{on_unavailable:?}, paused: {is_paused}, {mode:?}, {is_shadow_call}");
            let fleet = Fleet::new().await;
            let limiter =
                fleet.limiter_with(|builder| builder.on_unavailable(on_unavailable)).await;
            let limits = [Limit::per_minute("rpm", 60).unwrap().in_mode(mode)];
            let ask = || {
                let ask = limiter.acquire("e-1", "gpt-4").limits(&limits).take("rpm", 1);
                if is_shadow_call { ask.shadow() } else { ask }
            };
            let grant = taken(ask()).await;
            if is_paused {
                grant.vendor_said(429, [("retry-after", "60")]).await.unwrap().unwrap();
            }
            fleet.fail_writes(Fault::ServerError);
            fleet.fail_reads(Fault::ServerError);
            let is_granted = ask().send().await.is_ok_and(|decision| decision.is_granted());
            let goes_on = match on_unavailable {
                OnUnavailable::Error | OnUnavailable::Deny => false,
                _ => !is_paused,
            };
            assert_eq!(is_granted, !denies || goes_on, "{case}");
        }
    }
}

/// Of several pauses, the one that ends last says when to come again.
#[tokio::test(start_paused = true)]
async fn without_dynamodb_the_longest_pause_of_a_chain_counts() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.on_unavailable(OnUnavailable::Allow)).await;
    let admin = limiter.admin();
    let top = || "top".try_into().unwrap();
    admin.set_entity(&weirgate::Entity::new(top())).await.unwrap();
    let child = weirgate::Entity::new("a".try_into().unwrap()).child_of(top(), true);
    admin.set_entity(&child).await.unwrap();
    let ask = || {
        let ask = limiter.acquire("a", "gpt-4").limits(&per_minute(60)).cascading();
        ask.take("rpm", 1).send()
    };
    let _grant = ask().await.unwrap().granted().unwrap();
    for (entity, lasts) in [("a", 2), ("top", 60)] {
        limiter.report_vendor(entity, "gpt-4", &too_many(lasts)).await.unwrap().unwrap();
    }
    fleet.fail_writes(Fault::ServerError);
    fleet.fail_reads(Fault::ServerError);
    let Decision::Denied(denied) = ask().await.unwrap() else { panic!("granted in the pause") };
    assert!(denied.retry_after.unwrap() > secs(50), "{denied}");
    assert_eq!(denied.blocking().unwrap().entity.as_str(), "top");
}

/// An operator's pause is made once for its key, recorded, and ended by a resume, on all shards.
#[tokio::test(start_paused = true)]
async fn an_operator_pauses_and_resumes() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let admin = limiter.admin();
    let nothing = admin.pause("e-1", "gpt-4", secs(60)).send().await.unwrap_err();
    assert!(nothing.to_string().contains("acquire from it first"), "{nothing}");
    split(&limiter, &per_minute(60_000), 4).await;
    use_one(&other).await;
    for bad in [Duration::ZERO, secs(86_401)] {
        let error = admin.pause("e-1", "gpt-4", bad).send().await.unwrap_err();
        assert!(error.to_string().contains("1ms to 24h"), "{error}");
    }
    let planned = admin.pause("e-1", "gpt-4", secs(60)).dry_run().send().await.unwrap();
    assert_eq!((planned.outcome, pauses(&fleet).await), (OperationOutcome::DryRun, 0));
    let pause = || admin.pause("e-1", "gpt-4", secs(60)).idempotency_key("k").send();
    let report = pause().await.unwrap();
    assert_eq!(
        (report.outcome, report.shards, report.before),
        (OperationOutcome::Applied, 4, None)
    );
    assert_eq!(later(&fleet, report.after.unwrap()), secs(60));
    assert_eq!(pauses(&fleet).await, 4);
    assert!(denied(&other).await.is_paused());
    pass(secs(1)).await;
    let again = pause().await.unwrap();
    assert!(matches!(again.outcome, OperationOutcome::AppliedBefore(_)), "{again:?}");
    let shorter = admin.pause("e-1", "gpt-4", secs(5)).send().await.unwrap();
    assert_eq!(later(&fleet, shorter.after.unwrap()), secs(5));
    let resumed = admin.resume("e-1", "gpt-4").send().await.unwrap();
    assert_eq!((resumed.before, resumed.after), (shorter.after, None));
    assert_eq!(pauses(&fleet).await, 0);
    use_one(&limiter).await;
    // For as long as it has cached the denial.
    pass(secs(6)).await;
    use_one(&other).await;
    let unchanged = admin.resume("e-1", "gpt-4").send().await.unwrap();
    assert_eq!(unchanged.outcome, OperationOutcome::Unchanged);
    let events = admin
        .audit(&weirgate::AuditSubject::Entity("e-1".try_into().unwrap()), None)
        .await
        .unwrap();
    let said: Vec<_> = events.items.iter().filter_map(|event| event.operation.clone()).collect();
    assert!(
        said.contains(&"pause e-1 on gpt-4 for 1m".to_owned())
            && said.contains(&"resume e-1 on gpt-4".to_owned()),
        "{said:?}"
    );
}

/// A process whose clock is ahead by a second does not come back a second early where the table tells it
/// the time.
#[tokio::test(start_paused = true)]
async fn a_pause_ends_by_the_clock_of_dynamodb() {
    let fleet = Fleet::new().await;
    let clock = FakeClock::at(START.plus(weirgate_shared::Millis(60_000)));
    let fast = fleet.limiter_by(&clock).await;
    use_one(&fast).await;
    let limiter = fleet.limiter().await;
    limiter.report_vendor("e-1", "gpt-4", &too_many(30)).await.unwrap().unwrap();
    let denied = denied(&fast).await;
    assert!(denied.retry_after.unwrap() > secs(29), "{denied}");
}

/// What the vendor has left lowers the balance of a limit that follows it, and never raises it.
#[tokio::test(start_paused = true)]
async fn a_balance_follows_what_the_vendor_has_left() {
    let fleet = Fleet::new().await;
    let limiter =
        fleet.limiter_with(|builder| builder.follow_vendor(VendorCount::Tokens, "tpm")).await;
    let limits = [Limit::custom("tpm", 10_000, 1, 366 * 86_400_000).unwrap()];
    let ask = |tokens| {
        let ask = limiter.acquire("e-1", "gpt-4").limits(&limits);
        ask.take("tpm", tokens)
    };
    let left = async || fleet.bucket().await.limits["tpm"].available.whole_tokens();
    let grant = taken(ask(1_000)).await;
    for (field, remaining, expected) in [
        // More than the balance, or than the capacity, or no number.
        ("x-ratelimit-remaining-tokens", "9500", 9_000),
        ("x-ratelimit-remaining-tokens", "10001", 9_000),
        ("x-ratelimit-remaining-tokens", "-1", 9_000),
        ("x-ratelimit-remaining-requests", "0", 9_000),
        // With a margin of what the caller holds, which is above 5 %.
        ("x-ratelimit-remaining-tokens", "4000", 5_000),
        ("x-ratelimit-remaining-tokens", "4500", 5_000),
        ("anthropic-ratelimit-tokens-remaining", "2000", 3_000),
    ] {
        assert_eq!(grant.vendor_said(200, [(field, remaining)]).await.unwrap(), None);
        assert_eq!(left().await, expected, "{field}: {remaining}");
        pass(secs(1)).await;
    }
    // What leases hold is in flight, so the vendor does not know it yet.
    let mut held = vec![];
    for _ in 0..3 {
        held.push(ask(600).lease(secs(60)).send().await.unwrap().granted().unwrap());
    }
    let said = [("x-ratelimit-remaining-tokens", "0")];
    grant.vendor_said(200, said).await.unwrap();
    assert_eq!(left().await, 1_200, "not above what is there");
    // Once a second at most.
    fleet.writes();
    for _ in 0..20 {
        grant.vendor_said(200, [("x-ratelimit-remaining-tokens", "1")]).await.unwrap();
    }
    assert_eq!(fleet.writes(), 0);
    let twice = fleet
        .builder()
        .await
        .follow_vendor(VendorCount::Tokens, "a")
        .follow_vendor(VendorCount::Tokens, "b");
    let error = twice.build().await.unwrap_err();
    assert!(error.to_string().contains("both a and b follow"), "{error}");
}

/// What the vendor says its limit is, and what is configured, for operators.
#[tokio::test(start_paused = true)]
async fn the_vendors_limit_is_told_beside_the_one_that_follows_it() {
    let recorded = Recorded::default();
    let _recorder = metrics::set_default_local_recorder(&recorded);
    let fleet = Fleet::new().await;
    let follow = |builder: weirgate::Builder| builder.follow_vendor(VendorCount::Tokens, "tpm");
    let limiter = fleet.limiter_with(|builder| follow(builder).metrics_by_resource(true)).await;
    let ask = |entity, tpm| {
        let limits = [Limit::per_minute("tpm", tpm).unwrap(), Limit::per_minute("rpm", 5).unwrap()];
        limiter.acquire(entity, "gpt-4").limits(&limits).take("tpm", 1)
    };
    let told = || {
        let advice = limiter.vendor_advice();
        advice.iter().map(|advice| (advice.to_string(), advice.differs())).collect::<Vec<_>>()
    };
    let grant = taken(ask("e-1", 1_500_000)).await;
    let _ = fleet.writes();
    grant.vendor_said(200, [("x-ratelimit-remaining-tokens", "1500000")]).await.unwrap();
    assert_eq!(told(), [], "it says what is left, and not of what");
    let limits = [("x-ratelimit-limit-tokens", "2000000"), ("x-ratelimit-limit-requests", "500")];
    grant.vendor_said(200, limits).await.unwrap();
    let of = |text: &str| format!("the vendor's limit of gpt-4 is {text}");
    assert_eq!(
        told(),
        [
            (of("500 requests, and no limit follows it"), true),
            (of("2,000,000 tokens a minute, configured are 1,500,000 (tpm)"), true),
        ]
    );
    let gauge = |labels: &str| recorded.gauge(&format!("weirgate_vendor_limit{labels}"));
    assert_eq!(gauge("{resource=gpt-4,counts=tokens}"), 2_000_000.0);
    assert_eq!(gauge("{resource=gpt-4,counts=requests}"), 500.0);
    assert_eq!(gauge("_configured{resource=gpt-4,counts=tokens,limit=tpm}"), 1_500_000.0);
    assert_eq!(fleet.writes(), 0, "it is not stored");
    let cold = fleet.limiter_with(follow).await;
    let report = VendorReport::read(200, limits);
    cold.report_vendor("e-1", "gpt-4", &report).await.unwrap();
    assert_eq!(cold.vendor_advice(), [], "it does not know the limits of the bucket");
    // The last report counts, of whichever account.
    let other = taken(ask("e-2", 2_000_000)).await;
    other.vendor_said(200, limits).await.unwrap();
    assert_eq!(told()[1], (of("2,000,000 tokens a minute, configured are 2,000,000 (tpm)"), false));
    assert_eq!(gauge("_configured{resource=gpt-4,counts=tokens,limit=tpm}"), 2_000_000.0);
}

/// Another process makes the new half of a split from what it read before the pause.
#[tokio::test(start_paused = true)]
async fn a_pause_reaches_the_new_half_of_a_split_under_way() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let table = fleet.dynamo.table().await;
    use_one(&limiter).await;
    let image = load(&table, &key(0)).await.unwrap();
    let first = write::split(&image, 0, new_id(), fleet.now());
    table.update(&first, ReturnValues::None).await.unwrap();
    let parent = load(&table, &key(0)).await.unwrap();
    let report = too_many(10);
    let end = limiter.report_vendor("e-1", "gpt-4", &report).await.unwrap();
    for update in write::finish_writes(&parent).unwrap() {
        table.update(&update, ReturnValues::None).await.unwrap();
    }
    assert_eq!((shards(&fleet).await.len(), pauses(&fleet).await), (2, 2));
    for _ in 0..8 {
        assert!(denied(&other).await.is_paused());
        pass(later(&fleet, end.unwrap()) / 10).await;
    }
}

/// A vendor has little left of both: the limit in small units is lowered too.
#[tokio::test(start_paused = true)]
async fn every_limit_that_follows_is_lowered_whatever_its_unit_is() {
    let fleet = Fleet::new().await;
    let follow = |builder: weirgate::Builder| {
        let tokens = builder.follow_vendor(VendorCount::Tokens, "tpm");
        tokens.follow_vendor(VendorCount::Requests, "rpm")
    };
    let limiter = fleet.limiter_with(follow).await;
    let limits =
        [Limit::per_minute("tpm", 2_000_000).unwrap(), Limit::per_minute("rpm", 600).unwrap()];
    let ask = limiter.acquire("e-1", "gpt-4").limits(&limits);
    let grant = ask.take("tpm", 1).take("rpm", 1).send().await;
    let grant = grant.unwrap().granted().unwrap();
    let said = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-remaining-requests", "0")];
    for _ in 0..4 {
        grant.vendor_said(200, said).await.unwrap();
        pass(secs(1)).await;
    }
    let shard = fleet.bucket().await;
    for (limit, most) in [("tpm", 100_000 + 4 * 33_334), ("rpm", 30 + 4 * 10)] {
        let left = shard.balance_at(&limit.try_into().unwrap(), fleet.now());
        assert!(left.whole_tokens() <= most, "{limit}: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn i9_calls_that_tell_what_the_vendor_said_are_answered_in_time() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.timeout(secs(1))).await;
    let grants = join_all((0..20).map(|_| take(&limiter))).await;
    fleet.dynamo.stall_when(|operation, _| operation == "UpdateItem");
    let began = Instant::now();
    let said = grants.iter().map(|grant| grant.report_vendor(&too_many(20)));
    for said in join_all(said).await {
        assert!(said.unwrap_err().is_unknown());
    }
    assert!(began.elapsed() <= millis(1_100), "{:?}", began.elapsed());
}
