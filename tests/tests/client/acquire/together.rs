//! Several buckets of one request: all give, or none does.

use futures_util::future::join_all;
use weirgate::{AcquireAll, Config, ConfigLevel, Decision, Error, Grants, Limit, RateLimiter};
use weirgate_shared::{BucketKey, LimitName};
use weirgate_testkit::Fault;
use weirgate_testkit::leased::load;
use weirgate_tests::fleet::{Fleet, millis, pass, secs, settle, slots, tokens};
use weirgate_tests::stored::{child, configure, entity};
use weirgate_tests::stored::{set_config, set_entity};

fn rpm(rate: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", rate).unwrap()]
}

/// Asks so much of each bucket, by the entity's name.
fn ask<'a>(limiter: &'a RateLimiter, needs: &[(&str, i64)], rate: i64) -> AcquireAll<'a> {
    let one = |(entity, need): &(&str, i64)| {
        limiter.acquire(entity, "gpt-4").limits(&rpm(rate)).take("rpm", *need)
    };
    limiter.acquire_all(needs.iter().map(one).collect::<Vec<_>>())
}

async fn granted(all: AcquireAll<'_>) -> Grants {
    all.send().await.unwrap().granted().expect("the tokens are there")
}

/// Balance now and net consumption of an entity's bucket; a full one without consumption if it is
/// not there.
async fn tk_tc(fleet: &Fleet, entity: &str) -> Option<(i64, i64)> {
    let key = BucketKey::parse(&format!("default/BUCKET#{entity}#gpt-4#0")).unwrap();
    let bucket = load(&fleet.dynamo.table().await, &key).await?;
    let state = bucket.limits[&LimitName::new("rpm").unwrap()];
    Some((bucket.balance(&state, fleet.now()).0, state.consumed.bounded().0))
}

#[tokio::test(start_paused = true)]
async fn all_buckets_give_side_by_side() {
    let (fleet, limiter, meter) = Fleet::measured().await;
    let ask = |need| ask(&limiter, &[("a", need), ("b", need + 1)], 60);
    let _ = granted(ask(1)).await;
    let _ = meter.take();
    let grants = granted(ask(2)).await;
    assert_eq!(meter.take().total, 2.0);
    let seen = [tk_tc(&fleet, "a").await.unwrap(), tk_tc(&fleet, "b").await.unwrap()];
    assert_eq!(seen, [(57_000, 3_000), (55_000, 5_000)]);
    assert_eq!((grants[0].amount("rpm"), grants[1].amount("rpm")), (tokens(2), tokens(3)));
    let _ = grants.roll_back().await.unwrap();
    let seen = [tk_tc(&fleet, "a").await.unwrap(), tk_tc(&fleet, "b").await.unwrap()];
    assert_eq!(seen, [(59_000, 1_000), (58_000, 2_000)]);
    assert_eq!(limiter.stats().granted, 2, "an acquire of several buckets is one");
}

#[tokio::test(start_paused = true)]
async fn one_that_denies_leaves_nothing_taken_and_is_named() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(ask(&other, &[("a", 10), ("b", 58)], 60)).await;
    let needs = [("a", 5), ("b", 5), ("c", 5)];
    let Decision::Denied(denied) = ask(&limiter, &needs, 60).send().await.unwrap() else {
        panic!("b has not enough")
    };
    let blocking = denied.blocking().expect("a bucket is in the way");
    assert_eq!((blocking.entity.as_str(), blocking.limit.as_str()), ("b", "rpm"));
    assert_eq!(denied.most_restrictive(), Some(blocking));
    assert_eq!(denied.retry_after, Some(secs(3)));
    assert_eq!(tk_tc(&fleet, "a").await, Some((50_000, 10_000)));
    assert_eq!(tk_tc(&fleet, "b").await, Some((2_000, 58_000)));
    assert!(tk_tc(&fleet, "c").await.is_none_or(|seen| seen == (60_000, 0)));
    // Denied from memory: no bucket is written to in vain.
    let _ = fleet.dynamo.take_requests();
    assert!(!ask(&limiter, &needs, 60).send().await.unwrap().is_granted());
    assert_eq!(fleet.dynamo.take_requests(), 0);
    // I5: a request is granted after its retry-after, and no sooner.
    pass(secs(3) - millis(1)).await;
    assert!(!ask(&limiter, &needs, 60).send().await.unwrap().is_granted());
    pass(millis(1)).await;
    let _ = granted(ask(&limiter, &needs, 60)).await;
}

#[tokio::test(start_paused = true)]
async fn all_wait_together() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(ask(&limiter, &[("a", 60), ("b", 30)], 60)).await;
    let started = fleet.now();
    let _ = granted(ask(&limiter, &[("a", 2), ("b", 31)], 60).wait_up_to(secs(2))).await;
    assert_eq!(fleet.now().since(started).0, 2_000);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_new_buckets_are_read_in_one_request() {
    let (fleet, [limiter]) = Fleet::of().await;
    let names: Vec<_> = (0..100).map(|n| format!("e-{n}")).collect();
    let needs: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let _ = fleet.dynamo.take_operations();
    let grants = granted(ask(&limiter, &needs, 60)).await;
    let operations = fleet.dynamo.take_operations();
    assert_eq!(
        operations,
        [
            // The buckets, and beside them the switches.
            ("BatchGetItem".to_owned(), 2),
            ("UpdateItem".to_owned(), 100)
        ]
        .into()
    );
    // What is known is not read again.
    let _ = granted(ask(&limiter, &needs, 60)).await;
    assert_eq!(fleet.dynamo.take_operations(), [("UpdateItem".to_owned(), 100)].into());
    assert_eq!(tk_tc(&fleet, "e-99").await, Some((58_000, 2_000)));
    drop(grants);
}

#[tokio::test(start_paused = true)]
async fn an_error_at_one_bucket_gives_back_what_the_others_gave() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = granted(ask(&limiter, &[("a", 1), ("b", 1)], 60)).await;
    fleet.dynamo.fail_when(|request| {
        request["Key"]["PK"]["S"].as_str()?.contains("#b#").then_some(Fault::Forbidden)
    });
    let error = ask(&limiter, &[("a", 5), ("b", 5)], 60).send().await.expect_err("b is forbidden");
    assert!(error.to_string().contains("BUCKET#b#"), "{error}");
    assert_eq!(tk_tc(&fleet, "a").await, Some((59_000, 1_000)));
}

#[tokio::test(start_paused = true)]
async fn slots_of_a_caller_that_goes_away_half_way_come_back() {
    let fleet = Fleet::slow(millis(20)).await;
    let limiter = fleet.limiter().await;
    let slots = [slots(2)];
    let both = || {
        let one = |entity| {
            limiter.acquire(entity, "gpt-4").limits(&slots).take("slots", 2).lease(secs(3600))
        };
        limiter.acquire_all([one("a"), one("b")])
    };
    for cut_ms in [1, 10, 21, 30, 41] {
        let _ = tokio::time::timeout(millis(cut_ms), both().send()).await;
        settle().await;
        let grants = granted(both()).await;
        let _ = grants.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_sum_that_a_bucket_never_holds_is_said_never_to_fit() {
    let (fleet, [limiter]) = Fleet::of().await;
    let answer = ask(&limiter, &[("a", 40), ("a", 21)], 60).send().await.unwrap();
    assert!(
        matches!(&answer, Decision::NeverFits(never) if never.requested == tokens(61)),
        "{answer:?}"
    );
    assert_eq!(fleet.dynamo.take_operations().get("UpdateItem"), None);
    let _ = granted(ask(&limiter, &[("a", 40), ("a", 20)], 60)).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decided_together_is_refused_before_anything_is_sent() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = fleet.dynamo.take_requests();
    let refused = async |all: AcquireAll<'_>, named: &str| {
        let error = all.send().await.expect_err(named);
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains(named)),
            "{error} must say {named:?}"
        );
    };
    refused(limiter.acquire_all([]), "got 0").await;
    let names: Vec<_> = (0..101).map(|n| format!("e-{n}")).collect();
    let needs: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    refused(ask(&limiter, &needs, 60), "got 101").await;
    refused(ask(&limiter, &[("a", 1), ("a#", 2)], 60), "a#").await;
    let one = |limiter| RateLimiter::acquire(limiter, "a", "gpt-4").limits(&rpm(60)).take("rpm", 1);
    refused(limiter.acquire_all([one(&other)]), "another limiter").await;
    refused(limiter.acquire_all([one(&limiter).wait_up_to(secs(1))]), "time to wait of its own")
        .await;
    assert_eq!(fleet.dynamo.take_requests(), 0);
}

/// What a process knows of the buckets of a request that one of them denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// All but the one that denies.
    Others,
    /// It was denied, and what has come in since is taken.
    WasDenied,
}

/// A process that does not know a bucket, or that was denied by it, reads all of them first, in one
/// request: whichever of them denies, and however they belong together.
#[tokio::test(start_paused = true)]
async fn a_denial_by_a_bucket_that_is_unknown_or_was_short_writes_to_no_other() {
    for limit in ["rpm", "slots"] {
        let of = |most| match limit {
            "rpm" => Limit::per_minute(limit, most).unwrap(),
            _ => slots(most),
        };
        for (count, processes) in [(2, 50), (4, 5)] {
            for (is_chain, short) in (0..2 * count).map(|at| (at < count, at % count)) {
                for known in [Known::Nothing, Known::Others, Known::WasDenied] {
                    let fleet = Fleet::slow(millis(5)).await;
                    let operator = fleet.limiter().await;
                    let names: Vec<_> = (0..count).map(|at| format!("e-{at}")).collect();
                    let limits = |at| [of(if at == short { 10 } else { 1_000 })];
                    let mut held = vec![];
                    let mut take = async |limiter: &RateLimiter, at: usize, tokens| {
                        let one = limiter.acquire(&names[at], "gpt-4").limits(&limits(at));
                        let one = one.take(limit, tokens).lease(secs(3_600));
                        held.push(one.send().await.unwrap().granted().expect("there is enough"));
                    };
                    for (at, name) in names.iter().enumerate() {
                        let level = ConfigLevel::Entity(entity(name));
                        let config = Config::of(limits(at));
                        set_config(&operator, &level, &config).await;
                        take(&operator, at, if at == short { 10 } else { 1 }).await;
                    }
                    for pair in names.windows(2).filter(|_| is_chain) {
                        let linked = child(&pair[0], &pair[1]);
                        set_entity(&operator, &linked).await;
                    }
                    let all = async |limiter: &RateLimiter| {
                        let one = |at: usize| {
                            let one = limiter.acquire(&names[at], "gpt-4").take(limit, 5);
                            if is_chain { one } else { one.limits(&limits(at)) }
                        };
                        let requests = 0..if is_chain { 1 } else { count };
                        limiter.acquire_all(requests.map(one)).send().await.unwrap()
                    };
                    let mut fresh = vec![];
                    for _ in 0..processes {
                        let limiter = fleet.limiter().await;
                        match known {
                            Known::Nothing => {}
                            Known::Others => {
                                for at in (0..count).filter(|at| *at != short) {
                                    take(&limiter, at, 1).await;
                                }
                            }
                            Known::WasDenied => assert!(!all(&limiter).await.is_granted()),
                        }
                        fresh.push(limiter);
                    }
                    if known == Known::WasDenied {
                        pass(secs(31)).await;
                        if limit == "rpm" {
                            take(&operator, short, 5).await;
                        }
                    }
                    let case = format!("{limit} {names:?} {is_chain} {short} {known:?}");
                    let mut most = 0;
                    for limiter in &fresh {
                        let _ = fleet.dynamo.take_operations();
                        let decision = all(limiter).await;
                        assert!(matches!(decision, Decision::Denied(_)), "{case}: {decision:?}");
                        let operations = fleet.dynamo.take_operations();
                        assert_eq!(operations.get("UpdateItem"), None, "{case}");
                        most = most.max(operations["BatchGetItem"]);
                    }
                    // Of the buckets and of the switches, or of each level of the chain.
                    assert!(most <= if is_chain { 4 } else { 2 }, "{case}: {most} reads");
                    settle().await;
                    assert_eq!(fleet.dynamo.take_operations().get("UpdateItem"), None, "{case}");
                }
            }
        }
    }
}

/// The read before the writes is the one that each bucket needed anyway.
#[tokio::test(start_paused = true)]
async fn several_buckets_are_two_round_trips_at_first_and_then_one() {
    let fleet = Fleet::slow(millis(5)).await;
    let _ = granted(ask(&fleet.limiter().await, &[("a", 1), ("b", 1)], 60)).await;
    let limiter = fleet.limiter().await;
    for (trips, reads) in [(2, Some(1)), (1, None)] {
        let _ = fleet.dynamo.take_operations();
        let began = tokio::time::Instant::now();
        let _ = granted(ask(&limiter, &[("a", 1), ("b", 1)], 60)).await;
        assert_eq!(began.elapsed(), millis(5) * trips);
        let mut operations = fleet.dynamo.take_operations();
        let switches = u64::from(reads.is_some());
        let read = operations.remove("BatchGetItem").map(|all| all - switches);
        assert_eq!((read, operations.remove("UpdateItem")), (reads, Some(2)));
    }
}

/// The first shard alone denies nothing, so reading it beforehand would be a request for nothing.
#[tokio::test(start_paused = true)]
async fn a_short_bucket_of_several_shards_is_read_as_often_as_alone() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = rpm(60);
    let set = limiter.admin().set_shards("a", "gpt-4", &limits, 4);
    assert_eq!(set.await.unwrap(), 4);
    let _ = granted(ask(&limiter, &[("a", 60), ("b", 1)], 60)).await;
    for needs in [&[("a", 30)][..], &[("a", 30), ("b", 1)]] {
        // The cached denial has ended.
        pass(secs(10)).await;
        let _ = fleet.dynamo.take_operations();
        let all = ask(&limiter, needs, 60).send().await.unwrap();
        assert!(!all.is_granted());
        let operations = fleet.dynamo.take_operations();
        assert_eq!(operations["BatchGetItem"], 1, "{needs:?}: {operations:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn children_of_one_parent_take_from_it_together() {
    let (fleet, [limiter]) = Fleet::of().await;
    let level = ConfigLevel::System;
    configure(&limiter, &level, rpm(60)).await;
    for name in ["a", "b"] {
        set_entity(&limiter, &child(name, "team")).await;
    }
    let take = |name| limiter.acquire(name, "gpt-4").take("rpm", 1);
    let both = limiter.acquire_all(["a", "b"].map(take));
    let _ = granted(both).await;
    assert_eq!(tk_tc(&fleet, "team").await, Some((58_000, 2_000)));
}

/// What an attempt takes and gives back is no reason to try again: one that waits for its second part
/// would write without a pause, and two would wake each other. All shapes of two and three parts, of
/// one bucket or of two, unsplit and split.
#[tokio::test(start_paused = true)]
async fn what_a_waiting_request_gives_back_itself_does_not_end_its_wait() {
    for (shards, waiters) in [(1, 1), (1, 2), (4, 1), (4, 2)] {
        for needs in [
            &[("a", 35), ("a", 25)][..],
            &[("a", 20), ("b", 5), ("a", 38)],
            &[("a", 20), ("a", 20), ("a", 19)],
            &[("b", 30), ("a", 30), ("b", 28)],
        ] {
            let (fleet, [limiter, other]) = Fleet::of().await;
            let _ = granted(ask(&limiter, &[("a", 1), ("b", 1)], 60)).await;
            for entity in ["a", "b"] {
                let (admin, limits) = (limiter.admin(), rpm(60));
                let split = admin.set_shards(entity, "gpt-4", &limits, shards);
                let _ = split.await.unwrap();
            }
            let _ = granted(ask(&other, &[("a", 4), ("b", 4)], 60)).await;
            let _ = fleet.dynamo.take_requests();
            let began = fleet.now();
            let wait = || ask(&limiter, needs, 60).wait_up_to(secs(100)).send();
            for all in join_all((0..waiters).map(|_| wait())).await {
                assert!(all.unwrap().is_granted(), "{shards} {needs:?}");
            }
            let requests = i64::try_from(fleet.dynamo.take_requests()).unwrap();
            // Parts of several shards are denied for 100 ms, because what others hold may return soon.
            let waited = fleet.now().since(began).0;
            let most = match shards {
                1 => 12 * waiters,
                _ => waiters * (10 + waited * 8 / 100),
            };
            assert!(requests <= most, "{shards} {waiters} {needs:?}: {requests} in {waited} ms");
        }
    }
}

/// A part that is only reported, and is too much, makes no other short.
#[tokio::test(start_paused = true)]
async fn what_is_only_reported_is_not_taken_before_the_others() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let _ = granted(ask(&other, &[("a", 20)], 60)).await;
    let part = |need| limiter.acquire("a", "gpt-4").limits(&rpm(60)).take("rpm", need);
    let grants = granted(limiter.acquire_all([part(50).shadow(), part(10)])).await;
    assert_eq!(tk_tc(&fleet, "a").await, Some((30_000, 30_000)));
    let denied = grants[0].would_deny().expect("it is short");
    let status = denied.blocking().expect("of one limit");
    assert_eq!((status.requested, status.available), (tokens(50), tokens(40)));
}
