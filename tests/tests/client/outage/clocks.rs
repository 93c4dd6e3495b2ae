//! Clocks that are off, and that are set while they are used: DynamoDB's answers correct them
//! (invariants I1 and I2).

use std::sync::{Arc, Mutex};
use weirgate_tests::fleet::shards::split;

use proptest::prelude::*;
use weirgate::{EpochMillis, FakeClock, Limit, MilliTokens, RateLimiter};
use weirgate_shared::write::{AttributeUpdate, Path, Update, Value};
use weirgate_shared::{ItemKey, RefillRule, ShardIndex, refill_between};
use weirgate_store::{ConnectOptions, ErrorKind, RetryPolicy, ReturnValues};
use weirgate_testkit::{Fault, Lines, Process};
use weirgate_tests::fleet::{
    Fleet, PK, START, ask, config, denied, granted, is_granted, leased, millis, pass, runtime,
    secs, slots,
};

const HOUR_MS: i64 = 3_600_000;

fn rpm(tokens: i64) -> [Limit; 1] {
    [Limit::per_minute("rpm", tokens).unwrap()]
}

/// A clock of the fleet that is `ahead_ms` ahead of DynamoDB's.
fn off(ahead_ms: i64) -> FakeClock {
    let clock = FakeClock::at(START);
    clock.skew(ahead_ms);
    clock
}

/// How far an `rf` is ahead of DynamoDB's clock, in ms.
async fn rf_ahead(fleet: &Fleet) -> i64 {
    fleet.bucket().await.refilled_at.0 - fleet.now().0
}

#[tokio::test(start_paused = true)]
async fn a_fast_clock_makes_no_bucket_that_refills_in_the_future() {
    for ahead_ms in [HOUR_MS, 200_000, 5_000] {
        let fleet = Fleet::slow(millis(5)).await;
        let limiter = fleet.limiter_by(&off(ahead_ms)).await;
        let _ = granted(&limiter, &rpm(10), &[("rpm", 1)]).await;
        // What is left is what a date in whole seconds cannot tell.
        assert!(rf_ahead(&fleet).await <= 1_020, "{ahead_ms}: {}", rf_ahead(&fleet).await);
        let stats = limiter.stats();
        assert_eq!((stats.reads, stats.writes), (1, 1), "a refused signature is repeated");
    }
}

/// It takes what had flowed over for what is there, and its lease would end as it begins.
#[tokio::test(start_paused = true)]
async fn i1_the_first_take_of_a_slow_clock_is_made_again_when_its_answer_tells() {
    let fleet = Fleet::slow(millis(5)).await;
    let limits = [Limit::per_second("rps", 10).unwrap(), slots(1)];
    let _ = granted(&fleet.limiter().await, &limits, &[("rps", 4)]).await;
    pass(secs(60)).await;
    let slow = fleet.limiter_by(&off(-120_000)).await;
    let held = leased(&slow, &limits, &[("rps", 6), ("slots", 1)], secs(30)).await;
    assert!(
        held.expires_at().unwrap() >= fleet.now().plus(secs(28).into()),
        "{:?}",
        held.expires_at()
    );
    assert_eq!(slow.stats().granted, 1);
    let right = fleet.limiter().await;
    let _ = denied(&right, &limits, &[("rps", 5)]).await;
    let _ = denied(&right, &limits, &[("slots", 1)]).await;
}

/// A frozen process looks the same, so a take is planned on what was seen; its answer tells that
/// this was none.
#[tokio::test(start_paused = true)]
async fn i2_what_a_take_cut_by_a_clock_set_ahead_is_put_back() {
    let fleet = Fleet::slow(millis(5)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    // Until every process counts for the hour that has begun.
    pass(secs(10)).await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 60)]).await;
    clock.skew(240_000);
    let _ = denied(&limiter, &rpm(60), &[("rpm", 30)]).await;
    pass(secs(30)).await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 29)]).await;
    let _ = denied(&limiter, &rpm(60), &[("rpm", 3)]).await;
}

/// What others left cannot be put back, so such a take happens only where nothing was written
/// since.
#[tokio::test(start_paused = true)]
async fn i2_a_take_by_a_clock_set_ahead_cuts_nothing_of_what_others_left() {
    let fleet = Fleet::slow(millis(5)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    pass(secs(10)).await;
    let _ = granted(&limiter, &rpm(600), &[("rpm", 100)]).await;
    let _ = granted(&fleet.limiter().await, &rpm(600), &[("rpm", 1)]).await;
    clock.skew(240_000);
    let _ = granted(&limiter, &rpm(600), &[("rpm", 10)]).await;
    let _ = granted(&fleet.limiter().await, &rpm(600), &[("rpm", 480)]).await;
}

/// The clock is set by any step at any moment of an acquire that creates its bucket or finds it: no
/// more is granted than the refill of two seconds and one request beyond what is due, and the bucket
/// refills from now, and from what it had.
#[tokio::test(start_paused = true)]
async fn i1_a_clock_set_at_any_moment_of_an_acquire_makes_no_token() {
    let steps = [1_500, 5_000, 99_000, 240_000].into_iter();
    for step in steps.flat_map(|step| [step, -step]) {
        // What was taken of the bucket, and when; nothing, if there is none. After the first seconds
        // every process counts for the hour that has begun.
        let buckets = [(0, 0), (1, 0), (600, 10)];
        for (moment, (taken, at)) in (0..14).flat_map(|moment| buckets.map(|of| (moment, of))) {
            let what = format!("{step} ms at {moment} ms, {taken} taken");
            let fleet = Fleet::slow(millis(5)).await;
            let right = fleet.limiter().await;
            pass(secs(at)).await;
            if taken > 0 {
                let _ = granted(&right, &rpm(600), &[("rpm", taken)]).await;
                pass(secs(1)).await;
            }
            let due = (600 - taken + 10).min(600);
            let clock = off(0);
            let limiter = fleet.limiter_by(&clock).await;
            let limits = rpm(600);
            let first = ask(&limiter, &limits, &[("rpm", 600)]).send();
            let set = async {
                pass(millis(moment)).await;
                clock.skew(step);
            };
            let (first, ()) = tokio::join!(first, set);
            let is_first_granted = first.unwrap().is_granted();
            assert!(is_first_granted || taken > 0, "{what}");
            let mut all = 600 * i64::from(is_first_granted);
            for _ in 0..20 {
                pass(millis(100)).await;
                while is_granted(&right, &limits, &[("rpm", 5)]).await {
                    all += 5;
                }
            }
            assert!(all <= due + (2 + 2) * 10 + 5, "{what}: {all}");
            pass(secs(60)).await;
            assert!(is_granted(&right, &limits, &[("rpm", 600)]).await, "{what}");
        }
    }
}

/// The request was sent before the clock was set, so its answer does not say that it was.
#[tokio::test(start_paused = true)]
async fn i1_an_answer_on_its_way_while_the_clock_is_set_is_not_planned_on() {
    let fleet = Fleet::slow(millis(100)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    let take = |limiter: &RateLimiter, entity: &'static str, tokens| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter.acquire(entity, "gpt-4").limits(&rpm(60)).take("rpm", tokens).send().await
        })
    };
    for entity in ["e-1", "e-2"] {
        assert!(take(&limiter, entity, 1).await.unwrap().unwrap().is_granted());
    }
    assert!(take(&fleet.limiter().await, "e-2", 59).await.unwrap().unwrap().is_granted());
    let (first, second) = (take(&limiter, "e-1", 1), take(&limiter, "e-2", 30));
    pass(millis(50)).await;
    clock.skew(240_000);
    assert!(first.await.unwrap().unwrap().is_granted());
    assert!(!second.await.unwrap().unwrap().is_granted());
}

/// By the new time the lease has expired.
#[tokio::test(start_paused = true)]
async fn i4_a_first_read_on_its_way_while_the_clock_is_set_ends_no_lease() {
    let fleet = Fleet::slow(millis(5)).await;
    pass(secs(10)).await;
    let limits = [slots(1)];
    let held = leased(&fleet.limiter().await, &limits, &[("slots", 1)], secs(60)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    let take = tokio::spawn(async move { ask(&limiter, &limits, &[("slots", 1)]).send().await });
    pass(millis(2)).await;
    clock.skew(240_000);
    assert!(!take.await.unwrap().unwrap().is_granted());
    assert_eq!(held.release().await.unwrap(), weirgate::Settlement::Applied);
}

/// A bucket of four shards, of which 30 tokens are left, and a process without a view of it.
async fn split_bucket() -> (Fleet, FakeClock, RateLimiter) {
    let fleet = Fleet::slow(millis(5)).await;
    pass(secs(10)).await;
    let other = fleet.limiter().await;
    split(&other, &rpm(60), 4).await;
    let _ = granted(&other, &rpm(60), &[("rpm", 30)]).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    (fleet, clock, limiter)
}

/// The read of all shards begins 5 ms after that of the first one.
#[tokio::test(start_paused = true)]
async fn a_peek_with_the_clock_set_meanwhile_shows_no_full_bucket() {
    for set_after in [2, 7] {
        let (_fleet, clock, limiter) = split_bucket().await;
        let limits = rpm(60);
        let peek = async { limiter.peek("e-1", "gpt-4").limits(&limits).send().await };
        let set = async {
            pass(millis(set_after)).await;
            clock.skew(240_000);
        };
        let (balances, ()) = tokio::join!(peek, set);
        let left = balances.unwrap().limit("rpm").unwrap().available;
        assert!(left < MilliTokens::from_tokens(31), "{left:?} after {set_after} ms");
    }
}

/// Another call sees the clock's jump before the take's answer arrives. That answer is to a request
/// from before the jump, so it does not correct the clock either.
#[tokio::test(start_paused = true)]
async fn i2_a_take_on_its_way_while_the_clock_is_set_cuts_nothing() {
    let fleet = Fleet::slow(millis(100)).await;
    pass(secs(10)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 1)]).await;
    let _ = granted(&fleet.limiter().await, &rpm(60), &[("rpm", 49)]).await;
    let (first, other) = (limiter.clone(), limiter.clone());
    let first =
        tokio::spawn(async move { ask(&first, &rpm(60), &[("rpm", 1)]).send().await.unwrap() });
    pass(millis(50)).await;
    clock.skew(240_000);
    let other = tokio::spawn(async move {
        let limits = rpm(60);
        let request = other.acquire("e-2", "gpt-4").limits(&limits);
        request.take("rpm", 1).send().await.unwrap()
    });
    assert!(first.await.unwrap().is_granted());
    assert!(other.await.unwrap().is_granted());
    pass(secs(55)).await;
    let _ = granted(&fleet.limiter().await, &rpm(60), &[("rpm", 60)]).await;
}

#[tokio::test(start_paused = true)]
async fn i5_a_clock_set_back_in_use_does_not_make_its_callers_wait_for_it() {
    let fleet = Fleet::slow(millis(5)).await;
    let clock = off(0);
    let limiter = fleet.limiter_by(&clock).await;
    let _ = granted(&limiter, &rpm(60), &[("rpm", 60)]).await;
    let _ = denied(&limiter, &rpm(60), &[("rpm", 10)]).await;
    clock.skew(-240_000);
    let denied = denied(&limiter, &rpm(60), &[("rpm", 10)]).await;
    assert!(denied.retry_after.unwrap() <= secs(11), "{:?}", denied.retry_after);
}

/// A renewal that was refused for its signature, or that DynamoDB took by a clock that had gone
/// back.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_from_now_though_the_clock_was_set() {
    for ahead_ms in [-HOUR_MS, -240_000, HOUR_MS] {
        let fleet = Fleet::slow(millis(5)).await;
        let (clock, limits) = (off(0), [slots(1)]);
        let limiter = fleet.limiter_by(&clock).await;
        let mut held = leased(&limiter, &limits, &[("slots", 1)], secs(10)).await;
        clock.skew(ahead_ms);
        pass(secs(5)).await;
        assert_eq!(held.renew(secs(60)).await.unwrap(), weirgate::Settlement::Applied);
        let lasts = held.expires_at().unwrap().0 - fleet.now().0;
        assert!((58_000..=62_000).contains(&lasts), "{ahead_ms}: {lasts}");
    }
}

/// A write could still be applied by the clock that was set, and the lease would end too soon, or
/// last for hours.
#[tokio::test(start_paused = true)]
async fn i4_a_lease_is_not_renewed_by_a_clock_that_no_response_has_confirmed() {
    let faults = [Fault::Throttle { key_range: true }, Fault::LoseRequest];
    for (fault, ahead_ms) in faults
        .into_iter()
        .flat_map(|fault| [-240_000, 240_000, HOUR_MS].map(|ahead_ms| (fault, ahead_ms)))
    {
        let fleet = Fleet::slow(millis(5)).await.tolerant();
        let (clock, limits) = (off(0), [slots(1)]);
        let limiter = fleet.limiter_by(&clock).await;
        let mut held = leased(&limiter, &limits, &[("slots", 1)], secs(60)).await;
        pass(secs(50)).await;
        clock.skew(ahead_ms);
        fleet.fail_reads(fault);
        let renewed = held.renew(secs(60)).await;
        fleet.fail_reads(None);
        let stored = fleet.bucket().await.leases.unwrap();
        let lasts = stored.values().next().unwrap().expires_at.0 - fleet.now().0;
        match renewed {
            Ok(_) => assert!((58_000..=62_000).contains(&lasts), "{ahead_ms}: {lasts}"),
            Err(error) => {
                assert!(error.is_transient() && !error.is_unknown(), "{error}");
                assert!(lasts <= 10_000, "{ahead_ms}: {lasts}");
            }
        }
        let _ = held.renew(secs(60)).await.unwrap();
        let lasts = held.expires_at().unwrap().0 - fleet.now().0;
        assert!((58_000..=62_000).contains(&lasts), "{ahead_ms}: {lasts}");
    }
}

/// A read that is throttled is repeated, and one that hangs is given up.
#[tokio::test(start_paused = true)]
async fn i4_the_time_of_a_renewal_is_read_for_as_long_as_it_may_take() {
    for (ahead_ms, hangs) in
        [-240_000, 240_000].into_iter().flat_map(|ahead_ms| [(ahead_ms, false), (ahead_ms, true)])
    {
        let what = format!("{ahead_ms} ms ahead, hangs: {hangs}");
        let fleet = Fleet::slow(millis(5)).await.tolerant();
        let (clock, limits) = (off(0), [slots(1)]);
        let timeout = if hangs { millis(200) } else { secs(5) };
        let table = fleet.dynamo.table_by(clock.clone()).await;
        let builder = RateLimiter::builder("weirgate").table(table).timeout(timeout);
        let limiter = builder.build().await.unwrap();
        let mut held = leased(&limiter, &limits, &[("slots", 1)], secs(60)).await;
        pass(secs(50)).await;
        clock.skew(ahead_ms);
        let began = tokio::time::Instant::now();
        if hangs {
            fleet.dynamo.stall_when(|operation, _| operation == "BatchGetItem");
            let error = held.renew(secs(60)).await.unwrap_err();
            assert!(error.is_transient() && !error.is_unknown(), "{error}");
            assert!(began.elapsed() <= timeout + millis(20), "{what}: {:?}", began.elapsed());
            fleet.dynamo.stall_when(|_, _| false);
        } else {
            let throttled = Fault::Throttle { key_range: true };
            fleet.dynamo.fail_reads(move |_, _| (began.elapsed() < secs(1)).then_some(throttled));
        }
        assert_eq!(held.renew(secs(60)).await.expect(&what), weirgate::Settlement::Applied);
        let lasts = held.expires_at().unwrap().0 - fleet.now().0;
        assert!((58_000..=62_000).contains(&lasts), "{what}: {lasts}");
    }
}

/// The write was planned by the clock that was off. What reads is no plan.
#[tokio::test(start_paused = true)]
async fn a_plan_by_a_clock_that_was_off_is_not_sent_again_and_a_read_is() {
    let fleet = Fleet::new().await;
    let key = ItemKey { pk: PK.to_owned(), sk: "#STATE".to_owned() };
    let changes = vec![AttributeUpdate::Set(Path::of("v"), Value::Int(1))];
    let update = Update { key: key.clone(), conditions: vec![], changes };
    for ahead_ms in [-HOUR_MS, HOUR_MS] {
        let table = fleet.dynamo.table_by(off(ahead_ms)).await;
        let error = table
            .update_with(&update, ReturnValues::None, RetryPolicy::AlsoUnconfirmed)
            .await
            .unwrap_err();
        assert_eq!((error.kind, fleet.writes()), (ErrorKind::ClockSkew, 1), "{error}");
        table.update_with(&update, ReturnValues::None, RetryPolicy::AlsoUnconfirmed).await.unwrap();
        let table = fleet.dynamo.table_by(off(ahead_ms)).await;
        assert_eq!(table.read(std::slice::from_ref(&key)).await.unwrap().len(), 1);
        assert_eq!(fleet.dynamo.take_operations()["BatchGetItem"], 2);
    }
}

/// The first read, at a function's start, has corrected its clock.
#[tokio::test(start_paused = true)]
async fn i4_a_reconciler_whose_clock_is_fast_ends_no_lease_early() {
    let fleet = Fleet::new().await;
    let (limiter, limits) = (fleet.limiter().await, [slots(1)]);
    let held = leased(&limiter, &limits, &[("slots", 1)], secs(60)).await;
    let table = fleet.dynamo.table_by(off(HOUR_MS)).await;
    assert_eq!(table.warm().await.unwrap_err().kind, ErrorKind::ClockSkew);
    let process = Process::start(weirgate_reconciler::function, table, &Lines::default());
    for restored in [0, 1] {
        let answer = process.invoke("{}", "r-1", None).await.unwrap();
        assert_eq!(answer["leases_restored"], restored);
        pass(secs(62)).await;
    }
    assert_eq!(held.release().await.unwrap(), weirgate::Settlement::LeaseGone);
}

#[tokio::test]
async fn a_connection_beside_a_connected_table_is_refused_in_either_order() {
    let fleet = Fleet::new().await;
    let table = fleet.dynamo.table().await;
    let builder = || RateLimiter::builder("weirgate");
    let connection = ConnectOptions::default;
    for builder in [
        builder().table(table.clone()).connection(connection()),
        builder().connection(connection()).table(table),
    ] {
        let error = builder.build().await.unwrap_err().to_string();
        assert!(error.contains("leave connection() out, or table()"), "{error}");
    }
}

fn ahead() -> impl Strategy<Value = i64> {
    prop_oneof![-HOUR_MS..HOUR_MS, -300_000..300_000_i64, -3_000..3_000_i64]
}

const PROCESSES: usize = 3;
const LATENCY_MS: u64 = 5;
/// What dates in whole seconds leave open: a clock is read ahead, or behind, by as much as this
/// without being wrong.
const RESOLUTION_MS: i64 = 2_000 + 100;

/// What was granted of the rate, when by DynamoDB's clock, in millitokens.
type Granted = Arc<Mutex<Vec<(EpochMillis, i64)>>>;

/// I1: over any interval, what was granted is within the capacity and what flows in meanwhile.
fn check_rate(granted: &[(EpochMillis, i64)], rule: &RefillRule) -> Result<(), TestCaseError> {
    for (first, (from, _)) in granted.iter().enumerate() {
        let mut sum = 0;
        for (to, milli) in &granted[first..] {
            sum += milli;
            let until = EpochMillis(to.0 + RESOLUTION_MS);
            let entitled = rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, *from, until);
            prop_assert!(
                sum <= entitled.0,
                "I1: {sum} of {entitled:?} from {from:?} to {to:?}: {granted:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(4))]

    /// Callers with unlimited demand get the refill, with any clock offsets.
    #[test]
    fn i2_no_under_admission_by_clocks_that_are_off_and_set(
        starts in prop::collection::vec(ahead(), PROCESSES),
        sets in prop::collection::vec((0..4_000_u64, 0..PROCESSES, ahead()), 0..6),
    ) {
        runtime().block_on(async {
            let fleet = Arc::new(Fleet::slow(millis(LATENCY_MS)).await);
            let limits: Arc<[Limit]> = Arc::new([Limit::per_second("rate", 10).unwrap()]);
            let (mut clocks, granted) = (vec![], Granted::default());
            let mut tasks = tokio::task::JoinSet::new();
            let lasts = tokio::time::Instant::now() + secs(20);
            for start in starts {
                let clock = off(start);
                let limiter = fleet.limiter_by(&clock).await;
                clocks.push(clock);
                let (fleet, limits, granted) = (Arc::clone(&fleet), Arc::clone(&limits), Arc::clone(&granted));
                tasks.spawn(async move {
                    while tokio::time::Instant::now() < lasts {
                        let left = lasts - tokio::time::Instant::now();
                        let wanted = ask(&limiter, &limits, &[("rate", 1)]).wait_up_to(left).send().await.unwrap();
                        if wanted.is_granted() {
                            granted.lock().unwrap().push((fleet.now(), 1_000));
                        } else {
                            // It would wait longer than there is time left.
                            pass(millis(10)).await;
                        }
                    }
                });
            }
            for (pause, who, ahead) in sets {
                pass(millis(pause)).await;
                clocks[who].skew(ahead);
            }
            tasks.join_all().await;
            let rule = limits[0].rule();
            let granted = granted.lock().unwrap();
            check_rate(&granted, rule)?;
            let sum: i64 = granted.iter().map(|(_, milli)| milli).sum();
            // What is there in the end is seen later by a clock that is behind.
            let until = EpochMillis(fleet.now().0 - RESOLUTION_MS);
            let entitled = rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, START, until);
            prop_assert!(sum * 100 >= entitled.0 * 99, "I2: {sum} of {entitled:?}");
            Ok(())
        })?;
    }
}
