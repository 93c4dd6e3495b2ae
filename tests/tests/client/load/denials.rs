//! An exhausted limit denies any number of processes: by reads, from memory, and never by an error
//! or a grant.

use std::time::Duration;
use weirgate_tests::fleet;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::taken;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{Builder, Decision, FakeClock, Limit, OnUnavailable, RateLimiter};
use weirgate_testkit::{Dynamo, Limits, Partitions};
use weirgate_tests::fleet::{START, ask, millis, secs, slots};

/// A bucket whose tokens are used up, behind partitions that take so many units a second.
async fn exhausted(
    units_per_second: u32,
    limits: &[Limit],
    take: &str,
) -> (FakeClock, Dynamo, Partitions) {
    let clock = FakeClock::at(START);
    let dynamo = Dynamo::new().await.with_clock(clock.clone());
    let capacity = limits[0].rule().capacity.0 / 1_000;
    let first = RateLimiter::builder("weirgate").table(dynamo.table().await).build().await.unwrap();
    let _ = taken(ask(&first, limits, &[(take, capacity)])).await;
    let what = Limits { units_per_second, burst: units_per_second, ..Limits::default() };
    let what =
        Limits { reads_per_second: 3 * units_per_second, read_burst: 3 * units_per_second, ..what };
    (clock, dynamo.clone(), Partitions::over(dynamo, what, 7))
}

#[derive(Debug, Default)]
struct Answers {
    denied: u64,
    granted: u64,
    errors: u64,
    /// Denials that were not told from memory.
    by_table: u64,
}

/// Has so many processes ask again and again, each `pause` after its answer.
async fn ask_again_and_again(
    partitions: &Partitions,
    processes: u64,
    (lasts, pause): (Duration, Duration),
    limits: &[Limit],
    settings: impl Fn(Builder) -> Builder,
) -> Answers {
    fastrand::seed(7);
    let mut asking = JoinSet::new();
    let began = Instant::now();
    for process in 0..processes {
        let builder = RateLimiter::builder("weirgate").table(partitions.table().await);
        let (limiter, limits) = (settings(builder).build().await.unwrap(), limits.to_vec());
        asking.spawn(async move {
            let mut answers = Answers::default();
            sleep_until(began + millis(process % 1_000)).await;
            while began.elapsed() < lasts {
                let name = limits[0].name().as_str();
                match ask(&limiter, &limits, &[(name, 1)]).send().await {
                    Ok(Decision::Denied(denied)) if denied.degraded.is_none() => {
                        answers.denied += 1
                    }
                    Ok(Decision::Granted(_)) => answers.granted += 1,
                    other => {
                        eprintln!("{other:?}");
                        answers.errors += 1;
                    }
                }
                tokio::time::sleep(pause).await;
            }
            answers.by_table = limiter.stats().denied - limiter.stats().local_denied;
            answers
        });
    }
    let mut all = Answers::default();
    for answers in asking.join_all().await {
        all.denied += answers.denied;
        all.granted += answers.granted;
        all.errors += answers.errors;
        all.by_table += answers.by_table;
    }
    all
}

/// 120 processes on 10 write and 30 read units a second are 12,000 on a partition's 1,000 and
/// 3,000, which it is with `FULL` in the environment.
#[tokio::test(start_paused = true)]
async fn an_exhausted_limit_denies_any_number_of_processes() {
    let scale = if std::env::var_os("FULL").is_some() { 100 } else { 1 };
    let daily = [Limit::per_day("rpd", 1_000).unwrap()];
    for on_unavailable in [OnUnavailable::Error, OnUnavailable::Allow] {
        let (_, _, partitions) = exhausted(10 * scale, &daily, "rpd").await;
        let settings = |builder: Builder| builder.on_unavailable(on_unavailable);
        let processes = 120 * u64::from(scale);
        let answers =
            ask_again_and_again(&partitions, processes, (secs(60), millis(200)), &daily, settings)
                .await;
        let counts = partitions.counts();
        println!("{processes} processes, {on_unavailable:?}: {answers:?} {counts:?}");
        assert_eq!((answers.granted, answers.errors), (0, 0), "{answers:?}");
        assert!(answers.denied > processes * 250, "{answers:?}");
        assert_eq!(counts.writes, 0, "{counts:?}");
        assert!(counts.half_reads <= 2 * answers.by_table, "{counts:?} {answers:?}");
    }
}

/// Once a process knows the bucket, a denial that reaches the table is a read of one item, and no
/// write.
#[tokio::test(start_paused = true)]
async fn a_denial_costs_half_a_read_unit_and_no_write() {
    let fleet = fleet::Fleet::new().await;
    let (limiter, meter) = fleet.metered().await;
    let both = [Limit::per_day("rpd", 1_000).unwrap(), slots(1)];
    let _grant = fleet::granted(&limiter, &both, &[("rpd", 1_000), ("slots", 1)]).await;
    for (limit, units) in [("rpd", 0.5), ("slots", 1.0)] {
        fleet::pass(secs(10)).await;
        let (_, _) = (meter.take(), fleet.dynamo.take_requests());
        for _ in 0..10 {
            let _ = fleet::denied(&limiter, &both, &[(limit, 1)]).await;
        }
        let used = meter.take();
        assert_eq!(
            (used.read, used.total, fleet.dynamo.take_requests()),
            (units, 0.0, 1),
            "{limit}"
        );
    }
}

/// All processes together read the 64 shards about once in a while, and otherwise what one of them
/// has left. With `FULL` in the environment there are 1,000.
#[tokio::test(start_paused = true)]
async fn a_denial_on_64_shards_costs_two_read_units_at_most() {
    let fleet = fleet::Fleet::slow(millis(5)).await;
    let daily = [Limit::per_day("rpd", 6_400).unwrap()];
    let (first, meter) = fleet.metered().await;
    split(&first, &daily, 64).await;
    while let Decision::Granted(_) = ask(&first, &daily, &[("rpd", 100)]).send().await.unwrap() {}
    let mut asking = JoinSet::new();
    let began = Instant::now();
    let processes = if std::env::var_os("FULL").is_some() { 1_000 } else { 100 };
    for process in 0..processes {
        let table =
            fleet.dynamo.clone().with_latency(millis(5)).table().await.with_meter(meter.clone());
        let limiter = RateLimiter::builder("weirgate").table(table).build().await.unwrap();
        let daily = daily.clone();
        asking.spawn(async move {
            sleep_until(began + millis(process * 1_000 / processes)).await;
            while began.elapsed() < secs(150) {
                let answer = ask(&limiter, &daily, &[("rpd", 100)]).send().await.unwrap();
                assert!(!answer.is_granted());
                tokio::time::sleep(millis(500)).await;
            }
            limiter.stats().denied - limiter.stats().local_denied
        });
    }
    // They have met the bucket.
    sleep_until(began + secs(15)).await;
    let cold = meter.take();
    let by_table: u64 = asking.join_all().await.into_iter().sum();
    let used = meter.take();
    println!(
        "{processes} processes: cold {cold:?}, then {used:?}, {by_table} denials by the table"
    );
    let denials = f64::from(u32::try_from(by_table).unwrap());
    assert!((cold.read + used.read) / denials <= 2.0, "{cold:?} {used:?} {by_table}");
    assert!(used.total / denials < 0.05, "{used:?}");
}
