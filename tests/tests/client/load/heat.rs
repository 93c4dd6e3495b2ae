//! A hot bucket, in small: the whole in `make bench`.

use std::num::NonZeroU64;
use std::time::Duration;
use weirgate_tests::fleet::rpm;

use weirgate::Limit;
use weirgate_testkit::Limits;
use weirgate_testkit::heat::{Arrivals, Load, Report, run};

/// A twentieth of what DynamoDB's partitions take, so that a twentieth of the calls shows the same.
pub fn small(limit: Limit, shards: u32) -> Load {
    Load {
        clients: 50,
        calls_per_second: 500.0,
        arrivals: Arrivals::Even,
        lasts: Duration::from_secs(20),
        limit,
        shards,
        quiet: 0,
        partitions: Limits { units_per_second: 50, burst: 50, ..Limits::default() },
        enough: u32::MAX,
        seed: 7,
    }
}

pub fn assert_usage_is_exact(report: &Report) {
    assert_eq!(
        report.counted,
        (
            report.granted,
            weirgate::MilliTokens::from_tokens(i64::try_from(report.granted).unwrap())
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_hot_bucket_splits_until_no_write_is_throttled_and_merges_afterwards() {
    let report = run(&small(rpm(100_000), 1), 3).await;
    eprintln!("{:?} {:?}", report.shards, report.seconds);
    assert!(report.throttled_share(14, 15) < 0.05, "{:?}", report.seconds);
    assert!(report.throttled_share(15, 20) < 0.005, "{:?}", report.seconds);
    // Enough, and at most a quarter more: two shards that are hot by chance split too.
    let shards = report.shards.last().copied().unwrap_or_default();
    assert!((16..=20).contains(&shards), "{:?}", report.shards);
    assert_eq!(report.cooled.last(), Some(&1), "{:?}", report.cooled);
    assert_usage_is_exact(&report);
}

/// A new table: a throttle says nothing of the bucket that meets it, only of its partition.
#[tokio::test(start_paused = true)]
async fn no_quiet_bucket_is_split_beside_a_hot_one_on_shared_partitions() {
    let load = Load {
        clients: 100,
        lasts: Duration::from_secs(12),
        quiet: 53,
        partitions: Limits {
            units_per_second: 100,
            burst: 100,
            shared: NonZeroU64::new(4),
            ..Limits::default()
        },
        ..small(rpm(1_000_000), 1)
    };
    let report = run(&load, 0).await;
    eprintln!("{:?} {:?}", report.shards, report.quiet_splits);
    assert_eq!(report.quiet_splits.iter().max(), Some(&0));
    assert!(report.shards.last() >= Some(&2), "{:?}", report.shards);
    assert!(report.throttled_share(0, 12) > 0.1, "partitions are full");
    assert_eq!(report.failed_batches, 0);
    let (calls, writes) = report.quiet;
    assert!(writes <= 2 * calls, "{writes} writes for {calls} quiet calls");
}

/// Shards that share partitions are throttled until DynamoDB has split those for heat, and then not
/// any more, as `docs/scaling.md` counts on. With `FULL` in the environment it is its row of 10,000
/// lone acquires a second, on a table of ten partitions.
#[tokio::test(start_paused = true)]
async fn partitions_that_split_for_heat_take_what_the_shards_are_planned_with() {
    let is_full = std::env::var_os("FULL").is_some();
    let scale = if is_full { 25 } else { 1 };
    let load = Load {
        clients: 20 * scale,
        calls_per_second: 400.0 * f64::from(scale),
        lasts: Duration::from_secs(if is_full { 180 } else { 20 }),
        quiet: 10,
        partitions: Limits {
            units_per_second: 40 * scale,
            burst: 40 * scale,
            shared: NonZeroU64::new(10),
            splits_after: Some(Duration::from_secs(if is_full { 60 } else { 3 })),
            ..Limits::default()
        },
        ..small(rpm(10_000_000), 16)
    };
    let report = run(&load, 0).await;
    let end = report.seconds.len();
    let share = |from, to| report.throttled_share(from, to);
    let (begin, rest) = (share(0, 3), share(end - 3, end));
    println!(
        "{} partitions, {:?} shards: {begin:.3} of the writes are throttled at first, {rest:.4} at the end",
        report.partitions,
        report.shards.last(),
    );
    assert!(begin > 0.1, "{:?}", report.seconds);
    assert!(rest < 0.01, "{:?}", report.seconds);
    assert_eq!(report.quiet_splits.iter().max(), Some(&0));
    assert_usage_is_exact(&report);
}

/// Processes that all begin on one shard and make two calls a second or more, each one at a time.
/// The more there are, the less each of them sees of a shard. With `FULL` in the environment they
/// are 5,000, 10,000 and 20,000, or as many of these as `PROCESSES` says, with five seeds each, or
/// the one that `SEED` says.
#[tokio::test(start_paused = true)]
async fn a_herd_on_one_shard_has_enough_shards_within_twenty_seconds() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let is_full = std::env::var_os("FULL").is_some();
    let weak = Limits {
        units_per_second: 25,
        burst: 25,
        reads_per_second: 75,
        read_burst: 75,
        ..Limits::default()
    };
    let herds: &[(u32, u32)] = if is_full {
        &[(5_000, 10_000), (10_000, 20_000), (20_000, 50_000)]
    } else {
        &[(250, 250)]
    };
    let partitions = if is_full { Limits::default() } else { weak };
    let seeds = match number("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=if is_full { 5 } else { 1 },
    };
    for (clients, calls_per_second) in herds.iter().copied() {
        if number("PROCESSES").is_some_and(|only| only != u64::from(clients)) {
            continue;
        }
        for seed in seeds.clone() {
            let limit = rpm(10_000_000);
            let enough = calls_per_second.div_ceil(partitions.units_per_second);
            let partitions = partitions.clone();
            let load = Load {
                clients,
                calls_per_second: f64::from(calls_per_second),
                enough,
                partitions,
                seed,
                ..small(limit, 1)
            };
            let report = run(&load, 0).await;
            println!(
                "{clients} processes, {calls_per_second} calls/s, seed {seed}: {enough} shards in {} s, {} batches failed; \
                 {:?}",
                report.shards.len(),
                report.failed_batches,
                report.shards
            );
            assert!(report.shards.last() >= Some(&enough), "{:?}", report.shards);
            assert_eq!(report.failed_batches, 0);
        }
    }
}
