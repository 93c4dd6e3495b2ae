//! A call is answered within its timeout, whatever does not answer, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::Instant;
use weirgate::{
    Acquire, Builder, CircuitBreakerConfig, ConfigLevel, Decision, Error, Grant, Limit,
    OnUnavailable, Prefetch, RateLimiter,
};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, millis, pass, rpm, secs, tokens};
use weirgate_tests::stored::{child, configure, set_entity};

const TIMEOUT: Duration = millis(200);
const MOST: Duration = millis(220);
const CAPACITY: i64 = 6_000;

/// What does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silent {
    Limits,
    Switches,
    Reads,
    Writes,
    All,
}

impl Silent {
    fn meets(self, operation: &str, request: &Value) -> bool {
        let (is_write, text) = (operation == "UpdateItem", request.to_string());
        match self {
            Self::Limits => text.contains("#CONFIG#"),
            Self::Switches => text.contains("#SWITCHES"),
            Self::Reads => !is_write,
            Self::Writes => is_write,
            Self::All => true,
        }
    }
}

/// How a caller asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// With limits of its own.
    Given,
    Configured,
    Prefetched,
    /// Of two buckets at once.
    Several,
    /// By a request that waits for tokens.
    Patient,
    /// Of an entity and its ancestors.
    Cascading,
}

const CALLS: [Call; 6] = [
    Call::Given,
    Call::Configured,
    Call::Prefetched,
    Call::Several,
    Call::Patient,
    Call::Cascading,
];
/// Entities from the one of [`Call::Cascading`] to the last ancestor.
const CHAIN: usize = 20;

fn resource(call: Call) -> &'static str {
    match call {
        Call::Prefetched => "ahead",
        _ => "gpt-4",
    }
}

/// Returns the decision, and the grants of it.
async fn send(limiter: &RateLimiter, call: Call) -> Result<Vec<Grant>, Error> {
    let limits = [rpm(CAPACITY)];
    let of = |entity| limiter.acquire(entity, resource(call)).take("rpm", 1);
    let of = |entity| of(entity).timeout(TIMEOUT);
    let one = |decision: Decision<Grant>| decision.granted().into_iter().collect();
    match call {
        Call::Given => of("e-1").limits(&limits).send().await.map(one),
        Call::Cascading => of("c-1").send().await.map(one),
        Call::Configured | Call::Prefetched => of("e-1").send().await.map(one),
        Call::Patient => of("e-1").wait_up_to(millis(10)).send().await.map(one),
        Call::Several => {
            let both = limiter.acquire_all([of("e-1"), of("e-2")]).send().await?;
            Ok(both.granted().into_iter().flatten().collect())
        }
    }
}

async fn consumed(fleet: &Fleet, call: Call) -> i64 {
    let mut all = 0;
    for entity in ["e-1", "e-2", "c-1"] {
        all += used(fleet, entity, resource(call)).await;
    }
    all
}

/// What was taken of a bucket in this hour.
async fn used(fleet: &Fleet, entity: &str, resource: &str) -> i64 {
    let reader = fleet.limiter().await;
    let of = reader.usage(entity, resource, weirgate::Window::Hourly, fleet.now());
    let used = of.await.unwrap().usage.tokens.get("rpm").copied();
    i64::try_from(used.unwrap_or_default().whole_tokens()).unwrap()
}

/// One caller, or twenty at once that wait for each other's requests; in a process that knows
/// nothing yet, or one whose limits and switches are due again.
#[tokio::test(start_paused = true)]
async fn i9_a_call_is_answered_in_time_whatever_is_silent() {
    use Silent::{All, Limits, Reads, Switches, Writes};
    for (silent, call) in [Limits, Switches, Reads, Writes, All]
        .into_iter()
        .flat_map(|silent| CALLS.map(|call| (silent, call)))
    {
        for (is_warm, callers) in [(false, 1), (false, 20), (true, 1), (true, 20)] {
            let what = format!("{silent:?} silent, {call:?}, {callers} callers, warm: {is_warm}");
            let fleet = Fleet::new().await;
            // Every process counts for the hour that has begun.
            pass(secs(60)).await;
            let builder = fleet.builder().await.prefetch("ahead", Prefetch::default());
            let limiter = builder.on_unavailable(OnUnavailable::Allow).build().await.unwrap();
            configure(&fleet.limiter().await, &ConfigLevel::System, vec![rpm(CAPACITY)]).await;
            if call == Call::Cascading {
                for at in 1..CHAIN {
                    let (id, parent) = (format!("c-{at}"), format!("c-{}", at + 1));
                    set_entity(&limiter, &child(&id, &parent)).await;
                }
            }
            let mut counted = 0;
            if is_warm {
                counted = i64::try_from(send(&limiter, call).await.unwrap().len()).unwrap();
                pass(secs(90)).await;
            }
            fleet.dynamo.stall_when(move |operation, request| silent.meets(operation, request));
            let began = Instant::now();
            let timed = async || (send(&limiter, call).await, began.elapsed());
            let answers = join_all((0..callers).map(|_| timed())).await;
            for (answer, after) in answers {
                assert!(after <= MOST, "{what}: {after:?}");
                if is_warm && silent == Writes && call == Call::Prefetched {
                    assert!(answer.is_ok(), "{what}: {answer:?}");
                }
                let grants = answer.unwrap_or_default();
                let of_table = grants.iter().filter(|grant| grant.degraded().is_none());
                let of_table = of_table.count();
                if is_warm && matches!(silent, Limits | Switches | Reads) {
                    assert!(of_table > 0, "{what}: what was read before decides");
                }
                counted += i64::try_from(of_table).unwrap();
            }
            fleet.dynamo.stall_when(|_, _| false);
            pass(secs(60)).await;
            limiter.shutdown().await.unwrap();
            assert_eq!(consumed(&fleet, call).await, counted, "{what}");
        }
    }
}

/// A request that waits for a block is decided as one that waits for another write: what hangs is an outage, contention and
/// what failed long ago are none.
#[tokio::test(start_paused = true)]
async fn i1_a_request_that_waits_for_a_block_is_decided_by_what_the_table_does_now() {
    for hangs in [true, false] {
        let fleet = Fleet::new().await;
        let limits = [rpm(60_000)];
        let builder = fleet.builder().await.prefetch("gpt-4", Prefetch::default());
        let limiter = builder.on_unavailable(OnUnavailable::Allow).build().await.unwrap();
        let ask = || limiter.acquire("e-1", "gpt-4").limits(&limits).take("rpm", 1);
        let ask_often = async |times: u64| {
            let each = async |at: u64| {
                pass(millis(10 * at)).await;
                ask().timeout(millis(250)).send().await
            };
            join_all((0..times).map(each)).await
        };
        assert!(ask_often(100).await.iter().all(Result::is_ok));
        if hangs {
            fleet.dynamo.stall_when(|operation, _| operation == "UpdateItem");
        } else {
            fleet.fail_writes(Fault::LoseRequest);
            let _ = ask_often(100).await;
            fleet.fail_writes(None);
            pass(secs(3_600)).await;
            fleet.fail_writes(Fault::Throttle { key_range: true });
        }
        for answer in ask_often(400).await {
            let degraded = match &answer {
                Ok(Decision::Granted(grant)) => grant.degraded().is_some(),
                _ => false,
            };
            match hangs {
                true => assert!(answer.is_ok(), "{answer:?}"),
                false => assert!(!degraded, "{answer:?}"),
            }
        }
    }
}

fn slot(limiter: &RateLimiter) -> Acquire<'_> {
    limiter.acquire("e-1", "gpt-4").take("slots", 1)
}

/// What its attempts wait for beside the tokens is part of the wait, but for the first and the last.
#[tokio::test(start_paused = true)]
async fn a_wait_lasts_as_long_as_it_was_told_whatever_is_silent() {
    for is_of_several in [false, true] {
        let fleet = Fleet::new().await;
        let (limiter, other) = (fleet.limiter().await, fleet.limiter().await);
        let slots = Limit::concurrent("slots", 1).unwrap();
        configure(&other, &ConfigLevel::System, [slots]).await;
        let grant = slot(&limiter).send().await.unwrap().granted().unwrap();
        let _ = grant.release().await.unwrap();
        let held = slot(&other).lease(secs(3_600)).send().await.unwrap();
        pass(secs(61)).await;
        fleet.dynamo.stall_when(|operation, request| Silent::Limits.meets(operation, request));
        let (began, wait) = (Instant::now(), secs(15));
        let is_granted = match is_of_several {
            false => slot(&limiter).wait_up_to(wait).send().await.unwrap().is_granted(),
            true => {
                let all = limiter.acquire_all([slot(&limiter)]).wait_up_to(wait);
                all.send().await.unwrap().is_granted()
            }
        };
        assert!(!is_granted);
        let after = began.elapsed();
        assert!((secs(15)..=secs(18)).contains(&after), "of several: {is_of_several}: {after:?}");
        drop(held);
    }
}

/// The buckets of many tenants that are due at once, and then one after the other.
#[tokio::test(start_paused = true)]
async fn due_limits_that_hang_are_used_as_they_were_and_make_nothing_unavailable() {
    for timeout in [TIMEOUT, secs(5)] {
        let fleet = Fleet::new().await;
        let allow = |builder: Builder| builder.on_unavailable(OnUnavailable::Allow);
        let limiter = fleet.limiter_with(allow).await;
        configure(&limiter, &ConfigLevel::System, [rpm(CAPACITY)]).await;
        let entities: Vec<_> = (0..20).map(|at| format!("e-{at}")).collect();
        let take = async |entity: &String| {
            let acquire = limiter.acquire(entity, "gpt-4").take("rpm", 1);
            let grant = acquire.timeout(timeout).send().await.unwrap().granted();
            assert_eq!(grant.unwrap().degraded(), None, "{entity}, {timeout:?}");
        };
        join_all(entities.iter().map(take)).await;
        pass(secs(61)).await;
        fleet.dynamo.stall_when(|operation, request| Silent::Limits.meets(operation, request));
        for _ in 0..10 {
            join_all(entities.iter().map(take)).await;
            pass(secs(2)).await;
        }
        for entity in &entities {
            take(entity).await;
        }
        assert_eq!(limiter.stats().breaker_opened, 0, "{timeout:?}");
    }
}

/// Requests that need reads first, and give up before anything shows that DynamoDB hangs.
#[tokio::test(start_paused = true)]
async fn a_table_that_hangs_opens_the_breaker_though_no_caller_waits_for_long() {
    for (timeout, is_known) in
        [5, 50, 500].into_iter().flat_map(|ms| [(millis(ms), false), (millis(ms), true)])
    {
        let what = format!("{timeout:?}, known: {is_known}");
        let fleet = Fleet::new().await;
        let limiter = fleet.limiter().await;
        configure(&fleet.limiter().await, &ConfigLevel::System, [rpm(CAPACITY)]).await;
        let acquire = limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        if is_known {
            assert!(acquire.clone().send().await.unwrap().is_granted());
            // Too old to do without a read.
            pass(secs(121)).await;
        }
        fleet.dynamo.stall_when(|_, _| true);
        let acquire = acquire.timeout(timeout);
        let began = Instant::now();
        while limiter.is_available() {
            assert!(began.elapsed() <= secs(60), "{what}");
            assert!(acquire.clone().send().await.is_err(), "{what}");
            pass(millis(300)).await;
        }
        let error = acquire.clone().send().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{what}: {error}");
        fleet.dynamo.stall_when(|_, _| false);
        pass(secs(31)).await;
        assert!(acquire.send().await.unwrap().is_granted(), "{what}");
    }
}

/// The switches are read beside the take. What was taken goes back later, if its rollback hangs.
#[tokio::test(start_paused = true)]
async fn i9_a_stop_does_not_wait_for_the_return_of_what_was_taken() {
    let fleet = Fleet::new().await;
    let (operator, limiter) = (fleet.limiter().await, fleet.limiter().await);
    let limits = [rpm(60)];
    let take = async |timeout| {
        let both = ["e-1", "e-2"].map(|entity| {
            let acquire = limiter.acquire(entity, "gpt-4").limits(&limits);
            let acquire = acquire.take("rpm", 6).timeout(timeout);
            // So that a lost rollback is repeated.
            acquire.lease(secs(60))
        });
        limiter.acquire_all(both).send().await.unwrap()
    };
    // Every process counts for the hour that has begun.
    pass(secs(60)).await;
    assert!(take(secs(5)).await.is_granted());
    let level = ConfigLevel::Entity("e-1".try_into().unwrap());
    let _ = operator.admin().stop(&level).send().await.unwrap();
    pass(secs(61)).await;
    let mut writes = 0;
    fleet.dynamo.stall_when(move |operation, _| {
        writes += u32::from(operation == "UpdateItem");
        operation == "UpdateItem" && writes > 2
    });
    let began = Instant::now();
    let decision = take(TIMEOUT).await;
    assert!(matches!(decision, Decision::Disabled(_)), "{decision:?}");
    assert!(began.elapsed() <= MOST, "{:?}", began.elapsed());
    fleet.dynamo.stall_when(|_, _| false);
    pass(secs(10)).await;
    for entity in ["e-1", "e-2"] {
        let used = used(&fleet, entity, "gpt-4").await;
        assert_eq!(used, 6, "{entity}: the first request's");
    }
}

/// One of two buckets denies, and the other one's rollback hangs: the caller is denied in time, and
/// the tokens return once DynamoDB answers again.
#[tokio::test(start_paused = true)]
async fn i9_a_denial_does_not_wait_for_the_return_of_another_bucket() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let limits = [rpm(60)];
    let take = async |limiter: &RateLimiter, entity, amount| {
        let acquire = limiter.acquire(entity, "gpt-4").limits(&limits);
        let decision = acquire.take("rpm", amount).send().await;
        assert!(decision.unwrap().is_granted());
    };
    take(&limiter, "short", 1).await;
    take(&limiter, "long", 1).await;
    // The first process does not see this.
    take(&fleet.limiter().await, "short", 59).await;
    let mut writes = 0;
    fleet.dynamo.stall_when(move |operation, request| {
        let is_of_long = operation == "UpdateItem" && request.to_string().contains("#long#");
        writes += u32::from(is_of_long);
        is_of_long && writes > 1
    });
    let began = Instant::now();
    let both = ["short", "long"].map(|entity| {
        let acquire = limiter.acquire(entity, "gpt-4").limits(&limits);
        acquire.take("rpm", 5).timeout(TIMEOUT)
    });
    let decision = limiter.acquire_all(both).send().await.unwrap();
    assert!(matches!(decision, Decision::Denied(_)), "{decision:?}");
    assert!(began.elapsed() <= MOST, "{:?}", began.elapsed());
    fleet.dynamo.stall_when(|_, _| false);
    pass(secs(10)).await;
    let long = fleet.limiter().await.peek("long", "gpt-4").limits(&limits).send().await;
    let left = long.unwrap().limits[0].available;
    assert_eq!(left, tokens(60), "the returned ones, and the refill");
}

/// A bucket that hangs says nothing about the others.
#[tokio::test(start_paused = true)]
async fn one_request_that_hangs_is_one_failure_however_many_wait_for_it() {
    let fleet = Fleet::new().await;
    let breaker = CircuitBreakerConfig { failure_threshold: 2, ..CircuitBreakerConfig::default() };
    let builder = fleet.builder().await.circuit_breaker(breaker);
    let limiter = builder.on_unavailable(OnUnavailable::Allow).build().await.unwrap();
    let limits: [Limit; 1] = [rpm(600)];
    let of = |entity: &str| {
        let acquire = limiter.acquire(entity, "gpt-4").limits(&limits).take("rpm", 1);
        acquire.timeout(millis(500)).send()
    };
    assert!(of("hot").await.unwrap().is_granted());
    fleet.dynamo.stall_when(|operation, request| {
        operation == "UpdateItem" && request.to_string().contains("#hot#")
    });
    for answer in join_all((0..20).map(|_| of("hot"))).await {
        assert!(answer.unwrap().granted().unwrap().degraded().is_some());
    }
    for _ in 0..8 {
        pass(millis(500)).await;
        let cool = of("cool").await.unwrap().granted().unwrap();
        assert!(cool.degraded().is_none(), "{:?}", cool.degraded());
    }
    assert_eq!(limiter.stats().breaker_opened, 0);
}

/// What requests wait for that share a read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Shard,
    Prefetch,
    /// The read of all shards.
    Shards,
    /// The limits of the ancestors.
    Limits,
    Switches,
}

/// Behind a request that has an hour and hangs, requests whose deadlines have passed leave nothing in
/// any queue.
#[tokio::test(start_paused = true)]
async fn requests_whose_deadlines_have_passed_are_not_held() {
    use Queue::{Limits, Shard, Shards, Switches};
    let silents = [Silent::Switches, Silent::Reads, Silent::Writes, Silent::All];
    let queues = [Shard, Queue::Prefetch, Shards, Limits, Switches].into_iter();
    for (queue, (silent, is_known)) in queues.flat_map(|queue| {
        let of = silents.map(|silent| [(silent, false), (silent, true)]);
        of.into_iter().flatten().map(move |of| (queue, of))
    }) {
        let what = format!("{queue:?} {silent:?}, known: {is_known}");
        let fleet = Fleet::slow(millis(5)).await;
        let limits: Arc<[Limit]> = Arc::new([rpm(CAPACITY)]);
        let other = fleet.limiter().await;
        if queue == Shards {
            split(&other, &limits, 4).await;
        }
        let builder = fleet.builder().await.prefetch("ahead", Prefetch::default());
        let never =
            CircuitBreakerConfig { failure_threshold: 0, ..CircuitBreakerConfig::default() };
        let limiter = builder.circuit_breaker(never).build().await.unwrap();
        let of = |entity| limiter.acquire(entity, resource_of(queue));
        let ask = || {
            let request = of("e-1").shared_limits(&limits);
            match queue {
                Shards => request.take("rpm", CAPACITY / 2),
                Limits => request.take("rpm", 1).cascading(),
                Shard | Queue::Prefetch | Switches => request.take("rpm", 1),
            }
        };
        if is_known {
            drop(ask().send().await.unwrap());
            // Limits, switches and views are due again.
            pass(secs(61)).await;
        }
        let before = Arc::strong_count(&limits);
        fleet.dynamo.stall_when(move |operation, request| silent.meets(operation, request));
        let patient = async {
            drop(ask().timeout(secs(3_600)).send().await);
            std::future::pending::<usize>().await
        };
        let hasty = async {
            // The patient one's write has no others. It comes once the limits that are due have failed: their
            // read is sent four times, for 3 s each.
            let is_late = is_known && queue == Limits;
            pass(if is_late { secs(13) } else { millis(20) }).await;
            drop(join_all((0..2_000).map(|_| ask().timeout(millis(50)).send())).await);
            pass(MOST).await;
            Arc::strong_count(&limits) - before
        };
        // The patient one has its own, and what is under way for it.
        let held = tokio::select! { held = patient => held, held = hasty => held };
        assert!(held <= 10, "{what}: {held} held");
    }
}

fn resource_of(queue: Queue) -> &'static str {
    match queue {
        Queue::Prefetch => "ahead",
        _ => "gpt-4",
    }
}
