//! Processes that make their first acquire: all at once, or one after the other, as functions do
//! that answer one call.

use std::sync::Arc;
use std::time::Duration;
use weirgate_tests::stored::configure;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{ConfigLevel, EpochMillis, FakeClock, Limit};
use weirgate_store::{CapacityMeter, ConsumedUnits, Table};
use weirgate_testkit::{Dynamo, Limits, Partitions};
use weirgate_tests::fleet::{in_use, limiter_on};

const START: EpochMillis = EpochMillis(1_795_198_200_000);

/// A table behind partitions, with a bucket of `shards` shards that is configured and in use.
struct World {
    partitions: Partitions,
    table: Table,
    meter: CapacityMeter,
    limits: Arc<[Limit]>,
}

impl World {
    async fn new(limit: Limit, shards: u32, takes: Limits) -> Self {
        fastrand::seed(7);
        let dynamo = Dynamo::new().await.with_clock(FakeClock::at(START));
        let partitions = Partitions::over(dynamo.clone(), takes, 7);
        let limits: Arc<[Limit]> = [limit].into();
        let operator = limiter_on(&dynamo.table().await).await;
        configure(&operator, &ConfigLevel::System, limits.to_vec()).await;
        assert_eq!(
            operator.admin().set_shards("openai", "gpt-4", &limits, shards).await.unwrap(),
            shards
        );
        let (table, meter) = partitions.metered().await;
        Self { partitions, table, meter, limits }
    }

    /// Calls that all begin within `span`, evenly, each by a process of its own. Those that were
    /// granted, and how long each took, in order.
    async fn first_acquires(&self, count: u32, span: Duration, by_config: bool) -> Vec<Duration> {
        let (began, mut calls) = (Instant::now(), JoinSet::new());
        for at in 0..count {
            let (limiter, limits) = (limiter_on(&self.table).await, Arc::clone(&self.limits));
            calls.spawn(async move {
                let start = began + span * at / count;
                sleep_until(start).await;
                let call = limiter.acquire("openai", "gpt-4").take("rpm", 1);
                let call = if by_config { call } else { call.shared_limits(&limits) };
                call.send()
                    .await
                    .is_ok_and(|decision| decision.is_granted())
                    .then(|| start.elapsed())
            });
        }
        let mut took: Vec<_> = calls.join_all().await.into_iter().flatten().collect();
        took.sort();
        took
    }
}

/// Write and read units for each of `count` acquires.
fn each(units: &ConsumedUnits, count: u32) -> (f64, f64) {
    (units.total / f64::from(count), units.read / f64::from(count))
}

/// A fortieth of 10,000 processes within 5 s, and of what partitions take, four fifths of which is
/// in use. With `FULL` in the environment all of them, on 64 shards.
#[tokio::test(start_paused = true)]
async fn a_herd_of_cold_processes_is_served_in_time() {
    let is_full = std::env::var_os("FULL").is_some();
    let small = Limits {
        units_per_second: 25,
        burst: 25,
        reads_per_second: 75,
        read_burst: 75,
        ..Limits::default()
    };
    let (takes, shards, writes, processes) =
        if is_full { (Limits::default(), 64, 800, 10_000) } else { (small, 16, 20, 250) };
    for by_config in [false, true] {
        let limit = Limit::per_second("rpm", 1_000_000).unwrap();
        let world = World::new(limit, shards, takes.clone()).await;
        let pause = Duration::from_secs(20) / writes;
        let _in_use = in_use(&world.table, &world.limits, shards * 20, pause);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = world.partitions.counts();
        let took = world.first_acquires(processes, Duration::from_secs(5), by_config).await;
        let counts = world.partitions.counts() - before;
        let part = |thousandths: usize| took[(took.len() - 1) * thousandths / 1_000];
        println!(
            "{} of {processes} granted on {shards} shards of {writes} writes/s, by config {by_config}: median {:?}, \
             99.9 % within {:?}, slowest {:?}; {counts:?}",
            took.len(),
            part(500),
            part(999),
            part(1_000)
        );
        assert_eq!(took.len(), usize::try_from(processes).unwrap());
        assert!(part(990) < Duration::from_secs(1), "{:?}", part(990));
    }
}

/// A bucket that only processes use which make one call, and no more.
#[tokio::test(start_paused = true)]
async fn an_acquire_of_a_process_that_makes_no_other_is_one_write_and_one_read() {
    for (per_second, seconds) in [(20, 10), (100, 4), (800, 1)] {
        let limit = Limit::per_minute("rpm", i64::from(per_second) * 60 * 2).unwrap();
        let world = World::new(limit, 1, Limits::default()).await;
        let count = per_second * seconds;
        for by_config in [false, true] {
            let _ = world.meter.take();
            let took =
                world.first_acquires(count, Duration::from_secs(seconds.into()), by_config).await;
            let (writes, reads) = each(&world.meter.take(), count);
            eprintln!(
                "{per_second}/s, {count} calls, by config {by_config}: {writes:.3} writes, {reads:.3} reads each"
            );
            assert_eq!(took.len(), usize::try_from(count).unwrap());
            assert!(
                // Half a unit of it for the switches of the namespace.
                writes <= 1.1 && reads <= if by_config { 4.1 } else { 1.05 },
                "{writes} {reads}"
            );
        }
    }
}
