//! Classes of callers: a class has its part of a limit, and uses the rest as far as it leaves enough.

use std::time::Duration;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::set_config;

use futures_util::future::join_all;
use weirgate::{
    Acquire, Builder, Class, Config, ConfigLevel, Decision, Entity, EpochMillis, Error,
    Granularity, Limit, MilliTokens, OnUnavailable, Prefetch, RateLimiter, Settlement, UsageScope,
    VendorCount,
};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, ask, denied, granted, millis, pass, rpm, secs, tokens};

/// `rate` a second, of which the class `batch` has 10 %, and leaves 30 % of the rest.
fn with_batch(rate: i64) -> [Limit; 1] {
    let batch = Class::new("batch", 10).unwrap().leaving(30).unwrap();
    [Limit::per_second("rpm", rate).unwrap().with_classes([batch]).unwrap()]
}

fn ask_as<'a>(
    limiter: &'a RateLimiter,
    limits: &[Limit],
    class: Option<&str>,
    amount: i64,
) -> Acquire<'a> {
    let request = ask(limiter, limits, &[("rpm", amount)]);
    match class {
        Some(class) => request.class(class),
        None => request,
    }
}

/// Lets processes of a class ask for 1 token as often as `every`, until `end`. Returns how many they
/// were granted from `from` on.
async fn demand(
    fleet: &Fleet,
    processes: &[RateLimiter],
    (limits, class): (&[Limit], Option<&str>),
    every: Duration,
    (from, end): (EpochMillis, EpochMillis),
) -> i64 {
    let loops = processes.iter().enumerate().map(async |(at, process)| {
        // Not in step with the others.
        pass(every * u32::try_from(at).unwrap() / 8).await;
        let mut granted = 0;
        while fleet.now() < end {
            let at = fleet.now();
            let decision = ask_as(process, limits, class, 1).send().await.unwrap();
            granted += i64::from(decision.is_granted() && at >= from);
            pass(every.saturating_sub(fleet.now().since(at).into())).await;
        }
        granted
    });
    join_all(loops).await.into_iter().sum()
}

const RATE: i64 = 100;

/// Runs 8 processes of each of these classes at three times the rate. Returns what each class was granted, in
/// hundredths of a percent of the rate, after some seconds in which the burst is used up.
async fn share_of(classes: &[Option<&str>], shards: u32) -> Vec<i64> {
    // Not by chance: a grant at an end of the time counts or does not.
    fastrand::seed(7);
    let fleet = Fleet::slow(millis(4)).await;
    let limits = with_batch(RATE);
    let mut groups = vec![];
    for class in classes {
        let mut processes = vec![];
        for _ in 0..8 {
            processes.push(fleet.limiter().await);
        }
        groups.push((*class, processes));
    }
    let first = &groups[0].1[0];
    let _ = granted(first, &limits, &[("rpm", 1)]).await;
    if shards > 1 {
        split(first, &limits, shards).await;
    }
    let from = fleet.now().plus(secs(3).into());
    let (end, every) = (from.plus(secs(12).into()), secs(8) / 300);
    let runs = groups
        .iter()
        .map(|(class, processes)| demand(&fleet, processes, (&limits, *class), every, (from, end)));
    let granted = join_all(runs).await;
    let percent = |granted: i64| granted * 10_000 / (RATE * 12);
    granted.into_iter().map(percent).collect()
}

/// I2: both at three times the rate, the class gets its tenth, and the others get the rest.
#[tokio::test(start_paused = true)]
async fn i2_a_class_gets_its_part_and_the_others_the_rest() {
    for shards in [1, 4] {
        let shares = share_of(&[Some("batch"), None], shards).await;
        println!("{shards} shards: {shares:?}");
        assert!((900..=1_100).contains(&shares[0]), "{shards} shards: {shares:?}");
        let all = shares[0] + shares[1];
        assert!((9_900..=10_100).contains(&all), "{shards} shards: {shares:?}");
    }
}

/// I2: each alone gets all.
#[tokio::test(start_paused = true)]
async fn i2_a_class_alone_gets_the_whole_limit_and_so_do_the_others() {
    for class in [Some("batch"), None] {
        let shares = share_of(&[class], 1).await;
        println!("{class:?}: {shares:?}");
        assert!((9_900..=10_100).contains(&shares[0]), "{class:?}: {shares:?}");
    }
}

/// A class takes from its own pool, then from the shared one above the floor; others from the shared
/// one, then from that of the class above half of it. Whatever pool it is, users see one limit.
#[tokio::test(start_paused = true)]
async fn pools_are_used_in_their_order_and_shown_as_one_limit() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(100);
    let take = async |class, amount| ask_as(&limiter, &limits, class, amount).send().await.unwrap();
    let batch = Some("batch");
    let first = take(batch, 10).await.granted().unwrap();
    let [status] = &first.limits()[..] else { panic!("{:?}", first.limits()) };
    assert_eq!(
        (status.limit.as_str(), status.available, status.capacity),
        ("rpm", tokens(90), tokens(100))
    );
    assert_eq!((first.amount("rpm"), first.amounts().len()), (tokens(10), 1));
    // Of 90 in the shared pool 27 stay.
    let second = take(batch, 63).await.granted().unwrap();
    assert_eq!(second.amount("rpm"), tokens(63));
    let denied = take(batch, 1).await.denied().unwrap();
    let [status] = &denied.limits[..] else { panic!("{denied:?}") };
    assert_eq!(
        (status.limit.as_str(), status.available, status.capacity),
        ("rpm", tokens(0), tokens(100))
    );
    // Its own pool has 1 in 100 ms, the shared one in 12 ms.
    assert_eq!(denied.retry_after, Some(millis(12)));
    assert!(take(None, 27).await.is_granted());
    let denied = take(None, 1).await.denied().unwrap();
    assert_eq!(denied.retry_after, Some(millis(12)));
    let balances = limiter.peek("e-1", "gpt-4").limits(&limits).send().await.unwrap();
    assert_eq!((balances.limits.len(), balances.limit("rpm").unwrap().available), (1, tokens(0)));
    pass(secs(2)).await;
    // Others have what the class does not use, but half of its pool.
    assert!(take(None, 90).await.is_granted());
    assert!(take(None, 5).await.is_granted());
    assert!(take(None, 1).await.denied().is_some());
    assert!(take(batch, 5).await.is_granted());
}

/// What is returned goes to the pool from which it was taken.
#[tokio::test(start_paused = true)]
async fn settlements_change_the_pool_that_was_taken_from() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let limits = with_batch(100);
    let of = async |pool: &str| fleet.bucket().await.limits[pool].available;
    let mut grant = taken(ask_as(&limiter, &limits, Some("batch"), 6)).await;
    assert_eq!((of("rpm@batch").await, of("rpm").await), (tokens(4), tokens(90)));
    assert_eq!(grant.adjust("rpm", 2).await.unwrap(), Settlement::Applied);
    assert_eq!(of("rpm@batch").await, tokens(8));
    assert_eq!(grant.adjust("rpm", 12).await.unwrap(), Settlement::Applied);
    assert_eq!((of("rpm@batch").await, grant.amount("rpm")), (tokens(-2), tokens(12)));
    // Its own pool is in debt, so more comes from the shared one.
    assert!(grant.take_more("rpm", 60).await.unwrap().is_granted());
    assert!(!grant.take_more("rpm", 60).await.unwrap().is_granted());
    assert_eq!(
        (of("rpm@batch").await, of("rpm").await, grant.amount("rpm")),
        (tokens(-2), tokens(30), tokens(72))
    );
    let token = grant.into_token();
    let mut grant = other.restore_grant(&token).unwrap();
    assert_eq!(grant.amount("rpm"), tokens(72));
    // A restored one leaves the floor of 27, and takes where there is something.
    assert!(!grant.take_more("rpm", 4).await.unwrap().is_granted());
    assert!(grant.take_more("rpm", 3).await.unwrap().is_granted());
    assert_eq!((of("rpm@batch").await, of("rpm").await), (tokens(-2), tokens(27)));
    let _ = grant.adjust("rpm", 5).await.unwrap();
    assert_eq!(of("rpm@batch").await + of("rpm").await, tokens(95));
    let _ = grant.roll_back().await.unwrap();
    assert_eq!((of("rpm@batch").await, of("rpm").await), (tokens(10), tokens(90)));
}

#[tokio::test(start_paused = true)]
async fn a_class_that_no_limit_has_and_pools_as_limits_are_refused() {
    let (fleet, [limiter]) = Fleet::of().await;
    let refused = async |request: Acquire<'_>| {
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        error.to_string()
    };
    let limits = with_batch(100);
    let error = refused(ask_as(&limiter, &limits, Some("gold"), 1)).await;
    assert!(error.contains("class \"gold\" is not among those of the limits: batch"), "{error}");
    let error = refused(ask_as(&limiter, &[rpm(9)], Some("batch"), 1)).await;
    assert!(error.contains("is not among those of the limits: none has classes"), "{error}");
    let error = refused(ask_as(&limiter, &limits, Some("a#b"), 1)).await;
    assert!(error.contains("class \"a#b\" is not a valid name"), "{error}");
    let error = refused(ask(&limiter, &limits, &[("rpm@batch", 1)])).await;
    assert!(error.contains("take \"rpm\" with the class \"batch\""), "{error}");
    assert_eq!(fleet.writes(), 0);
}

/// A peek says what an acquire of the same class gets, of whichever pool that is.
#[tokio::test(start_paused = true)]
async fn a_peek_has_the_wait_of_an_acquire() {
    for class in [None, Some("batch")] {
        let (_fleet, [limiter]) = Fleet::of().await;
        let level = ConfigLevel::Entity("e-1".try_into().unwrap());
        let config = Config {
            class: class.map(|class| class.try_into().unwrap()),
            ..Config::of(with_batch(100))
        };
        set_config(&limiter, &level, &config).await;
        for amount in [63, 9, 1, 18, 5, 5, 40, 9, 2] {
            let balances = limiter.peek("e-1", "gpt-4").need("rpm", amount).send();
            let wait = balances.await.unwrap().retry_after;
            let taken = limiter.acquire("e-1", "gpt-4").take("rpm", amount);
            let expected = match taken.send().await.unwrap() {
                Decision::Granted(_) => Some(millis(0)),
                Decision::Denied(denied) => denied.retry_after,
                other => panic!("{other:?}"),
            };
            assert_eq!(wait, expected, "{class:?}: {amount}");
            pass(millis(7)).await;
        }
    }
}

/// A refund does not know the pools that were taken from: it fills that of its class first, then others.
#[tokio::test(start_paused = true)]
async fn a_refund_returns_what_the_pools_of_a_limit_consumed_together() {
    for (class, takes) in [(None, [90, 5]), (Some("batch"), [10, 63])] {
        let (fleet, [limiter]) = Fleet::of().await;
        let level = ConfigLevel::Entity("e-1".try_into().unwrap());
        let config = Config {
            class: class.map(|class| class.try_into().unwrap()),
            ..Config::of(with_batch(100))
        };
        set_config(&limiter, &level, &config).await;
        for amount in takes {
            let taken = limiter.acquire("e-1", "gpt-4").take("rpm", amount);
            assert!(taken.send().await.unwrap().is_granted(), "{class:?}");
        }
        let refund = async |amount| {
            let refund = limiter.refund("e-1", "gpt-4").give_back("rpm", amount);
            refund.send().await.map_err(|error| error.to_string())
        };
        let all: i64 = takes.into_iter().sum();
        let error = refund(all + 1).await.unwrap_err();
        let bound = format!("refund of limit \"rpm\" must be 0 to {all}, ");
        assert!(error.contains(&bound), "{class:?}: {error}");
        refund(1).await.unwrap();
        let left = fleet.bucket().await.limits;
        let filled = if class.is_some() { "rpm@batch" } else { "rpm" };
        assert_eq!(left[filled].available, tokens(1), "{class:?}: {left:?}");
        refund(all - 1).await.unwrap();
        let limits = fleet.bucket().await.limits;
        let full = limits.values().map(|state| state.available).sum::<MilliTokens>();
        assert_eq!(full, tokens(100), "{class:?}: {limits:?}");
        let used: i128 = limits.values().map(|state| state.consumed.0).sum();
        assert_eq!(used, 0, "{class:?}: {limits:?}");
    }
}

/// Local buckets have pools and floors, each of them the percentage of the limit's.
#[tokio::test(start_paused = true)]
async fn a_class_has_its_part_of_a_local_bucket() {
    for (class, takes, short) in
        [(None, [45, 2], 1), (Some("batch"), [5, 31], 1), (Some("rest"), [18, 4], 1)]
    {
        let fleet = Fleet::new().await;
        let limiter = fleet
            .limiter_with(|builder| {
                let local = OnUnavailable::Local { percent: 50 };
                builder.on_unavailable(local).timeout(millis(100))
            })
            .await;
        fleet.dynamo.fail_when(|_| Some(Fault::ServerError));
        fleet.fail_reads(Fault::ServerError);
        let limits: [Limit; 1] =
            ["rpm=100/day,class=batch:10%:30%,class=rest:0%:50%".parse().unwrap()];
        let mut grants = vec![];
        for amount in takes {
            let decision = ask_as(&limiter, &limits, class, amount).send().await;
            grants.push(decision.unwrap().granted().unwrap());
        }
        let denied = ask_as(&limiter, &limits, class, short).send().await;
        let denied = denied.unwrap().denied().unwrap();
        let [status] = &denied.limits[..] else { panic!("{denied:?}") };
        assert_eq!(status.limit, "rpm", "{class:?}");
        let _ = grants.pop().unwrap().roll_back().await.unwrap();
        let again = ask_as(&limiter, &limits, class, takes[1]).send().await;
        assert!(again.unwrap().is_granted(), "{class:?}");
    }
}

/// More than any pool gives never fits; of a class, the shared one without its floor, or its own.
#[tokio::test(start_paused = true)]
async fn what_no_pool_gives_never_fits() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(100);
    for (class, fits) in [(None, 90), (Some("batch"), 63)] {
        let send = async |amount| ask_as(&limiter, &limits, class, amount).send().await.unwrap();
        let Decision::NeverFits(never) = send(fits + 1).await else { panic!("{class:?}") };
        assert_eq!(
            (never.limit.as_str(), never.capacity, never.requested),
            ("rpm", tokens(fits), tokens(fits + 1))
        );
        let grant = send(fits).await.granted().unwrap();
        let _ = grant.roll_back().await.unwrap();
    }
}

/// A configuration says the class of its entities, for the limits of their parents too.
#[tokio::test(start_paused = true)]
async fn a_configured_class_is_not_raised_by_a_request() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let admin = limiter.admin();
    let level = |entity: &str| ConfigLevel::Entity(entity.try_into().unwrap());
    admin.set_config(&level("shared"), &Config::of(with_batch(100))).await.unwrap();
    let own = Config { class: Some("batch".try_into().unwrap()), ..Config::of([rpm(60_000)]) };
    admin.set_config(&level("child"), &own).await.unwrap();
    let child =
        Entity::new("child".try_into().unwrap()).child_of("shared".try_into().unwrap(), true);
    admin.set_entity(&child).await.unwrap();
    let take =
        async |request: Acquire<'_>, amount| request.take("rpm", amount).send().await.unwrap();
    let child = || limiter.acquire("child", "gpt-4");
    assert!(take(child(), 10).await.is_granted(), "its own pool");
    assert!(take(child(), 63).await.is_granted(), "the shared one above the floor");
    assert!(take(child(), 1).await.denied().is_some());
    assert!(take(child().class("other"), 1).await.denied().is_some(), "whatever it says");
    assert!(take(limiter.acquire("shared", "gpt-4"), 27).await.is_granted());
}

/// Classes change with the configuration: no token is made, and what is used is that of one limit.
#[tokio::test(start_paused = true)]
async fn a_change_of_classes_makes_no_token_and_usage_is_that_of_the_limit() {
    let (fleet, [limiter]) = Fleet::of().await;
    // No hour begins meanwhile, because nothing copies usage here.
    pass(secs(60)).await;
    let hour = fleet.now();
    let plain = [Limit::per_second("rpm", 100).unwrap()];
    let batch = Some("batch");
    let with = with_batch(100);
    let take = async |limits: &[Limit], class, amount| {
        let request = ask_as(&limiter, limits, class, amount);
        request.limits_version(fleet.now().0 - hour.0).send().await.unwrap().is_granted()
    };
    let mut taken = 0;
    for round in 0..40 {
        let (limits, class) = if round % 2 == 0 { (&with[..], batch) } else { (&plain[..], None) };
        for amount in [40, 9, 5, 1, 1] {
            taken += if take(limits, class, amount).await { amount } else { 0 };
        }
        pass(millis(50)).await;
    }
    assert!(taken <= 100 + 5 * 40, "{taken}");
    assert!(taken >= 100 + 5 * 40 - 45, "{taken}");
    // The class is gone, and its pool is no part of the limit.
    let peek = limiter.peek("e-1", "gpt-4").limits(&plain);
    let balances = peek.send().await.unwrap();
    let status = balances.limit("rpm").unwrap();
    assert_eq!((status.capacity, status.refill_amount), (tokens(100), tokens(100)));
    let scope = UsageScope::Bucket("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let range = hour..hour.plus(secs(60).into());
    let report = limiter.admin().usage_report(scope, Granularity::Hourly, range).unwrap();
    let total = report.total().await.unwrap();
    assert_eq!(total.usage.tokens.len(), 1);
    assert_eq!(total.usage.tokens["rpm"].0, i128::from(taken) * 1_000);
}

/// In a split bucket each shard leaves its share, and an amount above a shard's share comes from several.
#[tokio::test(start_paused = true)]
async fn shards_leave_their_share_of_the_floor() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(400);
    let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
    split(&limiter, &limits, 4).await;
    pass(secs(5)).await;
    let batch = |amount| ask_as(&limiter, &limits, Some("batch"), amount);
    // Of 360 in the shared pool 108 stay, and each shard has 63 above them.
    assert!(batch(200).send().await.unwrap().is_granted());
    let mut more = 0;
    while batch(4).send().await.unwrap().is_granted() {
        more += 4;
    }
    assert!((52 + 40 - 16..=52 + 40 + 8).contains(&more), "{more}");
    assert!(!denied(&limiter, &limits, &[("rpm", 300)]).await.limits.is_empty());
    assert!(granted(&limiter, &limits, &[("rpm", 100)]).await.amount("rpm") == tokens(100));
}

/// A class that queues takes at once where one of its pools has enough, and otherwise has its own line.
#[tokio::test(start_paused = true)]
async fn a_class_queues_for_its_own_pool() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(100);
    let _ = granted(&limiter, &limits, &[("rpm", 90)]).await;
    let queue = async |class, amount| {
        let request = ask_as(&limiter, &limits, class, amount).queue_up_to(secs(30));
        request.send_now().await.unwrap().granted().unwrap().starts_in()
    };
    assert_eq!(queue(Some("batch"), 10).await, secs(0));
    assert_eq!(queue(Some("batch"), 5).await, millis(500));
    assert_eq!(queue(None, 9).await, millis(100));
}

/// A write requires what it leaves, so a process that has not seen others' takes leaves it too.
#[tokio::test(start_paused = true)]
async fn a_floor_holds_by_an_old_view() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let limits = with_batch(100);
    let grant = granted(&limiter, &limits, &[("rpm", 1)]).await;
    let _ = grant.roll_back().await.unwrap();
    let _ = granted(&other, &limits, &[("rpm", 80)]).await;
    let denied = ask_as(&limiter, &limits, Some("batch"), 20).send().await.unwrap().denied();
    // 47 are needed in the shared pool, and 100 ms bring 9.
    assert_eq!(denied.unwrap().retry_after, Some(millis(412)));
    assert_eq!(fleet.bucket().await.limits["rpm"].available, tokens(10));
    let together = [Some("batch"), None, Some("batch")].map(|class| {
        let (limiter, limits) = (&limiter, &limits);
        async move { ask_as(limiter, limits, class, 4).send().await.unwrap().is_granted() }
    });
    // Its own pool has 10, of which two take 8; the other one takes from the shared pool.
    assert_eq!(join_all(together).await, [true, true, true]);
}

/// What a vendor says is that of the whole limit, and lowers each pool by its part.
#[tokio::test(start_paused = true)]
async fn pools_follow_a_vendor_together() {
    let fleet = Fleet::new().await;
    let limiter =
        fleet.limiter_with(|builder| builder.follow_vendor(VendorCount::Tokens, "rpm")).await;
    // 1 a minute, so that almost nothing refills.
    let batch = Class::new("batch", 10).unwrap();
    let limits = [Limit::custom("rpm", 1_000, 1, 60_000).unwrap().with_classes([batch]).unwrap()];
    for _ in 0..2 {
        let grant = granted(&limiter, &limits, &[("rpm", 1)]).await;
        let said = [("x-ratelimit-limit-tokens", "2000"), ("x-ratelimit-remaining-tokens", "200")];
        grant.vendor_said(200, said).await.unwrap();
        pass(secs(1)).await;
    }
    // A twentieth of the limit is the margin.
    let balances = limiter.peek("e-1", "gpt-4").limits(&limits).send().await.unwrap();
    let left = balances.limit("rpm").unwrap().available;
    assert!((tokens(248)..=tokens(251)).contains(&left), "{left:?}");
    let [advice] = &limiter.vendor_advice()[..] else { panic!("one limit is reported") };
    let configured = advice.configured.as_ref().unwrap();
    assert_eq!((configured.name.as_str(), configured.tokens), ("rpm", tokens(1)));
}

/// What must stay of the shared pool is not behind its line: a class takes there at once, or not at all.
#[tokio::test(start_paused = true)]
async fn a_class_queues_for_nothing_above_a_floor() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(100);
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    let queue = |amount| ask_as(&limiter, &limits, Some("batch"), amount).queue_up_to(secs(30));
    // Of 30 in the shared pool 27 stay, and its own pool holds 10.
    let denied = queue(12).send_now().await.unwrap().denied().unwrap();
    assert_eq!(denied.retry_after, Some(millis(100)));
    pass(millis(100)).await;
    let grant = queue(12).send_now().await.unwrap().granted().unwrap();
    assert_eq!((grant.starts_at(), grant.starts_in()), (Some(fleet.now()), secs(0)));
}

/// Several requests on one bucket take from several pools.
#[tokio::test(start_paused = true)]
async fn what_one_pool_lacks_for_several_requests_another_one_has() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = with_batch(100);
    let batch = |amount| ask_as(&limiter, &limits, Some("batch"), amount);
    let grants = limiter.acquire_all([batch(6), batch(6)]).send().await.unwrap();
    assert!(grants.is_granted(), "{grants:?}");
}

/// A class that was added a moment ago is no error of a process that has not read it.
#[tokio::test(start_paused = true)]
async fn a_class_that_was_just_added_is_read() {
    let (_fleet, [limiter, operator]) = Fleet::of().await;
    let level = ConfigLevel::Entity("e-1".try_into().unwrap());
    let admin = operator.admin();
    admin.set_config(&level, &Config::of([Limit::per_second("rpm", 100).unwrap()])).await.unwrap();
    let request = || limiter.acquire("e-1", "gpt-4").take("rpm", 1);
    assert!(request().send().await.unwrap().is_granted());
    pass(secs(30)).await;
    admin.set_config(&level, &Config::of(with_batch(100))).await.unwrap();
    assert!(request().class("batch").send().await.unwrap().is_granted());
}

/// What a class leaves to others stays theirs, whatever served the request of which more is taken.
#[tokio::test(start_paused = true)]
async fn more_of_a_grant_is_of_its_class_whatever_served_it() {
    for is_ahead in [false, true] {
        let fleet = Fleet::new().await;
        let ahead = |builder: Builder| match is_ahead {
            true => builder.prefetch("gpt-4", Prefetch::default()),
            false => builder,
        };
        let limiter = fleet.limiter_with(ahead).await;
        let tpm = "tpm=1000/second,class=batch:10%:30%".parse().unwrap();
        let limits = [rpm(60_000), tpm];
        for _ in 0..100 {
            let _ = granted(&limiter, &limits, &[("rpm", 1)]).await;
            pass(millis(10)).await;
        }
        let hits = limiter.stats().prefetch_hits;
        let mut grant = taken(ask_as(&limiter, &limits, Some("batch"), 1)).await;
        assert_eq!(limiter.stats().prefetch_hits > hits, is_ahead);
        // Of 900 for all, it leaves 270.
        assert!(!grant.take_more("tpm", 640).await.unwrap().is_granted());
        assert!(grant.take_more("tpm", 620).await.unwrap().is_granted());
    }
}

/// What was not taken is debited as what goes into debt: from the first pool of the caller's class.
#[tokio::test(start_paused = true)]
async fn an_adjustment_of_what_was_not_taken_is_of_the_class() {
    for class in [None, Some("batch")] {
        for is_restored in [false, true] {
            let fleet = Fleet::new().await;
            let limiter = fleet.limiter().await;
            let tpm = "tpm=1000/day,class=batch:10%:30%".parse().unwrap();
            let limits = [rpm(60_000), tpm];
            let mut grant = taken(ask_as(&limiter, &limits, class, 1)).await;
            if is_restored {
                grant = limiter.restore_grant(&grant.into_token()).unwrap();
            }
            assert_eq!(grant.adjust("tpm", 60).await.unwrap(), Settlement::Applied);
            let left = |pool| fleet.tk_tc(pool);
            let of_class = left("tpm@batch").await.0;
            let shared = left("tpm").await.0;
            let expected = match class {
                Some(_) => (40_000, 900_000),
                None => (100_000, 840_000),
            };
            assert_eq!((of_class, shared), expected, "{class:?}, {is_restored}");
        }
    }
}
