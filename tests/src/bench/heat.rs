//! One hot bucket of many clients in the model of partitions, on virtual time: how it grows, what
//! clients get that compete for its tokens, and what so many shards do.

use std::time::Duration;

use weirgate::Limit;
use weirgate_testkit::heat::{Arrivals, Load, Report, run};
use weirgate_testkit::{Counts, Limits};

use super::harness::on_virtual_time;
use super::row::Rounds;
use crate::number::count;
use crate::scaling::facts::{MAX_SHARDS, PARTITION_WRITE_UNITS, SHARD_WRITES};

/// Returns the rows of a bucket that becomes hot, of one that is short of tokens, and of one that
/// has enough.
pub async fn rows() -> Vec<Rounds> {
    let (hot, contended, below) = on_virtual_time(|| async {
        (run(&becoming_hot(), 3).await, run(&contended(), 0).await, run(&below(), 0).await)
    })
    .await;
    let throttled = |from, to| hot.throttled_share(from, to) * 100.0;
    let at_rest = hot.shards.last().copied().unwrap_or_default();
    let grown = hot.shards.iter().position(|shards| *shards == at_rest);
    let grown = u64::try_from(grown.unwrap_or_default() + 1).expect("few seconds");
    let cooled = hot.cooled.last().copied().unwrap_or_default();
    let entitled = u64::try_from(contended.entitled.0).expect("there is some");
    let rows = [
        ("throttled", throttled(14, 15)),
        ("throttled-after", throttled(15, hot.seconds.len())),
        ("shards", f64::from(at_rest)),
        ("grown", count(grown)),
        ("granted", count(hot.granted)),
        ("refused", count(hot.denied + hot.failed)),
        // As many counted as granted, or it is not 1.
        ("counted", count(hot.counted.0) / count(hot.granted)),
        ("cooled", f64::from(cooled)),
        ("share", count(contended.granted) * 1000.0 / count(entitled) * 100.0),
        ("writes", writes_per_granted(&contended)),
        ("below", writes_per_granted(&below)),
    ];
    rows.map(|(name, value)| (format!("heat/{name}"), vec![value])).into()
}

/// Returns the rows of buckets of 1 to 64 shards, each with as many calls as a shard is planned
/// with, on smaller partitions.
pub async fn rows_of_shards() -> Vec<Rounds> {
    let mut rows = vec![];
    for shards in (0..=MAX_SHARDS.ilog2()).map(|doubling| 1 << doubling) {
        let report = on_virtual_time(move || async move { run(&planned(shards), 0).await }).await;
        let counted = report.seconds.iter().skip(1);
        let all = counted.fold(Counts::default(), |all, second| Counts {
            writes: all.writes + second.writes,
            throttled: all.throttled + second.throttled,
            ..all
        });
        let applied = count(all.writes - all.throttled) / count(SECONDS - 1);
        let of = [
            ("granted", count(report.granted) / count(SECONDS)),
            ("writes", applied),
            ("throttled", all.throttled_share() * 100.0),
        ];
        rows.extend(of.map(|(name, value)| (format!("shards/{shards}/{name}"), vec![value])));
    }
    rows
}

fn becoming_hot() -> Load {
    Load {
        clients: 1000,
        calls_per_second: 10_000.0,
        arrivals: Arrivals::Even,
        lasts: Duration::from_secs(22),
        limit: Limit::per_minute("rpm", 1_000_000).expect("a limit"),
        shards: 1,
        quiet: 0,
        partitions: Limits::default(),
        enough: u32::MAX,
        seed: 1,
    }
}

/// Twice as much is asked as there is.
fn contended() -> Load {
    Load {
        clients: 64,
        calls_per_second: 1_600.0,
        lasts: Duration::from_secs(25),
        limit: Limit::per_second("rpm", 800).expect("a limit"),
        shards: 8,
        ..becoming_hot()
    }
}

/// A limit of a second, of which each client uses a little.
fn below() -> Load {
    Load {
        clients: 100,
        calls_per_second: 200.0,
        limit: Limit::per_second("rpm", 1_000).expect("a limit"),
        shards: 1,
        ..contended()
    }
}

fn writes_per_granted(report: &Report) -> f64 {
    let writes: u64 = report.seconds.iter().map(|second| second.writes).sum();
    count(writes) / count(report.granted)
}

/// Seconds of a planned load, the first of which finds the shards and is not counted.
const SECONDS: u64 = 10;
/// Partitions, and the load of each, are so many times smaller than DynamoDB's.
const SCALE: u64 = 10;

fn planned(shards: u64) -> Load {
    let calls = u32::try_from(shards * SHARD_WRITES / SCALE).expect("few shards");
    let units = u32::try_from(PARTITION_WRITE_UNITS / SCALE).expect("few units");
    Load {
        clients: calls / 4,
        calls_per_second: f64::from(calls),
        lasts: Duration::from_secs(SECONDS),
        // Half of it is asked for.
        limit: Limit::per_minute("rpm", i64::from(calls) * 120).expect("a limit"),
        shards: u32::try_from(shards).expect("few shards"),
        partitions: Limits { units_per_second: units, burst: units, ..Limits::default() },
        ..becoming_hot()
    }
}
