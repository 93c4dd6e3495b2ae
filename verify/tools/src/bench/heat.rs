//! One hot bucket of many clients in the model of partitions, on virtual time: how it grows, what
//! clients get that compete for its tokens, and what so many shards do.

use std::time::Duration;

use weirgate::Limit;
use weirgate_testkit::heat::{Arrivals, Load, Report, run};
use weirgate_testkit::{Counts, Limits};

use super::harness::on_virtual_time;
use super::row::Row;
use crate::number::Unit;
use crate::number::count;
use crate::scaling::facts::{MAX_SHARDS, PARTITION_WRITE_UNITS, SHARD_WRITES};

/// Returns the rows of a bucket that becomes hot, of one that is short of tokens, and of one that
/// has enough.
///
/// # Panics
/// If the functions fail.
pub async fn rows() -> Vec<Row> {
    let (hot, contended, below) = on_virtual_time(|| async {
        (
            run(&becoming_hot(), 3).await,
            run(&contended(), 0).await,
            run(&below(), 0).await,
        )
    })
    .await;
    let mut rows = of_hot(&hot);
    rows.extend(of_contended(&contended));
    let what = "100 clients on a fifth of 1,000/s: writes per granted";
    let writes = writes_per_granted(&below);
    rows.push(Row::new("heat/below", what, Unit::Count, &[writes]).at_most(1.1));
    rows
}

/// Shards that a bucket is measured with.
pub fn shard_counts() -> impl Iterator<Item = u64> {
    (0..=MAX_SHARDS.ilog2()).map(|doubling| 1 << doubling)
}

/// Returns the rows of buckets of 1 to 64 shards, each with as many calls as a shard is planned
/// with, on smaller partitions.
///
/// # Panics
/// If the functions fail.
pub async fn rows_of_shards() -> Vec<Row> {
    let mut rows = vec![];
    for shards in shard_counts() {
        let report = on_virtual_time(move || async move { run(&planned(shards), 0).await }).await;
        rows.extend(of_planned(shards, &report));
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
        partitions: Limits {
            units_per_second: units,
            burst: units,
            ..Limits::default()
        },
        ..becoming_hot()
    }
}

fn of_hot(report: &Report) -> Vec<Row> {
    let what = "10,000 acquires/s of 1,000 clients on one bucket";
    let row = |id: &str, text: &str, unit, value| {
        Row::new(
            format!("heat/{id}"),
            format!("{what}: {text}"),
            unit,
            &[value],
        )
    };
    let until = report.seconds.len();
    let throttled = |from, to| report.throttled_share(from, to) * 100.0;
    let at_rest = report.shards.last().copied().unwrap_or_default();
    let grown = report.shards.iter().position(|shards| *shards == at_rest);
    let grown = u64::try_from(grown.unwrap_or_default() + 1).expect("few seconds");
    let cooled = report.cooled.last().copied().unwrap_or_default();
    vec![
        row(
            "throttled",
            "writes throttled in second 15",
            Unit::Percent,
            throttled(14, 15),
        )
        .at_most(5.0)
        .within(20.0),
        row(
            "throttled-after",
            "writes throttled after",
            Unit::Percent,
            throttled(15, until),
        )
        .at_most(0.5)
        .within(20.0),
        row("shards", "shards at rest", Unit::Count, f64::from(at_rest)).between(10.0, 20.0),
        row(
            "grown",
            "second in which it first has so many",
            Unit::Count,
            count(grown),
        )
        .within(20.0),
        row("granted", "granted", Unit::Count, count(report.granted)).more_is_better(),
        row(
            "refused",
            "refused",
            Unit::Count,
            count(report.denied + report.failed),
        )
        .within(20.0),
        row(
            "counted",
            "counted for each that was granted",
            Unit::Times,
            {
                // As many counted as granted, or it is not 1.
                count(report.counted.0) / count(report.granted)
            },
        )
        .between(1.0, 1.0)
        .within(0.0),
        row(
            "cooled",
            "shards after three runs of the reconciler",
            Unit::Count,
            f64::from(cooled),
        )
        .between(1.0, 1.0),
    ]
}

fn of_contended(report: &Report) -> [Row; 2] {
    let what = "64 clients on 8 shards, twice as much asked";
    let entitled = u64::try_from(report.entitled.0).expect("there is some");
    let share = count(report.granted) * 1000.0 / count(entitled) * 100.0;
    let writes = writes_per_granted(report);
    [
        Row::new(
            "heat/share",
            format!("{what}: granted of the entitled"),
            Unit::Percent,
            &[share],
        )
        .between(98.0, 100.0)
        .more_is_better(),
        Row::new(
            "heat/writes",
            format!("{what}: writes per granted"),
            Unit::Count,
            &[writes],
        )
        .within(5.0),
    ]
}

fn of_planned(shards: u64, report: &Report) -> [Row; 3] {
    let asked = count(shards * SHARD_WRITES / SCALE);
    let what = format!(
        "{shards} shard{}, {asked} acquires/s of callers alone",
        if shards == 1 { "" } else { "s" }
    );
    let counted = report.seconds.iter().skip(1);
    let all = counted.fold(Counts::default(), |all, second| Counts {
        writes: all.writes + second.writes,
        throttled: all.throttled + second.throttled,
        ..all
    });
    let applied = count(all.writes - all.throttled) / count(SECONDS - 1);
    let row = |id: &str, text: &str, unit, value: f64| {
        Row::new(
            format!("shards/{shards}/{id}"),
            format!("{what}: {text}"),
            unit,
            &[value],
        )
    };
    let granted = count(report.granted) / count(SECONDS);
    [
        row("granted", "granted", Unit::PerSecond, granted)
            .at_least(0.98 * asked)
            .within(2.0),
        row("writes", "writes", Unit::PerSecond, applied).shown(),
        row(
            "throttled",
            "writes throttled",
            Unit::Percent,
            all.throttled_share() * 100.0,
        )
        .at_most(1.0)
        .within(20.0),
    ]
}
