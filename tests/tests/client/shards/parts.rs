//! Requests that no shard has enough for: each shard gives a part.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weirgate::{Decision, EpochMillis, FakeClock, Limit, MilliTokens, RateLimiter, Settlement};
use weirgate_shared::Shard;
use weirgate_testkit::{Dynamo, Fault, Limits, Partitions};
use weirgate_tests::fleet::shards::{drain, holds, shards, split, troubles};
use weirgate_tests::fleet::{
    Fleet, ask, denied, granted, in_use, leased, limiter_on, millis, pass, secs, settle, slots,
    tokens,
};

fn limits() -> Vec<Limit> {
    vec![Limit::custom("tpm", 800, 1, 86_400_000).unwrap(), slots(80)]
}

/// What all shards have left of both limits.
async fn left(fleet: &Fleet) -> (i64, i64) {
    (holds(fleet, "tpm").await.whole_tokens(), holds(fleet, "slots").await.whole_tokens())
}

fn sum(shards: &[Shard], of: impl Fn(&Shard) -> i128) -> i128 {
    shards.iter().map(of).sum()
}

/// Net consumption of `tpm`, and acquires.
async fn used(fleet: &Fleet) -> (MilliTokens, i128) {
    let shards = shards(fleet).await;
    (
        shards.iter().map(|shard| shard.limits["tpm"].consumed.bounded()).sum(),
        sum(&shards, |shard| shard.acquires.total),
    )
}

/// A bucket of eight shards, and a process that has not seen it.
async fn eight() -> (Fleet, RateLimiter) {
    let fleet = Fleet::new().await;
    split(&fleet.limiter().await, &limits(), 8).await;
    let limiter = fleet.limiter().await;
    (fleet, limiter)
}

/// Other processes leave so much of `tpm` in these shards before the next write arrives.
fn meanwhile(fleet: &Arc<Fleet>, leave: &'static [(u32, i64)]) {
    let (others, mut is_done) = (Arc::clone(fleet), false);
    fleet.dynamo.fail_when(move |_| {
        if !std::mem::replace(&mut is_done, true) {
            leave.iter().for_each(|(shard, left)| drain(&others, *shard, "tpm", tokens(*left)));
        }
        None
    });
}

/// A quarter of what the givers have stays there, so 300 of 800 are parts of four shards.
#[tokio::test(start_paused = true)]
async fn a_request_above_a_share_costs_one_write_for_each_shard_that_gives() {
    let (fleet, _) = eight().await;
    let (limiter, meter) = fleet.metered().await;
    let _ = granted(&limiter, &limits(), &[("tpm", 1)]).await;
    let before = left(&fleet).await;
    let _ = (meter.take(), fleet.dynamo.take_operations());
    let grant = granted(&limiter, &limits(), &[("tpm", 300)]).await;
    let units = meter.take();
    assert_eq!((units.total, units.requests), (4.0, 4), "{units:?}");
    assert_eq!(left(&fleet).await.0, before.0 - 300);
    assert_eq!(used(&fleet).await, (tokens(301), 2));
    assert_eq!(fleet.dynamo.take_operations().get("TransactWriteItems"), None);
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(left(&fleet).await, before);
}

#[tokio::test(start_paused = true)]
async fn what_a_shard_lacks_by_then_others_give() {
    let (fleet, limiter) = eight().await;
    let fleet = Arc::new(fleet);
    meanwhile(&fleet, &[(2, 0), (5, 7)]);
    let grant = granted(&limiter, &limits(), &[("tpm", 550)]).await;
    assert_eq!(grant.amount("tpm"), tokens(550));
    assert_eq!(left(&fleet).await.0, 6 * 100 + 7 - 550);
    assert_eq!(used(&fleet).await, (tokens(550), 1), "one acquire");
    let _ = grant.roll_back().await.unwrap();
    assert_eq!(left(&fleet).await.0, 6 * 100 + 7);
}

#[tokio::test(start_paused = true)]
async fn if_they_have_not_enough_everything_goes_back_and_nothing_was_taken() {
    let (fleet, limiter) = eight().await;
    let fleet = Arc::new(fleet);
    meanwhile(&fleet, &[(2, 0), (5, 7)]);
    let denied = denied(&limiter, &limits(), &[("tpm", 750), ("slots", 60)]).await;
    assert_eq!(denied.blocking().unwrap().available, tokens(607));
    settle().await;
    assert_eq!(left(&fleet).await, (607, 80));
    assert_eq!(used(&fleet).await, (MilliTokens::ZERO, 0), "no acquire was granted");
    let held = sum(&shards(&fleet).await, |shard| {
        i128::try_from(shard.leases.iter().flatten().count()).unwrap()
    });
    assert_eq!(held, 0);
}

/// I4, I7: faults on the way to some of the shards.
#[tokio::test(start_paused = true)]
async fn i4_i7_parts_in_trouble_are_taken_once() {
    let throttled = vec![Fault::Throttle { key_range: true }; 12];
    for faults in troubles().into_iter().chain([throttled]) {
        let (fleet, limiter) = eight().await;
        fleet.fail(&faults);
        let grant = granted(&limiter, &limits(), &[("tpm", 700), ("slots", 70)]).await;
        assert_eq!(left(&fleet).await, (100, 10), "{faults:?}");
        let _ = grant.roll_back().await.unwrap();
        assert_eq!(left(&fleet).await, (800, 80), "{faults:?}");
        assert_eq!(limiter.stats().unconfirmed_millitokens, 0, "{faults:?}");
    }
}

/// I6, I7: a caller that gives up half way, while parts are taken or while they go back, has taken
/// nothing.
#[tokio::test(start_paused = true)]
async fn i6_i7_a_request_that_is_dropped_half_way_goes_back() {
    for (lease, takes) in
        [(true, [("tpm", 700), ("slots", 70)].as_slice()), (false, &[("tpm", 700)])]
    {
        for after in 1..40 {
            let fleet = Arc::new(Fleet::slow(millis(5)).await);
            split(&fleet.limiter().await, &limits(), 8).await;
            let limiter = fleet.limiter().await;
            let _ = granted(&limiter, &limits(), &[("tpm", 1)]).await;
            meanwhile(&fleet, &[(2, 0), (5, 7)]);
            let request = ask(&limiter, &limits(), takes);
            let request = if lease { request.lease(secs(60)) } else { request };
            let sent = tokio::time::timeout(millis(after), request.send()).await;
            assert!(
                sent.is_err() || sent.is_ok_and(|decision| !decision.unwrap().is_granted()),
                "{after} ms"
            );
            pass(secs(2)).await;
            settle().await;
            let (there, slots) = left(&fleet).await;
            let drained = if there == 799 { 0 } else { 193 };
            assert!(
                (799 - drained - 1..=800 - drained).contains(&there),
                "{there} left after {after} ms"
            );
            assert_eq!(slots, 80, "dropped after {after} ms");
            assert_eq!(used(&fleet).await.1, 1, "acquires, dropped after {after} ms");
        }
    }
}

/// I2: shards that could not be read may have what the others lack.
#[tokio::test(start_paused = true)]
async fn i2_shards_that_are_too_hot_to_be_read_are_no_reason_for_a_denial() {
    let (fleet, limiter) = eight().await;
    let _ = granted(&limiter, &limits(), &[("tpm", 1)]).await;
    let mut refused = 0;
    fleet.dynamo.fail_reads(move |_, request| {
        let is_of_all = request["RequestItems"]["weirgate"]["Keys"]
            .as_array()
            .is_some_and(|keys| keys.len() > 1);
        refused += usize::from(is_of_all);
        (is_of_all && refused <= 6).then_some(Fault::Throttle { key_range: true })
    });
    let _ = granted(&limiter, &limits(), &[("tpm", 500)]).await;
    assert_eq!(left(&fleet).await.0, 299);
}

/// The stamp of another process, which may not be there, is not waited for where there is enough.
#[tokio::test(start_paused = true)]
async fn a_request_above_a_share_is_two_reads_and_then_the_writes() {
    for knows_some in [false, true] {
        let (fleet, limiter) = eight().await;
        if knows_some {
            let _ = granted(&limiter, &limits(), &[("tpm", 1)]).await;
        }
        let _ = fleet.dynamo.take_operations();
        let _ = granted(&limiter, &limits(), &[("tpm", 300)]).await;
        let reads = fleet.dynamo.take_operations()["BatchGetItem"];
        assert!(reads <= if knows_some { 2 } else { 3 }, "{reads} reads");
    }
}

/// A slot that was released a moment ago is there, whichever shard it is of.
#[tokio::test(start_paused = true)]
async fn whether_a_slot_is_free_on_any_shard_is_read_as_it_is() {
    let (fleet, limiter) = eight().await;
    let _all = leased(&limiter, &limits(), &[("slots", 80)], secs(60)).await;
    let (of_all, seen) = (Arc::new(Mutex::new(vec![])), fleet.dynamo.clone());
    let reads = Arc::clone(&of_all);
    seen.fail_reads(move |_, request| {
        let wanted = &request["RequestItems"]["weirgate"];
        if wanted["Keys"].as_array().is_some_and(|keys| keys.len() > 1) {
            reads.lock().unwrap().push(wanted["ConsistentRead"] == true);
        }
        None
    });
    for (limit, is_strong) in [("slots", true), ("tpm", false)] {
        pass(secs(1)).await;
        let asks = if limit == "slots" { 1 } else { 800 };
        let _ = ask(&limiter, &limits(), &[(limit, asks)]).send().await.unwrap();
        assert_eq!(of_all.lock().unwrap().drain(..).next(), Some(is_strong), "{limit}");
    }
}

/// Two that ask for more than half of a bucket each: one of them is granted, and both are answered.
#[tokio::test(start_paused = true)]
async fn of_two_large_requests_at_once_one_is_granted() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let fleet = Fleet::slow(millis(5)).await;
        split(&fleet.limiter().await, &limits(), 8).await;
        let (one, other) = (fleet.limiter().await, fleet.limiter().await);
        let ask = |limiter| async move {
            ask(limiter, &limits(), &[("tpm", 500)]).send().await.unwrap().granted()
        };
        let (one, other) = tokio::join!(ask(&one), ask(&other));
        let count = usize::from(one.is_some()) + usize::from(other.is_some());
        settle().await;
        assert_eq!((left(&fleet).await.0, count), (300, 1), "seed {seed}");
    }
}

/// I2: each holder's parts make the others short, which is no reason to ask until the deadline.
#[tokio::test(start_paused = true)]
async fn i2_requests_that_spread_over_the_same_shards_are_all_answered() {
    const CALLERS: u64 = 8;
    const REQUESTS: u64 = 20;
    let mut granted = 0;
    for seed in 0..20 {
        fastrand::seed(seed);
        let fleet = Fleet::slow(millis(5)).await;
        split(&fleet.limiter().await, &limits(), 8).await;
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (limiter, slot) = (fleet.limiter().await, caller % 3 == 0);
            callers.spawn(async move {
                let mut granted = 0;
                for _ in 0..REQUESTS {
                    let need = fastrand::i64(150..=500);
                    let asked = ask(&limiter, &limits(), &[("tpm", need)]);
                    let asked = asked.timeout(millis(400));
                    let asked = if slot { asked.take("slots", 15) } else { asked };
                    match asked.send().await.unwrap() {
                        Decision::Granted(grant) => {
                            granted += 1;
                            pass(millis(fastrand::u64(0..20))).await;
                            let back = grant.roll_back().await;
                            assert_eq!(back.unwrap(), Settlement::Applied);
                        }
                        _ => pass(millis(fastrand::u64(0..20))).await,
                    }
                }
                granted
            });
        }
        granted += callers.join_all().await.into_iter().sum::<u64>();
        settle().await;
        assert_eq!(left(&fleet).await, (800, 80), "seed {seed}");
    }
    assert!(granted * 4 >= 20 * CALLERS * REQUESTS, "{granted}");
}

/// A number from the environment, to run the same at full size:
/// `SHARDS=64 PER_SHARD=500 cargo test --workspace --test client shards::parts::i5`.
fn from_environment(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// I5, on shards in steady use: transactions on them would be cancelled. `SHARDS=64 PER_SHARD=500`
/// asks for 10 % of the capacity of 64 shards, at 500 writes a second each.
#[tokio::test(start_paused = true)]
async fn i5_a_request_above_a_share_is_admitted_while_all_shards_are_busy() {
    let (count, per_shard) = (from_environment("SHARDS", 16), from_environment("PER_SHARD", 50));
    for seed in 0..from_environment("SEEDS", 1) {
        fastrand::seed(seed.into());
        let takes = Limits { conflict_window: millis(5), ..Limits::default() };
        let dynamo = Dynamo::new().await.with_clock(FakeClock::at(EpochMillis(1_795_198_200_000)));
        let partitions = Partitions::over(dynamo.clone(), takes, seed.into());
        // Four times as much as the others take flows in, and five seconds of it fit.
        let rate = i64::from(count * per_shard) * 4;
        let limit = Limit::per_second("tpm", rate).unwrap().with_burst(rate * 5).unwrap();
        let limits: Arc<[Limit]> = [limit].into();
        let operator = limiter_on(&dynamo.table().await).await;
        assert_eq!(
            operator.admin().set_shards("openai", "gpt-4", &limits, count).await.unwrap(),
            count
        );
        let table = partitions.metered().await.0;
        // 25 tokens a second each.
        let _others = in_use(&table, &limits, count * per_shard / 25, millis(40));
        sleep(secs(1)).await;

        // As many shares as 10 % of 64 are.
        let asks = rate * 5 * 64 / 10 / i64::from(count);
        let (limiter, began, before) =
            (limiter_on(&table).await, Instant::now(), partitions.counts());
        let ask = async |tokens| {
            let ask = limiter.acquire("openai", "gpt-4").shared_limits(&limits).take("tpm", tokens);
            match ask.send().await.unwrap() {
                Decision::Granted(_) => None,
                Decision::Denied(denied) => denied.retry_after,
                other => panic!("{other:?}"),
            }
        };
        let most = rate * 47 / 10;
        assert_eq!(ask(most).await, None, "seed {seed}: nearly all, at once");
        eprintln!("seed {seed}: {most} of {} tokens after {:?}", rate * 5, began.elapsed());
        let retry_after = ask(asks).await.expect("not there yet");
        let (began, mut tries) = (Instant::now(), 1);
        sleep(retry_after).await;
        while let Some(more) = ask(asks).await {
            tries += 1;
            sleep(more).await;
        }
        let over = began.elapsed().saturating_sub(retry_after);
        eprintln!("seed {seed}: {asks} tokens after {retry_after:?} and {over:?}, {tries} tries");
        assert!(over <= secs(1), "seed {seed}: {over:?} later, {tries} tries");
        assert_eq!(
            (partitions.counts() - before).conflicts,
            0,
            "there is no transaction to conflict with"
        );
    }
}
