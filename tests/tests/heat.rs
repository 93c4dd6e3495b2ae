//! A hot bucket, in small: the whole in `make bench`.

use std::time::Duration;

use weirgate::Limit;
use weirgate_tests::Limits;
use weirgate_tests::heat::{Load, Report, run};

/// A tenth of what DynamoDB's partitions take, so that a tenth of the calls shows the same.
fn small(limit: Limit, shards: u32) -> Load {
    Load {
        clients: 100,
        calls_per_second: 1_000,
        lasts: Duration::from_secs(20),
        limit,
        shards,
        partitions: Limits { units_per_second: 100, burst: 100, ..Limits::default() },
        seed: 7,
    }
}

fn assert_usage_is_exact(report: &Report) {
    assert_eq!(
        report.counted,
        (report.granted, weirgate::MilliTokens::from_tokens(i64::try_from(report.granted).unwrap()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_hot_bucket_splits_until_nobody_is_throttled_and_merges_when_it_is_over() {
    let report = run(&small(Limit::per_minute("rpm", 100_000).unwrap(), 1), 3).await;
    eprintln!("{:?} {:?}", report.shards, report.seconds);
    assert!(report.throttled_share(14, 15) < 0.05, "{:?}", report.seconds);
    assert!(report.throttled_share(15, 20) < 0.005, "{:?}", report.seconds);
    // Each shard splits by itself, so one that meets a crest is split once more.
    assert!(report.shards.last().is_some_and(|last| (16..=20).contains(last)), "{:?}", report.shards);
    assert_eq!(report.cooled.last(), Some(&1), "{:?}", report.cooled);
    assert_usage_is_exact(&report);
}

/// I1 and I2, for callers who ask for twice as much as there is.
#[tokio::test(start_paused = true)]
async fn i1_i2_callers_who_compete_for_eight_shards_get_all_there_is_and_no_more() {
    let load = Load {
        clients: 16,
        calls_per_second: 320,
        lasts: Duration::from_secs(15),
        partitions: Limits::default(),
        ..small(Limit::per_second("rpm", 160).unwrap(), 8)
    };
    let report = run(&load, 0).await;
    let admitted = weirgate::MilliTokens::from_tokens(i64::try_from(report.granted).unwrap());
    eprintln!("{admitted} of {}", report.entitled);
    assert!(admitted <= report.entitled, "{admitted} of {}", report.entitled);
    assert!(admitted.0 * 100 >= report.entitled.0 * 98, "{admitted} of {}", report.entitled);
    assert_usage_is_exact(&report);
}
